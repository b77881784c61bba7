"""Run folders: what they are called, how one is found, and the manifest `run.json`."""

import os
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from tocsin.diagnostics.clock import unix_seconds
from tocsin.diagnostics.feed import EVENTS_FILE, FEED_FILE
from tocsin.schemas.base import read
from tocsin.schemas.config import describe_errors
from tocsin.schemas.manifest import Manifest

MANIFEST_FILE: Final = "run.json"
LATEST: Final = "latest"
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""Folder names that a run can be found by over a network."""
SHOWN: Final = 8
"""Runs that an error message lists."""

_MANIFEST: Final = TypeAdapter(Manifest)


class RunNotFound(ValueError):
    """No run folder, or more than one, goes by this name."""


class BadManifest(ValueError):
    """`run.json` cannot be read."""


def new_run_id(name: str = "run") -> str:
    """A new id that sorts by time and can be read aloud: `20260131-120000-demo-3f2a` (UTC)."""
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{word}-{secrets.token_hex(2)}"


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return any((folder / name).is_file() for name in (MANIFEST_FILE, EVENTS_FILE, FEED_FILE))


def list_runs(runs_dir: Path) -> list[Path]:
    """The run folders below `runs_dir`, newest first; empty when there is no such folder."""
    if not runs_dir.is_dir():
        return []
    return sorted(filter(is_run, runs_dir.iterdir()), key=lambda folder: (_created(folder), folder.name), reverse=True)


def find_run(run: str, runs_dir: Path) -> Path:
    """The folder of a run, given by path, id, unique prefix of an id, or `latest`. Raises `RunNotFound`."""
    runs = list_runs(runs_dir)
    if run and is_run(Path(run)) and not (run == LATEST and runs):
        return Path(run)
    found = _pick(run, runs)
    if found is not None:
        return found
    if runs:
        raise RunNotFound(
            f"`RUN` must be a run folder, an id below `{runs_dir}`, a prefix of one or `{LATEST}`, got `{run}`; "
            f"there are: {_names(runs)}"
        )
    raise RunNotFound(
        f"`RUN` must be a run folder, or `{runs_dir}` must hold runs, got `{run}` and no runs; "
        "start one with `tocsin demo`, or name the folder with `--runs-dir`"
    )


def find_run_below(run: str, runs_dir: Path) -> Path:
    """`find_run` for callers that may reach nothing but the folders of `runs_dir`: a path names no run.

    Raises `RunNotFound`.
    """
    is_name = NAME.fullmatch(run) is not None
    if is_name and is_run(runs_dir / run):
        return runs_dir / run
    runs = list_runs(runs_dir)
    found = _pick(run, runs) if is_name else None
    if found is None:
        raise RunNotFound(
            f"`run` must be the id of a run, a unique prefix of one or `{LATEST}`, got `{run[:60]}`; "
            f"there are: {_names(runs) or 'none yet'}"
        )
    return found


def _pick(run: str, runs: list[Path]) -> Path | None:
    """The one among `runs`, newest first, that is meant; None when there is none. Raises `RunNotFound` for several."""
    if run == LATEST and runs:
        return runs[0]
    matches = [folder for folder in runs if folder.name == run] or [
        folder for folder in runs if run and folder.name.startswith(run)
    ]
    if len(matches) > 1:
        raise RunNotFound(
            f"`RUN` must name one run, got `{run}`, which begins {len(matches)}: {_names(matches)}; add characters"
        )
    return matches[0] if matches else None


def _names(folders: list[Path]) -> str:
    shown = ", ".join(folder.name for folder in folders[:SHOWN])
    return shown if len(folders) <= SHOWN else f"{shown} and {len(folders) - SHOWN} more"


def _created(folder: Path) -> float:
    """Unix time at which the run began: by its manifest, else when its folder last changed."""
    try:
        created = unix_seconds(read_manifest(folder).created)
    except ValueError:
        created = None
    return folder.stat().st_mtime if created is None else created


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a run. Raises `RunNotFound` when there is none and `BadManifest` when it cannot be read."""
    path = folder / MANIFEST_FILE
    try:
        return read(_MANIFEST, path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunNotFound(
            f"`{folder}` must be a run folder, got one without `{MANIFEST_FILE}`; check the path"
        ) from error
    except ValidationError as error:
        raise BadManifest(
            describe_errors(error.errors(), source=str(path)) + f"\n`{path}` must be a manifest; restore it from a copy"
        ) from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace `run.json` in one step, so that no reader meets half of it. Raises `OSError`."""
    aside = folder / f".{MANIFEST_FILE}.{os.getpid()}"
    with aside.open("w") as file:
        file.write(manifest.model_dump_json(exclude_none=True, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    aside.replace(folder / MANIFEST_FILE)
