"""Root causes among rewards and prompts: each cause stands for what follows from it, and only in that direction."""

import pytest

from tests.diagnostics.scripted import scripted, story, told

DIRECT = [
    ("RWD002", "RWD001"),
    ("RWD002", "RWD004"),
    ("RWD006", "RWD001"),
    ("RWD010", "GEN009"),
    ("RWD011", "RWD004"),
    ("RWD011", "RWD002"),
    ("RWD011", "RWD010"),
    ("RWD011", "GEN009"),
    ("RWD004", "GEN009"),
    ("RWD012", "POL010"),
    ("RWD012", "RWD013"),
    ("RWD013", "POL010"),
    ("GEN001", "RWD002"),
    ("GEN001", "GEN012"),
    ("GEN012", "RWD001"),
    ("GEN012", "RWD002"),
    ("GEN012", "RWD010"),
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


@pytest.mark.parametrize("cause", ["RWD002", "RWD012", "RWD013"])
def test_the_fall_of_the_reward_is_linked_to_its_cause_and_never_hidden(cause: str) -> None:
    found = told(story([scripted("POL009", (14, 40), severity="critical"), scripted(cause, (10, 40))], 20))
    assert ("POL009", "fired", "critical", [f"explained_by {cause}"], False) in found


def test_a_chain_from_a_side_reward_to_its_effect_names_the_side_reward() -> None:
    rules = [scripted("GEN009", (16, 60)), scripted("RWD004", (13, 60)), scripted("RWD011", (10, 60))]
    found = story(rules, 30)
    assert [(item.code, item.suppressed) for item in found if item.reason == "fired"] == [
        ("RWD011", False),
        ("RWD004", True),
        ("GEN009", True),
    ]


def test_functions_at_their_floor_after_a_collapse_are_its_consequence_and_before_it_are_not() -> None:
    found = told(story([scripted("POL009", (10, 60)), scripted("RWD010", (20, 60))], 30))
    assert found[1] == ("RWD010", "fired", "warning", ["explained_by POL009"], True)
    found = told(story([scripted("POL009", (12, 60)), scripted("RWD010", (10, 60))], 30))
    assert [item[3] for item in found] == [[], []]
