"""Checkpoints: only whole ones are found, the newest readable one wins, and the last few are kept."""

import os
from pathlib import Path
from typing import Any

import pytest

from tocsin.schemas.events import Ledger
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.checkpoint import (
    STATE_FILE,
    CheckpointError,
    CheckpointState,
    CheckpointWriter,
    age_s,
    find_all,
    read_latest,
    saved_slots,
    size_of,
)
from tocsin.trainer.slots import Slot

SLOTS = [
    Slot(step=7, index=30, group_size=8, replacement=False),
    Slot(step=8, index=41, group_size=4, replacement=True),
]


def state(step: int, **changes: Any) -> CheckpointState:
    fields: dict[str, Any] = {
        "step": step,
        "sampler_version": step,
        "knobs": Knobs(learning_rate=1e-4, max_staleness=2),
        "config_generation": 3,
        "next_step": step + 2,
        "next_index": 64,
        "slots": saved_slots(SLOTS),
        "ledger": Ledger(launched=64, in_flight=1, queued=1, consumed=60, dropped={}, failed={"reward_error": 2}),
        "probe_tolerance": 1e-4,
        "event_seq": 900,
        "threads": 1,
        "versions": {"torch": "2.13.0"},
        **changes,
    }
    return CheckpointState(**fields)


def write(run: Path, *steps: int, keep: int = 10) -> None:
    writer = CheckpointWriter(run, keep)
    for step in steps:
        aside = writer.begin(step)
        (aside / "model.safetensors").write_bytes(b"x" * step)
        writer.commit(aside, state(step))


def names(run: Path) -> list[str]:
    return [folder.name for folder in find_all(run)]


def test_what_was_written_is_read_back(tmp_path: Path):
    write(tmp_path, 6)
    folder, found = read_latest(tmp_path)
    assert folder == tmp_path / "checkpoints" / "step-000006"
    assert found == state(6)
    assert found.reissue() == SLOTS
    assert size_of(folder) == 6 + (folder / STATE_FILE).stat().st_size
    assert 0 <= age_s(folder) < 60


def test_the_newest_few_are_kept(tmp_path: Path):
    write(tmp_path, 5, 10, 15, 20, keep=2)
    assert names(tmp_path) == ["step-000015", "step-000020"]
    write(tmp_path, 25, keep=5)
    assert names(tmp_path) == ["step-000015", "step-000020", "step-000025"]


def test_a_checkpoint_is_never_removed_in_favour_of_a_later_one_that_the_run_fell_behind(tmp_path: Path):
    write(tmp_path, 50, 100)
    write(tmp_path, 60, keep=1)
    assert names(tmp_path) == ["step-000060"]


def test_the_best_checkpoint_stays_beside_the_newest(tmp_path: Path):
    writer = CheckpointWriter(tmp_path, 1, {50: 0.7, 0: 0.9, 60: float("nan")})
    for step in (50, 100, 150):
        writer.commit(writer.begin(step), state(step))
        writer.results[step] = {50: 0.7, 100: 0.8, 150: 0.1}[step]
    assert names(tmp_path) == ["step-000100", "step-000150"]
    writer.commit(writer.begin(200), state(200))
    assert names(tmp_path) == ["step-000100", "step-000200"]


def test_going_back_finds_the_newest_checkpoint_that_is_not_later(tmp_path: Path):
    write(tmp_path, 50, 100, 150)
    assert [read_latest(tmp_path, step)[1].step for step in (50, 99, 100, 149, 9999)] == [50, 50, 100, 100, 150]
    with pytest.raises(CheckpointError, match=r"^--from must be .* got 49; there are: 50, 100, 150$"):
        read_latest(tmp_path, 49)


def test_a_run_that_went_back_drops_what_it_left_ahead_with_its_next_checkpoint_only(tmp_path: Path):
    write(tmp_path, 50, 100, 150)
    CheckpointWriter(tmp_path, 10).begin(60)
    assert names(tmp_path) == ["step-000050", "step-000100", "step-000150"]
    write(tmp_path, 60)
    assert names(tmp_path) == ["step-000050", "step-000060"]


def test_a_run_folder_that_is_gone_is_not_made_again(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        CheckpointWriter(tmp_path / "gone", 1).begin(5)
    assert not (tmp_path / "gone").exists()


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path: Path):
    writer = CheckpointWriter(tmp_path, 1)
    for generation in (1, 2):
        writer.commit(writer.begin(4), state(4, config_generation=generation))
    assert read_latest(tmp_path)[1].config_generation == 2
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-000004"]


def test_order_is_by_step_and_not_by_name(tmp_path: Path):
    write(tmp_path, 999_999, keep=2)
    write(tmp_path, 1_000_000, keep=1)
    assert names(tmp_path) == ["step-1000000"]


def test_a_half_written_checkpoint_is_not_found_and_is_cleared_away_by_the_next(tmp_path: Path):
    write(tmp_path, 3)
    aside = CheckpointWriter(tmp_path, 2).begin(6)
    (aside / "model.safetensors").write_bytes(b"half")
    aside.rename(aside.with_name(".partial-99999-000006"))
    assert names(tmp_path) == ["step-000003"]
    assert read_latest(tmp_path)[1].step == 3
    write(tmp_path, 9)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-000003", "step-000009"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00binary", b"[]", b'{"step": "six"}', b'{"step": 6}'],
    ids=["empty", "torn", "binary", "another type", "wrong value", "incomplete"],
)
def test_an_unreadable_state_falls_back_to_the_one_before(tmp_path: Path, content: bytes):
    write(tmp_path, 3, 6)
    (tmp_path / "checkpoints" / "step-000006" / STATE_FILE).write_bytes(content)
    folder, found = read_latest(tmp_path)
    assert (folder.name, found.step) == ("step-000003", 3)


def test_folders_that_only_look_like_checkpoints_are_left_alone(tmp_path: Path):
    write(tmp_path, 3)
    for name in ("step-", "step-best", "step-000009"):
        (tmp_path / "checkpoints" / name).mkdir()
    (tmp_path / "checkpoints" / "step-best" / STATE_FILE).write_text("{}")
    assert names(tmp_path) == ["step-000003"]


def test_nothing_to_resume_from_says_what_was_found_and_what_to_do(tmp_path: Path):
    with pytest.raises(
        CheckpointError, match=r"must hold a checkpoint to resume from: there is none\. Start a new run"
    ):
        read_latest(tmp_path)
    write(tmp_path, 6)
    (tmp_path / "checkpoints" / "step-000006" / STATE_FILE).write_text("{")
    with pytest.raises(CheckpointError, match=r"step-000006: .*validation error"):
        read_latest(tmp_path)
