"""POL005: ratios of exactly one while the learner moves."""

import math

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, synced, transitions, unevaluated
from tocsin.diagnostics.rules.clip_zero_off_policy import ClipZeroOffPolicy
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import RatioMoments

RULE = ClipZeroOffPolicy()


def steps(square: float, *, n: int, moved: float = 0.1, staleness: int = 1, mean: float = 1.0) -> list[list[BaseEvent]]:
    ratio = [RatioMoments(staleness=staleness, tokens=500, mean=mean, mean_square=square, max=2)]
    return [[step(ratio=ratio), synced(0.0, moved)] for _ in range(n)]


def test_fires_at_the_twentieth_update_that_is_exactly_one() -> None:
    found = diagnostics(RULE, [[started(max_staleness=1)], *steps(1.01, n=5), *steps(1.0, n=30)])
    assert [(record.reason, record.last.step) for record in found] == [("fired", 25)]
    assert found[0].summary == (
        "Ratios of older tokens were exactly 1 in 20 updates since step 6; the learner moved 1.9 nats"
    )
    assert found[0].evidence[1].observed == pytest.approx(0.1)


def test_a_learner_that_does_not_move_has_ratios_of_one_by_right() -> None:
    assert transitions(RULE, steps(1.0, n=60, moved=0.0)) == []
    assert transitions(RULE, steps(1.0, n=60, moved=9e-4)) == []


def test_tokens_of_the_present_weights_have_ratios_of_one_by_right() -> None:
    found = unevaluated(RULE, [[started(max_staleness=0)], *steps(1.0, n=60, staleness=0)])
    assert found == ("not_applicable", "no data are older than the weights: `max_staleness` is 0")


def test_any_older_tokens_off_one_count() -> None:
    young = RatioMoments(staleness=1, tokens=500, mean=1, mean_square=1, max=1)
    old = RatioMoments(staleness=2, tokens=500, mean=1, mean_square=1.01, max=2)
    assert transitions(RULE, [[step(ratio=[old, young]), synced()] for _ in range(60)]) == []


@pytest.mark.parametrize(("square", "fires"), [(1 + 0.9e-6, True), (1 + 1.1e-6, False)])
def test_rounding_is_allowed_and_no_more(square: float, fires: bool) -> None:
    assert bool(transitions(RULE, steps(square, n=30))) is fires


def test_steps_without_an_update_neither_count_nor_break_the_row() -> None:
    idle: list[list[BaseEvent]] = [[step(outcome="no_signal", update_ratio=None)] for _ in range(10)]
    assert transitions(RULE, [*steps(1.0, n=10), *idle, *steps(1.0, n=10)]) == [(30, "fired")]


def test_resolves_at_the_first_other_ratio() -> None:
    assert transitions(RULE, [*steps(1.0, n=25), *steps(1.02, n=5)]) == [(20, "fired"), (26, "resolved")]


def test_ratios_that_are_not_numbers_say_nothing() -> None:
    assert transitions(RULE, steps(math.nan, n=40, mean=math.nan)) == []


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, [[step()] for _ in range(10)]) == ("missing_input", "steps report no `ratio`")
    first = unevaluated(RULE, [[started(max_staleness=1)], *steps(1.0, n=1, staleness=0)])
    assert first == ("warm_up", "no tokens of older weights were trained on yet")
