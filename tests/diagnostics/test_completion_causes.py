"""Root causes among completions, held-out scores and failures: each stands for what follows, in that direction only."""

import pytest

from tests.diagnostics.scripted import scripted, story, told

DIRECT = [
    ("GEN002", "GEN001"),
    ("GEN002", "GEN003"),
    ("GEN002", "GEN005"),
    ("GEN003", "GEN001"),
    ("GEN004", "GEN009"),
    ("GEN004", "RWD002"),
    ("GEN005", "GEN001"),
    ("GEN011", "RWD001"),
    ("GEN011", "RWD005"),
    ("GEN011", "GEN015"),
    ("GEN011", "OFF016"),
    ("OFF010", "GEN002"),
    ("OFF010", "GEN005"),
    ("OFF010", "RWD015"),
    ("POL001", "RWD015"),
    ("POL002", "GEN005"),
    ("POL002", "GEN006"),
    ("POL006", "GEN006"),
    ("POL006", "GEN010"),
    ("POL014", "GEN004"),
    ("POL015", "GEN005"),
    ("RWD001", "RWD015"),
    ("RWD004", "GEN010"),
    ("RWD010", "RWD015"),
    ("RWD011", "GEN003"),
    ("RWD011", "GEN004"),
    ("RWD011", "GEN010"),
    ("GEN009", "GEN010"),
]


@pytest.mark.parametrize(("cause", "consequence"), DIRECT)
def test_a_cause_stands_for_its_consequence(cause: str, consequence: str) -> None:
    found = told(story([scripted(consequence, (12, 40)), scripted(cause, (10, 40))], 20))
    assert found == [
        (cause, "fired", "warning", [], False),
        (consequence, "fired", "warning", [f"explained_by {cause}"], True),
    ]


@pytest.mark.parametrize(("cause", "consequence"), DIRECT)
def test_a_consequence_that_came_long_before_is_not_explained(cause: str, consequence: str) -> None:
    found = story([scripted(consequence, (10, 60)), scripted(cause, (35, 60))], 50)
    assert [(item.code, item.suppressed) for item in found] == [(consequence, False), (cause, False)]


@pytest.mark.parametrize(("cause", "consequence"), [("GEN004", "POL009"), ("GEN005", "POL009"), ("GEN003", "SYS002")])
def test_what_is_never_hidden_is_linked_to_its_cause(cause: str, consequence: str) -> None:
    found = told(story([scripted(consequence, (14, 40), severity="critical"), scripted(cause, (10, 40))], 20))
    assert (consequence, "fired", "critical", [f"explained_by {cause}"], False) in found


def test_a_chain_from_an_end_that_is_not_seen_names_it_alone() -> None:
    rules = [scripted("GEN001", (13, 60)), scripted("GEN003", (12, 60)), scripted("GEN002", (10, 60))]
    found = story(rules, 30)
    assert [(item.code, item.suppressed) for item in found if item.reason == "fired"] == [
        ("GEN002", False),
        ("GEN003", True),
        ("GEN001", True),
    ]
