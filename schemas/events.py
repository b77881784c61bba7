"""Events: what a run says about itself. The trainer writes them, the diagnostics read them.

Names are past-tense facts. A measured field is a `Number`; a field that is absent was not measured, and an
absent value is never written as zero. To add an event: write a class, add it to `EVENTS`, run `make generate`.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter

from tocsin.schemas.autotune import AutotuneDecided
from tocsin.schemas.base import Count, Model, Number, Seconds
from tocsin.schemas.batch import BatchConsumed, Quantiles
from tocsin.schemas.control import KnobPatch, Verb
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.generation import EngineSampled, SamplerSampled, WeightsSynced, WeightSyncStarted
from tocsin.schemas.knobs import KnobValue
from tocsin.schemas.resources import DeviceKind, ResourcesSampled
from tocsin.schemas.setup import RunSetup
from tocsin.schemas.step import StepCompleted

Component = Literal["learner", "rollout", "sampler"]
Busy = Literal["generate", "score", "sync", "evaluate", "idle"]


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
    setup: RunSetup | None = None


class RunResumed(BaseEvent):
    """A later attempt took the run up again. The log never rewinds: steps after the checkpoint are done over."""

    type: Literal["run_resumed"] = "run_resumed"
    checkpoint_step: Count
    rewound_from_step: Count
    """The last step that an earlier attempt reported."""
    knobs: dict[str, KnobValue]
    devices: list[DeviceInfo]
    versions: dict[str, str]
    setup: RunSetup | None = None


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
        "sampler_refused",
        "sampler_error",
    ]
    """`bad_row`: data could not be read. `reward_invalid`: NaN, infinite or not a number. `worker_died`: a process was
    lost with the work in it, which is issued again. `sampler_refused`: the sampler said that it will never generate for
    this prompt. `sampler_error`: it could not, however often it was asked."""
    prompt_id: str
    group_index: Count | None = None
    """Absent for a row that was refused before it became a group."""
    completions: Count
    """How many completions of the group failed; 0 for a row that was never sampled."""
    whole_group: bool
    """Whether nothing of the group remains to train on."""
    error: str
    """One line: exception class and rule. From user code and data, so untrusted."""


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


class Interval(Model):
    """A stretch of time on the clock of `BaseEvent.mono`."""

    began: Seconds
    ended: Seconds


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
    generate_s: Quantiles | None = None
    """Seconds from launch to the last token, over the consumed groups."""
    score_s: Quantiles | None = None
    """Seconds from the last token to the rewards, the wait for a free reward worker included, over the same groups."""
    generating: Interval | None = None
    """From the first launch to the last token of all consumed groups together; much of it lies before the step."""
    scoring: Interval | None = None
    """From the first last token to the last reward of the same groups."""


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
    """Who asked: a person, an agent, or `weight-sync` when weights did not arrive."""
    reason: str = ""


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
    busy: Busy | None = None
    """What has been under way for longest in a rollout process that is `alive`, which says so every 10 s. Reported
    while the learner waits: of a learner that computes, the heartbeats come late and together."""
    busy_s: Seconds | None = None
    """How long that has been under way."""

    @property
    def is_routine(self) -> bool:
        """Whether it only says that the process is there, which is no progress."""
        return self.busy is not None


class ClockTicked(BaseEvent):
    """Time passed. Written by the monitor's own thread, so that a hung run still has a clock."""

    type: Literal["clock_ticked"] = "clock_ticked"
    idle_s: Seconds
    """Seconds since the last event other than ticks and heartbeats with `busy`."""
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
    WeightSyncStarted,
    WeightsSynced,
    SamplerSampled,
    EngineSampled,
    ResourcesSampled,
    QueueSampled,
    KnobChanged,
    ControlAnswered,
    AutotuneDecided,
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
    | Annotated[WeightSyncStarted, Tag("weight_sync_started")]
    | Annotated[WeightsSynced, Tag("weights_synced")]
    | Annotated[SamplerSampled, Tag("sampler_sampled")]
    | Annotated[EngineSampled, Tag("engine_sampled")]
    | Annotated[ResourcesSampled, Tag("resources_sampled")]
    | Annotated[QueueSampled, Tag("queue_sampled")]
    | Annotated[KnobChanged, Tag("knob_changed")]
    | Annotated[ControlAnswered, Tag("control_answered")]
    | Annotated[AutotuneDecided, Tag("autotune_decided")]
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
