"""POL003: a pooled share of clipped tokens, for token-level clips only."""

import math

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.clip_fraction_high import ClipFractionHigh

RULE = ClipFractionHigh()


def clipped(low: float | None, high: float | None = 0.0, *, n: int = 1, **fields: object) -> list[list]:  # type: ignore[type-arg]
    return [[step(clip_low_frac=low, clip_high_frac=high, **fields)] for _ in range(n)]


def test_fires_after_five_evaluations_over_the_limit() -> None:
    assert transitions(RULE, clipped(0.1, 0.05, n=30)) == [(9, "fired")]


def test_is_info_until_its_fault_was_planted_and_says_both_sides() -> None:
    found = diagnostics(RULE, [[started(learning_rate=1e-4, max_staleness=2)], *clipped(0.4, 0.1, n=12)])
    assert found[0].severity == "info"
    assert found[0].summary == "50.0% of trained tokens were clipped over steps 1-9 (40.0% low, 10.0% high)"
    assert [action.title for action in found[0].actions[:2]] == [
        "lower learning_rate 0.0001 to 5e-05",
        "lower max_staleness 2 to 1",
    ]


def test_proposes_no_staleness_that_the_sync_interval_forbids() -> None:
    run = [[started(max_staleness=2, weight_sync_every=3)], *clipped(0.4, n=12)]
    assert [action.id.rsplit("/", 1)[1] for action in diagnostics(RULE, run)[0].actions] == [
        "lower-learning-rate",
        "compare-ratio-buckets",
    ]


def test_one_spike_is_not_a_clip_fraction_that_is_high() -> None:
    assert transitions(RULE, [*clipped(0.0, n=10), *clipped(0.6), *clipped(0.0, n=30)]) == []


def test_exactly_the_limit_does_not_fire() -> None:
    assert transitions(RULE, clipped(0.125, n=30)) == [(9, "fired")]
    assert transitions(ClipFractionHigh(fire=0.125), clipped(0.125, n=30)) == []


def test_resolves_below_the_clear_threshold_only() -> None:
    run = [*clipped(0.2, n=15), *clipped(0.08, n=40), *clipped(0.01, n=30)]
    found = transitions(RULE, run)
    assert [reason for _, reason in found] == ["fired", "resolved"]
    assert found[1][0] > 55


@pytest.mark.parametrize("variant", ["gspo", "cispo"])
def test_does_not_judge_other_clips(variant: str) -> None:
    answer = unevaluated(RULE, [[started(loss_variant=variant)], *clipped(0.5, n=20)])
    assert answer == ("not_applicable", "the objective has no token-level clip")


def test_says_that_its_input_is_missing_and_keeps_what_was_open() -> None:
    assert unevaluated(RULE, clipped(None, None, n=20)) == (
        "missing_input",
        "steps report no `clip_low_frac` and `clip_high_frac`",
    )
    found = transitions(RULE, [*clipped(0.2, n=15), *clipped(None, None, n=40)])
    assert [reason for _, reason in found] == ["fired", "data_lost"]


def test_a_nan_is_left_to_the_rule_that_names_it() -> None:
    assert transitions(RULE, clipped(math.nan, n=30, outcome="nonfinite")) == []


def test_steps_without_signal_are_no_missing_input() -> None:
    idle = clipped(None, None, n=20, outcome="no_signal", tokens_trained=0)
    assert unevaluated(RULE, idle) is None
