"""POL012: zeros where rewards differ, and never where they do not."""

import math

import pytest

from tests.diagnostics.scenario import batch, diagnostics, step, transitions, unevaluated
from tocsin.diagnostics.rules.zero_gradient import ZeroGradient
from tocsin.schemas.event import BaseEvent

RULE = ZeroGradient()
MIXED = [[1.0, 0.0, 1.0, 0.0]] * 8
SAME = [[1.0] * 4] * 8


def steps(norm: float | None, *, n: int, rewards: list[list[float]] = MIXED, **fields: object) -> list[list[BaseEvent]]:
    return [[batch(rewards), step(grad_norm=norm, **fields)] for _ in range(n)]


def test_fires_at_the_fifth_update_without_a_gradient() -> None:
    found = diagnostics(RULE, [*steps(0.5, n=10), *steps(0.0, n=8)])
    assert [(record.reason, record.last.step) for record in found] == [("fired", 15)]
    assert found[0].summary == (
        "The gradient was exactly 0 in 5 updates in a row; 8 of 8 groups of the last batch had reward spread"
    )
    assert found[0].actions[0].applicability == "advisory"


def test_moments_that_still_move_the_weights_do_not_hide_it() -> None:
    assert transitions(RULE, steps(0.0, n=5, update_ratio=1e-3)) == [(5, "fired")]


def test_fires_when_ten_updates_change_nothing() -> None:
    found = diagnostics(RULE, [*steps(0.5, n=5), *steps(0.5, n=10, update_ratio=0.0)])
    assert [(record.reason, record.last.step) for record in found] == [("fired", 15)]
    assert found[0].summary.startswith("The change of the parameters was exactly 0 in 10 updates in a row")


def test_groups_without_spread_have_no_gradient_by_right() -> None:
    assert transitions(RULE, steps(0.0, n=60, rewards=SAME)) == []


def test_steps_without_an_update_neither_count_nor_break_the_row() -> None:
    idle = steps(None, n=20, rewards=SAME, outcome="no_signal", update_ratio=None)
    assert transitions(RULE, idle) == []
    assert transitions(RULE, [*steps(0.0, n=4), *idle, *steps(0.0, n=1)]) == [(25, "fired")]


def test_a_rate_of_zero_changes_nothing_by_right() -> None:
    assert transitions(RULE, steps(0.5, n=60, update_ratio=0.0, learning_rate=0.0)) == []


@pytest.mark.parametrize(("norm", "ratio"), [(1e-30, 1e-4), (0.5, 1e-12)])
def test_next_to_nothing_is_not_zero(norm: float, ratio: float) -> None:
    assert transitions(RULE, steps(norm, n=60, update_ratio=ratio)) == []


def test_resolves_at_the_first_gradient() -> None:
    assert transitions(RULE, [*steps(0.0, n=8), *steps(0.5, n=2)]) == [(5, "fired"), (9, "resolved")]


def test_a_norm_that_is_not_a_number_is_not_zero() -> None:
    assert transitions(RULE, [*steps(0.0, n=4), *steps(math.nan, n=20)]) == []


def test_says_that_its_input_is_missing() -> None:
    missing = ("missing_input", "steps report neither `grad_norm` nor `update_ratio`")
    assert unevaluated(RULE, steps(None, n=10, update_ratio=None)) == missing
    assert unevaluated(RULE, steps(None, n=10)) is None
