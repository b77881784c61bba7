"""Group rewards to advantages and to weighted samples (pure).

The weight of a token is fixed here, before anything is cut into micro-batches, so the loss is a plain sum and the
gradient cannot depend on how the step is cut, in which order, or on how many ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.schemas.config import LossConfig
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.data import Completion, Group, Sample

Rewards = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepSamples:
    """What one optimizer step trains on, and how much it consumed to get it. Made by `samples`, read by the learner."""

    trained: list[Sample]
    """Completions for the forward pass, in the order of their groups. Empty when no group carries a gradient."""
    groups: int
    groups_trained: int
    """Groups that go through the forward pass."""
    tokens: int
    """Completion tokens of all groups."""
    tokens_trained: int
    denominator: int
    """What the sums are divided by: tokens for `dapo` and `cispo`, completions for the other variants."""


def has_spread(rewards: Rewards, tolerance: float) -> bool:
    """Whether `rewards` differ: max - min above `tolerance`.

    A standard deviation of zero is no test for it: six equal rewards of 0.1 have one of 1.4e-17.
    """
    return bool(rewards.max() - rewards.min() > tolerance)


def group_advantages(rewards: Rewards, *, scale: bool, eps: float, tolerance: float) -> Rewards:
    """[G] rewards minus their mean, divided by the population standard deviation (ddof 0) plus `eps` if `scale`.

    Exactly zero for a group without spread (`has_spread`), whatever float noise the mean leaves.
    """
    if not has_spread(rewards, tolerance):
        return np.zeros(len(rewards), dtype=np.float64)
    centred: Rewards = rewards - rewards.mean()
    if scale:
        centred /= np.sqrt(np.mean(centred * centred)) + eps
    return centred


def samples(groups: Sequence[Group], loss: LossConfig, knobs: Knobs, *, step: int) -> StepSamples:
    """The samples of one optimizer step, weighted; `step` counts the optimizer steps finished before it.

    Groups without spread have no policy gradient. They are left out of the forward pass while `skip_zero_spread` is
    on and neither the reference penalty nor the entropy bonus gives them another one. Whether they count in the
    denominator is `loss.zero_spread_tokens`; with `ignore` the whole gradient grows by one factor, penalty and bonus
    included. A step in which no group has spread counts all of them, because nothing else is left to divide by.

    Completions without a token are consumed and count as completions, but there is nothing to train on.
    """
    spread = [has_spread(group.rewards, loss.zero_spread_tolerance) for group in groups]
    keep_all = not knobs.skip_zero_spread or knobs.kl_beta > 0 or knobs.entropy_coef > 0
    counts_all = loss.zero_spread_tokens == "count" or not any(spread)
    denominator = _denominator([g for g, s in zip(groups, spread, strict=True) if s or counts_all], loss)

    trained: list[Sample] = []
    groups_trained = 0
    for group, signal in zip(groups, spread, strict=True):
        if signal or keep_all:
            groups_trained += 1
            trained.extend(_group_samples(group, loss, denominator=denominator, step=step))
    return StepSamples(
        trained=trained,
        groups=len(groups),
        groups_trained=groups_trained,
        tokens=sum(len(completion.token_ids) for group in groups for completion in group.completions),
        tokens_trained=sum(len(sample.completion_ids) for sample in trained),
        denominator=denominator,
    )


def _denominator(counted: Sequence[Group], loss: LossConfig) -> int:
    completions = [completion for group in counted for completion in group.completions]
    if loss.variant in ("dapo", "cispo"):
        return sum(len(completion.token_ids) for completion in completions)
    return len(completions)


def _group_samples(group: Group, loss: LossConfig, *, denominator: int, step: int) -> list[Sample]:
    advantages = group_advantages(
        group.rewards, scale=loss.scales, eps=loss.advantage_eps, tolerance=loss.zero_spread_tolerance
    )
    return [
        Sample(
            prompt_ids=group.request.prompt.token_ids,
            completion_ids=completion.token_ids,
            sampler_logprobs=completion.logprobs,
            advantage=advantage,
            weight=1.0 / (denominator * _share(completion, group.request.max_tokens, loss)),
            temperature=completion.temperature,
            staleness=step - min(version for version, _ in completion.versions),
        )
        for completion, advantage in zip(group.completions, advantages.tolist(), strict=True)
        if len(completion.token_ids) > 0
    ]


def _share(completion: Completion, max_tokens: int, loss: LossConfig) -> int:
    """What a completion's own token sum is divided by, besides the denominator of the step.

    `grpo` and `gspo`: its length, so that every completion weighs the same. `dr_grpo`: the length limit it was
    generated under, a constant, so that a long wrong answer is not punished less per token. Otherwise 1.
    """
    if loss.variant in ("grpo", "gspo"):
        return len(completion.token_ids)
    return max_tokens if loss.variant == "dr_grpo" else 1
