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

    takes = (RunStarted, RunResumed, StepCompleted, QueueSampled, RunPaused)
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
        self._shares: dict[int, tuple[float, float]] = {}
        """Answers of `shares` for the window as it is; several rules ask for the same."""
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
        self._shares.clear()

    def shares(self, steps: int) -> tuple[float, float]:
        """Share of the time of the last `steps` steps that learner and sampler waited, each without its longest wait.

        One evaluation, checkpoint or hiccup does not decide. NaN with fewer than three steps.
        """
        if steps not in self._shares:
            entries = list(self.window)[-steps:]
            total = sum([entry.total for entry in entries])
            self._shares[steps] = (
                _without_longest([(entry.learner, entry.total) for entry in entries], total),
                _without_longest([(entry.sampler, entry.total) for entry in entries], total),
            )
        return self._shares[steps]

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()
        self._shares.clear()


def _without_longest(waits: list[tuple[float, float]], total: float) -> float:
    """Share of `total` that was waited, of pairs of wait and length, without the pair of the longest wait."""
    if len(waits) < 3:
        return math.nan
    wait, length = max(waits)
    rest = total - length
    # In this order a share that is not a number stays none: `min` answers its first argument then.
    return min((sum([pair[0] for pair in waits]) - wait) / rest, 1.0) if rest > 0 else math.nan
