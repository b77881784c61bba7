"""`run.json`: what a run is, for readers that were not there when it started."""

from typing import Annotated, Literal

from pydantic import Field

from tocsin.schemas.base import SCHEMA_VERSION, Count, Model, Seconds, Timestamp
from tocsin.schemas.config import RunConfig


class DiagnosticsCost(Model):
    """What the diagnostics cost an attempt: medians over its optimizer steps."""

    step_s: Seconds
    """Wall-clock time of a step."""
    rules_s: Seconds
    """Processor time of the engine, in the monitor's thread."""
    events_s: Seconds
    """Wall-clock time to encode and append the events of a step, in the monitor's thread."""
    emit_s: Seconds
    """Wall-clock time that the training loop was held up."""


class Attempt(Model):
    """One start of the run."""

    attempt: Annotated[int, Field(ge=1)]
    pid: Count
    host: str
    boot_id: str
    """Tells a reused process id on a rebooted host from the writer."""
    started: Timestamp
    resumed_from_step: Count | None = None
    cost: DiagnosticsCost | None = None
    """Known when the attempt has ended in good order."""


class Manifest(Model):
    """Contents of `run.json`, rewritten aside and renamed at every start."""

    record: Literal["manifest"] = "manifest"
    schema_version: str = SCHEMA_VERSION
    run_id: str
    created: Timestamp
    config: RunConfig
    versions: dict[str, str]
    hardware: dict[str, str]
    """`cpu`, `cores`, `memory_bytes`, one entry per accelerator."""
    attempts: Annotated[list[Attempt], Field(min_length=1)]
