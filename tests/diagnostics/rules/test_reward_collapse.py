"""POL009: a pooled reward far below its own best, never a noisy step."""

import numpy as np
import pytest

from tests.diagnostics.rules.several_rewards import launched
from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.reward_collapse import RewardCollapse
from tocsin.schemas.event import BaseEvent

RULE = RewardCollapse()


def rewarded(
    pass_rate: float, *, n: int, groups: int = 16, size: int = 8, seed: int = 0, scale: float = 1.0, **fields: object
) -> list[list[BaseEvent]]:
    """Steps whose completions pass with this probability, for a reward of `scale`."""
    rng = np.random.default_rng(seed)
    draws = (rng.random((n, groups, size)) < pass_rate) * scale
    return [[batch(one.tolist(), **fields), step()] for one in draws]  # type: ignore[arg-type]


def test_fires_as_critical_five_steps_after_the_fall_is_sure() -> None:
    run = [[started(learning_rate=1e-4)], *rewarded(0.8, n=40), *rewarded(0.0, n=20)]
    found = diagnostics(RULE, run)
    assert [(record.reason, record.severity) for record in found] == [("fired", "critical")]
    assert 45 <= found[0].last.step <= 50
    assert found[0].summary.startswith("Mean reward 0 over 640 completions is 0% of the best, 0.8")
    assert found[0].actions[0].id.endswith("/resume-from-checkpoint")
    assert found[0].actions[1].patches[0].to == pytest.approx(5e-5)


def test_between_the_limits_it_warns() -> None:
    found = diagnostics(RULE, [*rewarded(0.9, n=40, groups=64), *rewarded(0.4, n=30, groups=64, seed=1)])
    assert [record.severity for record in found] == ["warning"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("pass_rate", [0.02, 0.2, 0.5])
def test_noise_of_small_batches_is_no_collapse(pass_rate: float, seed: int) -> None:
    assert transitions(RULE, rewarded(pass_rate, n=400, groups=2, size=4, seed=seed)) == []


def test_a_fall_to_six_tenths_of_the_best_is_no_collapse() -> None:
    assert transitions(RULE, [*rewarded(0.8, n=40), *rewarded(0.5, n=60, seed=1)]) == []


def test_one_bad_step_is_no_collapse() -> None:
    assert transitions(RULE, [*rewarded(0.9, n=40), *rewarded(0.0, n=2), *rewarded(0.9, n=40, seed=1)]) == []


def test_partial_scores_and_ranges_below_zero_count_from_their_floor() -> None:
    steady = rewarded(0.7, n=40, scale=0.4, reward_range=(-1.0, 1.0))
    fallen = rewarded(0.1, n=30, scale=0.4, reward_range=(-1.0, 1.0), seed=1)
    # From 1.28 to 1.04 above the floor of -1: a loss of a fifth.
    assert transitions(RULE, [*steady, *fallen]) == []
    assert [reason for _, reason in transitions(RULE, [*rewarded(0.7, n=40, scale=0.4), *rewarded(0.1, n=30, seed=1)])][
        :1
    ] == ["fired"]


def test_without_a_declared_range_the_range_seen_is_used() -> None:
    run = [*rewarded(0.8, n=40, scale=50, reward_range=None), *rewarded(0.1, n=30, scale=50, reward_range=None)]
    assert transitions(RULE, run)[0][1] == "fired"


def test_small_batches_need_a_mechanism_to_fire_early() -> None:
    healthy, fallen = rewarded(0.9, n=80, groups=4, size=4), rewarded(0.0, n=40, groups=4, size=4)
    early = transitions(RULE, [*healthy, *fallen])
    # Groups are flat at the floor: eight steps of sixteen completions decide, and it has to hold for five.
    assert early[0][1] == "fired"
    assert early[0][0] <= 95
    slow = transitions(RULE, [*healthy, *rewarded(0.15, n=60, groups=4, size=4, seed=1)])
    assert slow[0][1] == "fired"
    assert slow[0][0] > early[0][0]


def test_resolves_when_the_reward_is_back() -> None:
    found = transitions(RULE, [*rewarded(0.8, n=40), *rewarded(0.0, n=20), *rewarded(0.8, n=30, seed=1)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_rewards_that_are_not_numbers_do_not_count() -> None:
    broken = [[batch([[float("nan")] * 8] * 16), step()] for _ in range(30)]
    assert transitions(RULE, [*rewarded(0.8, n=40), *broken]) == []


def test_says_that_there_is_nothing_to_compare_with() -> None:
    assert unevaluated(RULE, rewarded(0.8, n=6)) == (
        "warm_up",
        "no earlier window of 256 completions and five steps to compare with",
    )


def test_loses_its_data_when_no_batches_come() -> None:
    run = [*rewarded(0.8, n=40), *rewarded(0.0, n=20), *([step()] for _ in range(60))]
    assert [reason for _, reason in transitions(RULE, run)] == ["fired", "data_lost"]


def with_side_rewards(pass_rate: float, style: float, *, n: int) -> list[list[BaseEvent]]:
    """Steps in which `exact` decides what a pass is and `style` is added to it."""
    passed = round(8 * pass_rate)
    rewards = [[1.0 + style] * passed + [style] * (8 - passed)] * 16
    fields = {"pass_rate": pass_rate, "passed": [passed] * 16, "reward_range": (-2.0, 1.0)}
    return [[batch(rewards, **fields), step()] for _ in range(n)]  # type: ignore[arg-type]


def test_a_sum_that_side_rewards_alone_brought_down_is_no_collapse() -> None:
    high = with_side_rewards(0.75, 0.0, n=40)
    assert transitions(RULE, [launched(), *high, *with_side_rewards(0.75, -1.9, n=30)]) == []
    found = transitions(RULE, [launched(), *high, *with_side_rewards(0.25, -1.9, n=30)])
    assert [reason for _, reason in found][:1] == ["fired"]


@pytest.mark.parametrize("passes", [0.0, 0.03])
def test_where_hardly_anything_passed_at_best_the_reward_alone_counts(passes: float) -> None:
    rng = np.random.default_rng(0)

    def run(style: float, n: int) -> list[list[BaseEvent]]:
        made = []
        for _ in range(n):
            draws = rng.random((16, 8)) < passes
            rewards = (draws + style * (rng.random((16, 8)) < 0.9)).tolist()
            fields = {"pass_rate": float(draws.mean()), "passed": draws.sum(axis=1).tolist()}
            made.append([batch(rewards, reward_range=(0.0, 2.0), **fields), step()])
        return made

    found = transitions(RULE, [launched(), *run(1.0, 40), *run(0.02, 80)])
    assert [reason for _, reason in found] == ["fired"]
