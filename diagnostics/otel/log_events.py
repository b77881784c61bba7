"""Feed records as OpenTelemetry log events: `tocsin.diagnostic`, `tocsin.action`, `tocsin.coverage`.

A log record with an event name is an event. Its timestamp is that of the run's own event, its body is for people,
its attributes are for software; a diagnostic lies in the trace of the step that it is about.
"""

import time
from collections.abc import Callable
from typing import Final

from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.context import Context

from tocsin.diagnostics import render
from tocsin.diagnostics.clock import unix_seconds
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.base import NonFinite, Number
from tocsin.schemas.diagnosis import Coverage, Diagnostic

Value = str | bool | int | float
Record = Diagnostic | ActionRecord | Coverage

SEVERITIES: Final = {
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "critical": SeverityNumber.FATAL,
}


class LogEvents:
    """Emits records through `logger`. `trace_of` gives the context of a step's trace."""

    def __init__(self, logger: Logger, trace_of: Callable[[int], Context]) -> None:
        self._logger = logger
        self._trace_of = trace_of

    def record(self, record: Record) -> None:
        """Emit one record."""
        if isinstance(record, Diagnostic):
            self._diagnostic(record)
        elif isinstance(record, ActionRecord):
            self._action(record)
        else:
            text = f"{len(record.evaluated)} rules evaluated, {len(record.not_evaluated)} not"
            level = SeverityNumber.WARN if record.health == "degraded" else SeverityNumber.INFO
            attributes: dict[str, Value] = {
                "tocsin.coverage.health": record.health,
                "tocsin.coverage.evaluated": len(record.evaluated),
                "tocsin.coverage.not_evaluated": len(record.not_evaluated),
                "tocsin.coverage.held_back": record.held_back,
                "tocsin.step.number": record.at.step,
            }
            self._emit("tocsin.coverage", record, (record.at.ts, record.at.step), level, text, attributes)

    def _diagnostic(self, record: Diagnostic) -> None:
        is_over = record.state == "resolved" and record.resolved is not None
        moment = record.resolved if is_over and record.resolved is not None else record.last
        level = SeverityNumber.INFO if record.state == "resolved" else SEVERITIES[record.severity]
        attributes: dict[str, Value] = {
            "tocsin.diagnostic.id": record.id,
            "tocsin.diagnostic.fingerprint": record.fingerprint,
            "tocsin.diagnostic.code": record.code,
            "tocsin.diagnostic.name": record.name,
            "tocsin.diagnostic.kind": record.kind,
            "tocsin.diagnostic.state": record.state,
            "tocsin.diagnostic.reason": record.reason,
            "tocsin.diagnostic.severity": record.severity,
            "tocsin.diagnostic.episode": record.episode,
            "tocsin.diagnostic.suppressed": record.suppressed,
            "tocsin.step.number": moment.step,
            "tocsin.policy.version": moment.policy_version,
            "tocsin.config.generation": record.config_generation,
        }
        for index, item in enumerate(record.evidence):
            facts = {"observed": item.observed, "threshold": item.threshold, "baseline": item.baseline}
            where = f"tocsin.evidence.{index}"
            attributes |= {f"{where}.metric": item.metric, f"{where}.operator": item.operator}
            attributes |= {f"{where}.{name}": _number(value) for name, value in facts.items() if value is not None}
        action = render.best_action(record)
        if action is not None:
            attributes["tocsin.diagnostic.action"] = action.id
        self._emit("tocsin.diagnostic", record, (moment.ts, moment.step), level, record.summary, attributes)

    def _action(self, record: ActionRecord) -> None:
        attributes: dict[str, Value] = {
            "tocsin.action.id": record.action_id,
            "tocsin.action.state": record.state,
            "tocsin.action.actor": record.actor,
            "tocsin.step.number": record.step,
            "tocsin.config.generation": record.config_generation,
        }
        changes = {"path": record.path, "before": record.before, "after": record.after}
        attributes |= {f"tocsin.action.{name}": value for name, value in changes.items() if value is not None}
        if record.diagnostic_id is not None:
            attributes["tocsin.diagnostic.id"] = record.diagnostic_id
        change = f" {record.path} {render.value(record.before)} -> {render.value(record.after)}" if record.path else ""
        text = f"{record.state}{change} by {record.actor}"
        self._emit("tocsin.action", record, (record.ts, record.step), SeverityNumber.INFO, text, attributes)

    def _emit(
        self,
        name: str,
        record: Record,
        moment: tuple[str, int],
        level: SeverityNumber,
        text: str,
        attributes: dict[str, Value],
    ) -> None:
        now = time.time_ns()
        happened = unix_seconds(moment[0])
        self._logger.emit(
            timestamp=now if happened is None else round(happened * 1_000) * 1_000_000,
            observed_timestamp=now,
            context=self._trace_of(moment[1]),
            severity_number=level,
            body=render.clean(text),
            attributes={"tocsin.run.id": record.run_id, "tocsin.feed.seq": record.seq, **attributes},
            event_name=name,
        )


def _number(value: Number) -> float | str:
    """A number as it is; one that is not finite by name, because no back end stores a NaN alike."""
    return value.nonfinite if isinstance(value, NonFinite) else value
