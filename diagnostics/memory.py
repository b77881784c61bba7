"""Peak memory of accelerators."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.feature import ACCELERATORS, Feature
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.resources import DeviceMemory, ResourcesSampled
from tocsin.schemas.step import MicrobatchStats

GIB: Final = 2**30
PEAK: Final = "resources_sampled.devices.phases.reserved_bytes / total_bytes"
"""Metric of the fullest device: reserved bytes, or allocated where larger."""
PHASES: Final = ("generate", "score", "forward_backward", "optimizer", "sync")


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Peaks of the fullest accelerator since the sample before."""

    step: int
    device: DeviceMemory
    peak_phase: str
    peak_bytes: int
    """Reserved by the allocator, or allocated where that is larger."""
    allocated_bytes: int
    """Largest peak in use, without what the allocator only keeps."""
    work_bytes: int | None
    """The same in phase `forward_backward`; None when that phase did not report."""
    microbatches: MicrobatchStats | None

    @property
    def share(self) -> float:
        """Peak over the device's memory."""
        return self.peak_bytes / self.device.total_bytes


class Memory(Feature):
    """Peak memory of accelerators over the last samples."""

    takes = (ResourcesSampled,)
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
    phase, size = _peak(device)
    work = device.phases.get("forward_backward")
    return MemorySample(
        step=event.step,
        device=device,
        peak_phase=phase,
        peak_bytes=size,
        allocated_bytes=max(peak.allocated_bytes for peak in device.phases.values()),
        work_bytes=None if work is None else max(work.reserved_bytes, work.allocated_bytes),
        microbatches=event.microbatches,
    )


def steepest(window: Iterable[MemorySample]) -> MemorySample | None:
    """The sample with the most `forward_backward` memory per token, which is the careful one to scale from."""
    usable = [s for s in window if s.work_bytes is not None and s.microbatches and s.microbatches.max_tokens]
    return max(usable, key=bytes_per_token, default=None)


def bytes_per_token(sample: MemorySample) -> float:
    """Bytes per padded token of the largest micro-batch, above what is allocated outside any phase."""
    assert sample.microbatches is not None, "`steepest` picks samples with micro-batches"
    return ((sample.work_bytes or 0) - sample.device.baseline_bytes) / sample.microbatches.max_tokens


def phase_name(name: str) -> str:
    """The phase in words of ours; a name from elsewhere is not repeated."""
    return name if name in PHASES else "another phase"
