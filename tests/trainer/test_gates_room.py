"""Room on disk and in memory: enough passes, what cannot fit is refused, what may not fit is a warning."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from tocsin.schemas.base import as_float
from tocsin.schemas.config import CheckpointConfig, DataConfig, DeviceConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.knobs import Knobs
from tocsin.trainer import gates_room
from tocsin.trainer.gates_room import Room, disk_gate, memory_gate

MIB = 1 << 20
WEIGHTS = 100 * MIB


def room(folder: Path, *, steps_done: int = 0, model: dict[str, Any] | None = None, **changes: Any) -> Room:
    """A run of 200 steps whose weights take 100 MiB, rollouts about 1 MiB in all."""
    fields: dict[str, Any] = {
        "steps": 200,
        "model": ModelConfig(path="x", **(model or {})),
        "data": DataConfig(train="x", evaluation="y"),
        "rewards": [RewardConfig(function="exact")],
        "knobs": Knobs(groups_per_step=4, group_size=4, max_completion_tokens=30),
    }
    return Room(RunConfig(**{**fields, **changes}), folder, WEIGHTS, torch.device("cpu"), steps_done)


def free(monkeypatch: pytest.MonkeyPatch, disk: int, shared: int = 1 << 40) -> None:
    """Pretend that so many bytes are free below temporary folders and in shared memory."""

    def usage(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=shared if path == gates_room.SHARED_MEMORY else disk)

    monkeypatch.setattr(gates_room.shutil, "disk_usage", usage)


def codes(gate: Any) -> list[tuple[str, str, str]]:
    return [(found.code, found.severity, found.labels["component"]) for found in gate.findings]


@pytest.mark.parametrize(
    ("every", "keep", "evaluation", "done", "copies"),
    [
        (0, 2, "y", 0, 1),
        (100, 2, "y", 0, 2),
        (50, 2, "y", 0, 4),
        (50, 2, None, 0, 3),
        (50, 2, "y", 150, 1),
        (10, 5, "y", 0, 7),
    ],
)
def test_as_many_checkpoints_are_counted_as_lie_on_disk_at_one_time(
    tmp_path: Path, every: int, keep: int, evaluation: str | None, done: int, copies: int
):
    data = DataConfig(train="x", evaluation=evaluation)
    settings = CheckpointConfig(every=every, keep=keep)
    assert room(tmp_path, data=data, checkpoint=settings, steps_done=done).checkpoints == copies


@pytest.mark.parametrize(
    ("disk", "found"),
    [
        (2000 * MIB, []),
        (1200 * MIB, [("SYS010", "warning", "disk")]),
        (400 * MIB, [("SYS010", "critical", "disk")]),
    ],
)
def test_a_disk_must_hold_one_checkpoint_and_should_hold_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: int, found: list[Any]
):
    free(monkeypatch, disk)
    gate = disk_gate(room(tmp_path / "not" / "there", checkpoint=CheckpointConfig(every=50)))
    assert codes(gate) == found
    assert gate.measured["free_bytes"] == disk
    assert gate.measured["checkpoint_bytes"] == 300 * MIB
    # Four checkpoints, the policy and rollouts.
    assert 1300 * MIB < as_float(gate.measured["needed_bytes"]) < 1302 * MIB


def test_the_checkpoints_of_a_resumed_run_are_there_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free(monkeypatch, 1200 * MIB)
    every_50 = CheckpointConfig(every=50)
    fresh = disk_gate(room(tmp_path, checkpoint=every_50))
    (tmp_path / "policy").mkdir()
    saved = tmp_path / "checkpoints" / "step-000050"
    saved.mkdir(parents=True)
    (saved / "model.safetensors").write_bytes(b"x" * MIB)
    resumed = disk_gate(room(tmp_path, checkpoint=every_50))
    less = as_float(fresh.measured["needed_bytes"]) - as_float(resumed.measured["needed_bytes"])
    assert less == WEIGHTS + MIB, "the policy and what is saved already"


def test_shared_memory_must_hold_two_copies_of_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gates_room.os, "access", lambda path, mode: True)
    free(monkeypatch, 1 << 40, shared=64 * MIB)
    gate = disk_gate(room(tmp_path))
    assert codes(gate) == [("SYS010", "critical", "shared-memory")]
    assert gate.findings[0].summary == (
        "64.0 MiB are free where weights wait for the sampler, and 2 copies need 200.0 MiB"
    )


def available(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=memory))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=0))


@pytest.mark.parametrize(
    ("memory", "dtype", "found"),
    [
        (701 * MIB, "float32", []),
        (699 * MIB, "float32", [("CHK002", "critical", "host")]),
        (651 * MIB, "bfloat16", []),
    ],
)
def test_host_memory_must_hold_copies_and_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, dtype: str, found: list[Any]
):
    # Gradients and moments 300, the sampler's copy 100 or 50 and a file of 100, two files in shared memory 200.
    available(monkeypatch, memory)
    assert codes(memory_gate(room(tmp_path, model={"dtype": dtype}))) == found


def test_a_device_must_hold_weights_gradients_and_optimizer(tmp_path: Path):
    small = memory_gate(room(tmp_path, device=DeviceConfig(simulated_memory_gib=0.25)))
    assert codes(small) == [("SYS002", "critical", "device")]
    large = memory_gate(room(tmp_path, device=DeviceConfig(simulated_memory_gib=1.0)))
    assert codes(large) == []
    assert large.measured["device_needed_bytes"] == 400 * MIB
