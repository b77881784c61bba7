"""Which finding about policy, ratio and reference stands for which other."""

import pytest

from tests.diagnostics.scripted import scripted, story, told
from tocsin.diagnostics.causes import NEVER_HIDDEN, PAIRS

EXPLAINED = [
    ("POL014", "POL002"),
    ("POL014", "POL006"),
    ("POL014", "POL008"),
    ("OFF001", "POL002"),
    ("OFF004", "POL002"),
    ("OFF010", "POL002"),
    ("POL006", "POL002"),
    ("POL008", "POL002"),
    ("POL008", "POL009"),
    ("POL002", "GEN001"),
    ("POL002", "POL009"),
    ("POL007", "POL006"),
    ("OFF004", "POL006"),
    ("OFF001", "POL008"),
    ("RWD013", "POL008"),
    ("RWD012", "POL011"),
    ("OFF010", "OFF005"),
    ("OFF001", "OFF005"),
    ("OFF004", "OFF005"),
    ("OFF006", "OFF005"),
    ("OFF006", "OFF004"),
    ("OFF006", "RWD006"),
    ("OFF005", "POL010"),
    ("OFF005", "POL009"),
    ("OFF001", "OFF019"),
    ("OFF019", "POL010"),
    ("OFF019", "POL009"),
]


@pytest.mark.parametrize(("cause", "consequence"), EXPLAINED)
def test_a_consequence_is_told_with_its_cause(cause: str, consequence: str) -> None:
    found = told(story([scripted(consequence, (12, 40)), scripted(cause, (10, 40))], 20))
    assert found[0][:2] == (cause, "fired")
    is_hidden = consequence not in NEVER_HIDDEN
    assert found[1] == (consequence, "fired", "warning", [f"explained_by {cause}"], is_hidden)


@pytest.mark.parametrize("code", ["POL005", "POL011", "POL013", "POL017"])
def test_what_does_no_harm_by_itself_explains_nothing(code: str) -> None:
    assert [pair.consequence for pair in PAIRS if pair.cause == code] == []


def test_a_policy_that_dissolves_passes_the_rate_on_as_the_reason() -> None:
    rules = [scripted("POL014", (10, 60)), scripted("POL002", (14, 60)), scripted("GEN001", (18, 60))]
    found = told(story(rules, 30))
    assert [(code, relations) for code, reason, _, relations, _ in found if reason == "fired"] == [
        ("POL014", []),
        ("POL002", ["explained_by POL014"]),
        ("GEN001", ["explained_by POL014"]),
    ]
