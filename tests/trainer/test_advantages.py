"""Advantages and weights against numbers worked out by hand."""

import numpy as np
import pytest

from tocsin.schemas.config import LossConfig
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.advantages import group_advantages, has_spread, samples
from tocsin.trainer.data import Completion, Group, GroupRequest, Prompt


def group(
    *, rewards: list[float], lengths: list[int], versions: list[list[int]] | None = None, limit: int = 8
) -> Group:
    """A group with completions of `lengths`; `versions` gives per completion the version of each of its tokens."""
    versions = versions or [[0] * length for length in lengths]
    completions = tuple(
        Completion(
            token_ids=np.arange(length, dtype=np.int32),
            logprobs=np.full(length, -1.5, dtype=np.float32),
            finish_reason="stop",
            versions=tuple((version, 1) for version in spans) or ((0, 0),),
            temperature=0.7,
        )
        for length, spans in zip(lengths, versions, strict=True)
    )
    prompt = Prompt(id="0-00000000", text="x", token_ids=np.array([7, 8], dtype=np.int32), columns={})
    request = GroupRequest(
        index=0,
        target_step=0,
        prompt=prompt,
        size=len(rewards),
        temperature=0.7,
        max_tokens=limit,
        config_generation=0,
    )
    return Group(
        request=request,
        completions=completions,
        rewards=np.array(rewards),
        components={},
        num_failed=0,
        launched_at=0.0,
        generated_at=0.0,
        scored_at=0.0,
    )


MIXED = {"rewards": [1.0, 0.0], "lengths": [2, 4]}
FLAT = {"rewards": [1.0, 1.0], "lengths": [3, 1]}
"""Together: 10 tokens, 4 completions; without the flat group 6 tokens, 2 completions."""


def test_advantages_divide_by_the_population_standard_deviation_plus_epsilon():
    # Mean 1.5, deviations -1.5 -0.5 0.5 1.5, population variance (2.25 + 0.25) x 2 / 4 = 1.25.
    # ddof 1 would give sqrt(5 / 3) = 1.29 instead of 1.118.
    got = group_advantages(np.array([0.0, 1.0, 2.0, 3.0]), scale=True, eps=0.1, tolerance=1e-6)
    assert got == pytest.approx(np.array([-1.5, -0.5, 0.5, 1.5]) / (1.25**0.5 + 0.1), rel=1e-12)


def test_unscaled_advantages_are_rewards_minus_their_mean():
    got = group_advantages(np.array([0.0, 1.0, 2.0, 3.0]), scale=False, eps=0.1, tolerance=1e-6)
    assert got.tolist() == [-1.5, -0.5, 0.5, 1.5]


def test_equal_rewards_with_float_noise_in_their_deviation_have_no_spread_and_zero_advantage():
    rewards = np.array([0.1] * 6)
    assert rewards.std() != 0
    assert not has_spread(rewards, 0.0)
    assert group_advantages(rewards, scale=True, eps=0.0, tolerance=0.0).tolist() == [0.0] * 6


def test_sums_that_differ_by_rounding_only_have_no_spread():
    rewards = np.array([0.1 + 0.2, 0.3])
    assert rewards[0] != rewards[1]
    assert not has_spread(rewards, 1e-6)
    assert group_advantages(rewards, scale=True, eps=0.0, tolerance=1e-6).tolist() == [0.0, 0.0]


def test_a_difference_of_exactly_the_tolerance_is_no_spread():
    assert not has_spread(np.array([0.0, 0.25]), 0.25)
    assert has_spread(np.array([0.0, 0.26]), 0.25)


@pytest.mark.parametrize(
    ("variant", "zero_spread_tokens", "denominator", "weights"),
    [
        ("dapo", "count", 10, [1 / 10, 1 / 10]),
        ("dapo", "ignore", 6, [1 / 6, 1 / 6]),
        ("cispo", "count", 10, [1 / 10, 1 / 10]),
        ("cispo", "ignore", 6, [1 / 6, 1 / 6]),
        ("grpo", "count", 4, [1 / 4 / 2, 1 / 4 / 4]),
        ("grpo", "ignore", 2, [1 / 2 / 2, 1 / 2 / 4]),
        ("gspo", "count", 4, [1 / 4 / 2, 1 / 4 / 4]),
        ("gspo", "ignore", 2, [1 / 2 / 2, 1 / 2 / 4]),
        ("dr_grpo", "count", 4, [1 / 4 / 8, 1 / 4 / 8]),
        ("dr_grpo", "ignore", 2, [1 / 2 / 8, 1 / 2 / 8]),
    ],
)
def test_token_weights_hold_the_denominator_of_the_whole_step(variant, zero_spread_tokens, denominator, weights):
    loss = LossConfig(variant=variant, zero_spread_tokens=zero_spread_tokens)
    step = samples([group(**MIXED), group(**FLAT)], loss, Knobs(), step=0)
    assert step.denominator == denominator
    assert [sample.weight for sample in step.trained] == pytest.approx(weights, rel=1e-12)


def test_dr_grpo_divides_by_the_limit_that_each_completion_was_generated_under():
    groups = [group(**MIXED, limit=8), group(**MIXED, limit=16)]
    step = samples(groups, LossConfig(variant="dr_grpo"), Knobs(max_completion_tokens=99), step=0)
    assert [sample.weight for sample in step.trained] == [1 / 32, 1 / 32, 1 / 64, 1 / 64]


def test_dr_grpo_does_not_scale_advantages_unless_told_to():
    plain = samples([group(**MIXED)], LossConfig(variant="dr_grpo"), Knobs(), step=0)
    scaled = samples(
        [group(**MIXED)],
        LossConfig(variant="dr_grpo", scale_advantages=True, advantage_eps=0.0),
        Knobs(),
        step=0,
    )
    assert [sample.advantage for sample in plain.trained] == [0.5, -0.5]
    assert [sample.advantage for sample in scaled.trained] == [1.0, -1.0]


def test_groups_without_spread_are_counted_and_skipped():
    step = samples([group(**FLAT), group(**MIXED)], LossConfig(), Knobs(), step=0)
    assert (step.groups, step.groups_trained, step.tokens, step.tokens_trained) == (2, 1, 10, 6)
    assert [len(sample.completion_ids) for sample in step.trained] == [2, 4]


@pytest.mark.parametrize(
    "knobs", [Knobs(skip_zero_spread=False), Knobs(kl_beta=0.01), Knobs(entropy_coef=0.001)], ids=str
)
def test_groups_without_spread_are_trained_when_something_else_gives_them_a_gradient(knobs):
    step = samples([group(**FLAT), group(**MIXED)], LossConfig(advantage_eps=0.0), knobs, step=0)
    assert (step.groups_trained, step.tokens_trained) == (2, 10)
    assert [sample.advantage for sample in step.trained] == [0.0, 0.0, 1.0, -1.0]


def test_a_step_without_any_spread_trains_nothing_and_still_has_a_denominator():
    step = samples([group(**FLAT)], LossConfig(zero_spread_tokens="ignore"), Knobs(), step=0)
    assert (step.trained, step.groups, step.groups_trained, step.tokens) == ([], 1, 0, 4)
    assert step.denominator == 4


def test_an_empty_step_has_no_samples():
    step = samples([], LossConfig(), Knobs(), step=3)
    assert (step.trained, step.groups, step.tokens, step.denominator) == ([], 0, 0, 0)


def test_staleness_counts_from_the_oldest_token_of_each_completion():
    mixed = group(rewards=[1.0, 0.0], lengths=[2, 4], versions=[[5, 5], [3, 3, 4, 5]])
    assert [sample.staleness for sample in samples([mixed], LossConfig(), Knobs(), step=6).trained] == [1, 3]


def test_a_completion_without_tokens_counts_as_completion_and_is_not_trained():
    mixed = group(rewards=[1.0, 0.0], lengths=[2, 0])
    step = samples([mixed], LossConfig(variant="grpo"), Knobs(), step=0)
    assert [(len(sample.completion_ids), sample.weight) for sample in step.trained] == [(2, 1 / 4)]


def test_a_sample_carries_what_the_sampler_recorded():
    (first, _) = samples([group(**MIXED)], LossConfig(), Knobs(temperature=1.3), step=0).trained
    assert first.prompt_ids.tolist() == [7, 8]
    assert first.completion_ids.tolist() == [0, 1]
    assert first.sampler_logprobs.tolist() == [-1.5, -1.5]
    assert first.temperature == 0.7
