"""Messages between the learner, the rollout process and the local sampler. All travel through pipes of our own.
A vLLM sampler lives inside the rollout process and takes the same messages as calls.

learner  --Setup, Sync, Retune, Evaluate, Stop-->         rollout  --Load, Weights, Generate-->  sampler
learner  <--Ready, Opened, Launched, Done, Failed, ...--  rollout  <--Loaded, Generated--        sampler

`tocsin check` talks to the sampler without a rollout process between them, and asks it for its probe besides.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tocsin.schemas.config import RunConfig
from tocsin.schemas.events import Component, ComponentHeartbeat
from tocsin.schemas.fault import FaultConfig
from tocsin.schemas.generation import EngineSampled, PrefixCache
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.data import Completion, Failure, Floats, Group, GroupRequest, Ints, Prompt
from tocsin.trainer.slots import Slot


@dataclass(frozen=True, slots=True)
class LearnerFacts:
    """What a sampler of another make must agree with."""

    vocab_size: int
    """Rows of the output layer."""
    max_length: int
    """Longest prompt plus completion, in tokens."""
    eos_ids: tuple[int, ...]
    """Token ids at which a completion ends, in rising order."""
    weights_folder: Path
    """Where the files of `Sync` lie."""


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
    learner: LearnerFacts
    logs: Path
    """Folder for what servers print."""


@dataclass(frozen=True, slots=True)
class Sync:
    """New weights lie in `path` (safetensors)."""

    version: int
    path: Path
    digest: str = ""
    """Of the file, see `digest`; empty where nobody asks for it."""
    attempt_number: int = 1
    """2 for a full resend after a proof that failed."""
    layout: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """Name, type and shape of every tensor, in order, when the weights come by a broadcast instead of the file."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where learner and servers meet to form a group for broadcasts. The learner is rank 0 and listens."""

    address: str
    port: int
    world_size: int


@dataclass(frozen=True, slots=True)
class ReadyForWeights:
    """All servers stand by for the broadcast of `version`."""

    version: int


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
    seconds: dict[str, float]
    """`pause` from the request until the sampler stood still, `load`, `verify`, `resume`."""
    probes: dict[str, Floats]
    """By process or server, [rows, P + T - 1] log-probs of the probe."""
    checksums: dict[str, str] = field(default_factory=dict)
    """By server, a digest over its weights, where it gives one."""
    prefix_cache: PrefixCache | None = None
    """What became of prefixes that were cached under the old weights; None when there is no such cache to ask."""


@dataclass(frozen=True, slots=True)
class BatchSampled:
    """One sampler batch is finished, or as much as a sampler without batches did in the meantime."""

    sampler: str
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
    """A process below the rollout process died or was started again, or is still at it."""

    component: Component
    state: Literal["started", "alive", "died", "restarted"]
    detail: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The rollout process is there. That is no progress: it may be waiting for something that never comes."""

    event: ComponentHeartbeat


@dataclass(frozen=True, slots=True)
class ServerSampled:
    """A look at a generation server's metrics."""

    event: EngineSampled


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
    fault: FaultConfig | None


@dataclass(frozen=True, slots=True)
class SamplerFacts:
    """What a sampler says about its model once it is loaded; `tocsin check` compares it with the learner."""

    model: str
    """Folder or name."""
    eos_ids: tuple[int, ...]
    """Token ids at which it ends a completion, in rising order."""
    vocab_size: int
    """Rows of its output layer."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The sampler can generate."""

    facts: SamplerFacts


@dataclass(frozen=True, slots=True)
class TakeProbe:
    """Compute the log-probs of the probe under the weights held now."""


@dataclass(frozen=True, slots=True)
class Probed:
    """Answer to `TakeProbe`."""

    probe_logprobs: Floats
    """[rows, P + T - 1]"""


@dataclass(frozen=True, slots=True)
class Weights:
    """Load these weights before the next batch."""

    version: int
    path: Path


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """Answer to `Weights`, of one process or one server."""

    version: int
    load_s: float
    verify_s: float
    probe_logprobs: Floats
    """[rows, P + T - 1]"""
    pause_s: float = 0.0
    """Until what was in flight stood still."""
    resume_s: float = 0.0
    checksum: str = ""
    """A digest over the weights held; empty where there is none."""
    prefix_cache: PrefixCache | None = None


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
    errors: dict[int, Failure] = field(default_factory=dict)
    """By position: why a request could not be generated at all; its completions are empty."""
