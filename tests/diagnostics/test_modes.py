"""The registry of failure modes: complete, fixed, and honest about which have a rule."""

import hashlib
from collections import Counter

import pytest

from tests.diagnostics.scenario import batch, run, started, step
from tocsin.diagnostics.causes import PAIRS
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.modes import GAPS, NAMES, Gap
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.diagnostics.selection import select
from tocsin.schemas.diagnosis import Coverage

FIXED = "acf8364544c272447bbd9b8c860b515aafa9e347de61a2baa175121f7ba7b8e9"
"""SHA-256 over the lines `code name`, sorted: feeds and configurations of the past hold these words."""


def test_there_are_81_modes_whose_codes_and_names_never_change() -> None:
    assert Counter(code[:3] for code in NAMES) == {"RWD": 15, "POL": 17, "OFF": 19, "GEN": 15, "SYS": 15}
    assert len(NAMES) == len(set(NAMES.values())) == 81
    lines = "\n".join(sorted(f"{code} {name}" for code, name in NAMES.items()))
    assert hashlib.sha256(lines.encode()).hexdigest() == FIXED


def test_every_rule_has_the_name_that_the_registry_gives_its_code() -> None:
    assert {rule.code: rule.name for rule in ALL_RULES} == {rule.code: NAMES.get(rule.code) for rule in ALL_RULES}


def test_every_mode_has_a_rule_or_a_reason_and_never_both() -> None:
    entries = Counter([rule.code for rule in ALL_RULES] + [gap.code for gap in GAPS])
    assert [code for code in NAMES if entries[code] == 0] == [], "without rule and without entry in `gaps`"
    assert [code for code in entries if entries[code] > 1] == [], "with a rule, so the entry in `gaps` must go"
    assert [code for code in entries if code not in NAMES] == [], "not in the registry"


@pytest.mark.parametrize("gap", GAPS, ids=lambda gap: gap.code)
def test_a_reason_is_a_sentence_or_two_about_its_own_mode(gap: Gap) -> None:
    assert 10 < len(gap.title) <= 60
    assert not gap.title.endswith(".")
    assert 40 < len(gap.detail) <= 240
    assert gap.detail.endswith(".")
    assert [other.code for other in GAPS if other.detail == gap.detail] == [gap.code]


def test_causes_name_modes_of_the_registry_only() -> None:
    named = {cause.code for rule in ALL_RULES for cause in rule.causes if cause.code is not None}
    named |= {code for pair in PAIRS for code in (pair.cause, pair.consequence)}
    assert named - set(NAMES) == set()


def test_a_mode_without_a_rule_can_be_neither_switched_nor_tuned() -> None:
    gap = GAPS[0]
    with pytest.raises(ValueError, match=f"got {gap.code} {gap.name}; `tocsin explain {gap.code}` says why"):
        select(ALL_RULES, disable=[gap.name], thresholds={})
    with pytest.raises(ValueError, match=f"got {gap.code} {gap.name}"):
        select(ALL_RULES, disable=[], thresholds={gap.code: {"fire": 1.0}})


def test_coverage_speaks_of_rules_only() -> None:
    engine = Engine()
    records = run(engine, [[started()], *([batch([[0.0, 1.0]] * 16), step()] for _ in range(20))])
    covered = [record for record in records if isinstance(record, Coverage)]
    assert covered
    rules = {rule.code for rule in ALL_RULES}
    assert all({*record.evaluated, *record.not_evaluated} == rules for record in covered)
