"""How long nothing has happened, and how long ago the last checkpoint was: both by the clock of the events."""

from collections import deque
from typing import ClassVar, Literal

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import as_float
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    CheckpointSaved,
    ClockTicked,
    ComponentHeartbeat,
    EvaluationCompleted,
    RolloutFailed,
    RunContinued,
    RunEnded,
    RunResumed,
    RunStarted,
)
from tocsin.schemas.generation import SamplerSampled, WeightsSynced
from tocsin.schemas.step import StepCompleted

Who = Literal["sampler", "scoring", "sync", "idle", "silent", "unknown"]
"""What the rollout process is at: generating, scoring, taking weights, nothing; it fell silent; it never speaks."""
AT: dict[str, Who] = {"generate": "sampler", "evaluate": "sampler", "score": "scoring", "sync": "sync", "idle": "idle"}


class Standstill(Feature):
    """Time since the last progress: a step, a batch of the sampler, new weights, a failure that was dealt with.

    Heartbeats and ticks are no progress. A pause that somebody asked for is no standstill.
    """

    takes = (
        RunStarted,
        RunResumed,
        RunEnded,
        RunContinued,
        StepCompleted,
        SamplerSampled,
        RolloutFailed,
        WeightsSynced,
        CheckpointSaved,
        EvaluationCompleted,
        ComponentHeartbeat,
        ClockTicked,
    )
    RECENT: ClassVar[int] = 32
    FRESH_S: ClassVar[float] = 25.0
    """A heartbeat older than this says nothing about now; they come every 10 s."""

    def __init__(self) -> None:
        self.is_starting = True
        """No step of this attempt has ended yet."""
        self.has_ended = False
        self.beat: ComponentHeartbeat | None = None
        """Newest heartbeat of the rollout process that says what it is at."""
        self._now = self._last = 0.0
        self._steps: deque[float] = deque(maxlen=self.RECENT)
        self._batches: deque[float] = deque(maxlen=self.RECENT)
        self._checkpoint_s = 0.0

    def update(self, event: BaseEvent) -> None:
        """Take in progress, a sign of life, or the time."""
        if isinstance(event, ClockTicked):
            self._now = event.mono
            if event.paused:
                self._last = event.mono
            return
        if isinstance(event, ComponentHeartbeat) and event.is_routine:
            self.beat = event
            return
        self._now = self._last = event.mono
        if isinstance(event, StepCompleted):
            self.is_starting = False
            self._steps.append(event.seconds.get("total", 0.0))
        elif isinstance(event, SamplerSampled):
            self._batches.append(event.seconds)
        elif isinstance(event, CheckpointSaved):
            self._checkpoint_s = event.seconds
        elif isinstance(event, RunStarted | RunResumed):
            self.is_starting, self.has_ended, self.beat = True, False, None
        elif isinstance(event, RunEnded):
            self.has_ended = True

    @property
    def seconds(self) -> float:
        """Since the last progress."""
        return self._now - self._last

    @property
    def usual_s(self) -> float:
        """Median of the last steps or of the last batches, whichever is longer; 0 before there are any."""
        return max(median(self._steps) if self._steps else 0.0, median(self._batches) if self._batches else 0.0)

    @property
    def allowance_s(self) -> float:
        """What the learner may be at without a word: a checkpoint."""
        return 2 * self._checkpoint_s

    @property
    def who(self) -> Who:
        """What everything waits for, as the rollout process says."""
        if self.beat is None:
            return "unknown"
        if self._now - self.beat.mono > self.FRESH_S:
            return "silent"
        return AT.get(self.beat.busy or "", "unknown")

    @property
    def busy_s(self) -> float:
        """How long that has been under way, as of the newest heartbeat."""
        return 0.0 if self.beat is None else as_float(self.beat.busy_s)

    def restart(self) -> None:
        """How long nothing has happened has no baseline: nothing to forget."""


class CheckpointAge(Feature):
    """What an end of the run would lose now: the time and the steps since the last checkpoint. Pauses do not count."""

    takes = (RunStarted, RunResumed, RunEnded, CheckpointSaved, ClockTicked)

    def __init__(self) -> None:
        self.num_steps: int | None = None
        """Planned."""
        self.has_any = False
        self.has_ended = False
        self.seconds = 0.0
        self.since_step = 0
        self._at = 0.0

    def update(self, event: BaseEvent) -> None:
        """Take in a checkpoint, a start or the time."""
        if isinstance(event, ClockTicked):
            self.seconds += 0.0 if event.paused else max(0.0, event.mono - self._at)
        elif isinstance(event, RunEnded):
            self.has_ended = True
        else:
            self.seconds, self.since_step, self.has_ended = 0.0, event.step, False
            if isinstance(event, RunStarted):
                self.num_steps, self.has_any = event.num_steps, False
            else:
                self.has_any = True
                self.since_step = event.checkpoint_step if isinstance(event, RunResumed) else event.step
        self._at = event.mono

    def restart(self) -> None:
        """The age of a checkpoint has no baseline: nothing to forget."""
