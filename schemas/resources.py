"""`ResourcesSampled`: memory by device and phase, and the host's load."""

from typing import Literal

from tocsin.schemas.base import Count, Fraction, Model
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import MicrobatchStats

DeviceKind = Literal["cpu", "cuda", "mps", "simulated"]


class PhasePeak(Model):
    """Peak device memory within one phase since the last report."""

    allocated_bytes: Count
    reserved_bytes: Count


class DeviceMemory(Model):
    """Memory of one device by phase. Peaks over the whole window, never an instant."""

    device: str
    kind: DeviceKind
    total_bytes: Count
    baseline_bytes: Count
    """In use outside any phase: weights, gradients, optimizer state, and what other processes hold on the device."""
    phases: dict[str, PhasePeak]
    """`generate`, `score`, `forward_backward`, `optimizer`, `sync`."""


class ResourcesSampled(BaseEvent):
    """Memory and load since the previous sample."""

    type: Literal["resources_sampled"] = "resources_sampled"
    devices: list[DeviceMemory]
    """Accelerators only; empty on a CPU machine, which means not measured."""
    microbatches: MicrobatchStats | None = None
    """Of the last step in the window; what the peaks were measured at."""
    host_rss_bytes: dict[str, Count]
    """Resident memory by component."""
    host_memory_frac: Fraction
    """Used share of the host's memory, all processes together."""
    disk_free_bytes: Count
    """Free space where the run folder lies."""
