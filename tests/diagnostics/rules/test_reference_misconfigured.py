"""POL007: policy and reference begin as one model and do not stay one."""

import math

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.reference_misconfigured import ReferenceMisconfigured
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunResumed

RULE = ReferenceMisconfigured()
BEGIN: list[list[BaseEvent]] = [[started(kl_beta=0.001)]]
RESUMED = RunResumed(checkpoint_step=1, rewound_from_step=1, knobs={}, devices=[], versions={})


def steps(*values: float | None, **fields: object) -> list[list[BaseEvent]]:
    return [[step(kl_ref=value, **fields)] for value in values]


def test_fires_at_the_first_step_of_a_wrong_reference_and_stays() -> None:
    found = diagnostics(RULE, [*BEGIN, *steps(0.3, *[0.01] * 60)])
    assert [(record.reason, record.last.step) for record in found] == [("fired", 1)]
    assert found[0].summary == "KL to the reference was 0.3 nats before the first update, where it is 0 by definition"
    assert found[0].actions[0].applicability == "advisory"


@pytest.mark.parametrize(("first", "fires"), [(0.001, False), (0.0011, True)])
def test_a_thousandth_of_a_nat_is_rounding(first: float, fires: bool) -> None:
    assert bool(transitions(RULE, [*BEGIN, *steps(first, 0.05)])) is fires


def test_later_steps_may_be_as_far_as_they_like() -> None:
    assert transitions(RULE, [*BEGIN, *steps(0.0, *[0.5] * 40)]) == []


def test_a_step_without_an_update_leaves_the_beginning_open() -> None:
    skipped = steps(0.0, outcome="nonfinite", update_ratio=None)
    assert transitions(RULE, [*BEGIN, *skipped, *steps(0.3)]) == [(2, "fired")]


def test_a_resumed_policy_differs_from_its_reference_by_right() -> None:
    assert transitions(RULE, [*BEGIN, [RESUMED], *steps(*[0.4] * 30)]) == []
    found = transitions(RULE, [*BEGIN, *steps(0.4, 0.4), [RESUMED], *steps(0.4)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_a_reference_that_moves_along_is_named_after_twenty_updates() -> None:
    found = diagnostics(RULE, [*BEGIN, *steps(*[0.0] * 20)])
    assert [(record.reason, record.last.step) for record in found] == [("fired", 20)]
    assert found[0].causes[0].text == "policy and reference share their weights"
    assert transitions(RULE, [*BEGIN, *steps(*[0.0] * 19, 1e-9, *[0.0] * 19)]) == []
    ended = transitions(RULE, [*BEGIN, *steps(*[0.0] * 25, 1e-4)])
    assert [reason for _, reason in ended] == ["fired", "resolved"]


def test_a_learner_that_does_not_move_stays_where_its_reference_is() -> None:
    assert transitions(RULE, [*BEGIN, *steps(*[0.0] * 60, update_ratio=0.0)]) == []
    assert transitions(RULE, [*BEGIN, *steps(*[0.0] * 60, update_ratio=1e-8)]) == []


def test_a_first_value_that_is_not_a_number_is_no_distance() -> None:
    assert transitions(RULE, [*BEGIN, *steps(math.nan, 0.2, 0.2)]) == []


def test_says_why_it_is_not_evaluated() -> None:
    none = ("not_applicable", "the run has no reference model: `kl_beta` was 0 at launch")
    assert unevaluated(RULE, [[started()], *steps(None, None)]) == none
    assert unevaluated(RULE, [*BEGIN, *steps(None, None)]) == ("missing_input", "steps report no `kl_ref`")
