"""Records as one line of text: for the log, the terminal and the progress display of the trainer.

`line` is plain, `styled` is the same text with colours. Every string that comes out of a file passes `clean`.
"""

import logging
import unicodedata
from typing import Final

from rich.text import Text

from tocsin.schemas.actions import Action, ActionRecord
from tocsin.schemas.base import NonFinite, Number
from tocsin.schemas.diagnosis import Coverage, Diagnostic, Relation
from tocsin.schemas.feed import UnknownRecord
from tocsin.schemas.knobs import KnobValue

Record = Diagnostic | ActionRecord | Coverage | UnknownRecord

LOG_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.CRITICAL}
feed_log: Final = logging.getLogger("tocsin.feed")
# Without a handler of the application's own, Python would print warnings a second time beside the display.
feed_log.addHandler(logging.NullHandler())

SEVERITY_STYLES: Final = {"critical": "bold red", "warning": "bold yellow", "info": "cyan"}
GOOD: Final = "green"
QUIET: Final = "dim"
HEALTH_STYLES: Final = {"ok": QUIET, "degraded": "bold yellow", "unknown": "yellow"}
WRITER_STYLES: Final = {
    "alive": "green",
    "starting": "cyan",
    "stalled": "bold yellow",
    "dead": "bold red",
    "ended": "bold",
}
ACTION_STYLES: Final = {
    "applied": "bold",
    "target_met": GOOD,
    "harmed": "bold red",
    "no_effect": "yellow",
    "reverted": "yellow",
    "proposed": "bold yellow",
    "rejected": "yellow",
    "expired": QUIET,
}


def clean(text: str) -> str:
    """`text` on one line, without anything that a terminal would obey.

    Control characters (C0 and C1, which start escape sequences), formatting characters (bidirectional overrides,
    zero-width joiners), surrogates and line separators become one visible `?` each; white space becomes a blank.
    """
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char in "\t\n\r\f\v" or unicodedata.category(char) == "Zs" else "?"


def line(record: Record) -> str:
    """`record` as one line of a log, without colour.

    `[tocsin] WARNING RWD001 zero-std-groups: <summary> -> raise group_size 8 to 16 [review]; tocsin explain RWD001`
    """
    word, rest = _parts(record)
    return f"[tocsin] {word} {rest}"


def log_record(record: Record) -> None:
    """Hand `line(record)` to the standard logger `tocsin.feed`, for applications that collect logs.

    Coverage is INFO, as is what resolved; a diagnostic has the level of its severity. An action that is left to a
    person is a WARNING.
    """
    level = logging.INFO
    if isinstance(record, ActionRecord) and record.state == "proposed":
        level = logging.WARNING
    if isinstance(record, Diagnostic) and record.state != "resolved":
        level = LOG_LEVELS[record.severity]
    feed_log.log(level, "%s", line(record))


def styled(record: Record) -> Text:
    """`line(record)` for a terminal."""
    word, rest = _parts(record)
    return Text.assemble(("[tocsin] ", QUIET), (word, record_style(record)), " ", rest)


def record_style(record: Record) -> str:
    """Style of the word that says what `record` is."""
    if isinstance(record, Diagnostic):
        quiet = QUIET if record.suppressed else severity_style(record.severity)
        return GOOD if record.state == "resolved" else quiet
    if isinstance(record, ActionRecord):
        return ACTION_STYLES.get(record.state, "")
    if isinstance(record, Coverage):
        return HEALTH_STYLES[record.health]
    return "yellow"


def severity_style(severity: str) -> str:
    """Rich style of a severity."""
    return SEVERITY_STYLES.get(severity, "")


def _parts(record: Record) -> tuple[str, str]:
    """The leading word in capitals, and the rest of the line."""
    if isinstance(record, Diagnostic):
        return headline(record), f"{record.code} {record.name}{_diagnostic_body(record)}"
    if isinstance(record, ActionRecord):
        return "ACTION", _action_body(record)
    if isinstance(record, Coverage):
        return "COVERAGE", _coverage_body(record)
    return "UNKNOWN", f"record of kind `{clean(record.record)}`; a newer version of tocsin can read it"


def headline(record: Diagnostic) -> str:
    """`RESOLVED`, `NO DATA`, `RUN ENDED`, `EXPLAINED`, or the severity of something that is open."""
    if record.reason == "run_ended":
        return "RUN ENDED"
    if record.state == "resolved":
        return "RESOLVED"
    if record.state == "no_data":
        return "NO DATA"
    return "EXPLAINED" if record.suppressed else record.severity.upper()


def _diagnostic_body(record: Diagnostic) -> str:
    since = onset(record)
    summary = clean(record.summary)
    if record.reason == "run_ended":
        return f" while {record.severity} was open since step {since}: {summary}"
    if record.state == "resolved":
        ended = record.resolved.step if record.resolved else record.last.step
        span = f"{plural(max(0, ended - since), 'step')} ({since} to {ended})"
        return f": no longer holds after {span}; last: {summary}"
    if record.state == "no_data":
        return f": its data stopped after step {record.last.step}, open since step {since}: {summary}"
    if record.reason == "explained" or record.suppressed:
        return f" (explained by {_explainer(record)}): {summary}"
    notes = {
        "escalated": " (escalated)",
        "reopened": f" (reopened, episode {record.episode})",
        "reminder": f" (still open after {plural(record.last.step - since, 'step')})",
        "data_back": " (data is back)",
        "unexplained": " (still open, and its cause is not)",
    }
    return f"{notes.get(record.reason, '')}: {summary} -> {advice(record)}"


def onset(record: Diagnostic) -> int:
    """Step at which the finding fired, or at which its condition first held when it has not fired."""
    return (record.fired or record.started).step


def _explainer(record: Diagnostic) -> str:
    roots = [relation.id for relation in record.relations if relation.kind == "explained_by"]
    return clean(", ".join(roots)) or "another finding"


def relation_text(relation: Relation) -> str:
    """`explained by lr-too-high/learner#1`."""
    return f"{relation.kind.replace('_', ' ')} {clean(relation.id)}"


def withheld(record: Coverage) -> list[str]:
    """What the feed keeps back: findings in a storm, and the records of silenced rules."""
    held = f"{plural(record.held_back, 'finding')} held back: too many fired at once" if record.held_back else ""
    silenced = [f"{clean(code)} silenced until step {step}" for code, step in record.silenced.items()]
    return [*([held] if held else []), *silenced]


def advice(record: Diagnostic) -> str:
    """The best action that can be applied and the command that explains the rule."""
    action = best_action(record)
    steps = [action_title(action)] if action else []
    return "; ".join([*steps, clean(record.help)])


def best_action(record: Diagnostic) -> Action | None:
    """The preferred action, else the first one that is not disabled; none when all are disabled."""
    enabled = [action for action in record.actions if action.disabled is None]
    return next((action for action in enabled if action.preferred), enabled[0] if enabled else None)


def action_title(action: Action) -> str:
    """`raise group_size 8 to 16 [review]`."""
    return f"{clean(action.title)} [{action.applicability}]"


def _action_body(record: ActionRecord) -> str:
    change = ""
    if record.path is not None:
        change = f" {clean(record.path)} {value(record.before)} -> {value(record.after)}"
    target = f" for {clean(record.diagnostic_id)}" if record.diagnostic_id else ""
    note = f": {clean(record.note)}" if record.note else ""
    return f"{record.state}{change} by {clean(record.actor)} at step {record.step}{target}{note}"


def _coverage_body(record: Coverage) -> str:
    """How many rules are evaluated, and the codes of the others by reason; details stand in `tocsin status`."""
    total = len(record.evaluated) + len(record.not_evaluated)
    by_reason: dict[str, list[str]] = {}
    for code, why in record.not_evaluated.items():
        by_reason.setdefault(why.reason, []).append(clean(code))
    reasons = [f"; {reason.replace('_', ' ')}: {', '.join(codes)}" for reason, codes in by_reason.items()]
    withheld_texts = "".join(f"; {text}" for text in withheld(record))
    evaluated = f"{len(record.evaluated)} of {plural(total, 'rule')} evaluated"
    return f"{record.health}: {evaluated}{''.join(reasons)}{withheld_texts}"


def not_evaluated(reason: str, detail: str) -> str:
    """`missing input: no accelerator`."""
    words = reason.replace("_", " ")
    return f"{words}: {clean(detail)}" if detail else words


def plural(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def value(item: KnobValue | None) -> str:
    """A knob value for people; `?` when it is not known."""
    if item is None:
        return "?"
    return f"{item:g}" if isinstance(item, float) else str(item).lower()


def number(item: Number | None) -> str:
    """A measured value with four significant digits; `-` when it was not measured."""
    if item is None:
        return "-"
    if isinstance(item, NonFinite):
        return item.nonfinite
    if abs(item) >= 10_000 and float(item).is_integer():
        return f"{item:,.0f}"
    return f"{item:.4g}"
