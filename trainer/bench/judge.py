"""What a detector said about a run, and whether it was right.

Every detector is judged by the same `Naming`s: when it first said something at warning or above, what that means in
codes of failure modes, and whether it still stood when the first cause was asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.replay import replay
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.trainer.bench.cases import Case

HORIZON: Final = 70
"""Steps after the onset at which the first cause is asked for, and until which a fault counts as recalled."""
GRAVITY: Final = {"critical": 2, "warning": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Something a detector said, from when to when."""

    name: str
    codes: frozenset[str]
    severity: str
    """In the end; see `severity_at`."""
    is_fault: bool
    """False where only a resource is unused: no alarm, whatever it is worth."""
    step: int
    """Optimizer steps finished when it was first said at warning or above."""
    began: int
    """When its condition first held: `step` less the persistence it asks for."""
    explained: float = math.inf
    """Step from which on something else was said to be its cause."""
    over: float = math.inf
    """Step at which it was taken back."""

    levels: tuple[tuple[int, str], ...] = ()
    """Severity from a step on, in order; empty where it never changed."""

    def severity_at(self, step: int) -> str:
        """As it was said at `step`."""
        return next((level for since, level in reversed(self.levels) if since <= step), self.severity)

    def is_root_at(self, step: int) -> bool:
        """Whether it stands by itself at `step`."""
        return self.step <= step < min(self.explained, self.over)


class Detector(Protocol):
    """Reads a run and says what is wrong with it."""

    @property
    def name(self) -> str:
        """As tables show it."""
        ...

    def namings(self, events: Sequence[BaseEvent]) -> list[Naming]:
        """Everything said at warning or above, in the order in which it was said."""
        ...


class Tocsin:
    """Our own rules, as `tocsin replay` runs them."""

    name = "tocsin"

    def namings(self, events: Sequence[BaseEvent]) -> list[Naming]:
        """Read off the records of the feed."""
        steps = {event.seq: event.step for event in events}
        lives: dict[str, list[tuple[int, Diagnostic]]] = {}
        for record in replay(events, Engine()):
            if isinstance(record, Diagnostic) and record.kind in ("fault", "efficiency"):
                lives.setdefault(record.id, []).append((steps[record.event_seq], record))
        found = [_naming(life) for life in lives.values()]
        return sorted((one for one in found if one is not None), key=lambda one: one.step)


def _naming(life: list[tuple[int, Diagnostic]]) -> Naming | None:
    loud = [(step, record) for step, record in life if record.severity in GRAVITY and record.state == "firing"]
    if not loud:
        return None
    step, first = loud[0]
    _, last = life[-1]
    return Naming(
        name=first.name,
        codes=frozenset({first.code}),
        severity=last.severity,
        is_fault=first.kind == "fault",
        step=step,
        began=first.started.step,
        levels=tuple((since, record.severity) for since, record in loud),
        explained=_since(life, [any(one.kind == "explained_by" for one in record.relations) for _, record in life]),
        over=_since(life, [record.state == "resolved" for _, record in life]),
    )


def _since(life: list[tuple[int, Diagnostic]], holds: list[bool]) -> float:
    """The step from which on something holds to the end; infinite when it does not at the end."""
    if not holds[-1]:
        return math.inf
    start = len(holds) - 1
    while start > 0 and holds[start - 1]:
        start -= 1
    return life[start][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run in the eyes of one detector."""

    case: Case
    steps: int
    harm: tuple[str, ...] = ()
    """What the fault cost, in words; empty when nothing was measured."""
    recalled: bool = False
    """Whether an acceptable code was said after the onset and within the horizon."""
    delay: int | None = None
    """Steps from the onset until it was said."""
    delay_beyond: int | None = None
    """Steps from the onset until the condition began to hold, which leaves the persistence out."""
    first: str | None = None
    """Name of the first cause."""
    first_codes: frozenset[str] = frozenset()
    false_alarms: tuple[Naming, ...] = ()
    """Faults said about a healthy run, or before the onset."""
    right: int = 0
    """Faults and wastes said after the onset that stand by themselves and are acceptable."""
    wrong: tuple[Naming, ...] = ()
    """Faults said after the onset that stand by themselves and are not acceptable."""
    waste: tuple[Naming, ...] = field(default=(), repr=False)
    """Unused resources said about a healthy run."""

    @property
    def is_first_strict(self) -> bool:
        """Whether the first cause is the fault itself."""
        return self.case.kind is not None and bool(self.first_codes & self.case.kind.strict)

    @property
    def is_first_lenient(self) -> bool:
        """Whether the first cause is the fault or what it does at once."""
        return self.case.kind is not None and bool(self.first_codes & (self.case.kind.strict | self.case.kind.lenient))


def judge(case: Case, said: list[Naming], steps: int, harm: tuple[str, ...] = ()) -> Judged:
    """Compare what was said with what was planted."""
    faults = tuple(one for one in said if one.is_fault)
    if case.kind is None:
        waste = tuple(one for one in said if not one.is_fault)
        return Judged(case=case, steps=steps, false_alarms=faults, waste=waste)
    accepted = case.kind.strict | case.kind.lenient
    until = case.onset + HORIZON
    # What the step of the onset consumed is reported before it is finished, and may show the fault already.
    after = [one for one in said if one.step >= case.onset]
    named = [one for one in after if one.codes & accepted and one.step <= until]
    asked = min(until, steps)
    roots = [one for one in after if one.is_root_at(asked)]
    first = min(roots, key=lambda one: (-GRAVITY[one.severity_at(asked)], not one.is_fault, one.step), default=None)
    lone = [one for one in after if one.explained == math.inf and one.step <= until]
    return Judged(
        case=case,
        steps=steps,
        harm=harm,
        recalled=bool(named),
        delay=named[0].step - case.onset if named else None,
        delay_beyond=max(0, named[0].began - case.onset) if named else None,
        first=first.name if first else None,
        first_codes=first.codes if first else frozenset(),
        false_alarms=tuple(one for one in faults if one.step < case.onset),
        right=sum(bool(one.codes & accepted) for one in lone),
        wrong=tuple(one for one in lone if one.is_fault and not one.codes & accepted),
    )
