"""POL011: a clip that acts on nearly everything, from far above it."""

import math

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.always_clipped_grad import AlwaysClippedGrad
from tocsin.schemas.event import BaseEvent

RULE = AlwaysClippedGrad()


def norms(*values: float | None, clip: float | None = 1.0) -> list[list[BaseEvent]]:
    return [[step(grad_norm=value, grad_clip=clip)] for value in values]


def test_fires_when_fifty_gradients_are_far_above_the_clip() -> None:
    found = diagnostics(RULE, [[started(grad_clip=1.0)], *norms(*[6.0] * 60)])
    assert [(record.reason, record.last.step, record.severity) for record in found] == [("fired", 50, "info")]
    assert found[0].summary == "100% of 50 gradients were clipped; the median is 6.0 times the clip"
    assert found[0].actions[0].title == "raise grad_clip 1 to 2"


def test_a_quarter_of_clipped_gradients_is_healthy() -> None:
    assert transitions(RULE, norms(*[20.0, 0.5, 0.5, 0.5] * 30)) == []


def test_a_clip_that_is_only_just_exceeded_is_no_finding() -> None:
    assert transitions(RULE, norms(*[1.5] * 100)) == []
    assert transitions(RULE, norms(*[5.0] * 100)) == []


@pytest.mark.parametrize(("below", "fires"), [(5, False), (4, True)])
def test_nine_in_ten_do_not_fire(below: int, fires: bool) -> None:
    assert bool(transitions(RULE, norms(*[6.0] * (50 - below), *[0.5] * below))) is fires


def test_resolves_below_seven_in_ten() -> None:
    assert [reason for _, reason in transitions(RULE, norms(*[6.0] * 60, *[0.5] * 40))] == ["fired", "resolved"]
    assert [reason for _, reason in transitions(RULE, norms(*[6.0] * 60, *[6.0, 6.0, 6.0, 0.5] * 20))] == ["fired"]


def test_a_norm_that_is_not_a_number_is_left_out() -> None:
    assert transitions(RULE, norms(*[6.0, math.nan] * 49)) == []
    assert transitions(RULE, norms(*[6.0, math.nan] * 50)) == [(99, "fired")]


def test_says_why_it_is_not_evaluated() -> None:
    missing = ("missing_input", "steps report no `grad_norm` or no `grad_clip`")
    assert unevaluated(RULE, norms(None, None)) == missing
    assert unevaluated(RULE, norms(6.0, 6.0, clip=None)) == missing
    assert unevaluated(RULE, norms(*[1.0] * 49)) == ("warm_up", "fewer than 50 gradient norms were seen")
