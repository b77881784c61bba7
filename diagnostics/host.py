"""What the machine says every few steps: memory that grows, the disk, processor time, the state of accelerators."""

import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import ACCELERATORS, Feature
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import CheckpointSaved, RunResumed, RunStarted
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.resources import DeviceMemory, ResourcesSampled


class Host(Feature):
    """The last samples of this attempt, those of its first steps left out."""

    takes = (RunStarted, RunResumed, ResourcesSampled)
    moved_by = frozenset({"memory"})
    SAMPLES: ClassVar[int] = 50
    START_UP: ClassVar[int] = 2

    def __init__(self) -> None:
        self.window: deque[ResourcesSampled] = deque(maxlen=self.SAMPLES)
        self.num_steps: int | None = None
        """Planned."""
        self._seen = 0

    def update(self, event: BaseEvent) -> None:
        """Take in a sample, or a start, after which processes are new."""
        if isinstance(event, ResourcesSampled):
            self._seen += 1
            if self._seen > self.START_UP:
                self.window.append(event)
            return
        self._seen = 0
        self.window.clear()
        if isinstance(event, RunStarted):
            self.num_steps = event.num_steps

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()


@dataclass(frozen=True, slots=True)
class Growth:
    """A series that rises from sample to sample."""

    first: float
    """Median of the oldest third."""
    last: float
    """Median of the newest third."""
    steps: int
    """Optimizer steps between the two."""

    @property
    def share_per_step(self) -> float:
        """Rise per step as a share of `first`."""
        return (self.last - self.first) / self.first / self.steps if self.first > 0 and self.steps > 0 else 0.0

    @property
    def per_step(self) -> float:
        """Rise per step."""
        return (self.last - self.first) / self.steps if self.steps > 0 else 0.0


def growth(values: Sequence[float], steps: Sequence[int]) -> Growth | None:
    """The growth of a series that rises in all but one or two of its samples; None when it does not.

    A cache that fills up stops rising, and what is freed now and then falls in between.
    """
    n = len(values)
    if n < 6 or sum(b > a for a, b in itertools.pairwise(values)) < math.ceil(0.8 * (n - 1)):
        return None
    third = n // 3
    middle = third // 2
    return Growth(median(values[:third]), median(values[-third:]), steps[-1 - middle] - steps[middle])


def accelerators(sample: ResourcesSampled) -> list[DeviceMemory]:
    """Devices with memory of their own."""
    return [device for device in sample.devices if device.kind in ACCELERATORS and device.total_bytes > 0]


class Disk(Feature):
    """Free space where the run folder lies, beside what one checkpoint takes."""

    takes = (RunStarted, RunResumed, ResourcesSampled, CheckpointSaved, WeightsSynced)
    SAMPLES: ClassVar[int] = 10
    PER_WEIGHTS: ClassVar[int] = 4
    """A checkpoint over the weights alone: the weights, two moments of Adam, and some room."""

    def __init__(self) -> None:
        self.free: deque[tuple[float, int]] = deque(maxlen=self.SAMPLES)
        """Seconds on the monotonic clock, and bytes."""
        self.total_bytes: int | None = None
        self.has_checkpoint = False
        self.checkpoint_bytes = 0
        """Size of the last checkpoint, or an estimate from the weights before there is one; 0 when nothing is known."""

    def update(self, event: BaseEvent) -> None:
        """Take in a sample or a size."""
        if isinstance(event, WeightsSynced):
            if not self.has_checkpoint:
                self.checkpoint_bytes = self.PER_WEIGHTS * event.bytes
        elif isinstance(event, ResourcesSampled):
            self.free.append((event.mono, event.disk_free_bytes))
            self.total_bytes = event.disk_total_bytes
        elif isinstance(event, CheckpointSaved):
            if event.bytes > 0:
                self.has_checkpoint, self.checkpoint_bytes = True, event.bytes
        else:
            self.free.clear()

    @property
    def seconds_left(self) -> float:
        """Until the disk is full at the pace of the window; infinite when it does not fill up."""
        if len(self.free) < self.SAMPLES:
            return math.inf
        times, sizes = zip(*self.free, strict=True)
        third = self.SAMPLES // 3
        lost = median(sizes[:third]) - median(sizes[-third:])
        seconds = median(times[-third:]) - median(times[:third])
        return sizes[-1] * seconds / lost if lost > 0 and seconds > 0 else math.inf

    def restart(self) -> None:
        """Free space has no baseline: nothing to forget."""
