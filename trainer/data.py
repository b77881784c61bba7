"""The types that are handed from file to file on a rollout's way to a gradient.

Made in this order: `Prompt` (prompts) -> `GroupRequest` (rollout) -> `Completion` (sampler) -> `Group` (rewards)
-> `Sample` (advantages) -> micro-batches (batching). Arrays are numpy so that the rollout process needs no torch.

Shape letters: T completion tokens, P prompt tokens, G completions of a group, B rows of a micro-batch,
N trained tokens of a step.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

FinishReason = Literal["stop", "length", "abort"]
FailureCause = Literal[
    "bad_row",
    "prompt_too_long",
    "reward_error",
    "reward_timeout",
    "reward_invalid",
    "worker_died",
    "sampler_refused",
    "sampler_error",
]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One usable row of the data set, tokenised."""

    id: str
    """`<row>-<hash>`: row number and the first 8 hex digits of the content's SHA-256."""
    text: str
    """What the model sees, chat template applied."""
    token_ids: Ints
    """[P]"""
    columns: dict[str, Any]
    """The row's other columns, for the reward functions."""


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """One group to generate. Its random numbers come from (run seed, purpose, index), so it can be issued again."""

    index: int
    """Position in the endless sequence of groups; for an evaluation, position among its prompts."""
    target_step: int
    """Optimizer step that will train on it (0-based)."""
    prompt: Prompt
    size: int
    """G"""
    temperature: float
    max_tokens: int
    config_generation: int
    purpose: Literal["train", "eval"] = "train"


@dataclass(frozen=True, slots=True)
class Completion:
    """What the sampler made of a prompt."""

    token_ids: Ints
    """[T] including the end-of-sequence token of a finished completion."""
    logprobs: Floats
    """[T] the sampler's own log-probs of these tokens at `temperature`, in nats."""
    finish_reason: FinishReason
    versions: tuple[tuple[int, int], ...]
    """Version spans (version, number of tokens), in token order; the first is the oldest."""
    temperature: float
    text: str = ""
    """Decoded without special tokens; filled in by the rollout process."""

    @property
    def version_span(self) -> int:
        """Optimizer steps between the weights of its oldest token and those of its newest."""
        return self.versions[-1][0] - self.versions[0][0] if self.versions else 0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a completion or a whole group never became training data."""

    cause: FailureCause
    error: str
    """One line."""
    completions: int
    whole_group: bool


@dataclass(frozen=True, slots=True)
class GroupTexts:
    """Counts of a group's completions under the names of `TextStats`."""

    judged: int
    repetitive: int
    script_judged: int
    other_script: int
    cut_with_end: int
    unparsed: dict[str, int]


@dataclass(frozen=True, slots=True)
class Group:
    """A scored group: what the learner consumes, whole."""

    request: GroupRequest
    completions: tuple[Completion, ...]
    """Only those with a valid reward, at least two for training."""
    rewards: npt.NDArray[np.float64]
    """[G] weighted totals, finite."""
    components: dict[str, npt.NDArray[np.float64]]
    """Reward of each function, unweighted; NaN where a function could not tell."""
    num_failed: int
    """Completions left out because scoring them failed."""
    launched_at: float
    """Monotonic clock."""
    generated_at: float
    scored_at: float
    distinct: int | None = None
    """Different token sequences among the completions."""
    texts: GroupTexts | None = None

    @property
    def oldest_version(self) -> int:
        """Version of the weights behind the oldest token."""
        return min(version for completion in self.completions for version, _ in completion.versions)


@dataclass(frozen=True, slots=True)
class QueuedGroup:
    """A scored group that waits for the learner."""

    group: Group
    arrived: float
    """Monotonic clock."""
    version: int
    """Step of the learner's weights when it arrived."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion on its way into a forward pass."""

    prompt_ids: Ints
    """[P]"""
    completion_ids: Ints
    """[T]"""
    sampler_logprobs: Floats
    """[T]"""
    advantage: float
    weight: float
    """Factor of each of its tokens in the loss; includes the division by the step's denominator."""
    temperature: float
    staleness: int
    """Optimizer steps between the oldest token's weights and the weights that train on it."""

    @property
    def num_tokens(self) -> int:
        """P + T."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(slots=True)
class Scored:
    """What is made of the answers of all reward functions for n completions."""

    rewards: npt.NDArray[np.float64]
    """[n] NaN where invalid."""
    valid: npt.NDArray[np.bool_]
    """[n]"""
    failures: list[Failure]
    components: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """[n] by label, NaN where unknown."""
    unparsed: dict[str, list[int]] = field(default_factory=dict)
    """As in `Scores`."""


@dataclass(slots=True)
class Scores:
    """Rewards of the completions of one group; what a reward worker answers."""

    components: dict[str, list[float | None]] = field(default_factory=dict)
    """By reward label, one entry per completion; None where the function could not tell."""
    errors: dict[int, tuple[FailureCause, str]] = field(default_factory=dict)
    """By position of the completion: why it has no valid reward."""
    unparsed: dict[str, list[int]] = field(default_factory=dict)
    """By label of each function that looks for an answer in the text: positions of completions without one."""
