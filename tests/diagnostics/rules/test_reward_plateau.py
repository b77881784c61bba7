"""RWD015: a quarter of the plan without any rise, always as information."""

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.reward_plateau import RewardPlateau
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, RunStarted

RULE = RewardPlateau()


def launched(steps: int) -> RunStarted:
    return started().model_copy(update={"num_steps": steps})


def rewarded(rates: list[float], *, seed: int = 0) -> list[list[BaseEvent]]:
    """One step of 128 completions per pass rate."""
    rng = np.random.default_rng(seed)
    return [[batch((rng.random((16, 8)) < rate).astype(float).tolist()), step()] for rate in rates]


def evaluated(version: int, pass_rate: float) -> EvaluationCompleted:
    return EvaluationCompleted(
        name="held-out",
        version=version,
        n=512,
        failed=0,
        reward_mean=pass_rate,
        reward_se=0.01,
        pass_rate=pass_rate,
        pass_rate_se=0.01,
    )


def rising(first: float, last: float, n: int) -> list[float]:
    return np.linspace(first, last, n).tolist()


def test_speaks_after_half_of_the_plan_when_a_quarter_changed_nothing() -> None:
    found = diagnostics(RULE, [[launched(400)], *rewarded([0.4] * 260)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "info")]
    assert 199 <= found[0].last.step <= 250
    assert "over the last 100 steps" in found[0].summary
    assert found[0].evidence[0].window == 200


@pytest.mark.parametrize("seed", range(5))
def test_a_reward_that_still_rises_is_none(seed: int) -> None:
    assert transitions(RULE, [[launched(400)], *rewarded(rising(0.2, 0.8, 400), seed=seed)]) == []


def test_a_run_at_its_ceiling_is_none() -> None:
    assert transitions(RULE, [[launched(400)], *rewarded([0.97] * 400)]) == []


def test_a_held_out_score_that_rises_keeps_it_quiet() -> None:
    steps = [[launched(400)], *rewarded([0.4] * 90), [evaluated(90, 0.4)], *rewarded([0.4] * 100, seed=1)]
    assert transitions(RULE, [*steps, [evaluated(190, 0.5)], *rewarded([0.4] * 30, seed=2)]) == []
    assert transitions(RULE, [*steps, [evaluated(190, 0.4)], *rewarded([0.4] * 30, seed=2)]) != []


def test_noise_in_which_a_rise_would_be_lost_says_nothing() -> None:
    rng = np.random.default_rng(0)
    slow = [rate for rate in rng.uniform(0.0, 0.8, 20) for _ in range(20)]
    assert transitions(RULE, [[launched(400)], *rewarded(slow)]) == []


def test_resolves_when_the_reward_rises_again() -> None:
    found = transitions(RULE, [[launched(400)], *rewarded([0.4] * 230), *rewarded(rising(0.4, 0.8, 170), seed=1)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_short_plans_are_compared_over_fifty_steps() -> None:
    run = [[launched(100)], *rewarded([0.4] * 101)]
    assert unevaluated(RULE, run[:90]) == (
        "warm_up",
        "half of the planned steps and two quarters of at least 50 are needed",
    )
    assert unevaluated(RULE, run) is None


def test_memory_does_not_grow_with_the_plan() -> None:
    assert unevaluated(RULE, [[launched(100_000)], *rewarded([0.4] * 300)]) == (
        "warm_up",
        "half of the planned steps and two quarters of at least 50 are needed",
    )


def test_rewards_that_are_no_numbers_are_left_out() -> None:
    broken = [[batch([[float("nan")] * 8] * 16), step()] for _ in range(300)]
    assert unevaluated(RULE, [[launched(400)], *broken]) == (
        "warm_up",
        "half of the planned steps and two quarters of at least 50 are needed",
    )
