"""GEN015: who makes the learner wait, apart from generation-bound and trainer-bound runs."""

import math

import pytest

from tests.diagnostics.scenario import diagnostics, run, started, step, times, transitions, unevaluated, waited
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rules.generator_backpressure import GeneratorBackpressure
from tocsin.diagnostics.rules.scoring_bound import ScoringBound
from tocsin.diagnostics.rules.trainer_starved import TrainerStarved
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent

RULE = ScoringBound()


def waits(
    learner: float, sampler: float, *, n: int, generate: float = 0.1, score: float = 0.8
) -> list[list[BaseEvent]]:
    """Steps of a second."""
    sample = waited(learner, sampler, generate_s=times(generate), score_s=times(score))
    return [[step(), sample] for _ in range(n)]


def codes(steps: list[list[BaseEvent]]) -> list[str]:
    """What the three rules about waiting say."""
    engine = Engine([RULE, TrainerStarved(), GeneratorBackpressure()])
    return [record.code for record in run(engine, steps) if isinstance(record, Diagnostic) and record.reason == "fired"]


def test_warns_when_rewards_take_longer_than_tokens_and_the_learner_waits() -> None:
    (found,) = diagnostics(RULE, [[started(max_staleness=1)], *waits(0.7, 0.4, n=60)])
    assert (found.severity, found.kind, found.last.step) == ("warning", "efficiency", 42)
    assert found.summary == (
        "The learner waited 70% of the time over 30 steps; scoring a group takes 0.8 s, generating it 0.1 s"
    )
    assert [action.title for action in found.actions] == [
        "raise reward_workers.num at the next start, or make the function faster",
        "raise max_staleness 1 to 2",
    ]


def test_the_three_bounds_are_told_apart() -> None:
    assert codes(waits(0.7, 0.1, n=60, generate=0.1, score=0.8)) == ["GEN015"]
    assert codes(waits(0.7, 0.1, n=60, generate=0.8, score=0.1)) == ["OFF016"]
    assert codes(waits(0.1, 0.8, n=60, generate=0.1, score=0.8)) == ["OFF017"]


def test_a_learner_that_hardly_waits_is_not_held_up_by_slow_scoring() -> None:
    assert transitions(RULE, waits(0.3, 0.1, n=100)) == []


def test_scoring_that_is_short_beside_a_step_holds_up_nothing() -> None:
    assert transitions(RULE, waits(0.7, 0.1, n=60, generate=0.01, score=0.19)) == []
    assert codes(waits(0.7, 0.1, n=60, generate=0.01, score=0.19)) == ["OFF016"]


def test_equal_times_are_a_matter_of_generating() -> None:
    assert codes(waits(0.7, 0.1, n=60, generate=0.5, score=0.5)) == ["OFF016"]


def test_taking_turns_is_info() -> None:
    (found,) = diagnostics(RULE, [[started(max_staleness=0)], *waits(0.7, 0.4, n=60)])
    assert found.severity == "info"


def test_resolves_when_the_wait_is_over_and_when_generating_takes_longer() -> None:
    slow = waits(0.7, 0.1, n=60)
    assert [reason for _, reason in transitions(RULE, [*slow, *waits(0.1, 0.1, n=60)])] == ["fired", "resolved"]
    turned = transitions(RULE, [*slow, *waits(0.7, 0.1, n=60, generate=0.9, score=0.1)])
    assert [reason for _, reason in turned] == ["fired", "resolved"]


def test_says_what_is_missing() -> None:
    untimed: list[list[BaseEvent]] = [[step(), waited(0.7, 0.1)] for _ in range(60)]
    assert unevaluated(RULE, untimed) == ("missing_input", "no sample says how long generating and scoring take")
    assert codes(untimed) == ["OFF016"]
    few = waits(0.7, 0.1, n=20)
    assert unevaluated(RULE, few) == ("warm_up", "fewer than 30 steps with an update were seen")


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_left_out(score: float) -> None:
    found = unevaluated(RULE, waits(0.7, 0.1, n=60, score=score))
    assert found == ("missing_input", "no sample says how long generating and scoring take")
