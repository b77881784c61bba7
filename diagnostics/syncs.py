"""Weight syncs as time: one that does not end, what all of them cost, and completions that span several of them."""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    CheckpointSaved,
    ClockTicked,
    ComponentHeartbeat,
    RunContinued,
    RunEnded,
    RunPaused,
    RunResumed,
    RunStarted,
)
from tocsin.schemas.generation import SamplerSampled, WeightsSynced, WeightSyncStarted
from tocsin.schemas.step import StepCompleted


class OpenSync(Feature):
    """The sync that is under way, on the monotonic clock of the events.

    The learner reads an answer only between its own steps, and a sampler takes weights only between its batches. So a
    sync that waits for either does not hang: `busy_s` says how long both usually take.
    """

    takes = (
        RunStarted,
        RunResumed,
        RunEnded,
        RunPaused,
        RunContinued,
        WeightSyncStarted,
        WeightsSynced,
        SamplerSampled,
        StepCompleted,
        CheckpointSaved,
        ComponentHeartbeat,
        ClockTicked,
    )
    SYNCS: ClassVar[int] = 32
    RECENT: ClassVar[int] = 16

    def __init__(self) -> None:
        self.starts_seen = 0
        self.ends_seen = 0
        self.is_paused = False
        self.is_starting = True
        """No sync of this attempt has ended yet, or the sampler died since this one began: set-up takes its time."""
        self.durations: deque[float] = deque(maxlen=self.SYNCS)
        """Seconds from start to answer, of syncs without set-up and without a pause."""
        self._now = 0.0
        self._under_way: dict[int, float] = {}
        """By version, when its sync began."""
        self._quiet_since = 0.0
        """Last sign that the sampler was busy with something else than the sync."""
        self._was_paused = False
        self._steps: deque[float] = deque(maxlen=self.RECENT)
        self._batches: deque[float] = deque(maxlen=self.RECENT)
        self._checkpoint_s = 0.0

    def update(self, event: BaseEvent) -> None:
        """Take in a start, an answer, a sign of life, or the time."""
        if isinstance(event, ClockTicked):
            self._now = event.mono
        elif isinstance(event, SamplerSampled):
            self._batches.append(event.seconds)
            self._quiet_since = event.mono
        elif isinstance(event, StepCompleted):
            parts = event.seconds
            self._steps.append(parts.get("total", 0.0) - parts.get("wait", 0.0) - parts.get("sync_wait", 0.0))
        elif isinstance(event, CheckpointSaved):
            self._checkpoint_s = event.seconds
        elif isinstance(event, WeightSyncStarted | WeightsSynced):
            self._begin(event) if isinstance(event, WeightSyncStarted) else self._end(event)
        else:
            self._note(event)

    def _begin(self, event: WeightSyncStarted) -> None:
        self.starts_seen += 1
        if len(self._under_way) >= self.SYNCS:  # of a trainer that never says that a sync ended
            self._under_way.clear()
        if not self._under_way:
            self._now = self._quiet_since = event.mono
            self._was_paused = self.is_paused
        self._under_way.setdefault(event.version, event.mono)

    def _end(self, event: WeightsSynced) -> None:
        self.ends_seen += 1
        began = self._under_way.get(event.version)
        if began is not None and not self.is_starting and not self._was_paused:
            self.durations.append(event.mono - began)
        if began is not None:
            self.is_starting = False
        for version in [version for version in self._under_way if version <= event.version]:
            del self._under_way[version]

    def _note(self, event: BaseEvent) -> None:
        """Starts and ends of attempts and pauses, and deaths."""
        if isinstance(event, RunPaused | RunContinued):
            self.is_paused = isinstance(event, RunPaused)
            self._was_paused = True
            self._quiet_since = event.mono
        elif isinstance(event, ComponentHeartbeat):
            if event.component != "learner" and event.state in ("died", "restarted"):
                self.is_starting = True
                self._quiet_since = event.mono
        else:
            self._under_way.clear()
            self.is_paused, self.is_starting = False, True

    @property
    def version(self) -> int | None:
        """Version whose sync is under way, the oldest where there are several; None when there is none."""
        return min(self._under_way, default=None)

    @property
    def age_s(self) -> float:
        """Seconds since the sync under way began."""
        return self._now - min(self._under_way.values(), default=self._now)

    @property
    def waited_s(self) -> float:
        """Seconds in which the sync under way was all there was to wait for."""
        return min(self.age_s, self._now - self._quiet_since)

    @property
    def usual_s(self) -> float:
        """Median of this run's syncs; NaN before there is any."""
        return median(self.durations)

    @property
    def busy_s(self) -> float:
        """Longest recent step of the learner without its waits, longest recent batch and last checkpoint, in sum."""
        return max(self._steps, default=0.0) + max(self._batches, default=0.0) + self._checkpoint_s

    def restart(self) -> None:
        """Whether a sync is under way has no baseline: nothing to forget."""


@dataclass(frozen=True, slots=True)
class SyncInterval:
    """The steps from one sync to the next. Seconds."""

    lost: float
    """That the run would not have spent without the sync."""
    idle: float
    """That the learner waited for groups or gave to a sync."""
    total: float
    syncs: tuple[dict[str, float], ...]
    """`weights_synced.seconds` of the syncs themselves, whether or not the run lost them."""


class SyncCost(Feature):
    """What weight syncs take from the last intervals whose steps updated the weights.

    Lost is what the learner gave to writing, and of the time that the sampler stood still for weights (load, verify,
    resume) as much as the learner stood still as well. A sampler that stops while the learner computes from groups at
    hand costs the run nothing, nor does `pause`, in which the sampler finishes what it had begun.
    """

    takes = (RunStarted, RunResumed, RunPaused, WeightsSynced, StepCompleted)
    moved_by = frozenset({"waits", "step_time"})
    SYNCS: ClassVar[int] = 10
    PARTS: ClassVar[tuple[str, ...]] = ("write", "load", "verify", "resume")

    def __init__(self) -> None:
        self.window: deque[SyncInterval] = deque(maxlen=self.SYNCS)
        self.lacks_parts = False
        """The newest sync or step does not say where its time went."""
        self._was_paused = False
        self._clear()

    def _clear(self) -> None:
        self._lost = self._idle = self._total = 0.0
        self._noted: list[dict[str, float]] = []

    def update(self, event: BaseEvent) -> None:
        """Take in a sync, or the step in which the learner heard of it."""
        if isinstance(event, WeightsSynced):
            self._noted.append(event.seconds)
        elif isinstance(event, StepCompleted):
            self._take(event)
        else:
            self._was_paused = self._was_paused or isinstance(event, RunPaused)
            self._clear()

    def _take(self, event: StepCompleted) -> None:
        noted, self._noted = self._noted, []
        was_paused, self._was_paused = self._was_paused, False
        seconds = event.seconds
        self.lacks_parts = "sync_wait" not in seconds or not all("load" in sync for sync in noted)
        if was_paused or self.lacks_parts or event.outcome != "updated":
            return
        total = seconds.get("total", 0.0)
        idle = min(total, seconds.get("wait", 0.0) + seconds["sync_wait"])
        lost = 0.0
        for sync in noted:
            write = sync.get("write", 0.0)
            stopped = sync["load"] + sync.get("verify", 0.0) + sync.get("resume", 0.0)
            lost += write + min(max(0.0, idle - lost - write), stopped)
        self._lost += min(total, lost)
        self._idle += idle
        self._total += total
        if noted and self._total > 0:
            self.window.append(SyncInterval(self._lost, self._idle, self._total, tuple(noted)))
            self._clear()

    @property
    def lost_share(self) -> float:
        """Median over the window of the share of time that was lost: one slow sync does not decide."""
        return median([interval.lost / interval.total for interval in self.window])

    @property
    def idle_share(self) -> float:
        """Share of the window's time that the learner waited for groups or gave to a sync."""
        return sum(interval.idle for interval in self.window) / sum(interval.total for interval in self.window)

    @property
    def longest_part(self) -> tuple[str, float]:
        """The part that took most of the syncs in the window, and its seconds per sync."""
        syncs = [sync for interval in self.window for sync in interval.syncs]
        sums = {name: sum(sync.get(name, 0.0) for sync in syncs) for name in self.PARTS}
        name = max(sums, key=lambda part: sums[part])
        return name, sums[name] / len(syncs)

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()
        self._clear()


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """How far apart the versions of single completions were, in one batch."""

    step: int
    p95: float
    """95th percentile over completions of the steps between the weights of their oldest and newest token."""
    mixed: float
    """Share of completions with tokens of more than one version; NaN when it was not measured."""
    bound: int


class Spans(Feature):
    """Version spans of the last batches."""

    takes = (BatchConsumed,)
    moved_by = frozenset({"staleness"})
    BATCHES: ClassVar[int] = 10

    def __init__(self) -> None:
        self.window: deque[BatchSpan] = deque(maxlen=self.BATCHES)

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch; one whose span is not a finite number says nothing."""
        if not isinstance(event, BatchConsumed) or event.version_span is None:
            return
        p95 = as_float(event.version_span.p95)
        if math.isfinite(p95):
            self.window.append(BatchSpan(event.step, p95, as_float(event.mixed_frac), event.max_staleness))

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()
