"""Checkpoints: everything that a resumed run needs, taken at the step barrier, written aside and renamed.

    checkpoints/step-000100/   model and tokenizer (usable as `model.path`), optimizer.pt, state.json

The log never rewinds and completions are never stored as pickles; what was in flight is stored as slots and sampled
again from its own random numbers.
"""

import math
import os
import shutil
import time
from collections.abc import Mapping
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
    """Writes checkpoints of one run and keeps the newest `keep`, and beside them the best."""

    def __init__(self, run_folder: Path, keep: int, results: Mapping[int, float] | None = None) -> None:
        self.folder = run_folder / FOLDER
        self.keep = keep
        self.results = dict(results or {})
        """Mean held-out reward by version; what has none cannot be the best."""

    def begin(self, step: int) -> Path:
        """An empty folder aside, to be filled and handed to `commit`. Removes what a killed process left there.

        Raises `OSError`, also when the run folder is gone: it must not be begun anew by its last checkpoint.
        """
        self.discard()
        self.folder.mkdir(exist_ok=True)
        aside = self.folder / f".partial-{os.getpid()}-{step:06d}"
        aside.mkdir()
        return aside

    def discard(self) -> None:
        """Remove what was begun and not completed."""
        for leftover in self.folder.glob(".partial-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def commit(self, aside: Path, state: CheckpointState) -> Path:
        """Complete the checkpoint; only now can it be found. Removes what is not to be kept.

        Checkpoints of later steps belong to a past that this attempt went back behind, and are removed first.
        """
        (aside / STATE_FILE).write_text(state.model_dump_json(indent=1))
        final = self.folder / f"step-{state.step:06d}"
        replaced = aside.with_name(f"{aside.name}-replaced")
        if final.exists():
            # Removing files takes long enough to be killed in between; renaming does not.
            final.rename(replaced)
        aside.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)
        found = find_all(self.folder.parent)
        here = found.index(final) + 1
        kept = {*found[max(0, here - self.keep) : here], self._best(found[:here])}
        for folder in found:
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)
        return final

    def _best(self, found: list[Path]) -> Path | None:
        """The checkpoint with the best known held-out result, of equal ones the newest."""
        known = {
            p: self.results[int(_step(p))] for p in found if math.isfinite(self.results.get(int(_step(p)), math.nan))
        }
        return max(known, key=lambda p: (known[p], int(_step(p)))) if known else None


def find_all(run_folder: Path) -> list[Path]:
    """Complete checkpoints, by step."""
    found = [p for p in (run_folder / FOLDER).glob("step-*") if (p / STATE_FILE).is_file()]
    return sorted((p for p in found if _step(p).isdigit()), key=lambda p: int(_step(p)))


def _step(folder: Path) -> str:
    return folder.name.removeprefix("step-")


def steps_saved(run_folder: Path) -> list[int]:
    """Steps of the complete checkpoints, in rising order."""
    return [int(_step(folder)) for folder in find_all(run_folder)]


def read_latest(run_folder: Path, at_or_before: int | None = None) -> tuple[Path, CheckpointState]:
    """The newest readable checkpoint, of all or of those that are not later than a step.

    Raises `CheckpointError` when there is none.
    """
    problems = []
    steps = steps_saved(run_folder)
    if at_or_before is not None and steps and steps[0] > at_or_before:
        listed = ", ".join(map(str, steps))
        raise CheckpointError(
            f"--from must be at or after the first checkpoint, got {at_or_before}; there are: {listed}"
        )
    for folder in reversed(find_all(run_folder)):
        if at_or_before is not None and int(_step(folder)) > at_or_before:
            continue
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
