"""Where the time of a step goes: generating and scoring, the pace of the run, and padding."""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed, Quantiles
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import CheckpointSaved, EvaluationCompleted, QueueSampled, RunPaused
from tocsin.schemas.step import StepCompleted

SCORING_SHARE: Final = 0.2
"""Share of a step from which the time to score a group can hold up the learner at all."""
PARTS: Final = {
    "wait": "waiting for groups",
    "forward_backward": "forward and backward",
    "optimizer": "the optimizer",
    "sync_wait": "weight syncs",
    "other": "anything else",
}
"""Parts of `step_completed.seconds` in words; `other` is what they leave of `total`."""


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """How long the groups of one step took. Seconds; medians over the groups."""

    step: int
    groups: int
    generate: float
    slowest: float
    """Longest generation of a group."""
    score: float
    total: float
    """Length of the step."""
    length: float
    """Longest completion over the median one; NaN when the lengths are not known."""


class Durations(Feature):
    """What the groups of the last steps waited for, from launch to rewards."""

    takes = (BatchConsumed, QueueSampled)
    moved_by = frozenset({"waits", "step_time", "length"})
    STEPS: ClassVar[int] = 30
    TAIL_STEPS: ClassVar[int] = 8
    """Steps in which the slowest group is looked for, at least."""
    TAIL_GROUPS: ClassVar[int] = 64

    def __init__(self) -> None:
        self.window: deque[GroupTimes] = deque(maxlen=self.STEPS)
        self._length: Quantiles | None = None
        self._groups = 0

    def update(self, event: BaseEvent) -> None:
        """Take in a sample; the batch that it belongs to came before it."""
        if isinstance(event, BatchConsumed):
            self._length, self._groups = event.length, len(event.groups.size)
        elif isinstance(event, QueueSampled) and event.generate_s is not None and event.score_s is not None:
            taken, scored = event.generate_s, event.score_s
            times = (as_float(taken.p50), as_float(taken.max), as_float(scored.p50))
            if all(map(math.isfinite, times)):
                self.window.append(GroupTimes(event.step, self._groups, *times, event.step_s, self._spread()))

    def _spread(self) -> float:
        if self._length is None:
            return math.nan
        usual = as_float(self._length.p50)
        return as_float(self._length.max) / usual if usual > 0 else math.nan

    @property
    def generate_s(self) -> float:
        """Median over the window of the time to generate a group."""
        return median([times.generate for times in self.window])

    @property
    def score_s(self) -> float:
        """Median over the window of the time to score a group, the wait for a free worker included."""
        return median([times.score for times in self.window])

    @property
    def is_scoring_longer(self) -> bool:
        """Whether groups wait for their rewards for longer than for their tokens, and long enough to matter."""
        score = self.score_s
        return score > self.generate_s and score > SCORING_SHARE * median([times.total for times in self.window])

    @property
    def tail(self) -> list[GroupTimes]:
        """The newest steps with enough groups to look for slow ones; empty while there are too few."""
        steps = self.TAIL_STEPS
        newest = list(self.window)[-steps:]
        while sum([times.groups for times in newest]) < self.TAIL_GROUPS and steps < len(self.window):
            steps += 1
            newest = list(self.window)[-steps:]
        is_enough = len(newest) >= self.TAIL_STEPS and sum([times.groups for times in newest]) >= self.TAIL_GROUPS
        return newest if is_enough else []

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()


def tail_ratio(tail: list[GroupTimes]) -> float:
    """Slowest generation of a group over the usual one; NaN without steps."""
    usual = median([times.generate for times in tail])
    return max(times.slowest for times in tail) / usual if usual > 0 else math.nan


def length_ratio(tail: list[GroupTimes]) -> float:
    """Longest completion over the usual one in the same steps; NaN when lengths are not known."""
    known = [times.length for times in tail if math.isfinite(times.length)]
    return max(known, default=math.nan)


@dataclass(frozen=True, slots=True)
class Pace:
    """Completion tokens per second over some steps, and where the time of these steps went."""

    step: int
    """The newest of them."""
    rate: float
    step_s: float
    """Median length of a step."""
    steps: tuple[StepCompleted, ...]

    @property
    def parts(self) -> dict[str, float]:
        """Seconds per step by part."""
        n = len(self.steps)
        found = {name: sum(step.seconds.get(name, 0.0) for step in self.steps) / n for name in PARTS}
        total = sum(step.seconds["total"] for step in self.steps) / n
        return {**found, "other": max(0.0, total - sum(found.values()))}


class Throughput(Feature):
    """The pace of the last steps beside the best pace since the configuration changed.

    Steps without an update have nothing to compute, and those around an evaluation, a checkpoint or a pause share
    their time with it: neither counts.
    """

    takes = (StepCompleted, EvaluationCompleted, CheckpointSaved, RunPaused)
    moved_by = frozenset({"waits", "step_time", "length"})
    STEPS: ClassVar[int] = 20
    EVERY: ClassVar[int] = 5
    LONG: ClassVar[int] = 20
    """Paces that make up 100 steps."""

    def __init__(self) -> None:
        self.best: Pace | None = None
        self.now: Pace | None = None
        self.shares: deque[float] = deque(maxlen=self.LONG)
        """Each of the last paces over the best before it."""
        self._window: deque[StepCompleted] = deque(maxlen=self.STEPS)
        self._new = 0
        self._is_shared = False

    def update(self, event: BaseEvent) -> None:
        """Take in a step, or what its time is shared with."""
        if not isinstance(event, StepCompleted):
            self._is_shared = True
            return
        was_shared, self._is_shared = self._is_shared, False
        if was_shared or event.outcome != "updated" or not event.seconds.get("total", 0.0) > 0:
            return
        self._window.append(event)
        self._new += 1
        if self._new >= self.EVERY and len(self._window) == self.STEPS:
            self._new = 0
            self._measure(event.step)

    def _measure(self, step: int) -> None:
        seconds = [item.seconds["total"] for item in self._window]
        rate = median([item.tokens / length for item, length in zip(self._window, seconds, strict=True)])
        self.now = Pace(step, rate, median(seconds), tuple(self._window))
        if self.best is None or rate > self.best.rate:
            self.best = self.now
        self.shares.append(rate / self.best.rate if self.best.rate > 0 else math.nan)

    def restart(self) -> None:
        """Start over: another configuration has another pace."""
        self.best = self.now = None
        self.shares.clear()
        self._window.clear()


class Padding(Feature):
    """Share of padding in the forward passes of the last steps that updated the weights."""

    takes = (StepCompleted,)
    moved_by = frozenset({"step_time", "length"})
    RECENT: ClassVar[int] = 10
    STEPS: ClassVar[int] = 50

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=self.RECENT)
        self.window: deque[float] = deque(maxlen=self.STEPS)
        self.last: StepCompleted | None = None
        """The newest step that says how it was cut into forward passes."""

    def update(self, event: BaseEvent) -> None:
        """Take in a step that says how it was cut."""
        if isinstance(event, StepCompleted) and event.outcome == "updated" and event.microbatches is not None:
            self.recent.append(event.microbatches.padded_frac)
            self.window.append(event.microbatches.padded_frac)
            self.last = event

    def restart(self) -> None:
        """Start the windows over."""
        self.recent.clear()
        self.window.clear()


def mean(window: deque[float]) -> float:
    """Mean of a window that is full; NaN while it is not."""
    return sum(window) / len(window) if len(window) == window.maxlen else math.nan
