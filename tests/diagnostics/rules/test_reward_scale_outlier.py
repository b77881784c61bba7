"""RWD012: rewards out of scale, by the declared range or by their distance."""

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, diagnostics, step, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.reward_scale_outlier import RewardScaleOutlier
from tocsin.schemas.event import BaseEvent

RULE = RewardScaleOutlier()
MIXED = [[1.0, 0.0] * 4] * 16


def with_one(value: float) -> list[BaseEvent]:
    """A step in which one completion got `value`."""
    return [batch([*MIXED[:15], [1.0, 0.0] * 3 + [1.0, value]]), step()]


def healthy(n: int) -> list[list[BaseEvent]]:
    return [[batch(MIXED), step()] for _ in range(n)]


def continuous(seed: int, n: int, *, outlier: float | None = None) -> list[list[BaseEvent]]:
    """Normal rewards without a declared range; with `outlier` in the first group of every step."""
    rng = np.random.default_rng(seed)
    steps: list[list[BaseEvent]] = []
    for _ in range(n):
        rewards = rng.normal(2.0, 1.0, (16, 8))
        if outlier is not None:
            rewards[0, 0] = outlier
        steps.append([batch(rewards.tolist(), reward_range=None), step()])
    return steps


def test_a_group_that_lies_outside_at_both_ends_counts_once() -> None:
    both = [[-50.0, 0.0, 1.0, 50.0] * 2] * 12
    found = diagnostics(RULE, [*healthy(5), [batch([*both, *MIXED[:4]]), step()], *healthy(3)])
    assert found[0].summary.startswith("12 of 16 groups of the last step have a reward outside of 0 to 1, ")


def test_names_a_reward_outside_of_the_declared_range_at_once() -> None:
    found = diagnostics(RULE, [*healthy(5), with_one(10_000.0), *healthy(3)])
    assert [(record.reason, record.fired and record.fired.step) for record in found] == [("fired", 5)]
    assert found[0].summary == "1 of 16 groups of the last step have a reward outside of 0 to 1, the furthest is 1e+04"
    features = Features()
    features.update(with_one(-3.0)[0])
    answer = RULE.check(features, is_open=False)
    assert isinstance(answer, Finding)
    assert answer.severity == "critical"
    assert (answer.evidence[0].metric, answer.evidence[0].observed) == ("batch_consumed.groups.reward_min", -3.0)


@pytest.mark.parametrize(("value", "reasons"), [(1.0099, []), (1.0101, ["fired"]), (-0.0099, []), (-0.0101, ["fired"])])
def test_a_hundredth_of_the_range_is_rounding(value: float, reasons: list[str]) -> None:
    assert [reason for _, reason in transitions(RULE, [with_one(value)])] == reasons


def test_names_distances_where_no_range_is_declared() -> None:
    found = diagnostics(RULE, [*continuous(0, 20), *continuous(1, 10, outlier=500.0)])
    assert [record.reason for record in found] == ["fired"]
    assert found[0].summary.startswith("A reward of 500 lies ")


@pytest.mark.parametrize("seed", range(5))
def test_the_tails_of_continuous_rewards_are_left_alone(seed: int) -> None:
    assert transitions(RULE, continuous(seed, 200)) == []


def test_a_single_step_is_no_pattern() -> None:
    assert transitions(RULE, [*continuous(0, 20), *continuous(1, 2, outlier=500.0), *continuous(2, 20)]) == []


def test_resolves_after_fifty_clean_steps() -> None:
    found = transitions(RULE, [with_one(10_000.0), *healthy(60)])
    assert found == [(0, "fired"), (50, "resolved")]


def test_rewards_of_one_value_have_no_scale_to_measure_with() -> None:
    same: list[list[BaseEvent]] = [[batch([[1.0] * 8] * 16, reward_range=None), step()] for _ in range(20)]
    assert unevaluated(RULE, same) == (
        "warm_up",
        "no declared range, and no spread among 256 completions to measure against",
    )


def test_rewards_that_are_not_numbers_are_another_matter() -> None:
    assert transitions(RULE, [with_one(float("nan"))] * 5) == []
