"""Where the learner computes, and how much memory each phase of a step needed at most.

Peaks are taken over whole phases: an instant says nothing about the next micro-batch. On a CPU nothing is measured,
and nothing is claimed. A simulated accelerator computes its peaks from the micro-batches that really ran, so that
the memory rules and the out-of-memory path can be exercised on any machine.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Protocol

import torch

from tocsin.schemas.config import DeviceConfig
from tocsin.schemas.events import DeviceInfo
from tocsin.schemas.resources import DeviceMemory, PhasePeak
from tocsin.trainer.nvml import Health, find_driver

GIB = 1 << 30


class MemoryMeter(Protocol):
    """Measures one device."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Measure the peak of what happens inside the `with` block."""

    def before_microbatch(self, padded_tokens: int) -> None:
        """Told before each forward pass. Raises `torch.OutOfMemoryError` when it cannot fit (simulated device)."""

    def sample(self) -> list[DeviceMemory]:
        """Peaks since the previous sample; empty when the device has no memory of its own."""


class CpuMeter:
    """No accelerator: nothing is measured."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures nothing."""
        yield

    def before_microbatch(self, padded_tokens: int) -> None:
        """Nothing to check."""

    def sample(self) -> list[DeviceMemory]:
        """Empty: not measured."""
        return []


class CudaMeter:
    """Allocator statistics of one CUDA device, with the peak counters reset at the start of every phase."""

    def __init__(self, device: torch.device):
        self.device = device
        properties = torch.cuda.get_device_properties(device)
        self.total = properties.total_memory
        self.driver = find_driver(f"GPU-{properties.uuid}")
        self._peaks: dict[str, tuple[int, int]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Peak allocated and reserved bytes inside the block."""
        torch.cuda.reset_peak_memory_stats(self.device)
        try:
            yield
        finally:
            before = self._peaks.get(name, (0, 0))
            allocated = torch.cuda.max_memory_allocated(self.device)
            reserved = torch.cuda.max_memory_reserved(self.device)
            self._peaks[name] = (max(before[0], allocated), max(before[1], reserved))

    def before_microbatch(self, padded_tokens: int) -> None:
        """The allocator itself raises."""

    def sample(self) -> list[DeviceMemory]:
        """Peaks since the previous sample."""
        peaks, self._peaks = self._peaks, {}
        free, _ = torch.cuda.mem_get_info(self.device)
        reserved = torch.cuda.memory_reserved(self.device)
        others = others_bytes(self.total, free, reserved)
        health = Health() if self.driver is None else self.driver.health()
        return [
            DeviceMemory(
                device=str(self.device),
                kind="cuda",
                total_bytes=self.total,
                baseline_bytes=torch.cuda.memory_allocated(self.device) + others,
                phases=_phases({name: (low + others, high + others) for name, (low, high) in peaks.items()}),
                baseline_reserved_bytes=reserved + others,
                **asdict(health),
            )
        ]


def others_bytes(total: int, free: int, reserved: int) -> int:
    """What other processes hold on the device, the sampler for one. Our own allocator does not see it, and memory
    that looks unused without it may be theirs."""
    return max(0, total - free - reserved)


class SimulatedMeter:
    """A pretended accelerator: baseline for weights, gradients and Adam, plus bytes per padded token."""

    def __init__(self, config: DeviceConfig, parameter_bytes: int):
        assert config.simulated_memory_gib is not None
        self.total = int(config.simulated_memory_gib * GIB)
        # Weights, gradients and two Adam moments.
        self.baseline = 4 * parameter_bytes
        self.bytes_per_token = config.simulated_bytes_per_token
        self._peaks: dict[str, tuple[int, int]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """At least the baseline is in use in every phase."""
        self._raise_peak(name, self.baseline)
        yield

    def before_microbatch(self, padded_tokens: int) -> None:
        """Raises `torch.OutOfMemoryError` when the pretended device is too small for the micro-batch."""
        needed = self.baseline + padded_tokens * self.bytes_per_token
        if needed > self.total:
            raise torch.OutOfMemoryError(f"simulated device: {needed} bytes needed, {self.total} there")
        self._raise_peak("forward_backward", needed)

    def sample(self) -> list[DeviceMemory]:
        """Peaks since the previous sample."""
        peaks, self._peaks = self._peaks, {}
        return [
            DeviceMemory(
                device="simulated:0",
                kind="simulated",
                total_bytes=self.total,
                baseline_bytes=self.baseline,
                phases=_phases(peaks),
            )
        ]

    def _raise_peak(self, name: str, needed: int) -> None:
        peak = max(needed, self._peaks.get(name, (0, 0))[0])
        self._peaks[name] = (peak, peak)


def _phases(peaks: dict[str, tuple[int, int]]) -> dict[str, PhasePeak]:
    """Peaks out of allocated and reserved bytes by phase."""
    return {name: PhasePeak(allocated_bytes=low, reserved_bytes=high) for name, (low, high) in peaks.items()}


def memory_meter(config: DeviceConfig, device: torch.device, parameter_bytes: int) -> MemoryMeter:
    """The meter for the learner's device."""
    if config.simulated_memory_gib is not None:
        return SimulatedMeter(config, parameter_bytes)
    return CudaMeter(device) if device.type == "cuda" else CpuMeter()


def describe_device(config: DeviceConfig, device: torch.device) -> DeviceInfo:
    """The learner's device as it stands in `run_started`."""
    if config.simulated_memory_gib is not None:
        size = int(config.simulated_memory_gib * GIB)
        return DeviceInfo(name="simulated accelerator", kind="simulated", memory_bytes=size)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return DeviceInfo(name=properties.name, kind="cuda", memory_bytes=properties.total_memory)
    return DeviceInfo(name=device.type, kind="mps" if device.type == "mps" else "cpu")
