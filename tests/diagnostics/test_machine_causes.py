"""Root causes in the pipeline and on the machine: a hang, a leak, a full disk and a resume before what follows."""

import pytest

from tests.diagnostics.scripted import scripted, story, told


@pytest.mark.parametrize(
    ("cause", "consequence"),
    [
        ("OFF018", "OFF011"),
        ("OFF018", "OFF016"),
        ("OFF018", "SYS011"),
        ("OFF011", "SYS011"),
        ("SYS010", "SYS011"),
        ("SYS014", "POL002"),
        ("SYS014", "POL014"),
    ],
)
def test_what_follows_is_written_quietly(cause: str, consequence: str) -> None:
    found = story([scripted(consequence, (12, 40), severity="critical"), scripted(cause, (10, 40))], 20)
    assert told(found)[:2] == [
        (cause, "fired", "warning", [], False),
        (consequence, "fired", "critical", [f"explained_by {cause}"], True),
    ]


@pytest.mark.parametrize(("cause", "consequence"), [("SYS003", "SYS002"), ("SYS014", "OFF010")])
def test_memory_near_its_end_and_lost_weights_are_linked_and_never_hidden(cause: str, consequence: str) -> None:
    found = story([scripted(consequence, (12, 40)), scripted(cause, (10, 40))], 20)
    assert [(item.code, item.suppressed) for item in found] == [(cause, False), (consequence, False)]
    assert found[1].relations[0].kind == "explained_by"


@pytest.mark.parametrize("cause", ["GEN015", "SYS005", "SYS007", "SYS008", "SYS009"])
def test_a_waste_of_time_hides_nothing(cause: str) -> None:
    found = story([scripted("OFF016", (12, 40)), scripted(cause, (10, 40), kind="efficiency")], 20)
    assert [(item.code, item.relations, item.suppressed) for item in found] == [
        (cause, [], False),
        ("OFF016", [], False),
    ]
