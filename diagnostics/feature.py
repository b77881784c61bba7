"""What a feature is, and the one that all rules share: the settings of the run.

Every feature holds a window, never a history, so memory does not grow with the run. A feature names the metrics it
holds (`moved_by`); a knob that moves one of them restarts its window, because values from before are no baseline.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from typing import ClassVar, Final

from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, RunResumed, RunStarted
from tocsin.schemas.knobs import KnobValue
from tocsin.schemas.setup import RunSetup
from tocsin.schemas.step import StepCompleted

ACCELERATORS: Final = ("cuda", "simulated")
"""Kinds of devices with memory of their own. The memory of an MPS device is the host's."""


class Feature(ABC):
    """A window over one family of events."""

    takes: ClassVar[tuple[type[BaseEvent], ...]]
    """Types of event that say something about it; `update` is called for no other."""
    moved_by: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def update(self, event: BaseEvent) -> None:
        """Take in one event."""

    @abstractmethod
    def restart(self) -> None:
        """Forget the window, because what it measured has been moved on purpose."""


class Settings(Feature):
    """What the run was launched with and what is in force now."""

    takes = (BaseEvent,)

    def __init__(self) -> None:
        self.step = 0
        self.knobs: dict[str, KnobValue] = {}
        self.launched: dict[str, KnobValue] = {}
        self.planned_steps = 0
        """Optimizer steps planned; 0 when the run did not say."""
        self.has_accelerator: bool | None = None
        """None until a device list was seen."""
        self.loss_variant = ""
        self.setup = RunSetup()
        """Empty when the run did not state it."""
        self.failed_budget = math.inf
        """Smallest `microbatch_tokens` from which the learner retreated for lack of memory."""
        self.oom_steps: deque[int] = deque(maxlen=10)
        """The last steps that ran out of device memory and were retried."""

    def update(self, event: BaseEvent) -> None:
        """Follow launch, resume and knob changes."""
        self.step = event.step
        if isinstance(event, RunStarted):
            self.launched = dict(event.knobs)
            self.loss_variant = event.loss_variant
            self.planned_steps = event.num_steps
        if isinstance(event, RunStarted | RunResumed):
            self.knobs = dict(event.knobs)
            self.setup = event.setup or RunSetup()
            self.has_accelerator = any(device.kind in ACCELERATORS for device in event.devices)
        elif isinstance(event, KnobChanged):
            self.knobs[event.path] = event.after
            if event.path == "microbatch_tokens" and event.actor == "learner" and event.after < event.before:
                self.failed_budget = min(self.failed_budget, event.before)
        elif isinstance(event, StepCompleted) and event.oom_retries > 0:
            self.oom_steps.append(event.step)

    def restart(self) -> None:
        """Settings are facts, not measurements: nothing to forget."""

    def knob(self, path: str) -> KnobValue | None:
        """The value in force; None when the run did not state it."""
        return self.knobs.get(path)
