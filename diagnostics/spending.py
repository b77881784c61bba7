"""What the run has spent so far, so that a finding can say what it has cost since its onset.

Five sums for all rules together. Time comes from `mono`; time in which somebody had paused the run is left out.
"""

import math
from dataclasses import dataclass, replace

from tocsin.schemas.diagnosis import Cost
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import QueueSampled, RunContinued, RunPaused, RunResumed, RunStarted
from tocsin.schemas.step import StepCompleted


@dataclass(slots=True)
class Spent:
    """Sums since the first event."""

    seconds: float = 0.0
    tokens: int = 0
    tokens_without_gradient: int = 0
    learner_idle_s: float = 0.0
    sampler_idle_s: float = 0.0
    devices: int = 0
    """Now, no sum."""

    def copy(self) -> "Spent":
        """The sums as they are now."""
        return replace(self)

    def since(self, before: "Spent") -> Cost:
        """What was spent in between."""
        return Cost(
            hours=round((self.seconds - before.seconds) / 3600, 6),
            tokens=self.tokens - before.tokens,
            tokens_without_gradient=self.tokens_without_gradient - before.tokens_without_gradient,
            learner_idle_s=round(self.learner_idle_s - before.learner_idle_s, 3),
            sampler_idle_s=round(self.sampler_idle_s - before.sampler_idle_s, 3),
            devices=self.devices,
        )


class Spending:
    """Follows the events and keeps the sums."""

    def __init__(self) -> None:
        self.spent = Spent()
        self._mono = math.inf
        """Of the event before; later than any before the first."""
        self._is_paused = False
        self._was_paused = False
        """Somebody paused the run since the last sample of the queue, whose waits then cost nothing."""

    def update(self, event: BaseEvent) -> None:
        """Take in one event."""
        if isinstance(event, RunStarted | RunResumed):
            # Another process, whose clock has nothing to do with the one before.
            self._mono, self._is_paused = event.mono, False
            self.spent.devices = len(event.devices)
        elif isinstance(event, RunPaused | RunContinued):
            self._pass(event)
            self._is_paused, self._was_paused = isinstance(event, RunPaused), True
        elif isinstance(event, StepCompleted):
            self._pass(event)
            self.spent.tokens += event.tokens
            self.spent.tokens_without_gradient += event.tokens - event.tokens_trained
        elif isinstance(event, QueueSampled):
            self._pass(event)
            if not self._was_paused:
                self.spent.learner_idle_s += event.learner_wait_s
                self.spent.sampler_idle_s += event.sampler_wait_s
            self._was_paused = self._is_paused
        else:
            self._pass(event)

    def _pass(self, event: BaseEvent) -> None:
        """Let time go by until `event`."""
        if not self._is_paused:
            self.spent.seconds += max(0.0, event.mono - self._mono)
        self._mono = event.mono
