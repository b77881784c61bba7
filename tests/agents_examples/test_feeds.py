"""The recorded feeds are what a reader gets, and what README says about each of them is in it."""

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.records import parse, violations
from tocsin.diagnostics.reader import FeedReader
from tocsin.schemas.actions import Action
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.trainer.bench.cases import FAULTS

FOLDER = Path(__file__).parents[2] / "agents_examples" / "feeds"
FEEDS = sorted(FOLDER.glob("*.jsonl"))
NAMES = [path.stem for path in FEEDS]
MOST_BYTES = 1_500_000
FIELDS = ["Planted", "First", "Do", "Leave", "Worked"]
NOTHING = "nothing"


class Answer(NamedTuple):
    """One section of README."""

    first: tuple[str, ...] | None
    """Code, id and severity of the finding to answer first; None when none is open that asks for an answer."""
    actions: dict[str, str]
    """Applicability by verb."""
    patches: set[tuple[str, str, str]]
    leave: set[str]


def sections() -> dict[str, dict[str, str]]:
    """The text of each line by its field, by the name of the feed."""
    found: dict[str, dict[str, str]] = {}
    for section in re.split(r"^## ", (FOLDER / "README.md").read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        lines = re.findall(r"^- \*\*(\w+)\*\*: ((?:.|\n(?=  ))+)", body, flags=re.MULTILINE)
        found[title] = {field: " ".join(text.split()) for field, text in lines}
    return found


def answer(name: str) -> Answer:
    lines = sections()[name]
    named = re.fullmatch(r"([A-Z]{3}\d{3}) `(\S+)`, (\w+)\.", lines["First"])
    assert named or lines["First"].startswith(NOTHING)
    return Answer(
        first=named.groups() if named else None,
        actions=dict(re.findall(r"`([a-z-]+)` \((\w+)\)", lines["Do"])),
        patches=set(re.findall(r"`(\w+)` ([\d.e-]*\d) to ([\d.e-]*\d)", lines["Do"])),
        leave=set(re.findall(r"`([a-z-]+/\w+#\d+)`", lines["Leave"])),
    )


def open_at_the_end(name: str, tmp_path: Path) -> list[Diagnostic]:
    """What the reader of the project has open, what to answer first first."""
    shutil.copyfile(FOLDER / f"{name}.jsonl", tmp_path / "feed.jsonl")
    return FeedReader(tmp_path).active()


def is_explained(finding: Diagnostic) -> bool:
    return any(relation.kind == "explained_by" for relation in finding.relations)


def asks_for_nothing(finding: Diagnostic) -> bool:
    return is_explained(finding) or finding.severity == "info" or finding.kind == "efficiency"


def changes(action: Action) -> set[tuple[str, str, str]]:
    return {(patch.path, f"{patch.expect:g}", f"{patch.to:g}") for patch in action.patches}


def test_every_fault_of_the_benchmark_has_a_feed_or_a_reason_why_not():
    kinds = {kind.name for kind in FAULTS}
    excused = set(re.findall(r"^- no feed of `([a-z-]+)`: \S", (FOLDER / "README.md").read_text(), flags=re.MULTILINE))
    assert set(NAMES) | excused == kinds | {"healthy"}
    assert not set(NAMES) & excused
    assert sorted(sections()) == NAMES


def test_the_feeds_stay_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_a_feed_is_valid_line_by_line_and_numbered_in_order(name: str):
    header, *records = map(parse, (FOLDER / f"{name}.jsonl").read_bytes().splitlines())
    assert not violations(header, "header")
    assert header["contents"] == "feed"
    for record in records:
        assert not violations(record, "feed_record")
        assert record["run_id"] == header["run_id"]
    numbers = [record["seq"] for record in records]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("name", NAMES)
def test_the_finding_to_answer_first_is_the_gravest_and_explained_by_no_other(name: str, tmp_path: Path):
    expected = answer(name)
    found = open_at_the_end(name, tmp_path)
    if expected.first is None:
        assert all(map(asks_for_nothing, found))
        return
    assert (found[0].code, found[0].id, found[0].severity) == expected.first
    assert not is_explained(found[0])


@pytest.mark.parametrize("name", NAMES)
def test_every_other_open_finding_is_left_alone_for_a_reason(name: str, tmp_path: Path):
    expected = answer(name)
    found = {finding.id: finding for finding in open_at_the_end(name, tmp_path)}
    assert expected.leave == set(found) - set(expected.first or ())
    assert all(asks_for_nothing(found[id]) for id in expected.leave)


@pytest.mark.parametrize("name", NAMES)
def test_the_actions_to_take_are_offered_as_stated_with_these_values(name: str, tmp_path: Path):
    expected = answer(name)
    found = open_at_the_end(name, tmp_path)
    answered = [one for one in found if one.id in (expected.first or ())]
    offered = {action.id.rpartition("/")[2]: action for one in answered for action in one.actions}
    for verb, applicability in expected.actions.items():
        assert (verb, offered[verb].applicability) == (verb, applicability)
        assert offered[verb].disabled is None
        assert offered[verb].preferred or applicability == "advisory"
    assert bool(expected.actions) == (expected.first is not None)
    patched = [changes(offered[verb]) for verb in expected.actions]
    assert expected.patches == set().union(*patched)


@pytest.mark.parametrize("name", NAMES)
def test_every_section_says_the_same_things(name: str):
    assert [field for field in sections()[name] if field != "Note"] == FIELDS
