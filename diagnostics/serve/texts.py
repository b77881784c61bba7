"""Answers in few words, for a language model: text first, and the same as data, both without free text of others.

A record is told in one line with its id; `tocsin_get` tells all about one. Notes of requests are left out.
"""

from collections.abc import Sequence
from io import StringIO
from typing import Any, Final

from rich.console import Console, RenderableType

from tocsin.diagnostics import render
from tocsin.diagnostics.catalogue import document, find_entry, sections
from tocsin.diagnostics.display import diagnostic_view, metric_lines, open_title, writer_text
from tocsin.diagnostics.errors import CANNOT_TELL, CLEAR, OPEN
from tocsin.diagnostics.modes import Gap
from tocsin.diagnostics.serve.changes import Change
from tocsin.diagnostics.serve.operations import Finding, KnobStates, RunStatus, Snapshot
from tocsin.diagnostics.snapshot import Cell, Grid, Row, Span, Window, grid
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.base import NonFinite
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.feed import Page, UnknownRecord

Record = Diagnostic | ActionRecord | Coverage | UnknownRecord
Told = tuple[str, dict[str, Any]]
"""An answer as text and as data."""

WIDE: Final = 400
MAX_HISTORY: Final = 10
MAX_METRICS: Final = 60
VERDICTS: Final = {CLEAR: "CLEAR", OPEN: "OPEN", CANNOT_TELL: "CANNOT TELL"}
SHORT: Final = ("What it means", "Known false alarms", "What to do")
"""Headings of a rule's documentation that a decision needs."""


def tell_status(seen: RunStatus) -> Told:
    """A run at a glance."""
    status = seen.status
    verdict = VERDICTS.get(status.exit_code, "CANNOT TELL")
    head = f"{verdict} | run {render.clean(status.run_id)} | {_writer(seen)}"
    numbers = "; ".join(f"{label} {text}" for label, text in metric_lines(status.metrics))
    open_now = [f"- {line_of(record)}" for record in seen.active]
    evaluated = "no rule is evaluated"
    if seen.coverage is not None:
        total = len(seen.coverage.evaluated) + len(seen.coverage.not_evaluated)
        evaluated = f"{len(seen.coverage.evaluated)} of {total} rules evaluated, health {seen.coverage.health}"
    count = open_title(seen.active).plain
    text = "\n".join(filter(None, [head, numbers, count, *open_now, evaluated]))
    return text, {
        "run": status.run_id,
        "verdict": verdict.lower().replace(" ", "_"),
        "writer": _json(status.writer),
        "metrics": _json(status.metrics),
        "open": [brief(record) for record in seen.active],
        "health": status.health,
    }


def _writer(seen: RunStatus) -> str:
    return writer_text(seen.status.writer, seen.status.metrics).plain


def tell_page(page: Page) -> Told:
    """One poll."""
    data = {**_json(page), "records": [brief(record) for record in page.records]}
    lines = ["the feed was replaced; reading started over"] if page.reset else []
    lines += [f"#{record.seq} {line_of(record)}" for record in page.records] or ["nothing new"]
    active = page.active
    open_now = f"open: {active.critical} critical, {active.warning} warning, {active.info} info"
    more = "; there is more, poll again" if page.has_more else ""
    lines.append(f"{open_now} | writer {page.writer.state}, step {page.writer.step} | cursor {page.next_cursor}{more}")
    return "\n".join(lines), data


def tell_finding(found: Finding) -> Told:
    """One finding in full, with what can be done about it and how it came about."""
    lines = [] if found.diagnostic is None else [_plain(diagnostic_view(found.diagnostic))]
    actions = found.diagnostic.actions if found.diagnostic else []
    lines += [f"apply with tocsin_act: {render.clean(a.id)}" for a in actions if a.patches and a.disabled is None]
    lines += [f"#{record.seq} {line_of(record)}" for record in found.history[-MAX_HISTORY:]]
    data = {"id": found.id, "history": [brief(record) for record in found.history[-MAX_HISTORY:]]}
    return "\n".join(lines), data | ({"diagnostic": _json(found.diagnostic)} if found.diagnostic else {})


def tell_rule(code: str, *, full: bool) -> Told:
    """The documentation of a failure mode. Raises `ValueError` for one that does not exist."""
    entry = find_entry(code)
    data = {"code": entry.code, "name": entry.name, "title": entry.title, "has_rule": not isinstance(entry, Gap)}
    if full or isinstance(entry, Gap):
        return document(entry), data
    parts = sections(entry)
    told = [f"{heading}: {' '.join(parts[heading].split())}" for heading in SHORT if parts.get(heading)]
    return "\n".join([f"{entry.code} {entry.name} ({entry.kind}): {entry.title}", *told]), data


def tell_knobs(states: KnobStates) -> Told:
    """Every knob with its value and how far one change may go."""
    lines = [
        f"{state.knob.path} = {render.value(state.value)}"
        + ("" if state.knob.type == "bool" else f" (one change: {state.low:.6g} to {state.high:.6g})")
        for state in states.knobs
    ]
    paused = ", paused" if states.paused else ""
    data = {
        "config_generation": states.config_generation,
        "step": states.step,
        "paused": states.paused,
        "knobs": {
            state.knob.path: {"value": state.value, "low": state.low, "high": state.high} for state in states.knobs
        },
    }
    return "\n".join([f"step {states.step}, config_generation {states.config_generation}{paused}", *lines]), data


def tell_snapshot(seen: Snapshot) -> Told:
    """Metrics in rows, steps in columns; at most `MAX_METRICS` of them."""
    rows: list[Any] = [Row(r.seq, r.attempt, r.step, r.ts, r.type, dict(r.metrics)) for r in seen.rows]
    table = grid(Window(rows, seen.first_step, seen.last_step))
    names = list(table.cells)[:MAX_METRICS]
    lines = [f"{render.clean(name)}: {_row(table, name)}" for name in names]
    if left_out := len(table.cells) - len(names):
        lines.append(f"{left_out} more metrics left out; name a part of what you look for with `contains`")
    head = f"steps {', '.join(map(str, table.steps)) or 'none'} (the run has {seen.first_step} to {seen.last_step})"
    data = {
        "steps": table.steps,
        "metrics": {name: [_leaf(table.cells[name].get(step)) for step in table.steps] for name in names},
        "left_out": left_out,
    }
    return "\n".join([head, *lines]), data


def tell_change(change: Change) -> Told:
    """What a change did, or would do."""
    lines = [f"{change.state.replace('_', ' ')}: {change.reason}", *change.effects]
    if change.state == "would_be_accepted":
        lines.append("dry run: nothing was changed; call again with apply=true to do it")
    if change.state == "accepted":
        lines.append("not carried out yet; the run is in the middle of a step: poll the feed")
    data = {"state": change.state, "applied": change.applied, "reason": change.reason, "effects": change.effects}
    return "\n".join(lines), data


def line_of(record: Record) -> str:
    """A record on one line with its id, without notes."""
    if isinstance(record, ActionRecord):
        return f"{_log_line(record.model_copy(update={'note': ''}))} [{render.clean(record.action_id)}]"
    where = f" [{render.clean(record.id)}]" if isinstance(record, Diagnostic) else ""
    return f"{_log_line(record)}{where}"


def _log_line(record: Record) -> str:
    return render.line(record).removeprefix("[tocsin] ")


BRIEF: Final = ("seq", "record", "code", "id", "state", "reason", "severity", "summary", "suppressed")
CHANGED: Final = ("seq", "record", "action_id", "diagnostic_id", "state", "path", "before", "after", "actor", "step")


def brief(record: Record) -> dict[str, Any]:
    """What a program needs of a record to go on; `tocsin_get` has the rest."""
    if isinstance(record, Diagnostic):
        actions = [action.id for action in record.actions if action.patches and action.disabled is None]
        return _chosen(_json(record), BRIEF) | {"actions": actions}
    if isinstance(record, ActionRecord):
        return _chosen(_json(record), CHANGED)
    if isinstance(record, Coverage):
        counts = {"evaluated": len(record.evaluated), "not_evaluated": len(record.not_evaluated)}
        return {"seq": record.seq, "record": record.record, "health": record.health, **counts}
    return {"seq": record.seq, "record": "unknown"}


def _chosen(data: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: data[name] for name in names if name in data and data[name] is not False}


def _json(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = model.model_dump(mode="json", exclude_none=True)
    return found


def _plain(view: RenderableType) -> str:
    """What a terminal shows, without its blanks and colours."""
    console = Console(file=StringIO(), width=WIDE, markup=False, highlight=False, emoji=False, no_color=True)
    with console.capture() as captured:
        console.print(view)
    lines = (" ".join(line.split()) for line in captured.get().splitlines())
    return "\n".join(line for line in lines if line)


def _row(table: Grid, name: str) -> str:
    cells = table.cells[name]
    return " ".join(_shown(cells.get(step)) for step in table.steps)


def _shown(leaf: Cell | None) -> str:
    if isinstance(leaf, Span):
        return f"{leaf.low:.4g}..{leaf.high:.4g}"
    if isinstance(leaf, bool):
        return str(leaf).lower()
    return render.clean(leaf) if isinstance(leaf, str) else render.number(leaf)


def _leaf(leaf: Cell | None) -> Any:
    if isinstance(leaf, Span):
        return [leaf.low, leaf.high]
    return {"nonfinite": leaf.nonfinite} if isinstance(leaf, NonFinite) else leaf
