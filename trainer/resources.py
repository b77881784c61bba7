"""Memory, processor time, host load and disk, sampled every few steps."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from tocsin.schemas.resources import ResourcesSampled
from tocsin.trainer.learner import Learner
from tocsin.trainer.rollout_client import RolloutClient

EVERY_STEPS: Final = 5
"""A sample costs about a millisecond of system calls; peaks are kept between samples, so none is missed."""
REWARD_WORKER: Final = "tocsin-reward"
"""Name of a reward worker's process; see `processes.child_main_setup`."""


@dataclass(slots=True)
class _Host:
    """What the operating system says about the run's processes at one moment."""

    at: float = field(default_factory=time.monotonic)
    resident: dict[str, int] = field(default_factory=dict)
    """Bytes by component."""
    spent: dict[tuple[str, int], float] = field(default_factory=dict)
    """Processor seconds since its start, by component and process id."""

    def add(self, component: str, process: psutil.Process) -> None:
        """Count one process."""
        times = process.cpu_times()
        self.resident[component] = self.resident.get(component, 0) + process.memory_info().rss
        self.spent[component, process.pid] = times.user + times.system

    def since(self, before: "_Host") -> dict[str, float]:
        """Processor seconds by component; of a process that ended in between nobody knows the rest."""
        spent = dict.fromkeys(self.resident, 0.0)
        for (component, pid), seconds in self.spent.items():
            spent[component] += max(0.0, seconds - before.spent.get((component, pid), 0.0))
        return spent


class ResourceSampler:
    """Samples once every `EVERY_STEPS` calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls = 0
        self._learner = psutil.Process()
        self._last: _Host | None = None

    def sample(self, learner: Learner, rollout: RolloutClient) -> ResourcesSampled | None:
        """The event, or None when it is not time yet or the operating system does not answer."""
        self._calls += 1
        if self._calls % EVERY_STEPS:
            return None
        try:
            host, disk = self._host(rollout), shutil.disk_usage(self.folder)
            before, self._last = self._last, host
            return ResourcesSampled(
                devices=learner.meter.sample(),
                microbatches=learner.last_microbatches,
                host_rss_bytes=host.resident,
                cpu_s={} if before is None else host.since(before),
                wall_s=None if before is None else host.at - before.at,
                host_memory_frac=psutil.virtual_memory().percent / 100,
                disk_free_bytes=disk.free,
                disk_total_bytes=disk.total,
            )
        except (OSError, psutil.Error):  # a process that ends while it is looked at
            return None

    def _host(self, rollout: RolloutClient) -> _Host:
        assert rollout.process.pid is not None
        process, host = psutil.Process(rollout.process.pid), _Host()
        host.add("learner", self._learner)
        host.add("rollout", process)
        for component, child in _below(process):
            host.add(component, child)
        return host


def _below(rollout: psutil.Process) -> Iterator[tuple[str, psutil.Process]]:
    """Every process below the rollout process and its component: that of its parent, or else told by its name."""
    components: dict[int, str] = {}
    for child in rollout.children(recursive=True):  # parents come before their children
        own = "reward_workers" if child.name() == REWARD_WORKER else "sampler"
        components[child.pid] = components.get(child.ppid(), own)
        yield components[child.pid], child
