"""POL013: nothing moves although the rate is what it was set to."""

import math

import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, synced, transitions, unevaluated
from tocsin.diagnostics.rules.lr_too_low import LrTooLow
from tocsin.schemas.event import BaseEvent

RULE = LrTooLow()
MIXED = [[1.0, 0.0, 1.0, 0.0]] * 16
SAME = [[1.0] * 4] * 16
BEGIN: list[list[BaseEvent]] = [[started(learning_rate=1e-9)]]


def steps(
    ratio: float | None,
    moved: float,
    *,
    n: int,
    rewards: list[list[float]] = MIXED,
    rate: float = 1e-9,
    **fields: object,
) -> list[list[BaseEvent]]:
    return [
        [batch(rewards), step(update_ratio=ratio, learning_rate=rate, **fields), synced(0.0, moved)] for _ in range(n)
    ]


def test_names_a_rate_that_changes_nothing() -> None:
    found = diagnostics(RULE, [*BEGIN, *steps(1e-9, 1e-7, n=60)])
    assert [(record.reason, record.last.step, record.severity) for record in found] == [("fired", 54, "warning")]
    assert found[0].summary == "50 updates of 1e-09 of the parameters' norm moved the learner by 4.9e-06 nats in sum"
    assert found[0].actions[0].patches[0].to == 2e-9
    assert found[0].actions[0].verify is not None
    assert found[0].actions[0].verify.threshold == pytest.approx(1.5e-9), "what twice the rate can reach"


def test_a_learner_that_moves_on_the_probe_is_left_alone() -> None:
    assert transitions(RULE, [*BEGIN, *steps(1e-9, 2e-3, n=100)]) == []


def test_updates_of_some_size_are_left_alone() -> None:
    assert transitions(RULE, [*BEGIN, *steps(5e-6, 0.0, n=100)]) == []


def test_warm_up_and_decay_are_small_by_design() -> None:
    begun: list[list[BaseEvent]] = [[started(learning_rate=1e-6)]]
    assert transitions(RULE, [*begun, *steps(1e-9, 0.0, n=100, rate=4e-7)]) == []
    assert transitions(RULE, [*begun, *steps(1e-3, 0.1, n=60, rate=1e-6), *steps(1e-9, 0.0, n=100, rate=4e-7)]) == []


def test_groups_that_teach_nothing_are_another_matter() -> None:
    assert transitions(RULE, [*BEGIN, *steps(1e-9, 0.0, n=100, rewards=SAME)]) == []


def test_zeros_are_left_to_their_own_rule() -> None:
    assert transitions(RULE, [*BEGIN, *steps(0.0, 0.0, n=100)]) == []
    assert transitions(RULE, [*BEGIN, *steps(1e-9, 0.0, n=100, grad_norm=0.0)]) == []


def test_a_reward_that_rises_is_learning() -> None:
    better = [[1.0, 1.0, 1.0, 0.0]] * 16
    assert (
        transitions(
            RULE, [*BEGIN, *steps(1e-3, 0.1, n=40), *steps(1e-9, 0.0, n=44), *steps(1e-9, 0.0, n=4, rewards=better)]
        )
        == []
    )


@pytest.mark.parametrize(("ratio", "fires"), [(5e-6, False), (4.9e-6, True)])
def test_five_millionths_are_the_limit(ratio: float, fires: bool) -> None:
    assert bool(transitions(RULE, [*BEGIN, *steps(ratio, 0.0, n=60)])) is fires


def test_resolves_when_the_learner_moves() -> None:
    found = transitions(RULE, [*BEGIN, *steps(1e-9, 0.0, n=60), *steps(1e-4, 0.02, n=10)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_a_size_that_is_not_a_number_is_no_small_one() -> None:
    assert transitions(RULE, [*BEGIN, *steps(math.nan, 0.0, n=100)]) == []


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, steps(None, 0.0, n=60)) == ("missing_input", "steps report no `update_ratio`")
    short = ("warm_up", "fewer than 50 updates were seen")
    assert unevaluated(RULE, [*BEGIN, *steps(1e-9, 0.0, n=49)]) == short
    unprobed: list[list[BaseEvent]] = [[step(update_ratio=1e-9)] for _ in range(60)]
    assert unevaluated(RULE, unprobed) == ("missing_input", "no weight sync says how far the learner moved")
