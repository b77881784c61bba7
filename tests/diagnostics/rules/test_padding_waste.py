"""SYS009: a mean over steps, apart from a handful of rows."""

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.padding_waste import PaddingWaste
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import MicrobatchStats

RULE = PaddingWaste()


def padded(share: float, *, n: int, groups_trained: int = 12, outcome: str = "updated") -> list[list[BaseEvent]]:
    cut = MicrobatchStats(num=2, token_budget=4096, max_tokens=3000, padded_frac=share)
    return [[step(microbatches=cut, groups_trained=groups_trained, outcome=outcome)] for _ in range(n)]


def test_says_how_much_is_padding_and_proposes_a_budget_that_cuts_the_largest_batch() -> None:
    (found,) = diagnostics(RULE, [[started(microbatch_tokens=4096)], *padded(0.4, n=30)])
    assert (found.severity, found.kind, found.last.step) == ("info", "efficiency", 14)
    assert found.summary == (
        "40% of the tokens in forward passes were padding over 10 steps, in 2 micro-batches of up to 3000 tokens"
    )
    action = found.actions[0]
    assert action.patches[0].to is not None
    assert action.patches[0].to < 3000
    assert action.verify is not None
    assert action.verify.metric == "step_completed.microbatches.padded_frac"


def test_exactly_three_tenths_is_no_finding() -> None:
    assert transitions(RULE, padded(0.3, n=100)) == []
    assert transitions(RULE, padded(0.31, n=100)) == [(14, "fired")]


def test_a_handful_of_rows_is_left_alone() -> None:
    assert transitions(RULE, [[started(group_size=2)], *padded(0.6, n=60, groups_trained=2)]) == []


def test_single_steps_do_not_decide() -> None:
    assert transitions(RULE, [*padded(0.1, n=20), *padded(0.9, n=1), *padded(0.1, n=20)]) == []


def test_resolves_when_batches_are_narrower() -> None:
    found = transitions(RULE, [*padded(0.4, n=30), *padded(0.1, n=40)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_says_what_is_missing() -> None:
    missing = ("missing_input", "no step says how much of its forward passes was padding")
    assert unevaluated(RULE, [[step()] for _ in range(30)]) == missing
    assert unevaluated(RULE, padded(0.9, n=30, outcome="no_signal")) == missing
    assert unevaluated(RULE, padded(0.9, n=9)) == ("warm_up", "fewer than 10 steps with an update were seen")


@pytest.mark.parametrize("clear", [0.3, 0.4, float("nan")])
def test_limits_must_rise(clear: float) -> None:
    with pytest.raises(ValueError, match="SYS009"):
        PaddingWaste(clear=clear)


def test_half_of_the_tokens_over_fifty_steps_is_worth_a_warning() -> None:
    found = diagnostics(RULE, padded(0.5, n=80))
    assert [(record.reason, record.severity) for record in found] == [("fired", "info"), ("escalated", "warning")]
    assert [record.severity for record in diagnostics(RULE, padded(0.49, n=80))] == ["info"]
