"""What a receiver was told of, so that it hears of a finding once when it fires and once when it is over.

Level and not edge: a record that is repeated, reminded of or replayed says nothing new and gives no message.
"""

import hashlib
from typing import Final, Literal

from tocsin.diagnostics import render
from tocsin.schemas.alerts import Alert
from tocsin.schemas.diagnosis import SEVERITIES, Diagnostic, Severity
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunEnded, RunResumed

FAILED: Final = "run-failed"
DEAD: Final = "run-dead"
Reason = Literal["fired", "reopened", "unexplained", "escalated", "resolved", "run_ended"]
TOLD: Final[dict[str, Reason]] = {"reopened": "reopened", "unexplained": "unexplained"}
"""Reasons of records that a first message may have, other than `fired`."""


class Book:
    """Messages for one receiver, which hears of `min_severity` and above."""

    def __init__(self, min_severity: Severity = "warning") -> None:
        self._least = SEVERITIES.index(min_severity)
        self._told: dict[str, Severity] = {}
        """Severity that the receiver knows, by dedup key."""

    def take(self, record: Diagnostic) -> Alert | None:
        """The message that a record gives rise to."""
        key, told = record.fingerprint, self._told.get(record.fingerprint)
        if record.state == "resolved":
            return None if self._told.pop(key, None) is None else _of(record, "resolved")
        grade = SEVERITIES.index(record.severity)
        is_quiet = grade < self._least or record.suppressed
        if record.reason == "run_ended" and (told is not None or not is_quiet):
            self._told[key] = record.severity
            return _of(record, "run_ended")
        if is_quiet or (told is not None and grade <= SEVERITIES.index(told)):
            return None
        self._told[key] = record.severity
        return _of(record, TOLD.get(record.reason, "fired") if told is None else "escalated")

    def observe(self, event: BaseEvent) -> Alert | None:
        """The message about the run itself that an event gives rise to."""
        if isinstance(event, RunEnded) and event.outcome == "failed":
            return self._run(FAILED, event, "run_failed", f"The run failed at step {event.step}")
        if isinstance(event, RunResumed) and run_key(event.run_id, FAILED) in self._told:
            del self._told[run_key(event.run_id, FAILED)]
            return _about_run(FAILED, event, "resolved", f"The run goes on from step {event.checkpoint_step}")
        return None

    def died(self, last: BaseEvent) -> Alert | None:
        """The message that nobody writes the run any more, after the `last` event that there is."""
        return self._run(DEAD, last, "run_dead", f"The process of the run is gone since step {last.step}")

    def _run(self, name: str, event: BaseEvent, reason: Literal["run_failed", "run_dead"], text: str) -> Alert | None:
        key = run_key(event.run_id, name)
        if key in self._told:
            return None
        self._told[key] = "critical"
        return _about_run(name, event, reason, text)


def run_key(run_id: str, name: str) -> str:
    """Dedup key of what is about a run and not about a finding."""
    return hashlib.sha256(f"{name} {run_id}".encode()).hexdigest()[:16]


def _of(record: Diagnostic, reason: Reason) -> Alert:
    now = record.resolved if record.state == "resolved" and record.resolved is not None else record.last
    action = render.best_action(record)
    return Alert(
        status="resolved" if reason == "resolved" else "firing",
        reason=reason,
        dedup_key=record.fingerprint,
        run_id=record.run_id,
        id=record.id,
        code=record.code,
        name=record.name,
        severity=record.severity,
        summary=render.clean(record.summary),
        text=f"{render.line(record)} (run {render.clean(record.run_id)}, step {now.step})",
        labels=record.labels,
        step=now.step,
        started=(record.fired or record.started).ts,
        ended=now.ts if reason == "resolved" else None,
        action=None if action is None else action.id,
        help=record.help,
    )


def _about_run(name: str, event: BaseEvent, reason: Literal["run_failed", "run_dead", "resolved"], text: str) -> Alert:
    run = render.clean(event.run_id)
    help = f"tocsin status {run}"
    word = "RESOLVED" if reason == "resolved" else "CRITICAL"
    return Alert(
        status="resolved" if reason == "resolved" else "firing",
        reason=reason,
        dedup_key=run_key(event.run_id, name),
        run_id=event.run_id,
        id=name,
        name=name,
        severity="critical",
        summary=text,
        text=f"[tocsin] {word} {name}: {text}; {help} (run {run}, step {event.step})",
        step=event.step,
        started=event.ts,
        ended=event.ts if reason == "resolved" else None,
        help=help,
    )
