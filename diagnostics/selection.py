"""Choosing rules and thresholds by name, with messages that say what there is."""

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tocsin.diagnostics.modes import GAPS, Gap
from tocsin.diagnostics.rule import Rule

OF_OTHERS: Final = re.compile(r"x[a-z]{2}\d{3}|x-.*", re.IGNORECASE)
"""Codes and names of rules of other packages, installed or not."""


def find(entries: Iterable[Rule | Gap], code_or_name: str) -> Rule | Gap:
    """The entry with this code or name, in any case; of equal ones the first.

    Raises `ValueError` with the closest matches.
    """
    known: dict[str, Rule | Gap] = {}
    for entry in entries:
        for key in (entry.code, entry.name):
            known.setdefault(key.lower(), entry)
    wanted = code_or_name.strip().lower()
    if wanted in known:
        return known[wanted]
    if OF_OTHERS.fullmatch(wanted):
        raise ValueError(
            f"`{code_or_name}` must be a rule of a package that is installed here; `tocsin rules` lists what there is"
        )
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    words = [key.upper() if key == known[key].code.lower() else key for key in close]
    hint = f" Did you mean {' or '.join(f'`{word}`' for word in words)}?" if words else ""
    raise ValueError(
        f"rule must be a code or name that exists, got `{code_or_name}`.{hint} `tocsin rules` lists what there is"
    )


def select(
    rules: Sequence[Rule], *, disable: Collection[str], thresholds: Mapping[str, Mapping[str, float]]
) -> list[tuple[Rule, bool]]:
    """The rules with their thresholds set, each with whether it is switched off.

    Raises `ValueError` for an unknown rule or threshold, for a value out of range, and for a code that occurs twice.
    """
    codes = [rule.code for rule in rules]
    if len(set(codes)) < len(codes):
        raise ValueError(f"rules must have distinct codes, got {', '.join(codes)}")
    off = {_evaluated(rules, name).code for name in disable}
    changes: dict[str, dict[str, float]] = {}
    for name, values in thresholds.items():
        changes.setdefault(_evaluated(rules, name).code, {}).update(values)
    return [(tuned(rule, changes.get(rule.code, {})), rule.code in off) for rule in rules]


def _evaluated(rules: Sequence[Rule], code_or_name: str) -> Rule:
    """The rule with this code or name. Raises `ValueError`, also for a failure mode that no rule evaluates."""
    found = find((*rules, *GAPS), code_or_name)
    if isinstance(found, Gap):
        raise ValueError(
            f"rule must be one that is evaluated, got {found.code} {found.name}; `tocsin explain {found.code}` says why"
        )
    return found


def tuned(rule: Rule, values: Mapping[str, float]) -> Rule:
    """The rule with these thresholds. Raises `ValueError` for one that does not exist, out of range or out of order."""
    known = rule.thresholds()
    for name, value in values.items():
        if name not in known:
            listed = ", ".join(known) or "none; this rule has no thresholds"
            raise ValueError(f"threshold of {rule.code} must be one that exists, got `{name}`. Thresholds: {listed}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"threshold `{name}` of {rule.code} must be a number, got {value!r}")
    return replace(rule, **values) if values else rule
