"""What there is to know about each rule, for `tocsin explain`, `tocsin rules` and `docs/rules.md`.

All of it comes from the rule's own file. `python -m tocsin.diagnostics.catalogue [--check]` writes or checks the page.
"""

import inspect
import math
import sys
from pathlib import Path
from typing import Any, Final

from tocsin.diagnostics.rule import HEADINGS, MAY_WARN, Rule
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.diagnostics.selection import find

RULES: Final[tuple[Rule, ...]] = ALL_RULES
PAGE: Final = Path(__file__).parents[1] / "docs" / "rules.md"
"""The committed page; exists in a checkout only."""


def find_rule(code_or_name: str) -> Rule:
    """The rule with this code or name, in any case. Raises `ValueError` with close matches."""
    return find(RULES, code_or_name)


def document(rule: Rule) -> str:
    """The documentation of `rule` as Markdown: its docstring, then what it reads, its timing and its thresholds."""
    return "\n".join([f"# {rule.code} {rule.name}", "", text_of(rule), "", *_facts(rule), ""])


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


def describe(rule: Rule) -> dict[str, Any]:
    """Everything about `rule` as JSON-able data; `thresholds` are those in force."""
    timing = rule.timing
    parts = sections(rule)
    return {
        "code": rule.code,
        "name": rule.name,
        "title": rule.title,
        "kind": rule.kind,
        "evidence": rule.proof,
        "may_warn": rule.proof in MAY_WARN,
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
        "documentation": {heading: parts[heading] for heading in HEADINGS},
    }


def render_docs() -> str:
    """The text of `docs/rules.md`."""
    head = [
        "# Rules",
        "",
        "Generated from `diagnostics/rules/` by `make generate`; edit the rules, not this page.",
        "",
        "Only rules whose fault was planted in a run, for real or on a simulated device, go above info.",
        "",
        "| code | name | kind | evidence | what it says |",
        "|---|---|---|---|---|",
        *(f"| {r.code} | {r.name} | {r.kind} | {r.proof} | {_first_line(r)} |" for r in RULES),
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
    """Write the page, or with `--check` compare it. Exit code 1 when it is not fresh, 2 for anything else given."""
    if arguments not in ([], ["--check"]):
        print(f"arguments must be none or `--check`, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    if not PAGE.parent.is_dir():
        print(f"{PAGE.parent} must be a folder; run this in a checkout of the repository", file=sys.stderr)
        return 2
    if not arguments:
        PAGE.write_text(render_docs(), encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != render_docs():
        print(f"{PAGE} is not fresh; run `make generate`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
