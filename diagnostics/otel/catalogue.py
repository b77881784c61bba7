"""Every metric that a run exports: name, unit, meaning, and how it is read from an event.

A value that is absent was not measured and one that is not finite has no place in a series, so neither is yielded.
The step is never an attribute: it would make a series of every point.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas.base import Number
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, EvaluationCompleted, QueueSampled
from tocsin.schemas.generation import EngineSampled, SamplerSampled, WeightsSynced
from tocsin.schemas.resources import ResourcesSampled
from tocsin.schemas.step import StepCompleted

Reading = tuple[Number | None, Mapping[str, str]]
"""A value and its attributes."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """The newest value of something that goes up and down."""

    name: str
    unit: str
    """UCUM."""
    description: str
    source: type[BaseEvent]
    read: Callable[[Any], Iterable[Reading]]
    """All readings of one event of `source`. Those of the event before that are not among them are over."""
    entity: Callable[[Any], str] = lambda _: ""
    """Which of several reporters an event speaks for; it ends the readings of no other."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A sum since the process began."""

    name: str
    unit: str
    description: str
    source: type[BaseEvent]
    read: Callable[[Any], Iterable[tuple[int, Mapping[str, str]]]]


def _value(path: str) -> Callable[[Any], Iterator[Reading]]:
    """One reading without attributes: the field at a dotted path, none where a part of the path is absent."""
    names = path.split(".")

    def read(event: Any) -> Iterator[Reading]:
        found = event
        for name in names:
            found = None if found is None else getattr(found, name)
        yield found, {}

    return read


def _by(path: str, attribute: str) -> Callable[[Any], Iterator[Reading]]:
    """One reading per entry of a dictionary field."""

    def read(event: Any) -> Iterator[Reading]:
        yield from ((value, {attribute: key}) for key, value in getattr(event, path).items())

    return read


def _share_truncated(event: BatchConsumed) -> Iterator[Reading]:
    total = sum(event.finish_reasons.values())
    yield (event.finish_reasons.get("length", 0) / total if total else None), {}


def _share_without_spread(event: BatchConsumed) -> Iterator[Reading]:
    groups = event.groups.zero_spread
    yield (sum(groups) / len(groups) if groups else None), {}


def _waits(event: QueueSampled) -> Iterator[Reading]:
    for side, seconds in (("learner", event.learner_wait_s), ("sampler", event.sampler_wait_s)):
        yield (seconds / event.step_s if event.step_s > 0 else None), {"tocsin.component": side}


def _groups(event: QueueSampled) -> Iterator[Reading]:
    yield event.ledger.in_flight, {"tocsin.state": "in_flight"}
    yield event.ledger.queued, {"tocsin.state": "queued"}


def _peaks(event: ResourcesSampled) -> Iterator[Reading]:
    for device in event.devices:
        for phase, peak in device.phases.items():
            yield peak.allocated_bytes, {"tocsin.device": device.device, "tocsin.phase": phase}


def _requests(event: EngineSampled) -> Iterator[Reading]:
    yield event.running, {"tocsin.engine": event.engine, "tocsin.state": "running"}
    yield event.waiting, {"tocsin.engine": event.engine, "tocsin.state": "waiting"}


def _cache(event: EngineSampled) -> Iterator[Reading]:
    yield event.kv_usage, {"tocsin.engine": event.engine}


def _evaluation(field: str) -> Callable[[EvaluationCompleted], Iterator[Reading]]:
    def read(event: EvaluationCompleted) -> Iterator[Reading]:
        yield getattr(event, field), {"tocsin.evaluation": event.name}

    return read


def _engine(event: EngineSampled) -> str:
    return event.engine


def _evaluated(event: EvaluationCompleted) -> str:
    return event.name


STEP, BATCH = StepCompleted, BatchConsumed

GAUGES: Final[tuple[Gauge, ...]] = (
    Gauge("tocsin.steps.completed", "{step}", "Optimizer steps finished, empty ones included", STEP, _value("step")),
    Gauge("tocsin.step.duration", "s", "Parts of the newest step", STEP, _by("seconds", "tocsin.phase")),
    Gauge("tocsin.loss", "1", "Loss of the newest step", STEP, _value("loss")),
    Gauge("tocsin.gradient.norm", "1", "L2 norm before clipping", STEP, _value("grad_norm")),
    Gauge("tocsin.learning_rate", "1", "In force, schedule included", STEP, _value("learning_rate")),
    Gauge("tocsin.update.ratio", "1", "L2 norm of the change over that of the weights", STEP, _value("update_ratio")),
    Gauge("tocsin.entropy", "nat", "Mean per trained token under the learner", STEP, _value("entropy")),
    Gauge("tocsin.clip.low", "1", "Share of trained tokens at the lower clip", STEP, _value("clip_low_frac")),
    Gauge("tocsin.clip.high", "1", "Share of trained tokens at the upper clip", STEP, _value("clip_high_frac")),
    Gauge("tocsin.ess", "1", "Effective sample size of the ratios over their number", STEP, _value("ess_frac")),
    Gauge("tocsin.kl.reference", "nat", "Mean k3 to the reference model", STEP, _value("kl_ref")),
    Gauge("tocsin.kl.sampler", "nat", "Mean k3, sampler against learner", STEP, _value("logprob_gap.k3")),
    Gauge("tocsin.logprob_gap.mean", "nat", "Mean absolute gap to the sampler", STEP, _value("logprob_gap.abs_mean")),
    Gauge("tocsin.reward.mean", "1", "Mean over scored completions", BATCH, _value("reward_mean")),
    Gauge("tocsin.reward.component", "1", "Mean of a function, unweighted", BATCH, _by("components", "tocsin.reward")),
    Gauge("tocsin.reward.pass_rate", "1", "Share of completions that pass", BATCH, _value("pass_rate")),
    Gauge("tocsin.groups.zero_spread", "1", "Share of groups without reward spread", BATCH, _share_without_spread),
    Gauge("tocsin.completion.length.mean", "{token}", "Tokens per completion", BATCH, _value("length.mean")),
    Gauge("tocsin.completion.length.p95", "{token}", "Tokens per completion", BATCH, _value("length.p95")),
    Gauge("tocsin.completion.truncated", "1", "Share that ended at the length limit", BATCH, _share_truncated),
    Gauge("tocsin.staleness.mean", "{step}", "Age of the weights behind a completion", BATCH, _value("staleness.mean")),
    Gauge("tocsin.staleness.max", "{step}", "Age of the weights behind a completion", BATCH, _value("staleness.max")),
    Gauge("tocsin.wait", "1", "Share of the step in which a side stood still", QueueSampled, _waits),
    Gauge("tocsin.groups.pending", "{group}", "Launched and not consumed yet", QueueSampled, _groups),
    Gauge("tocsin.sync.duration", "s", "Parts of the newest sync", WeightsSynced, _by("seconds", "tocsin.phase")),
    Gauge("tocsin.sync.probe_gap", "nat", "Largest gap of log-probs on the probe", WeightsSynced, _value("probe_gap")),
    Gauge(
        "tocsin.evaluation.reward", "1", "Held-out mean", EvaluationCompleted, _evaluation("reward_mean"), _evaluated
    ),
    Gauge("tocsin.evaluation.pass_rate", "1", "Share", EvaluationCompleted, _evaluation("pass_rate"), _evaluated),
    Gauge("tocsin.engine.requests", "{sequence}", "Sequences of a server", EngineSampled, _requests, _engine),
    Gauge("tocsin.engine.kv_cache.utilization", "1", "Share in use", EngineSampled, _cache, _engine),
    Gauge("tocsin.memory.host", "By", "Resident", ResourcesSampled, _by("host_rss_bytes", "tocsin.component")),
    Gauge("tocsin.memory.peak", "By", "Peak of a device by phase", ResourcesSampled, _peaks),
    Gauge("tocsin.disk.free", "By", "Where the run folder lies", ResourcesSampled, _value("disk_free_bytes")),
    Gauge("tocsin.idle", "s", "Since the last news of the run", ClockTicked, _value("idle_s")),
)

COUNTERS: Final[tuple[Counter, ...]] = (
    Counter(
        "tocsin.tokens.generated",
        "{token}",
        "Completion tokens that samplers finished",
        SamplerSampled,
        lambda event: [(event.tokens, {"tocsin.purpose": event.purpose})],
    ),
    Counter(
        "tocsin.tokens.trained",
        "{token}",
        "Completion tokens that went through the forward pass",
        StepCompleted,
        lambda event: [(event.tokens_trained, {})],
    ),
    Counter(
        "tocsin.engine.preemptions",
        "{sequence}",
        "Sequences thrown out of the KV cache",
        EngineSampled,
        lambda event: [(event.preemptions, {"tocsin.engine": event.engine})],
    ),
)
