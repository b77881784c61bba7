"""What a rule declares in code is what `docs/rules.md`, `tocsin explain --json` and the event schema say of it.

The page and the command are read as their readers do, from the text, and held against the class.
"""

import json
import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import pytest

from tests.diagnostics.run_folder import lines
from tests.records import SCHEMAS
from tocsin.diagnostics.catalogue import PAGE, RULES
from tocsin.diagnostics.cli import main
from tocsin.diagnostics.rule import MAY_WARN, Rule, Timing, threshold

CLASSES: Final = [type(rule) for rule in RULES]
EVENT_SCHEMA: Final = json.loads((SCHEMAS / "event.schema.json").read_text(encoding="utf-8"))

Facts = dict[str, Any]
"""By name: `timing.window`, `fire.default`, `reads`."""


def declared(rule: type[Rule]) -> Facts:
    """What the class declares."""
    facts: Facts = {
        "kind": rule.kind,
        "evidence": rule.proof,
        "trigger": rule.trigger.model_fields["type"].default,
        "reads": list(rule.reads),
        "causes": [cause.weight for cause in rule.causes],
        **{f"timing.{item.name}": getattr(rule.timing, item.name) for item in fields(Timing)},
    }
    for name, item in rule.thresholds().items():
        facts |= {f"{name}.{key}": item[key] for key in ("default", "unit", "low", "high", "text")}
    return facts


FACT: Final = {
    "kind": r"(?P<kind>\w+)",
    "evidence": r"(?P<evidence>[\w-]+): .*",
    "evaluated at": r"every `(?P<trigger>\w+)`",
    "window": r"(?P<window>\d+) (?P<unit>\w+)",
    "warm-up": r"(?P<warm_up>\d+) (?P<unit>\w+)",
    "fires after": r"(?P<persistence>\d+) evaluations in a row",
    "resolves after": r"(?P<clear_persistence>\d+) evaluations in a row",
    "no data after": r"(?P<absent_after>\d+) evaluations without input, or (?P<silent_after>\d+) silent steps",
    "reminder": r"every (?P<reminder_every>\d+) evaluations at which it holds",
    "same episode": r"when it returns within (?P<reopen_within>\d+) evaluations",
}
"""Rows of the table of facts, by their label, with what their value says; `reads` is a list and has none."""
OF_RULE: Final = {"kind", "evidence", "trigger"}


def on_the_page(code: str) -> Facts:
    """What the committed page says of the rule of this code."""
    (section,) = re.findall(rf"^## {code} .*?(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in section.split("### Facts")[1].splitlines()
        if line.startswith("| ")
    ]
    facts: Facts = {"causes": []}
    for row in rows:
        facts |= _row(row, facts["causes"])
    return facts


def _row(row: list[str], weights: list[float]) -> Facts:
    label = row[0]
    if label in FACT:
        found = re.fullmatch(FACT[label], row[1])
        assert found is not None, f"a row must say what it always says, got {row}"
        return {
            name if name in OF_RULE else f"timing.{name}": int(text) if text.isdigit() else text
            for name, text in found.groupdict().items()
        }
    if label == "reads":
        return {"reads": re.findall(r"`([\w.]+)`", row[1])}
    if label.startswith("`") and len(row) == 5:
        name, (default, unit, span, text) = label.strip("`"), row[1:]
        low, _, high = span.removeprefix("from ").partition(" to ")
        values = (float(default), "" if unit == "-" else unit, float(low), float(high or math.inf), text)
        return {
            f"{name}.{key}": value
            for key, value in zip(("default", "unit", "low", "high", "text"), values, strict=True)
        }
    if len(row) == 3 and label != "possible cause":
        weights.append(float(row[1]))
    return {}


def explained(code: str, capsys: pytest.CaptureFixture[str]) -> tuple[Facts, dict[str, Any]]:
    """What `tocsin explain CODE --json` says, and the object as it was printed."""
    assert main(["explain", code, "--json"]) == 0
    (said,) = lines(capsys)
    facts: Facts = {name: said[name] for name in ("kind", "evidence", "trigger", "reads")}
    facts["causes"] = [cause["weight"] for cause in said["causes"]]
    facts |= {f"timing.{name}": value for name, value in said["timing"].items()}
    for name, item in said["thresholds"].items():
        high = math.inf if item["max"] is None else item["max"]
        facts |= {f"{name}.default": item["default"], f"{name}.low": item["min"], f"{name}.high": high}
        facts |= {f"{name}.unit": item["unit"], f"{name}.text": item["text"]}
    return facts, said


def differences(said: Facts, rule: type[Rule]) -> list[str]:
    """Facts that are not the same in both, or stand in one only."""
    truth = declared(rule)
    return sorted(name for name in said.keys() | truth.keys() if said.get(name) != truth.get(name))


def changed(rule: type[Rule], name: str) -> type[Rule]:
    """The rule with another default of one threshold."""
    item = rule.thresholds()[name]
    other = threshold(item["default"] + 1, item["text"], low=item["low"], high=item["high"], unit=item["unit"])
    body = {"__annotations__": {name: float}, name: other, "__doc__": rule.__doc__}
    return dataclass(frozen=True, kw_only=True)(type(rule.__name__, (rule,), body))


def absent(reads: tuple[str, ...]) -> list[str]:
    """Fields, as `event_type.field`, that the committed schema of events does not have."""
    branches = {
        definition["properties"]["type"]["const"]: definition
        for definition in EVENT_SCHEMA["$defs"].values()
        if "const" in definition.get("properties", {}).get("type", {})
    }
    missing = []
    for path in reads:
        kind, *names = path.split(".")
        node = branches.get(kind, {})
        for name in names:
            node = _model(node).get("properties", {}).get(name, {})
        if not names or not node:
            missing.append(path)
    return missing


def _model(node: dict[str, Any]) -> dict[str, Any]:
    """The object that a property holds: behind a reference, or beside null."""
    for option in (node, *node.get("anyOf", [])):
        if "$ref" in option:
            found: dict[str, Any] = EVENT_SCHEMA["$defs"][option["$ref"].removeprefix("#/$defs/")]
            return found
    return node


by_code = pytest.mark.parametrize("rule", CLASSES, ids=lambda rule: rule.code)


@by_code
def test_the_page_states_every_number_of_the_code(rule: type[Rule]) -> None:
    assert differences(on_the_page(rule.code), rule) == []


@by_code
def test_explain_states_every_number_of_the_code(rule: type[Rule], capsys: pytest.CaptureFixture[str]) -> None:
    facts, said = explained(rule.code, capsys)
    assert differences(facts, rule) == []
    assert said["may_warn"] == (rule.proof in MAY_WARN)
    assert {name: item["value"] for name, item in said["thresholds"].items()} == {
        name: item["default"] for name, item in rule.thresholds().items()
    }


@by_code
def test_a_changed_default_or_window_differs_from_the_page(rule: type[Rule]) -> None:
    page = on_the_page(rule.code)
    for name in rule.thresholds():
        assert differences(page, changed(rule, name)) == [f"{name}.default"]
    for item in fields(Timing):
        value = getattr(rule.timing, item.name)
        other = replace(rule.timing, **{item.name: "polls?" if item.name == "unit" else value + 1})
        assert differences(page, type(rule.__name__, (rule,), {"timing": other})) == [f"timing.{item.name}"]


def test_a_threshold_that_is_new_or_gone_differs_from_the_page() -> None:
    rule = next(rule for rule in CLASSES if rule.thresholds())
    page = on_the_page(rule.code)
    name = next(iter(rule.thresholds()))
    assert f"{name}.default" in differences({key: page[key] for key in page if not key.startswith(f"{name}.")}, rule)
    body = {"__annotations__": {"extra": float}, "extra": threshold(1, "One more"), "__doc__": rule.__doc__}
    more = dataclass(frozen=True, kw_only=True)(type(rule.__name__, (rule,), body))
    assert "extra.default" in differences(page, more)


@by_code
def test_every_field_that_a_rule_reads_is_in_the_schema_of_events(rule: type[Rule]) -> None:
    assert rule.reads
    assert absent(rule.reads) == []
    assert absent((f"{rule.trigger.model_fields['type'].default}.step",)) == []


@pytest.mark.parametrize(
    "path",
    [
        "step_completed",
        "step_complete.loss",
        "step_completed.losses",
        "step_completed.loss.mean",
        "batch_consumed.groups.reward_median",
        "batch_consumed.texts.gibberish",
    ],
)
def test_a_field_that_no_event_has_is_noticed(path: str) -> None:
    assert absent(("step_completed.loss", path, "batch_consumed.texts.judged")) == [path]
