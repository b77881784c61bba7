"""Who waited for whom: shares of the time that learner and sampler stood still."""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Feature
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import QueueSampled, RunPaused, RunResumed, RunStarted
from tocsin.schemas.step import StepCompleted


@dataclass(frozen=True, slots=True)
class StepWait:
    """Seconds of one step."""

    step: int
    learner: float
    """In which the learner waited for groups."""
    sampler: float
    """In which the sampler waited for free slots."""
    total: float
    computed: float
    """In which the learner computed: forward, backward and optimizer."""


class Waits(Feature):
    """Waits over the last steps that trained, without those of start-up.

    A step without signal gives the learner nothing to do, so its waiting is no loss.
    """

    moved_by = frozenset({"waits", "step_time"})
    STEPS: ClassVar[int] = 30
    START_UP: ClassVar[int] = 8

    def __init__(self) -> None:
        self.window: deque[StepWait] = deque(maxlen=self.STEPS)
        self.seen = 0
        """Samples of this attempt, those of start-up included."""
        self.microbatches = 1
        """Forward passes of the last step."""
        self._last: StepCompleted | None = None
        self._was_paused = False
        """Somebody paused the run since the last sample, whose waits then mean nothing."""

    def update(self, event: BaseEvent) -> None:
        """Take in a sample; the step that it belongs to ended just before."""
        if isinstance(event, RunStarted | RunResumed):
            self.seen = 0
        elif isinstance(event, StepCompleted):
            self._last = event
            if event.microbatches is not None and event.microbatches.num:
                self.microbatches = event.microbatches.num
        elif isinstance(event, QueueSampled):
            self._take(event)
        elif isinstance(event, RunPaused):
            self._was_paused = True

    def _take(self, event: QueueSampled) -> None:
        self.seen += 1
        trained = self._last is None or self._last.outcome == "updated"
        was_paused, self._was_paused = self._was_paused, False
        if was_paused or self.seen <= self.START_UP or not trained or event.step_s <= 0:
            return
        parts = {} if self._last is None else self._last.seconds
        computed = parts.get("forward_backward", 0.0) + parts.get("optimizer", 0.0)
        entry = StepWait(
            step=event.step,
            learner=min(event.learner_wait_s, event.step_s),
            sampler=event.sampler_wait_s,
            total=event.step_s,
            computed=computed,
        )
        self.window.append(entry)

    def shares(self, steps: int) -> tuple[float, float]:
        """Share of the time of the last `steps` steps that learner and sampler waited, each without its longest wait.

        One evaluation, checkpoint or hiccup does not decide. NaN with fewer than three steps.
        """
        entries = list(self.window)[-steps:]
        if len(entries) < 3:
            return math.nan, math.nan
        learner = _without_longest([(entry.learner, entry.total) for entry in entries])
        sampler = _without_longest([(entry.sampler, entry.total) for entry in entries])
        return learner, sampler

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()


def _without_longest(waits: list[tuple[float, float]]) -> float:
    """Share of the time that was waited, of pairs of wait and length, without the pair of the longest wait."""
    longest = max(waits)
    length = sum(total for _, total in waits) - longest[1]
    return min(1.0, (sum(wait for wait, _ in waits) - longest[0]) / length) if length > 0 else math.nan
