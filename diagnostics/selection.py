"""Choosing rules and thresholds by name, with messages that list what there is."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tocsin.diagnostics.rule import Rule


def find(rules: Iterable[Rule], code_or_name: str) -> Rule:
    """The rule with this code or name. Raises `ValueError` with the closest matches and the list of codes."""
    known = {key: rule for rule in rules for key in (rule.code, rule.name)}
    lower = code_or_name.strip().lower()
    for key, rule in known.items():
        if key.lower() == lower:
            return rule
    close = difflib.get_close_matches(lower, [key.lower() for key in known], n=3, cutoff=0.5)
    by_lower = {key.lower(): key for key in known}
    hint = f" Did you mean {' or '.join(f'`{by_lower[match]}`' for match in close)}?" if close else ""
    listed = ", ".join(f"{rule.code} {rule.name}" for rule in dict.fromkeys(known.values()))
    raise ValueError(f"rule must be a code or name that exists, got `{code_or_name}`.{hint} Rules: {listed}")


def select(
    rules: Sequence[Rule], *, disable: Collection[str], thresholds: Mapping[str, Mapping[str, float]]
) -> list[tuple[Rule, bool]]:
    """The rules with their thresholds set, each with whether it is switched off.

    Raises `ValueError` for an unknown rule or threshold, for a value out of range, and for a code that occurs twice.
    """
    codes = [rule.code for rule in rules]
    if len(set(codes)) < len(codes):
        raise ValueError(f"rules must have distinct codes, got {', '.join(codes)}")
    off = {find(rules, name).code for name in disable}
    changes: dict[str, dict[str, float]] = {}
    for name, values in thresholds.items():
        changes.setdefault(find(rules, name).code, {}).update(values)
    return [(_with(rule, changes.get(rule.code, {})), rule.code in off) for rule in rules]


def _with(rule: Rule, values: Mapping[str, float]) -> Rule:
    known = rule.thresholds()
    for name, value in values.items():
        if name not in known:
            listed = ", ".join(known) or "none; this rule has no thresholds"
            raise ValueError(f"threshold of {rule.code} must be one that exists, got `{name}`. Thresholds: {listed}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"threshold `{name}` of {rule.code} must be a number, got {value!r}")
    return replace(rule, **values) if values else rule
