"""What the rules look at: bounded windows, updated once per event and shared by all rules.

Every feature holds a window, never a history, so memory does not grow with the run. A feature names the metrics it
holds (`moved_by`); a knob that moves one of them restarts its window, because values from before are no baseline.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.rewards import Rewards
from tocsin.schemas.base import Number, as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, RunResumed, RunStarted
from tocsin.schemas.knobs import LIMITS, KnobValue
from tocsin.schemas.resources import DeviceMemory, ResourcesSampled
from tocsin.schemas.step import MicrobatchStats, StepCompleted

ACCELERATORS: Final = ("cuda", "simulated")
"""Kinds of devices with memory of their own. The memory of an MPS device is the host's."""

MODEL_FIELDS: Final = ("loss", "grad_norm", "update_ratio")
"""Fields of `StepCompleted` whose non-finite value is damage to the model."""


class Feature(ABC):
    """A window over one family of events."""

    moved_by: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def update(self, event: BaseEvent) -> None:
        """Take in one event of any type."""

    @abstractmethod
    def restart(self) -> None:
        """Forget the window, because what it measured has been moved on purpose."""


class Settings(Feature):
    """What the run was launched with and what is in force now."""

    def __init__(self) -> None:
        self.step = 0
        self.knobs: dict[str, KnobValue] = {}
        self.launched: dict[str, KnobValue] = {}
        self.has_accelerator: bool | None = None
        """None until a device list was seen."""
        self.loss_variant = ""
        self.failed_budget = math.inf
        """Smallest `microbatch_tokens` from which the learner retreated for lack of memory."""
        self.oom_step: int | None = None

    def update(self, event: BaseEvent) -> None:
        """Follow launch, resume and knob changes."""
        self.step = event.step
        if isinstance(event, RunStarted):
            self.launched = dict(event.knobs)
            self.loss_variant = event.loss_variant
        if isinstance(event, RunStarted | RunResumed):
            self.knobs = dict(event.knobs)
            self.has_accelerator = any(device.kind in ACCELERATORS for device in event.devices)
        elif isinstance(event, KnobChanged):
            self.knobs[event.path] = event.after
            if event.path == "microbatch_tokens" and event.actor == "learner" and event.after < event.before:
                self.failed_budget = min(self.failed_budget, event.before)
        elif isinstance(event, StepCompleted) and event.oom_retries > 0:
            self.oom_step = event.step

    def restart(self) -> None:
        """Settings are facts, not measurements: nothing to forget."""

    def knob(self, path: str) -> KnobValue | None:
        """The value in force; None when the run did not state it."""
        return self.knobs.get(path)


@dataclass(frozen=True, slots=True)
class StepNumerics:
    """What one step said about finite numbers and about drift between sampler and learner."""

    nonfinite: tuple[str, ...]
    ess_frac: float
    k3: float


class Numerics(Feature):
    """The last step."""

    def __init__(self) -> None:
        self.last: StepNumerics | None = None

    def update(self, event: BaseEvent) -> None:
        """Remember the newest step only."""
        if not isinstance(event, StepCompleted):
            return
        found = list(event.nonfinite)
        values: dict[str, Number | None] = {name: event.__dict__[name] for name in MODEL_FIELDS}
        # An absent value was not measured; only a value that is there can be non-finite.
        for name, value in values.items():
            if value is not None and not math.isfinite(as_float(value)) and name not in found:
                found.append(name)
        k3 = math.nan if event.logprob_gap is None else as_float(event.logprob_gap.k3)
        self.last = StepNumerics(nonfinite=tuple(found), ess_frac=as_float(event.ess_frac), k3=k3)

    def restart(self) -> None:
        """Whether numbers are finite has no baseline: nothing to forget."""


@dataclass(frozen=True, slots=True)
class StepClips:
    """Clip fractions of one step; NaN where they were not measured."""

    step: int
    low: float
    high: float
    tokens: int
    expected: bool
    """Whether the step updated the weights, so that a fraction should be there."""


class Clips(Feature):
    """Clip fractions over the last steps."""

    moved_by = frozenset({"clip_frac"})
    STEPS: ClassVar[int] = 10

    def __init__(self) -> None:
        self.window: deque[StepClips] = deque(maxlen=self.STEPS)

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step."""
        if isinstance(event, StepCompleted):
            self.window.append(
                StepClips(
                    step=event.step,
                    low=as_float(event.clip_low_frac),
                    high=as_float(event.clip_high_frac),
                    tokens=event.tokens_trained,
                    expected=event.outcome == "updated",
                )
            )

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()


@dataclass(frozen=True, slots=True)
class StepStaleness:
    """Staleness of the completions of one step, in optimizer steps."""

    step: int
    mean: float
    p95: float
    max: float
    bound: int


class Staleness(Feature):
    """Staleness over the last batches."""

    moved_by = frozenset({"staleness"})
    BATCHES: ClassVar[int] = 10

    def __init__(self) -> None:
        self.window: deque[StepStaleness] = deque(maxlen=self.BATCHES)

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch."""
        if not isinstance(event, BatchConsumed):
            return
        found = event.staleness
        mean, p95, top = as_float(found.mean), as_float(found.p95), as_float(found.max)
        if all(math.isfinite(value) for value in (mean, p95, top)):
            entry = StepStaleness(step=event.step, mean=mean, p95=p95, max=top, bound=event.max_staleness)
            self.window.append(entry)

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Peaks of the fullest accelerator since the sample before."""

    step: int
    device: DeviceMemory
    peak_phase: str
    peak_bytes: int
    """Reserved by the allocator, or allocated where that is larger."""
    work_bytes: int | None
    """The same in phase `forward_backward`; None when that phase did not report."""
    microbatches: MicrobatchStats | None


class Memory(Feature):
    """Peak memory of accelerators over the last samples."""

    moved_by = frozenset({"memory"})
    SAMPLES: ClassVar[int] = 10

    def __init__(self) -> None:
        self.window: deque[MemorySample] = deque(maxlen=self.SAMPLES)
        self.saw_only_hosts = False
        """The newest sample had no accelerator in it."""

    def update(self, event: BaseEvent) -> None:
        """Take in a sample; one without phases measured nothing."""
        if not isinstance(event, ResourcesSampled):
            return
        devices = [device for device in event.devices if device.kind in ACCELERATORS]
        self.saw_only_hosts = not devices
        measured = [device for device in devices if device.phases and device.total_bytes > 0]
        if measured:
            self.window.append(_sample(event, max(measured, key=lambda d: _peak(d)[1] / d.total_bytes)))

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()


def _peak(device: DeviceMemory) -> tuple[str, int]:
    """The fullest phase and its bytes."""
    sizes = {name: max(peak.reserved_bytes, peak.allocated_bytes) for name, peak in device.phases.items()}
    phase = max(sizes, key=lambda name: sizes[name])
    return phase, sizes[phase]


def _sample(event: ResourcesSampled, device: DeviceMemory) -> MemorySample:
    phase, peak = _peak(device)
    work = device.phases.get("forward_backward")
    return MemorySample(
        step=event.step,
        device=device,
        peak_phase=phase,
        peak_bytes=peak,
        work_bytes=None if work is None else max(work.reserved_bytes, work.allocated_bytes),
        microbatches=event.microbatches,
    )


class Features:
    """Every window of the engine."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.rewards = Rewards()
        self.numerics = Numerics()
        self.clips = Clips()
        self.staleness = Staleness()
        self.memory = Memory()

    def update(self, event: BaseEvent) -> None:
        """Take in one event; a knob change or a resume restarts the windows whose metrics it moves."""
        windows = (self.numerics, self.clips, self.staleness, self.memory)
        for feature in (self.settings, *windows):
            feature.update(event)
        if isinstance(event, BatchConsumed):
            self.rewards.update(event)
        if isinstance(event, RunResumed):
            moved = frozenset().union(*(feature.moved_by for feature in windows), Rewards.MOVED_BY)
        elif isinstance(event, KnobChanged) and event.path in LIMITS:
            moved = frozenset(LIMITS[event.path].moves)
        else:
            return
        for feature in windows:
            if feature.moved_by & moved:
                feature.restart()
        if moved & Rewards.MOVED_BY:
            self.rewards.restart()
