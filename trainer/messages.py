"""Messages between the learner, the rollout process and the local sampler. All travel through pipes of our own.

learner  --Setup, Sync, Retune, Evaluate, Stop-->         rollout  --Load, Weights, Generate-->  sampler
learner  <--Ready, Opened, Launched, Done, Failed, ...--  rollout  <--Loaded, Generated--        sampler
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tocsin.schemas.config import RunConfig
from tocsin.schemas.events import Component
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.data import Completion, Failure, Floats, Group, GroupRequest, Ints, Prompt
from tocsin.trainer.slots import Slot


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything the rollout process needs; sent once, after it was started."""

    config: RunConfig
    model_path: Path
    """Local folder with weights and tokenizer."""
    prompts: list[Prompt]
    evaluation: list[Prompt]
    knobs: Knobs
    config_generation: int
    next_step: int
    """First step that has not opened yet."""
    next_index: int
    reissue: list[Slot]
    """Groups that were in flight when a checkpoint was taken or a process was lost."""
    probe: Ints
    """[rows, P + T] token ids whose log-probs both sides compare at every sync."""


@dataclass(frozen=True, slots=True)
class Sync:
    """New weights lie in `path` (safetensors)."""

    version: int
    path: Path


@dataclass(frozen=True, slots=True)
class Retune:
    """The knobs have new values."""

    knobs: Knobs
    config_generation: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Sample the held-out prompts with the weights that the latest `Sync` brought."""

    version: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End in good order."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The process is up, has loaded the reward functions, and waits for its first message."""

    requires: dict[str, frozenset[str]]
    """By reward label, the arguments without a default that the function must get."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The slots of one or more steps, frozen from now on."""

    slots: list[Slot]


@dataclass(frozen=True, slots=True)
class Launched:
    """Groups that were handed to the sampler."""

    slots: list[Slot]


@dataclass(frozen=True, slots=True)
class Done:
    """A scored group."""

    group: Group
    failures: list[Failure]
    """Completions of the group that were left out."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A group that will never come; its slot is free again."""

    request: GroupRequest
    failures: list[Failure]
    replacement: Slot


@dataclass(frozen=True, slots=True)
class Synced:
    """The sampler holds the weights of `version`."""

    version: int
    pause_s: float
    """From the request until the sampler was between batches."""
    load_s: float
    verify_s: float
    probe_logprobs: Floats
    """[rows, P + T - 1]"""


@dataclass(frozen=True, slots=True)
class BatchSampled:
    """One sampler batch is finished."""

    version: int
    groups: int
    completions: int
    tokens: int
    seconds: float
    purpose: Literal["train", "eval"]
    waited_s: float
    """Time before this batch in which the sampler stood still because no slot was free."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Rewards of the held-out prompts."""

    version: int
    rewards: list[float]
    passed: list[bool] | None
    """Which of them are passes; None when no reward function decides."""
    failures: list[Failure]


@dataclass(frozen=True, slots=True)
class ProcessNews:
    """A process below the rollout process died or was started again."""

    component: Component
    state: Literal["died", "restarted"]
    detail: str


@dataclass(frozen=True, slots=True)
class Fatal:
    """The rollout process cannot go on."""

    error: str
    user_error: bool
    """Whether the user's input is at fault: then no traceback is shown."""


@dataclass(frozen=True, slots=True)
class Load:
    """First message to a sampler: load the model."""

    model_path: Path
    dtype: str
    attention: str
    device: str
    threads: int
    seed: int
    probe: Ints
    fault: str | None
    fault_onset: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """The sampler can generate."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Load these weights before the next batch."""

    version: int
    path: Path


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """Answer to `Weights`."""

    version: int
    load_s: float
    verify_s: float
    probe_logprobs: Floats


@dataclass(frozen=True, slots=True)
class Generate:
    """One batch of groups."""

    requests: list[GroupRequest]


@dataclass(frozen=True, slots=True)
class Generated:
    """Answer to `Generate`: completions per request, in order."""

    completions: list[list[Completion]]
    version: int
    seconds: float
    errors: dict[int, str] = field(default_factory=dict)
    """By position: why a request could not be generated at all."""
