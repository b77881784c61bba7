"""GEN010: training and held-out prompts part; noise and common falls are no such thing."""

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, diagnostics, judged, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.heldout_gap import HeldoutGap
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, RunResumed

RULE = HeldoutGap()


def evaluated(version: int, pass_rate: float, *, n: int = 512, name: str = "held-out") -> EvaluationCompleted:
    error = float(np.sqrt(pass_rate * (1 - pass_rate) / n))
    return EvaluationCompleted(
        name=name,
        version=version,
        n=n,
        failed=0,
        reward_mean=pass_rate,
        reward_se=error,
        pass_rate=pass_rate,
        pass_rate_se=error,
    )


def training(reward: float, *, n: int = 10, seed: int = 0) -> list[list[BaseEvent]]:
    """Steps of 128 completions whose rewards scatter around this mean."""
    draws = reward + 0.2 * np.random.default_rng(seed).standard_normal((n, 16, 8))
    return [[batch(one.tolist(), reward_range=None), step()] for one in draws]


def story(*points: tuple[float, float], every: int = 10, **fields: object) -> list[list[BaseEvent]]:
    """Ten steps at a mean training reward, then an evaluation, for each pair of reward and held-out pass rate."""
    steps: list[list[BaseEvent]] = []
    for i, (reward, pass_rate) in enumerate(points):
        steps += [*training(reward, seed=i), [evaluated(every * (i + 1), pass_rate, **fields)]]  # type: ignore[arg-type]
    return steps


def test_a_held_out_score_that_falls_while_training_rises_is_critical_at_once() -> None:
    run = [[started(kl_beta=0.0)], *story((0.5, 0.6), (0.9, 0.9), (1.6, 0.3))]
    found = diagnostics(RULE, run)
    assert [(record.reason, record.last.step, record.severity) for record in found] == [("fired", 30, "critical")]
    assert found[0].summary.startswith(
        "Held-out pass rate went from 0.9 at step 20 to 0.3, the training reward from 0.8"
    )
    assert [action.id.rpartition("/")[2] for action in found[0].actions] == [
        "resume-from-best-checkpoint",
        "read-best-paid",
    ]


def test_with_a_reference_it_proposes_to_hold_the_policy_closer() -> None:
    found = diagnostics(RULE, [[started(kl_beta=0.01)], *story((0.5, 0.6), (0.9, 0.9), (1.6, 0.3))])
    patch = found[0].actions[2].patches[0]
    assert (patch.path, patch.expect, patch.to) == ("kl_beta", 0.01, 0.02)


def test_a_common_fall_is_another_finding() -> None:
    assert transitions(RULE, story((0.5, 0.5), (0.9, 0.9), (0.3, 0.3), (0.2, 0.2))) == []


@pytest.mark.parametrize("seed", range(5))
def test_noise_around_a_ceiling_is_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = [(0.9 + 0.005 * i, float(rng.binomial(512, 0.95)) / 512) for i in range(16)]
    assert transitions(RULE, story(*points)) == []


def test_a_fall_within_the_noise_of_few_prompts_is_none() -> None:
    points = ((0.5, 0.6), (0.9, 0.65), (1.6, 0.55))
    assert transitions(RULE, story(*points, n=128)) == []
    assert transitions(RULE, story(*points, n=4096))[0][1] == "fired"


def test_a_held_out_score_that_stands_still_for_four_evaluations_is_information() -> None:
    points = [(0.3 + 0.1 * i, 0.5 - 0.001 * i) for i in range(6)]
    assert transitions(RULE, story(*points)) == [(50, "fired")]
    assert judged(RULE, story(*points)) == "info"
    at_its_ceiling = [(0.3 + 0.1 * i, 0.95) for i in range(6)]
    assert transitions(RULE, story(*at_its_ceiling)) == []


def test_resolves_when_the_held_out_score_is_back() -> None:
    points = ((0.5, 0.6), (0.9, 0.9), (1.6, 0.3), (1.6, 0.7), (1.0, 0.9))
    assert transitions(RULE, story(*points)) == [(30, "fired"), (50, "resolved")]


def test_evaluations_that_are_done_over_after_a_resume_count_no_more() -> None:
    again = RunResumed(checkpoint_step=10, rewound_from_step=20, knobs={}, devices=[], versions={})
    run = [*story((0.5, 0.6), (0.9, 0.9)), [again], *story((1.6, 0.55), (1.6, 0.55))]
    assert transitions(RULE, run) == []


def test_other_sets_of_prompts_are_not_mixed_in() -> None:
    run = [*story((0.5, 0.6), (0.9, 0.9)), *training(1.6), [evaluated(30, 0.3, name="hard")]]
    assert transitions(RULE, [*run, *training(1.6), [evaluated(40, 0.3, name="hard")]]) == []


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, training(0.5)) == ("warm_up", "waits for its first `evaluation_completed` event")
    assert unevaluated(RULE, story((0.5, 0.6), n=100)) == (
        "missing_input",
        "evaluations have fewer than 128 completions",
    )


def test_scores_that_are_no_numbers_are_left_out() -> None:
    broken = evaluated(30, 0.5).model_copy(update={"pass_rate": float("nan")})
    assert transitions(RULE, [*story((0.5, 0.6), (0.9, 0.9)), *training(1.6), [broken]]) == []
