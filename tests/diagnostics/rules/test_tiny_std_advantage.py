"""RWD013: noise that is divided by itself."""

import numpy as np

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.tiny_std_advantage import TinyStdAdvantage
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.setup import RunSetup

RULE = TinyStdAdvantage()
MIXED = [1.0, 0.0] * 4
NOISE = [0.999, 1.0, 1.001, 1.0] * 2
SOLVED = [1.0] * 8


def launched(scales: bool | None = True) -> list[BaseEvent]:
    return [started(setup=RunSetup(scale_advantages=scales, zero_spread_tolerance=1e-6))]


def steps(*groups: tuple[list[float], int], n: int = 12) -> list[list[BaseEvent]]:
    """`n` steps of so many groups of each kind."""
    rewards = [group for group, count in groups for _ in range(count)]
    return [[batch(rewards), step()] for _ in range(n)]


def test_names_noise_on_groups_that_should_teach_nothing() -> None:
    found = diagnostics(RULE, [launched(), *steps((MIXED, 8), (SOLVED, 8)), *steps((MIXED, 8), (NOISE, 8))])
    assert [record.reason for record in found] == ["fired"]
    assert found[0].summary == (
        "32 of 64 groups with reward spread since step 12 have a standard deviation below 1% of the range"
    )
    assert found[0].actions[0].title.endswith("ten times the noise, now 1e-06, at the next start")


def test_groups_without_spread_and_continuous_rewards_are_left_alone() -> None:
    assert transitions(RULE, [launched(), *steps((MIXED, 2), (SOLVED, 14), n=40)]) == []
    rng = np.random.default_rng(0)
    continuous: list[list[BaseEvent]] = [[batch(rng.normal(0.5, 0.05, (16, 8)).tolist()), step()] for _ in range(40)]
    assert transitions(RULE, [launched(), *continuous]) == []


def test_exactly_a_quarter_fires() -> None:
    assert [r for _, r in transitions(RULE, [launched(), *steps((MIXED, 12), (NOISE, 4))])] == ["fired"]
    assert transitions(RULE, [launched(), *steps((MIXED, 13), (NOISE, 3))]) == []


def test_resolves_when_the_noise_is_gone() -> None:
    run = [launched(), *steps((MIXED, 8), (NOISE, 8)), *steps((MIXED, 8), (SOLVED, 8), n=30)]
    assert [reason for _, reason in transitions(RULE, run)] == ["fired", "resolved"]


def test_is_judged_only_where_advantages_are_scaled() -> None:
    noisy = steps((MIXED, 8), (NOISE, 8))
    assert unevaluated(RULE, [launched(False), *noisy]) == (
        "not_applicable",
        "advantages are not divided by the standard deviation",
    )
    assert unevaluated(RULE, noisy) == ("missing_input", "the run does not state whether advantages are scaled")
    assert unevaluated(RULE, [launched(), *noisy[:3]])[0] == "warm_up"  # type: ignore[index]


def test_deviations_that_are_not_numbers_are_not_tiny() -> None:
    run: list[list[BaseEvent]] = [[batch([MIXED] * 16, reward_std=[float("nan")] * 16), step()] for _ in range(20)]
    assert transitions(RULE, [launched(), *run]) == []
