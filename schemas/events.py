"""Events: what a run says about itself. The trainer writes them, the diagnostics read them.

Names are past-tense facts. A measured field is a `Number`; a field that is absent was not measured, and an
absent value is never written as zero. To add an event: write a class, add it to `EVENTS`, run `make generate`.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter

from tocsin.schemas.base import Count, Model, Number, Seconds
from tocsin.schemas.batch import BatchConsumed, Quantiles
from tocsin.schemas.control import KnobPatch, Verb
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.knobs import KnobValue
from tocsin.schemas.resources import DeviceKind, ResourcesSampled
from tocsin.schemas.step import StepCompleted

Component = Literal["learner", "rollout", "sampler"]


class DeviceInfo(Model):
    """One device of the run, as found at the start."""

    name: str
    kind: DeviceKind
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
    request_id: str | None = None
    """Request that asked for it; absent for changes of the trainer's own."""
    action_id: str | None = None
    """Action that it applies."""
    idempotency_key: str | None = None
    note: str = ""


class ControlAnswered(BaseEvent):
    """A request of the control folder was read, and accepted or refused. Its changes follow at the next barrier."""

    type: Literal["control_answered"] = "control_answered"
    request_id: str
    """Name of the file without its ending when the content could not be read."""
    verb: Verb | None = None
    """Absent when the content could not be read."""
    state: Literal["accepted", "refused", "duplicate"]
    reason: str
    """One line: why it was refused, or what will happen when."""
    actor: str
    idempotency_key: str | None = None
    action_id: str | None = None
    patches: list[KnobPatch] = []
    code: str | None = None
    until_step: Count | None = None
    note: str = ""


class RunPaused(BaseEvent):
    """Training stands still at a barrier because somebody asked for it. Nothing is wrong."""

    type: Literal["run_paused"] = "run_paused"
    actor: str


class RunContinued(BaseEvent):
    """Training goes on after a pause."""

    type: Literal["run_continued"] = "run_continued"
    actor: str
    paused_s: Seconds


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
    """As in `BatchConsumed`."""
    pass_rate_se: Number | None = None


class ComponentHeartbeat(BaseEvent):
    """A component is alive, or was found dead and started again."""

    type: Literal["component_heartbeat"] = "component_heartbeat"
    component: Component
    state: Literal["started", "alive", "died", "restarted"]
    detail: str = ""


class ClockTicked(BaseEvent):
    """Time passed. Written by the monitor's own thread, so that a hung run still has a clock."""

    type: Literal["clock_ticked"] = "clock_ticked"
    idle_s: Seconds
    """Seconds since the last event of any other kind."""
    paused: bool = False
    """Training stands still because somebody asked for it, so that `idle_s` says nothing about its health."""
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
    ControlAnswered,
    RunPaused,
    RunContinued,
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
    | Annotated[ControlAnswered, Tag("control_answered")]
    | Annotated[RunPaused, Tag("run_paused")]
    | Annotated[RunContinued, Tag("run_continued")]
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
