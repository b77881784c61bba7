"""Scenarios: series in, expected transitions out, in the manner of `promtool test rules`.

`batch` and `step` make one healthy event each; a test overrides what it is about. `run` puts a sequence of steps
through an engine, numbers the events, and judges every record against the published schema.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tests.records import violations
from tocsin.diagnostics.engine import Engine, Record
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding, Rule
from tocsin.schemas.batch import BatchConsumed, GroupColumns, Histogram, Quantiles
from tocsin.schemas.diagnosis import Diagnostic, Severity
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    ClockTicked,
    DeviceInfo,
    Ledger,
    QueueSampled,
    ResourcesSampled,
    RunStarted,
)
from tocsin.schemas.generation import EngineSampled, WeightsSynced, WeightSyncStarted
from tocsin.schemas.knobs import Knobs
from tocsin.schemas.resources import DeviceMemory, PhasePeak
from tocsin.schemas.setup import RunSetup
from tocsin.schemas.step import MicrobatchStats, StepCompleted

GIB = 2**30
Transition = tuple[int, str]
"""Step and reason."""


def started(
    *, kinds: Sequence[str] = ("cpu",), loss_variant: str = "", setup: RunSetup | None = None, **knobs: Any
) -> RunStarted:
    """The first event of a run with these knobs and kinds of devices."""
    devices = [DeviceInfo(name=f"{kind}:{i}", kind=kind) for i, kind in enumerate(kinds)]  # type: ignore[arg-type]
    return RunStarted(
        num_steps=1000,
        seed=0,
        knobs=Knobs(**knobs).model_dump(),
        devices=devices,
        versions={},
        loss_variant=loss_variant,
        setup=setup,
    )


def step(**fields: Any) -> StepCompleted:
    """A finished step in which nothing is wrong."""
    healthy = {
        "outcome": "updated",
        "loss": 0.01,
        "grad_norm": 0.5,
        "learning_rate": 1e-4,
        "update_ratio": 1e-4,
        "clip_low_frac": 0.0,
        "clip_high_frac": 0.001,
        "ess_frac": 0.99,
        "groups": 16,
        "groups_trained": 12,
        "tokens": 1200,
        "tokens_trained": 900,
        "seconds": {"total": 0.1},
    }
    return StepCompleted.model_validate({**healthy, **fields})


def batch(
    rewards: Sequence[Sequence[float]],
    *,
    reward_range: tuple[float, float] | None = (0.0, 1.0),
    staleness: Sequence[float] = (1, 1, 1),
    max_staleness: int = 1,
    tokens: int = 80,
    **fields: Any,
) -> BatchConsumed:
    """The batch of these rewards, one inner sequence per group; `staleness` is mean, p95 and max.

    `fields` are further ones of `GroupColumns` (`passed`, `distinct`, `truncated`) or of `BatchConsumed`
    (`component_stats`, `texts`, `length`).
    """
    groups = [np.asarray(group, dtype=float) for group in rewards]
    n = len(groups)
    flat = np.concatenate(groups)
    columns = {
        "group_index": list(range(n)),
        "prompt_id": ["0-00000000"] * n,
        "size": [len(group) for group in groups],
        "num_failed": [0] * n,
        "reward_mean": [float(group.mean()) for group in groups],
        "reward_std": [float(group.std()) for group in groups],
        "reward_min": [float(group.min()) for group in groups],
        "reward_max": [float(group.max()) for group in groups],
        "zero_spread": [bool(np.ptp(group) <= 1e-6) for group in groups],
        "tokens": [tokens] * n,
        "truncated": [0] * n,
        "staleness": [1] * n,
        "staleness_flight": [1] * n,
        "config_generation": [0] * n,
    }
    columns |= {name: fields.pop(name) for name in GroupColumns.model_fields if name in fields}
    mean, p95, top = (float(value) for value in staleness)
    healthy = {
        "groups": GroupColumns(**columns),
        "reward_range": reward_range,
        "reward_mean": float(flat.mean()),
        "pass_rate": None if reward_range is None else float((flat >= reward_range[1] - 1e-9).mean()),
        "length": Quantiles(mean=10, p50=10, p95=10, max=10),
        "length_histogram": Histogram(edges=[0, 16], counts=[len(flat)]),
        "staleness": Quantiles(mean=mean, p50=mean, p95=p95, max=top),
        "finish_reasons": {"stop": len(flat)},
        "max_staleness": max_staleness,
    }
    return BatchConsumed(**{**healthy, **fields})


def memory(
    peak_frac: float,
    *,
    total: int = 80 * GIB,
    max_tokens: int = 4096,
    num: int = 8,
    kind: str = "simulated",
    phase: str = "forward_backward",
) -> ResourcesSampled:
    """A sample of one accelerator, a tenth of it in use outside any phase, whose fullest phase is `phase`."""
    peak = PhasePeak(allocated_bytes=int(total * peak_frac), reserved_bytes=int(total * peak_frac))
    device = DeviceMemory(
        device=f"{kind}:0",
        kind=kind,  # type: ignore[arg-type]
        total_bytes=total,
        baseline_bytes=total // 10,
        phases={phase: peak},
    )
    return ResourcesSampled(
        devices=[device],
        microbatches=MicrobatchStats(num=num, token_budget=max_tokens, max_tokens=max_tokens, padded_frac=0.1),
        host_rss_bytes={"learner": GIB},
        host_memory_frac=0.2,
        disk_free_bytes=GIB,
    )


def synced(gap: float = 0.0, moved: float = 0.1, *, tolerance: float = 1e-4, **fields: Any) -> WeightsSynced:
    """A weight sync whose probe differs by `gap` after the learner moved by `moved`."""
    made = {
        "version": 1,
        "seconds": {"total": 0.01},
        "bytes": 1000,
        "probe_gap": gap,
        "probe_moved": moved,
        "probe_tolerance": tolerance,
        "verified": gap <= tolerance,
    }
    return WeightsSynced.model_validate({**made, **fields})


def sync_started(version: int, at: float) -> WeightSyncStarted:
    """The beginning of a sync, `at` seconds on the monotonic clock."""
    return WeightSyncStarted(version=version, mono=at)


def ticks(first: float, last: float, *, every: float = 5.0) -> list[ClockTicked]:
    """Clock ticks from `first` to `last`, both included, in seconds on the monotonic clock."""
    num = int((last - first) / every) + 1
    return [ClockTicked(idle_s=0.0, mono=first + every * i) for i in range(num)]


def polled(engine: str = "vllm-0", **fields: Any) -> EngineSampled:
    """One look at a server at which nothing is wrong: 8 sequences at 40 tokens a second each."""
    healthy = {
        "engine": engine,
        "interval_s": 5.0,
        "running": 8,
        "waiting": 0,
        "kv_usage": 0.5,
        "generated_tokens": 1600,
        "requests_finished": 20,
    }
    return EngineSampled.model_validate({**healthy, **fields})


def waited(learner: float, sampler: float, *, step_s: float = 1.0, **fields: Any) -> QueueSampled:
    """Waits as shares of a step of `step_s` seconds; `fields` are further ones of `QueueSampled`."""
    ledger = Ledger(launched=0, in_flight=0, queued=0, consumed=0, dropped={}, failed={})
    waits = {"learner_wait_s": learner * step_s, "sampler_wait_s": sampler * step_s, "step_s": step_s}
    return QueueSampled.model_validate({"ledger": ledger, **waits, **fields})


def times(usual: float, longest: float | None = None) -> Quantiles:
    """A distribution whose median is `usual` and whose largest value is `longest`."""
    top = usual if longest is None else longest
    return Quantiles(mean=usual, p50=usual, p95=top, max=top)


def numbered(steps: Iterable[Iterable[BaseEvent]], *, run_id: str = "r") -> list[BaseEvent]:
    """The events of a run: inner sequences are optimizer steps, and `StepCompleted` ends its step.

    A time on the monotonic clock that an event brings along is kept. Groups that nobody numbered are counted through.
    """
    events: list[BaseEvent] = []
    finished = consumed = 0
    for group in steps:
        for original in group:
            event = _counted_on(original, consumed)
            finished += isinstance(event, StepCompleted)
            consumed += len(event.groups.size) if isinstance(event, BatchConsumed) else 0
            envelope = {
                "run_id": run_id,
                "attempt": 1,
                "seq": len(events) + 1,
                "ts": "2026-01-31T12:00:00.000Z",
                "mono": event.mono or 0.1 * finished,
                "step": finished,
                "policy_version": finished,
            }
            events.append(event.model_copy(update=envelope))
    return events


def _counted_on(event: BaseEvent, consumed: int) -> BaseEvent:
    """A batch whose groups are numbered from 0, as `batch` does it, with numbers that go on from the batches before."""
    if not isinstance(event, BatchConsumed) or event.groups.group_index != list(range(len(event.groups.size))):
        return event
    indices = list(range(consumed, consumed + len(event.groups.size)))
    return event.model_copy(update={"groups": event.groups.model_copy(update={"group_index": indices})})


def run(engine: Engine, steps: Iterable[Iterable[BaseEvent]]) -> list[Record]:
    """Every record of `engine` for these steps, each valid against `feed_record.schema.json`."""
    records = [record for event in numbered(steps) for record in engine.observe(event)]
    for record in records:
        body = json.loads(record.model_dump_json(exclude_none=True))
        assert violations(body, "feed_record") == []
    return records


def diagnostics(rule: Rule, steps: Iterable[Iterable[BaseEvent]]) -> list[Diagnostic]:
    """The diagnostic records of one rule."""
    return [record for record in run(Engine([rule]), steps) if isinstance(record, Diagnostic)]


def transitions(rule: Rule, steps: Iterable[Iterable[BaseEvent]]) -> list[Transition]:
    """Step and reason of each diagnostic record of one rule."""
    events = numbered(steps)
    at = {event.seq: event.step for event in events}
    engine = Engine([rule])
    records = [record for event in events for record in engine.observe(event)]
    return [(at[record.event_seq], record.reason) for record in records if isinstance(record, Diagnostic)]


def judged(rule: Rule, steps: Iterable[Iterable[BaseEvent]]) -> Severity | None:
    """How grave `rule` finds the end of these steps, whatever its proof allows it to say; None when all is well."""
    features = Features()
    for event in numbered(steps):
        features.update(event)
    answer = rule.check(features, is_open=False)
    return answer.severity if isinstance(answer, Finding) else None


def unevaluated(rule: Rule, steps: Iterable[Iterable[BaseEvent]]) -> tuple[str, str] | None:
    """Reason and detail with which `rule` is not evaluated at the end; None when it is evaluated."""
    engine = Engine([rule])
    run(engine, steps)
    assert engine.coverage is not None, "a run has events"
    last = engine.coverage.not_evaluated.get(rule.code)
    return None if last is None else (last.reason, last.detail)
