"""POL010: several spikes above the run's own norms, and what they did."""

import math

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.grad_spike import GradSpike
from tocsin.schemas.event import BaseEvent

RULE = GradSpike()
GOOD = [[1.0, 1.0, 1.0, 0.0]] * 64
BAD = [[0.0] * 4] * 64


def norms(*values: float | None, **fields: object) -> list[list[BaseEvent]]:
    return [[step(grad_norm=value, grad_clip=1.0, **fields)] for value in values]


def calm(n: int) -> list[list[BaseEvent]]:
    return norms(*(0.4 + 0.2 * (i % 3) for i in range(n)))


def answer(steps: list[list[BaseEvent]]) -> Finding:
    features = Features()
    for event in (event for group in steps for event in group):
        features.update(event)
    found = RULE.check(features, is_open=False)
    assert isinstance(found, Finding)
    return found


def test_fires_at_the_second_spike_in_five_steps() -> None:
    run = [[started(grad_clip=1.0, learning_rate=1e-4)], *calm(40), *norms(9.0, 0.5, 12.0)]
    found = diagnostics(RULE, run)
    assert [(record.last.step, record.reason, record.severity) for record in found] == [(43, "fired", "info")]
    assert found[0].summary == "2 of the last 5 gradient norms exceeded 6 (largest 12, usually 0.6)"
    assert [action.id.rsplit("/", 1)[1] for action in found[0].actions] == [
        "inspect-batch",
        "lower-learning-rate",
        "lower-grad-clip",
    ]


def test_one_spike_says_nothing() -> None:
    assert transitions(RULE, [*calm(40), *norms(500.0), *calm(20)]) == []


def test_norms_that_grow_slowly_are_no_spikes() -> None:
    assert transitions(RULE, norms(*(0.1 * 1.05**i for i in range(120)))) == []


def test_spikes_below_the_clip_change_nothing() -> None:
    assert transitions(RULE, [*norms(*[0.01] * 40), *norms(0.9, 0.9, 0.9)]) == []


def test_exactly_ten_times_the_median_is_no_spike() -> None:
    assert transitions(RULE, [*norms(*[0.5] * 40), *norms(5.0, 5.0)]) == []
    assert transitions(RULE, [*norms(*[0.5] * 40), *norms(5.01, 5.01)]) == [(42, "fired")]


def test_an_effect_makes_it_a_warning_and_a_collapse_critical() -> None:
    assert answer([*calm(40), *norms(9.0, 9.0)]).severity == "info"
    assert answer([*calm(40), *norms(9.0, 9.0, ess_frac=0.3)]).severity == "warning"
    collapsed = [[batch(BAD), step()] for _ in range(3)]
    learned = [[batch(GOOD), step(grad_norm=0.5)] for _ in range(20)]
    assert answer([*learned, *calm(30), *collapsed, *norms(90.0, 90.0)]).severity == "critical"


def test_resolves_when_the_spikes_are_out_of_the_window() -> None:
    found = transitions(RULE, [*calm(40), *norms(9.0, 9.0), *calm(20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_steps_without_a_gradient_and_zeros_are_left_out() -> None:
    nothing: list[list[BaseEvent]] = [[step(outcome="no_signal", grad_norm=None)] for _ in range(30)]
    assert transitions(RULE, [*calm(40), *nothing, *norms(0.0, 0.0), *calm(20)]) == []
    assert unevaluated(RULE, [*calm(40), *nothing]) is None


def test_a_norm_that_is_not_a_number_is_left_to_the_rule_that_names_it() -> None:
    assert transitions(RULE, [*calm(40), *norms(math.nan, math.inf, math.nan)]) == []


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, norms(*[None] * 10)) == ("missing_input", "steps report no `grad_norm`")
    assert unevaluated(RULE, calm(10)) == ("warm_up", "fewer than 15 gradient norms were seen")
    found = transitions(RULE, [*calm(40), *norms(9.0, 9.0), *norms(*[None] * 12)])
    assert [reason for _, reason in found] == ["fired", "data_lost"]
