"""What `tocsin check --json` prints: one document about a configuration, before any training."""

from typing import Annotated, Literal

from pydantic import Field

from tocsin.schemas.base import SCHEMA_VERSION, Model, Number, Timestamp
from tocsin.schemas.diagnosis import Diagnostic


class Gate(Model):
    """One thing that must hold before hours are spent, and what was measured."""

    name: str
    """What was looked at, for instance `end of sequence`."""
    outcome: Literal["passed", "failed", "not_evaluated"]
    """`failed`: a finding is a warning or critical. Advice of severity info does not fail a gate."""
    summary: str
    """One line with the numbers. May quote the data or a reward function, so it is untrusted."""
    measured: dict[str, Number] = {}
    """Values behind the summary, by name; the name says the unit."""
    findings: list[Diagnostic] = []
    """Critical ones refuse the start of a run. They stand outside of any run: step 0, no feed."""


class CheckReport(Model):
    """Every gate of `tocsin check`, in the order in which they were looked at."""

    record: Literal["check"] = "check"
    schema_version: str = SCHEMA_VERSION
    ts: Timestamp
    passed: bool
    """No gate failed."""
    gates: Annotated[list[Gate], Field(min_length=1)]
