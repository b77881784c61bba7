"""Memory, host load and disk, sampled every few steps."""

import shutil
from pathlib import Path
from typing import Final

import psutil

from tocsin.schemas.resources import ResourcesSampled
from tocsin.trainer.learner import Learner
from tocsin.trainer.rollout_client import RolloutClient

EVERY_STEPS: Final = 5
"""A sample costs about a millisecond of system calls; peaks are kept between samples, so none is missed."""


class ResourceSampler:
    """Samples once every `EVERY_STEPS` calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls = 0
        self._learner = psutil.Process()

    def sample(self, learner: Learner, rollout: RolloutClient) -> ResourcesSampled | None:
        """The event, or None when it is not time yet or the operating system does not answer."""
        self._calls += 1
        if self._calls % EVERY_STEPS:
            return None
        try:
            return ResourcesSampled(
                devices=learner.meter.sample(),
                microbatches=learner.last_microbatches,
                host_rss_bytes=self._resident(rollout),
                host_memory_frac=psutil.virtual_memory().percent / 100,
                disk_free_bytes=shutil.disk_usage(self.folder).free,
            )
        except (OSError, psutil.Error):  # a process that ends while it is looked at
            return None

    def _resident(self, rollout: RolloutClient) -> dict[str, int]:
        """Resident bytes by component."""
        resident = {"learner": self._learner.memory_info().rss}
        assert rollout.process.pid is not None
        process = psutil.Process(rollout.process.pid)
        resident["rollout"] = process.memory_info().rss
        resident["sampler_and_rewards"] = sum(child.memory_info().rss for child in process.children(recursive=True))
        return resident
