"""What a rule is: thresholds, declarations, documentation and one pure check.

A rule is a frozen dataclass in a file of its own. Its fields are its thresholds, its class variables declare what
it reads and how long things must last, its docstring is its documentation. The engine alone keeps state.
"""

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from tocsin.diagnostics.features import Features
from tocsin.schemas.actions import Applicability, Patch, Title, Verify
from tocsin.schemas.base import Count
from tocsin.schemas.diagnosis import Cause, Evidence, Kind, NotEvaluated, Severity, Unit
from tocsin.schemas.event import BaseEvent

Proof = Literal["injected", "injected-simulated", "healthy-only", "scenario", "lint", "none"]
MAY_WARN: Final = frozenset({"injected", "injected-simulated"})
"""Proofs that allow a severity above info: the fault was planted in a run and the rule named it."""

ADDED: Final = "X"
"""First letter of the codes of rules that other packages add; no code of ours begins with it."""

HEADINGS: Final = (
    "What it means",
    "Why it matters",
    "How it is detected",
    "Known false alarms",
    "What to do",
    "Sources",
)
"""Sections of every rule's docstring, in this order."""

Times = Annotated[int, Field(ge=1)]
"""How often something must happen."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How much a rule looks at and how long things must last. An evaluation is one event of the rule's trigger.

    Types and bounds are held for rules of other packages; see `vetting`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, revalidate_instances="always")

    unit: Unit
    """Unit of `window` and `warm_up`."""
    window: Count
    """How much is pooled into one verdict."""
    warm_up: Count
    """How much must have been seen before the first verdict."""
    persistence: Times
    """Consecutive evaluations at which the condition must hold before it fires, or grows more severe."""
    clear_persistence: Times
    """Consecutive evaluations below the clear threshold before it resolves."""
    absent_after: Times = 5
    """Consecutive evaluations without input before a firing diagnostic turns to `no_data`."""
    silent_after: Count = 50
    """Optimizer steps without the trigger before the rule counts as without input."""
    reminder_every: Times = 500
    """Evaluations at which the condition held between two reminders."""
    reopen_within: Count = 50
    """A return within so many evaluations after the resolution belongs to the same episode."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One way to answer a finding; the engine turns it into an `Action` with an id."""

    verb: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=60)]
    """Last part of the action's id, once in a finding: `raise-group-size`."""
    title: Title
    applicability: Applicability
    risk: Literal["low", "medium", "high"] = "low"
    preferred: bool = False
    patches: tuple[Patch, ...] = ()
    verify: Verify | None = None
    on_failure: Literal["revert", "keep", "ask"] = "revert"
    cooldown_steps: Count = 0
    disabled: str | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The condition of a rule holds."""

    severity: Severity
    summary: str
    """One sentence with numbers, no advice, at most 160 characters."""
    evidence: tuple[Evidence, ...]
    proposals: tuple[Proposal, ...] = ()
    causes: tuple[Cause, ...] | None = None
    """Ranking for this finding; by default the rule's own."""

    def __post_init__(self) -> None:
        # Checked here, inside the rule's own boundary, because a record that cannot be built would stop the engine.
        if len(self.summary) > 160 or not self.evidence:
            raise ValueError(f"finding must have evidence and at most 160 characters, got `{self.summary}`")


Answer = Finding | NotEvaluated | None
"""Holds; cannot be judged, because; does not hold."""


def threshold(default: float, text: str, *, low: float = 0.0, high: float = math.inf, unit: str = "") -> float:
    """A threshold field with its meaning and its allowed range, both ends included."""
    declared: float = field(default=default, metadata={"text": text, "low": low, "high": high, "unit": unit})
    return declared


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """One way in which a run goes wrong. Raises `ValueError` for a threshold out of its range or order."""

    code: ClassVar[str]
    name: ClassVar[str]
    title: ClassVar[str]
    kind: ClassVar[Kind]
    proof: ClassVar[Proof]
    """What shows that the rule is right; see `MAY_WARN`."""
    where: ClassVar[str]
    """Component that the finding is about, part of its id."""
    reads: ClassVar[tuple[str, ...]]
    """Event fields, as `event_type.field`."""
    trigger: ClassVar[type[BaseEvent]]
    """The rule is evaluated once per event of this type."""
    timing: ClassVar[Timing]
    rising: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Thresholds that must rise strictly in the order given."""
    causes: ClassVar[tuple[Cause, ...]]
    """Most likely first."""

    @abstractmethod
    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Judge the run as it is now: against the fire thresholds, or against the clear ones while `is_open`."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, low, high = self.value(item.name), item.metadata["low"], item.metadata["high"]
            if not (math.isfinite(value) and low <= value <= high):
                raise ValueError(
                    f"threshold `{item.name}` of {self.code} must be a number from {low:g} to {high:g}, got {value:g}"
                )
        for names in self.rising:
            values = [self.value(name) for name in names]
            if any(a >= b for a, b in itertools.pairwise(values)):
                raise ValueError(
                    f"thresholds of {self.code} must rise in the order {' < '.join(names)}, "
                    f"got {' < '.join(f'{value:g}' for value in values)}"
                )

    def value(self, name: str) -> float:
        """The value of one threshold."""
        return float(self.__dict__[name])

    @classmethod
    def thresholds(cls) -> dict[str, dict[str, Any]]:
        """Default, meaning, unit and range by threshold name, in reading order."""
        return {item.name: {"default": item.default, **item.metadata} for item in fields(cls)}

    @property
    def labels(self) -> dict[str, str]:
        """Identity of the finding within the run."""
        return {"component": self.where}


def is_added(rule: Rule) -> bool:
    """Whether another package brought it; see `added_rules`. No attribute that a package could set says so: its code
    must begin like this."""
    return rule.code.startswith(ADDED)


@lru_cache(maxsize=1024)
def not_evaluated(
    reason: Literal["missing_input", "warm_up", "disabled", "error", "not_applicable"], detail: str
) -> NotEvaluated:
    """Why a rule cannot judge. `detail` must not change from step to step; the same answer is the same object."""
    return NotEvaluated(reason=reason, detail=detail)
