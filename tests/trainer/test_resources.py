"""Memory and processor time of a family of real processes."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tocsin.schemas.resources import ResourcesSampled
from tocsin.trainer.devices import CpuMeter
from tocsin.trainer.resources import EVERY_STEPS, ResourceSampler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes show their names on Linux only")

LEARNER: Any = SimpleNamespace(meter=CpuMeter(), last_microbatches=None)


@pytest.fixture
def rollout(tmp_path: Path) -> Iterator[Any]:
    """A process with a sampler below it and a reward worker, which has a child of its own."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copy(sleep, tmp_path / "tocsin-sampler")
    worker = tmp_path / "tocsin-reward"
    worker.write_text("#!/bin/sh\nsleep 60 & wait\n")
    worker.chmod(0o755)
    command = ["sh", "-c", "./tocsin-sampler 60 & ./tocsin-reward & wait"]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    while len(psutil.Process(process.pid).children(recursive=True)) < 3:
        time.sleep(0.01)
    yield SimpleNamespace(process=process)
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()
    process.wait()


def sample(sampler: ResourceSampler, rollout: Any) -> ResourcesSampled:
    """The next sample that is due."""
    found = [sampler.sample(LEARNER, rollout) for _ in range(EVERY_STEPS)]
    assert found[:-1] == [None] * (EVERY_STEPS - 1)
    assert found[-1] is not None
    return found[-1]


def test_memory_is_told_apart_by_component_and_counts_children(rollout: Any, tmp_path: Path) -> None:
    resident = sample(ResourceSampler(tmp_path), rollout).host_rss_bytes
    assert set(resident) == {"learner", "rollout", "sampler", "reward_workers"}
    assert resident["learner"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    children = psutil.Process(rollout.process.pid).children(recursive=True)
    worker = [child for child in children if child.name() == "tocsin-reward"]
    assert resident["reward_workers"] > worker[0].memory_info().rss


def test_processor_time_is_that_since_the_previous_sample(rollout: Any, tmp_path: Path) -> None:
    sampler = ResourceSampler(tmp_path)
    first = sample(sampler, rollout)
    assert (first.cpu_s, first.wall_s) == ({}, None)
    before = psutil.Process().cpu_times().user
    while psutil.Process().cpu_times().user - before < 0.15:
        sum(range(10_000))
    second = sample(sampler, rollout)
    assert set(second.cpu_s) == set(second.host_rss_bytes)
    assert second.cpu_s["learner"] >= 0.1
    assert second.cpu_s["sampler"] < 0.1
    assert second.wall_s is not None
    assert second.wall_s >= 0.1


def test_the_disk_is_that_of_the_run_folder(rollout: Any, tmp_path: Path) -> None:
    event = sample(ResourceSampler(tmp_path), rollout)
    assert event.disk_total_bytes == shutil.disk_usage(tmp_path).total
    assert 0 < event.disk_free_bytes <= event.disk_total_bytes
