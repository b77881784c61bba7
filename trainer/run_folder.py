"""The run folder as the trainer makes it: manifest, versions, hardware."""

import os
import platform
import shutil
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.feed import RunWriter
from tocsin.diagnostics.runs import read_manifest, write_manifest
from tocsin.schemas.config import RunConfig
from tocsin.schemas.manifest import Attempt, DiagnosticsCost, Manifest

LIBRARIES = ("tocsin", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of every library whose numbers enter the run."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, str]:
    """Processor, cores and memory of this host."""
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory_bytes": str(psutil.virtual_memory().total),
    }


def begin_manifest(folder: Path, run_id: str, config: RunConfig) -> Manifest:
    """Write `run.json` of a new run."""
    manifest = Manifest(
        run_id=run_id,
        created=utc_text(),
        config=config,
        versions=versions(),
        hardware=hardware(),
        attempts=[_attempt(1, None)],
    )
    write_manifest(folder, manifest)
    return manifest


def remove_unstarted(writer: RunWriter) -> None:
    """Remove the folder of a run in which nothing was recorded."""
    if writer.last_event_seq == 0:
        shutil.rmtree(writer.folder, ignore_errors=True)


def continue_manifest(folder: Path, from_step: int, config: RunConfig) -> Manifest:
    """Add an attempt with this configuration to `run.json`."""
    before = read_manifest(folder)
    attempt = _attempt(len(before.attempts) + 1, from_step)
    changed = {"config": config, "versions": versions(), "hardware": hardware()}
    manifest = before.model_copy(update={"attempts": [*before.attempts, attempt], **changed})
    write_manifest(folder, manifest)
    return manifest


def note_cost(folder: Path, cost: DiagnosticsCost) -> None:
    """Add what the diagnostics cost to the newest attempt in `run.json`."""
    before = read_manifest(folder)
    last = before.attempts[-1].model_copy(update={"cost": cost})
    write_manifest(folder, before.model_copy(update={"attempts": [*before.attempts[:-1], last]}))


def _attempt(number: int, from_step: int | None) -> Attempt:
    return Attempt(
        attempt=number,
        pid=os.getpid(),
        host=socket.gethostname(),
        boot_id=_boot_id(),
        started=utc_text(),
        resumed_from_step=from_step,
    )


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else str(int(psutil.boot_time()))
