"""Checkpoints: everything that a resumed run needs, taken at the step barrier, written aside and renamed.

    checkpoints/step-000100/   model and tokenizer (usable as `model.path`), optimizer.pt, state.json

The log never rewinds and completions are never stored as pickles; what was in flight is stored as slots and sampled
again from its own random numbers.
"""

import os
import shutil
import time
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from tocsin.schemas.base import Count, Model
from tocsin.schemas.events import Ledger
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.slots import Slot

FOLDER: Final = "checkpoints"
STATE_FILE: Final = "state.json"


class CheckpointError(ValueError):
    """There is no checkpoint that can be used; the message says why."""


class SavedSlot(Model):
    """A group that was open when the checkpoint was taken."""

    step: Count
    index: Count
    group_size: Annotated[int, Field(ge=1)]
    replacement: bool


class CheckpointState(Model):
    """Contents of `state.json`."""

    step: Count
    """Optimizer steps finished."""
    sampler_version: Count
    """Weights that the sampler held."""
    knobs: Knobs
    config_generation: Count
    next_step: Count
    next_index: Count
    slots: list[SavedSlot]
    ledger: Ledger
    probe_tolerance: float | None
    event_seq: Count
    """Last event before the checkpoint."""
    threads: Count
    versions: dict[str, str]

    def reissue(self) -> list[Slot]:
        """The groups to sample again."""
        return [Slot(s.step, s.index, s.group_size, s.replacement) for s in self.slots]


def saved_slots(slots: list[Slot]) -> list[SavedSlot]:
    """`slots` as they are stored."""
    return [SavedSlot(step=s.step, index=s.index, group_size=s.group_size, replacement=s.replacement) for s in slots]


class CheckpointWriter:
    """Writes checkpoints of one run and keeps the newest `keep`."""

    def __init__(self, run_folder: Path, keep: int) -> None:
        self.folder = run_folder / FOLDER
        self.keep = keep

    def begin(self, step: int) -> Path:
        """An empty folder aside, to be filled and handed to `commit`. Removes what a killed process left there."""
        for leftover in self.folder.glob(".partial-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        aside = self.folder / f".partial-{os.getpid()}-{step:06d}"
        aside.mkdir(parents=True)
        return aside

    def commit(self, aside: Path, state: CheckpointState) -> Path:
        """Complete the checkpoint; only now can it be found. Removes those beyond `keep`."""
        (aside / STATE_FILE).write_text(state.model_dump_json(indent=1))
        final = self.folder / f"step-{state.step:06d}"
        replaced = aside.with_name(f"{aside.name}-replaced")
        if final.exists():
            # Removing files takes long enough to be killed in between; renaming does not.
            final.rename(replaced)
        aside.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)
        others = [p for p in find_all(self.folder.parent) if p != final]
        for old in others[: max(0, len(others) + 1 - self.keep)]:
            shutil.rmtree(old, ignore_errors=True)
        return final


def find_all(run_folder: Path) -> list[Path]:
    """Complete checkpoints, by step."""
    found = [p for p in (run_folder / FOLDER).glob("step-*") if (p / STATE_FILE).is_file()]
    return sorted((p for p in found if _step(p).isdigit()), key=lambda p: int(_step(p)))


def _step(folder: Path) -> str:
    return folder.name.removeprefix("step-")


def read_latest(run_folder: Path) -> tuple[Path, CheckpointState]:
    """The newest readable checkpoint. Raises `CheckpointError` when there is none."""
    problems = []
    for folder in reversed(find_all(run_folder)):
        try:
            return folder, CheckpointState.model_validate_json((folder / STATE_FILE).read_bytes())
        except (OSError, ValidationError) as error:
            problems.append(f"{folder.name}: {str(error).splitlines()[0]}")
    found = "; ".join(problems) or "there is none"
    raise CheckpointError(f"`{run_folder}` must hold a checkpoint to resume from: {found}. Start a new run instead")


def size_of(folder: Path) -> int:
    """Bytes of all files in `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def age_s(folder: Path) -> float:
    """Seconds since the checkpoint was written, by the file system's clock."""
    return max(0.0, time.time() - (folder / STATE_FILE).stat().st_mtime)
