"""Events: what a run says about itself. The trainer writes them, the diagnostics read them.

Names are past-tense facts. A measured field is a `Number`; a field that is absent was not measured, and an
absent value is never written as zero. To add an event: write a class, add it to `EVENTS`, run `make generate`.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter

from tocsin.schemas.base import Count, Fraction, Model, Number, Seconds
from tocsin.schemas.batch import BatchConsumed, Quantiles
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.knobs import KnobValue
from tocsin.schemas.step import MicrobatchStats, StepCompleted

Component = Literal["learner", "rollout", "sampler", "reward", "monitor"]


class DeviceInfo(Model):
    """One device of the run, as found at the start."""

    name: str
    kind: Literal["cpu", "cuda", "mps", "simulated"]
    memory_bytes: Count | None = None
    """Total device memory; absent for the CPU, whose memory is the host's."""


class RunStarted(BaseEvent):
    """The first event of a run."""

    type: Literal["run_started"] = "run_started"
    num_steps: Count
    """Optimizer steps planned."""
    seed: int
    knobs: dict[str, KnobValue]
    """Launch value of every knob."""
    devices: list[DeviceInfo]
    versions: dict[str, str]
    """Versions of python, tocsin, torch, transformers."""
    loss_variant: str = ""
    """Objective in use: `grpo`, `dapo`, `dr_grpo`, `cispo`, `gspo`; empty when the run does not say."""


class RunResumed(BaseEvent):
    """A later attempt took the run up again. The log never rewinds: steps after the checkpoint are done over."""

    type: Literal["run_resumed"] = "run_resumed"
    checkpoint_step: Count
    rewound_from_step: Count
    """The last step that an earlier attempt reported."""
    knobs: dict[str, KnobValue]
    devices: list[DeviceInfo]
    versions: dict[str, str]


class RunEnded(BaseEvent):
    """The last event of an attempt that could still speak."""

    type: Literal["run_ended"] = "run_ended"
    outcome: Literal["completed", "interrupted", "failed"]
    error: str | None = None
    """What ended a failed attempt: exception class and message, one line."""


class RolloutFailed(BaseEvent):
    """A group, or some completions of it, that never became training data. Never counted as reward 0."""

    type: Literal["rollout_failed"] = "rollout_failed"
    cause: Literal[
        "bad_row",
        "prompt_too_long",
        "reward_error",
        "reward_timeout",
        "reward_invalid",
        "sampler_error",
        "worker_died",
    ]
    """`bad_row`: data could not be read. `reward_invalid`: NaN, infinite or not a number. `worker_died`: a
    process was lost with the work in it, which is issued again."""
    prompt_id: str
    group_index: Count | None = None
    """Absent for a row that was refused before it became a group."""
    completions: Count
    """How many completions of the group failed; 0 for a row that was never sampled."""
    whole_group: bool
    """Whether nothing of the group remains to train on."""
    error: str
    """One line: exception class and rule. From user code and data, so untrusted."""


class WeightsSynced(BaseEvent):
    """The sampler acknowledged new weights, and a probe compared both sides on them."""

    type: Literal["weights_synced"] = "weights_synced"
    version: Count
    """Version that the sampler echoed."""
    seconds: dict[str, Seconds]
    """`write` by the learner, `pause` until the sampler was between batches, `load` by the sampler, `verify`,
    `total`."""
    bytes: Count
    probe_gap: Number
    """Largest absolute difference of log-probs on the probe tokens, sampler against learner, same weights."""
    probe_moved: Number
    """Largest absolute change of the learner's own log-probs on the probe since the previous sync."""
    probe_tolerance: Number
    """Calibrated at the first sync of the run."""
    verified: bool
    """`probe_gap <= probe_tolerance`."""


class SamplerSampled(BaseEvent):
    """One batch of groups that the sampler finished."""

    type: Literal["sampler_sampled"] = "sampler_sampled"
    sampler: str
    version: Count
    groups: Count
    completions: Count
    tokens: Count
    seconds: Seconds
    purpose: Literal["train", "eval"] = "train"


class PhasePeak(Model):
    """Peak device memory within one phase since the last report."""

    allocated_bytes: Count
    reserved_bytes: Count


class DeviceMemory(Model):
    """Memory of one device by phase. Peaks over the whole window, never an instant."""

    device: str
    kind: Literal["cpu", "cuda", "mps", "simulated"]
    total_bytes: Count
    baseline_bytes: Count
    """Allocated outside any phase: weights, gradients, optimizer state."""
    phases: dict[str, PhasePeak]
    """`generate`, `score`, `forward_backward`, `optimizer`, `sync`."""


class ResourcesSampled(BaseEvent):
    """Memory and load since the previous sample."""

    type: Literal["resources_sampled"] = "resources_sampled"
    devices: list[DeviceMemory]
    """Accelerators only; empty on a CPU machine, which means not measured."""
    microbatches: MicrobatchStats | None = None
    """Of the last step in the window; what the peaks were measured at."""
    host_rss_bytes: dict[str, Count]
    """Resident memory by component."""
    host_memory_frac: Fraction
    """Used share of the host's memory, all processes together."""
    disk_free_bytes: Count
    """Free space where the run folder lies."""


class Ledger(Model):
    """Where every group is: `launched = in_flight + queued + consumed + sum(dropped) + sum(failed)`."""

    launched: Count
    in_flight: Count
    queued: Count
    consumed: Count
    dropped: dict[str, Count]
    failed: dict[str, Count]

    def balance(self) -> int:
        """Groups that the ledger cannot account for; 0 unless there is a bug."""
        accounted = self.in_flight + self.queued + self.consumed
        return self.launched - accounted - sum(self.dropped.values()) - sum(self.failed.values())


class QueueSampled(BaseEvent):
    """Supply and demand between rollout and learner over the last step."""

    type: Literal["queue_sampled"] = "queue_sampled"
    ledger: Ledger
    learner_wait_s: Seconds
    """Time in this step that the learner stood still for groups."""
    sampler_wait_s: Seconds
    """Time in this step that the sampler stood still for free slots."""
    step_s: Seconds
    """Length of the step that both waits belong to."""
    queue_wait: Quantiles | None = None
    """Seconds that the consumed groups had waited in the queue."""


class KnobChanged(BaseEvent):
    """A knob has a new value from this step on."""

    type: Literal["knob_changed"] = "knob_changed"
    path: str
    before: KnobValue
    after: KnobValue
    actor: str
    """Who asked: `launch`, `fault:<name>`, `learner` (out of memory), a person, an agent or the auto-tuner."""
    effective_step: Count
    """First step that uses the new value."""


class CheckpointSaved(BaseEvent):
    """A checkpoint is complete on disk."""

    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    path: str
    """Relative to the run folder."""
    seconds: Seconds
    bytes: Count


class EvaluationCompleted(BaseEvent):
    """Held-out prompts, sampled once each at the training temperature."""

    type: Literal["evaluation_completed"] = "evaluation_completed"
    name: str
    version: Count
    """Weights that were evaluated."""
    n: Count
    """Completions scored."""
    failed: Count
    """Completions that could not be scored; left out of the mean."""
    reward_mean: Number
    reward_se: Number
    """Standard error of `reward_mean`."""
    pass_rate: Number | None = None
    pass_rate_se: Number | None = None


class ComponentHeartbeat(BaseEvent):
    """A component is alive, or was found dead and started again."""

    type: Literal["component_heartbeat"] = "component_heartbeat"
    component: Component
    state: Literal["started", "alive", "died", "restarted", "stopped"]
    detail: str = ""


class ClockTicked(BaseEvent):
    """Time passed. Written by the monitor's own thread, so that a hung run still has a clock."""

    type: Literal["clock_ticked"] = "clock_ticked"
    idle_s: Seconds
    """Seconds since the last event of any other kind."""
    events_dropped: Count = 0
    """Events lost so far because the monitor could not keep up or the disk refused them."""


class MetricsLogged(BaseEvent):
    """Metrics of a foreign trainer under their own names; their meaning is not ours to promise."""

    type: Literal["metrics_logged"] = "metrics_logged"
    source: str
    metrics: dict[str, Number]


class UnknownEvent(BaseEvent):
    """An event of a newer version: readers keep its envelope and go on. Nothing here writes it."""

    model_config = ConfigDict(extra="allow")
    type: str


EVENTS: Final[tuple[type[BaseEvent], ...]] = (
    RunStarted,
    RunResumed,
    RunEnded,
    StepCompleted,
    BatchConsumed,
    RolloutFailed,
    WeightsSynced,
    SamplerSampled,
    ResourcesSampled,
    QueueSampled,
    KnobChanged,
    CheckpointSaved,
    EvaluationCompleted,
    ComponentHeartbeat,
    ClockTicked,
    MetricsLogged,
)
"""Every event that this version writes."""

EVENT_TYPES: Final = {cls.model_fields["type"].default: cls for cls in EVENTS}


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) and kind in EVENT_TYPES else "unknown"


Event = Annotated[
    Annotated[RunStarted, Tag("run_started")]
    | Annotated[RunResumed, Tag("run_resumed")]
    | Annotated[RunEnded, Tag("run_ended")]
    | Annotated[StepCompleted, Tag("step_completed")]
    | Annotated[BatchConsumed, Tag("batch_consumed")]
    | Annotated[RolloutFailed, Tag("rollout_failed")]
    | Annotated[WeightsSynced, Tag("weights_synced")]
    | Annotated[SamplerSampled, Tag("sampler_sampled")]
    | Annotated[ResourcesSampled, Tag("resources_sampled")]
    | Annotated[QueueSampled, Tag("queue_sampled")]
    | Annotated[KnobChanged, Tag("knob_changed")]
    | Annotated[CheckpointSaved, Tag("checkpoint_saved")]
    | Annotated[EvaluationCompleted, Tag("evaluation_completed")]
    | Annotated[ComponentHeartbeat, Tag("component_heartbeat")]
    | Annotated[ClockTicked, Tag("clock_ticked")]
    | Annotated[MetricsLogged, Tag("metrics_logged")]
    | Annotated[UnknownEvent, Tag("unknown")],
    Discriminator(_tag),
    Field(description="One line of events.jsonl after the header."),
]

EVENT: Final[TypeAdapter[BaseEvent]] = TypeAdapter(Event)
"""Parses any event; an unknown `type` becomes `UnknownEvent`. Use with `tocsin.schemas.base.read`."""
