"""What a detector says about a run, whoever wrote it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tocsin.schemas.event import BaseEvent

AlarmSeverity = Literal["warning", "critical"]
"""What a detector says below a warning is no alarm."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that a detector said once: `Alarm(63, "grad-spike", "warning", frozenset({"POL010"}))`.

    Made by a `Detector`, read by whoever judges it.
    """

    step: int
    """Optimizer steps finished when it could have been known."""
    name: str
    """The detector's own name of what it found."""
    severity: AlarmSeverity
    codes: frozenset[str]
    """Failure modes of `diagnostics/modes.py` that this finding means; empty when it means none of them."""


class Detector(Protocol):
    """Reads the events of a run, oldest first, and must not look ahead of an alarm's step to raise it."""

    @property
    def name(self) -> str:
        """As tables show it."""
        ...

    def alarms(self, events: Sequence[BaseEvent]) -> list[Alarm]:
        """What it says about the run, in the order in which it says it."""
        ...
