"""What there is to know about each failure mode, for `tocsin explain`, `tocsin rules` and `docs/rules.md`.

All about a rule comes from the rule's own file, and why a mode has none from `gaps`. The page has what Tocsin brings;
the commands also show what other packages add.
`python -m tocsin.diagnostics.catalogue [--check]` writes or checks the page.
"""

import inspect
import math
import sys
from pathlib import Path
from typing import Any, Final

from tocsin.diagnostics.added_rules import added
from tocsin.diagnostics.modes import GAPS, NAMES, WORDS, Gap
from tocsin.diagnostics.rule import HEADINGS, MAY_WARN, Rule, is_added
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.diagnostics.selection import find
from tocsin.schemas.page import write_or_check

Entry = Rule | Gap

RULES: Final[tuple[Rule, ...]] = tuple(sorted(ALL_RULES, key=lambda rule: list(NAMES).index(rule.code)))
"""Every rule with its default thresholds, in the order of the registry."""
ENTRIES: Final[tuple[Entry, ...]] = tuple(sorted((*RULES, *GAPS), key=lambda entry: list(NAMES).index(entry.code)))
"""Every failure mode: its rule, or why it has none."""
PAGE: Final = Path(__file__).parents[1] / "docs" / "rules.md"
"""The committed page; exists in a checkout only."""


def entries() -> tuple[Entry, ...]:
    """Every failure mode, then the rules that other packages add."""
    return (*ENTRIES, *added().rules)


def find_entry(code_or_name: str) -> Entry:
    """The rule or gap with this code or name, in any case. Raises `ValueError` with close matches."""
    return find(entries(), code_or_name)


def package_of(rule: Rule) -> str | None:
    """Package and version of an added rule, whose word its evidence is; None for a rule of ours."""
    return added().packages.get(rule.code) if is_added(rule) else None


def document(entry: Entry) -> str:
    """The documentation of a failure mode as Markdown.

    A rule has its docstring, then what it reads, its timing and its thresholds; a gap has its reason.
    """
    if isinstance(entry, Gap):
        body = [f"{entry.title}.", "", "## Not evaluated", "", reason(entry), ""]
    else:
        body = [text_of(entry), "", *_facts(entry), ""]
    return "\n".join([f"# {entry.code} {entry.name}", "", *body])


def reason(gap: Gap) -> str:
    """Why no rule evaluates a mode."""
    return f"{WORDS[gap.why].capitalize()}. {gap.detail}"


def text_of(rule: Rule) -> str:
    """The rule's docstring without indentation."""
    return inspect.cleandoc(type(rule).__doc__ or "")


def sections(rule: Rule) -> dict[str, str]:
    """The docstring by heading; the sentence before the first one stands under the empty heading."""
    found: dict[str, list[str]] = {"": []}
    heading = ""
    for line in text_of(rule).splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
            found[heading] = []
        else:
            found[heading].append(line)
    return {heading: "\n".join(lines).strip() for heading, lines in found.items()}


def describe(entry: Entry) -> dict[str, Any]:
    """Everything about a failure mode as JSON-able data; `not_evaluated` stands for all else where it has no rule."""
    if isinstance(entry, Gap):
        why = {"reason": entry.why, "detail": entry.detail}
        return {"code": entry.code, "name": entry.name, "title": entry.title, "not_evaluated": why}
    return _describe(entry)


def _describe(rule: Rule) -> dict[str, Any]:
    """Everything about `rule`; `thresholds` are those in force."""
    timing = rule.timing
    parts = sections(rule)
    return {
        "code": rule.code,
        "name": rule.name,
        "title": rule.title,
        "kind": rule.kind,
        "evidence": rule.proof,
        "may_warn": rule.proof in MAY_WARN,
        **({"package": package} if (package := package_of(rule)) else {}),
        "where": rule.where,
        "summary": parts[""],
        "trigger": rule.trigger.model_fields["type"].default,
        "reads": list(rule.reads),
        "timing": {
            "unit": timing.unit,
            "window": timing.window,
            "warm_up": timing.warm_up,
            "persistence": timing.persistence,
            "clear_persistence": timing.clear_persistence,
            "absent_after": timing.absent_after,
            "silent_after": timing.silent_after,
            "reminder_every": timing.reminder_every,
            "reopen_within": timing.reopen_within,
        },
        "thresholds": {
            name: {
                "value": rule.value(name),
                "default": item["default"],
                "min": item["low"],
                "max": None if math.isinf(item["high"]) else item["high"],
                "unit": item["unit"],
                "text": item["text"],
            }
            for name, item in rule.thresholds().items()
        },
        "causes": [cause.model_dump() for cause in rule.causes],
        "documentation": {heading: parts[heading] for heading in HEADINGS if heading in parts},
    }


def render_docs() -> str:
    """The text of `docs/rules.md`."""
    head = [
        "# Rules",
        "",
        "Generated from `diagnostics/rules/` and `diagnostics/gaps.py` by `make generate`; edit those, not this page.",
        "",
        f"{len(NAMES)} failure modes have a code: {len(RULES)} with a rule, {len(GAPS)} without one. Only rules whose "
        "fault was planted in a run, for real or on a simulated device, go above info.",
        "",
        "| code | name | kind | evidence | what it says |",
        "|---|---|---|---|---|",
        *(f"| {r.code} | {r.name} | {r.kind} | {r.proof} | {_first_line(r)} |" for r in RULES),
        "",
        "## Not evaluated",
        "",
        "No rule says anything about these, so their silence means nothing.",
        "",
        "| code | name | what goes wrong | why there is no rule |",
        "|---|---|---|---|",
        *(f"| {g.code} | {g.name} | {g.title} | {reason(g)} |" for g in ENTRIES if isinstance(g, Gap)),
        "",
    ]
    bodies = [_demoted(document(rule)) for rule in RULES]
    return "\n".join([*head, *bodies]).rstrip() + "\n"


def _demoted(markdown: str) -> str:
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in markdown.splitlines()) + "\n"


def _first_line(rule: Rule) -> str:
    return " ".join(sections(rule)[""].split())


def _facts(rule: Rule) -> list[str]:
    timing = rule.timing
    trigger = rule.trigger.model_fields["type"].default
    severity = "up to critical" if rule.proof in MAY_WARN else "info only, until its fault has been planted in a run"
    lines = [
        "## Facts",
        "",
        "| fact | value |",
        "|---|---|",
        *([f"| package | {package}, whose word the evidence is |"] if (package := package_of(rule)) else []),
        f"| kind | {rule.kind} |",
        f"| evidence | {rule.proof}: {severity} |",
        f"| evaluated at | every `{trigger}` |",
        f"| reads | {', '.join(f'`{name}`' for name in rule.reads)} |",
        f"| window | {timing.window} {timing.unit} |",
        f"| warm-up | {timing.warm_up} {timing.unit} |",
        f"| fires after | {timing.persistence} evaluations in a row |",
        f"| resolves after | {timing.clear_persistence} evaluations in a row |",
        f"| no data after | {timing.absent_after} evaluations without input, or {timing.silent_after} silent steps |",
        f"| reminder | every {timing.reminder_every} evaluations at which it holds |",
        f"| same episode | when it returns within {timing.reopen_within} evaluations |",
    ]
    thresholds = rule.thresholds()
    if thresholds:
        lines += ["", "| threshold | default | unit | range | meaning |", "|---|---|---|---|---|"]
    for name, item in thresholds.items():
        span = f"from {item['low']:g}" if math.isinf(item["high"]) else f"{item['low']:g} to {item['high']:g}"
        lines.append(f"| `{name}` | {item['default']:g} | {item['unit'] or '-'} | {span} | {item['text']} |")
    lines += ["", "| possible cause | weight | what tells it apart |", "|---|---|---|"]
    for cause in rule.causes:
        named = f"{cause.text} ({cause.code})" if cause.code else cause.text
        lines.append(f"| {named} | {cause.weight:g} | {cause.check} |")
    return lines


def main(arguments: list[str]) -> int:
    """The exit code of `write_or_check`."""
    return write_or_check(PAGE, render_docs, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
