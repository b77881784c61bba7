"""`ResourcesSampled`: memory by device and phase, and the host's load."""

from typing import Literal

from tocsin.schemas.base import Count, Fraction, Model, Seconds
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
    baseline_reserved_bytes: Count | None = None
    """What the allocator holds outside any phase, in use or not, together with what other processes hold: what of it
    is not in `baseline_bytes` is fragmentation or spare. Absent where there is no such allocator."""
    busy_frac: Fraction | None = None
    """Share of the last second at most in which anything ran on the device, by whatever process, as its driver says."""
    throttled: list[str] | None = None
    """Why the driver holds the clocks down now: `sw_power_cap`, `hw_slowdown`, `sw_thermal_slowdown`,
    `hw_thermal_slowdown`, `hw_power_brake_slowdown`. Empty: nothing does. Absent: the driver does not say."""
    ecc_errors: Count | None = None
    """Uncorrected memory errors since the driver was loaded; absent for a device without error correction."""


class ResourcesSampled(BaseEvent):
    """Memory and load since the previous sample."""

    type: Literal["resources_sampled"] = "resources_sampled"
    devices: list[DeviceMemory]
    """Accelerators only; empty on a CPU machine, which means not measured."""
    microbatches: MicrobatchStats | None = None
    """Of the last step in the window; what the peaks were measured at."""
    host_rss_bytes: dict[str, Count]
    """Resident memory by component: `learner`, `rollout`, `sampler`, `reward_workers`, each with its children."""
    cpu_s: dict[str, Seconds] = {}
    """Processor time by component since the previous sample, which may be more than one second a second. Empty in the
    first sample."""
    wall_s: Seconds | None = None
    """Time since the previous sample."""
    host_memory_frac: Fraction
    """Used share of the host's memory, all processes together."""
    disk_free_bytes: Count
    """Free space where the run folder lies."""
    disk_total_bytes: Count | None = None
    """Size of that disk."""
