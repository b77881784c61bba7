"""Weights on their way, and the proof that they arrived."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tocsin.trainer import weights
from tocsin.trainer.data import Prompt
from tocsin.trainer.weights import Probe, WeightStore, probe_tokens


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for shared memory."""
    monkeypatch.setattr(weights, "SHARED_MEMORY", tmp_path)
    return tmp_path


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((2, 3), value), "b": torch.tensor([value])}


def prompt(index: int, token_ids: list[int]) -> Prompt:
    return Prompt(id=f"{index}-0badcafe", text="", token_ids=np.array(token_ids, dtype=np.int32), columns={})


def test_a_version_is_one_file_with_every_value(memory: Path):
    store = WeightStore()
    path = store.write(3, tensors(0.5))
    assert path == store.folder / "3.safetensors"
    assert path.parent.parent == memory
    assert {name: value.tolist() for name, value in load_file(path).items()} == {"a": [[0.5] * 3] * 2, "b": [0.5]}


def test_an_acknowledged_version_outlives_the_older_ones_and_later_ones_stay():
    store = WeightStore()
    for version in (1, 2, 4, 5):
        store.write(version, tensors(version))
    store.acknowledged(4)
    assert sorted(os.listdir(store.folder)) == ["4.safetensors", "5.safetensors"]
    store.acknowledged(4)
    assert sorted(os.listdir(store.folder)) == ["4.safetensors", "5.safetensors"]


def test_a_version_that_is_written_again_is_replaced_whole():
    store = WeightStore()
    store.write(1, tensors(1.0))
    path = store.write(1, tensors(2.0))
    assert os.listdir(store.folder) == ["1.safetensors"]
    assert load_file(path)["b"].tolist() == [2.0]


def test_closing_leaves_nothing_behind(memory: Path):
    store = WeightStore()
    store.write(1, tensors(1.0))
    store.close()
    store.close()
    assert list(memory.iterdir()) == []


def test_what_a_killed_run_left_is_removed_and_nothing_else(memory: Path):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead, alive = int(gone.stdout), os.getpid()
    for name in (f"tocsin-weights-{dead}-abc", f"tocsin-weights-{alive}-abc", "tocsin-weights-x-abc", "other-1-abc"):
        (memory / name).mkdir()
        (memory / name / "1.safetensors").write_bytes(b"x")
    store = WeightStore()
    assert {path.name for path in memory.iterdir()} == {
        f"tocsin-weights-{alive}-abc",
        "tocsin-weights-x-abc",
        "other-1-abc",
        store.folder.name,
    }


def test_without_shared_memory_the_temporary_folder_serves(memory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(weights, "SHARED_MEMORY", memory / "absent")
    monkeypatch.setattr(weights.tempfile, "tempdir", str(memory))
    assert WeightStore().folder.parent == memory


def test_the_probe_is_the_end_of_a_prompt_and_then_arbitrary_tokens():
    prompts = [prompt(0, [5, 6, 7]), prompt(1, [9, 8, 7, 6]), prompt(2, [1])]
    rows = probe_tokens(prompts, 20, seed=0, limit=64)
    assert rows.shape == (2, 19)
    assert rows[:, :3].tolist() == [[5, 6, 7], [8, 7, 6]]
    assert rows.min() >= 0
    assert rows.max() < 20
    assert len(set(rows[0, 3:].tolist())) > 5
    assert np.array_equal(rows, probe_tokens(prompts, 20, seed=0, limit=64))
    assert not np.array_equal(rows, probe_tokens(prompts, 20, seed=1, limit=64))


@pytest.mark.parametrize(("limit", "width", "tail"), [(12, 1, 11), (17, 1, 16), (18, 2, 16), (2, 1, 1)])
def test_a_short_model_gets_a_short_probe(limit: int, width: int, tail: int):
    rows = probe_tokens([prompt(0, [5, 6, 7])], 20, seed=0, limit=limit)
    assert rows.shape == (1, width + tail)
    assert rows[0, :width].tolist() == [5, 6, 7][-width:]


def compared(probe: Probe, version: int, expected: list[float], answer: list[float]) -> tuple[float, float]:
    probe.expect(version, torch.tensor([expected]))
    return probe.compare(version, [np.array([answer], dtype=np.float32)])


def test_gap_and_movement_are_the_largest_differences():
    probe = Probe("float32")
    assert compared(probe, 0, [-1.0, -2.0], [-1.0, -2.0]) == (0.0, 0.0)
    gap, moved = compared(probe, 1, [-1.0, -2.5], [-1.25, -2.5])
    assert (gap, moved) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("dtype", "first_gap", "tolerance"),
    [
        ("float32", 0.0, 1e-4),
        ("float32", 1e-6, 1e-4),
        ("float32", 1e-3, 5e-3),
        ("float32", 1.0, 0.01),
        ("bfloat16", 0.02, 0.1),
        ("bfloat16", 3.0, 0.5),
        ("float16", 3.0, 0.1),
    ],
)
def test_the_first_sync_sets_the_tolerance_within_bounds(dtype: str, first_gap: float, tolerance: float):
    probe = Probe(dtype)
    compared(probe, 0, [0.0], [first_gap])
    assert probe.tolerance == pytest.approx(tolerance, rel=1e-3)
    compared(probe, 1, [0.0], [0.4])
    assert probe.tolerance == pytest.approx(tolerance, rel=1e-3)


def test_a_first_answer_that_is_not_a_number_is_not_taken_for_the_tolerance():
    probe = Probe("float32")
    gap, _ = compared(probe, 0, [0.0], [math.nan])
    assert math.isnan(gap)
    assert probe.tolerance == 1e-4
    assert not gap <= probe.tolerance


def test_a_resumed_probe_keeps_its_tolerance():
    probe = Probe("float32", tolerance=2e-3)
    compared(probe, 8, [0.0], [1.0])
    assert probe.tolerance == 2e-3


def test_one_version_may_be_answered_twice():
    probe = Probe("float32")
    probe.expect(1, torch.tensor([[-1.0]]))
    probe.expect(2, torch.tensor([[-1.5]]))
    assert probe.compare(1, [np.array([[-1.0]], np.float32)]) == (0.0, 0.0)
    assert probe.compare(2, [np.array([[-1.5]], np.float32)]) == (0.0, 0.5)
    assert probe.compare(2, [np.array([[-1.5]], np.float32)]) == (0.0, 0.0)
