"""Whether a resumed run goes on as the run that stopped: sizes of updates, learning rate, first weights sent."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import as_float
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, RunResumed, RunStarted
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.setup import RunSetup
from tocsin.schemas.step import StepCompleted


@dataclass(slots=True)
class Resumed:
    """The newest resume, and what was seen since."""

    checkpoint_step: int
    before: tuple[float, ...]
    """Update ratio over learning rate of the last updates before."""
    after: list[float] = field(default_factory=list)
    """The same of the first updates since."""
    steps: int = 0
    """Finished since."""
    version: int | None = None
    """First weights that the sampler acknowledged."""
    rate: float = math.nan
    """Learning rate of the first step since."""
    scheduled: float = math.nan
    """What the schedule asks for in that step; NaN when it is not known."""


class Resumption(Feature):
    """The updates before a resume beside the first ones after it.

    The size of an update is taken relative to the learning rate, which a schedule moves between the two.
    """

    takes = (RunStarted, RunResumed, KnobChanged, WeightsSynced, StepCompleted)
    BEFORE: ClassVar[int] = 20
    AFTER: ClassVar[int] = 3

    def __init__(self) -> None:
        self.resumed: Resumed | None = None
        """None while the run was never resumed."""
        self._before: deque[float] = deque(maxlen=self.BEFORE)
        self._num_steps: int | None = None
        self._setup: RunSetup | None = None
        self._knob = math.nan

    def update(self, event: BaseEvent) -> None:
        """Take in an update, a resume, or what it is compared by."""
        if isinstance(event, StepCompleted):
            self._take(event)
        elif isinstance(event, WeightsSynced):
            if self.resumed is not None and self.resumed.version is None:
                self.resumed.version = event.version
        elif isinstance(event, KnobChanged):
            if event.path == "learning_rate":
                self._knob = float(event.after)
        elif isinstance(event, RunStarted | RunResumed):
            self._setup, self._knob = event.setup, float(event.knobs.get("learning_rate", math.nan))
            if isinstance(event, RunStarted):
                self._num_steps = event.num_steps
            else:
                self.resumed = Resumed(event.checkpoint_step, tuple(self._before))

    def _take(self, event: StepCompleted) -> None:
        rate = as_float(event.learning_rate)
        size = as_float(event.update_ratio) / rate if rate > 0 else math.nan
        is_update = event.outcome == "updated" and math.isfinite(size)
        if is_update:
            self._before.append(size)
        if self.resumed is None:
            return
        self.resumed.steps += 1
        if self.resumed.steps == 1:
            self.resumed.rate, self.resumed.scheduled = rate, self._scheduled(event.step - 1)
        if is_update and len(self.resumed.after) < self.AFTER:
            self.resumed.after.append(size)

    def _scheduled(self, step: int) -> float:
        """Learning rate that the schedule asks for in step number `step`; NaN when it is not known."""
        setup, num_steps = self._setup, self._num_steps
        if setup is None or setup.warmup_steps is None or num_steps is None:
            return math.nan
        warm_up = setup.warmup_steps
        if step < warm_up:
            return self._knob * (step + 1) / warm_up
        done = (step - warm_up) / max(1, num_steps - warm_up)
        decay = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
        return self._knob * decay.get(setup.schedule or "", math.nan)

    def restart(self) -> None:
        """The comparison is across the change on purpose: nothing to forget."""
