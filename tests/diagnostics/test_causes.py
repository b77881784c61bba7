"""Root causes: which finding stands for which, in what order, and what is never hidden."""

import re
from pathlib import Path

import pytest

from tests.diagnostics.scenario import run
from tests.diagnostics.scripted import proposal, quiet_steps, scripted, story, told
from tocsin.diagnostics.causes import NEVER_HIDDEN, PAIRS, WAIT, in_causal_order
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.feed import RunWriter
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.rules import ALL_RULES


def test_the_allow_list_has_no_circle_no_repetition_and_a_reason_for_each_pair() -> None:
    codes = {code for pair in PAIRS for code in (pair.cause, pair.consequence)}
    ordered = [rule.code for rule in in_causal_order([scripted(code) for code in sorted(codes)])]
    assert all(ordered.index(pair.cause) < ordered.index(pair.consequence) for pair in PAIRS)
    assert len({(pair.cause, pair.consequence) for pair in PAIRS}) == len(PAIRS)
    assert all(len(pair.why) > 20 for pair in PAIRS)


def test_only_faults_are_causes_in_the_allow_list() -> None:
    kinds = {rule.code: rule.kind for rule in ALL_RULES}
    assert {kinds.get(pair.cause, "fault") for pair in PAIRS} == {"fault"}
    assert {"POL009", "POL015", "SYS002", "OFF010"} == NEVER_HIDDEN


def test_a_consequence_is_written_quietly_and_its_cause_inherits_the_severity() -> None:
    found = story([scripted("POL003", (12, 30), severity="critical"), scripted("POL014", (10, 40))], 20)
    assert told(found) == [
        ("POL014", "fired", "warning", [], False),
        ("POL003", "fired", "critical", ["explained_by POL014"], True),
        ("POL014", "escalated", "critical", ["explains POL003"], False),
    ]


def test_a_cause_that_fires_at_the_same_step_comes_first() -> None:
    found = story([scripted("POL003", (10, 30)), scripted("POL014", (10, 30))], 12)
    assert [(item.code, item.suppressed) for item in found] == [("POL014", False), ("POL003", True)]


def test_a_consequence_waits_for_a_cause_that_is_pending() -> None:
    rules = [scripted("POL003", (10, 40)), scripted("POL014", (9, 40), persistence=6)]
    found = story(rules, 20)
    assert [(item.code, item.fired and item.fired.step, item.suppressed) for item in found] == [
        ("POL014", 14, False),
        ("POL003", 14, True),
    ]
    assert found[1].started.step == 10


def test_a_consequence_does_not_wait_for_ever() -> None:
    rules = [scripted("POL003", (10, 60)), scripted("POL014", (9, 60), persistence=100)]
    found = story(rules, 60)
    assert [(item.code, item.fired and item.fired.step, item.suppressed) for item in found] == [
        ("POL003", 10 + WAIT, False)
    ]


def test_what_waits_and_goes_away_is_never_written() -> None:
    assert story([scripted("POL003", (10, 13)), scripted("POL014", (9, 13), persistence=100)], 40) == []


def test_a_cause_that_began_long_after_explains_nothing() -> None:
    found = story([scripted("POL003", (10, 60)), scripted("POL014", (31, 60))], 60)
    assert told(found) == [
        ("POL003", "fired", "warning", [], False),
        ("POL014", "fired", "warning", [], False),
    ]


@pytest.mark.parametrize("options", [{"severity": "info"}, {"kind": "lint"}, {"kind": "efficiency"}])
def test_lint_efficiency_and_info_findings_suppress_nothing(options) -> None:
    found = story([scripted("POL003", (12, 40)), scripted("POL014", (10, 40), **options)], 30)
    assert [(item.code, item.relations, item.suppressed) for item in found] == [
        ("POL014", [], False),
        ("POL003", [], False),
    ]


def test_the_four_are_linked_but_never_hidden_and_never_wait() -> None:
    rules = [scripted("POL009", (12, 60), severity="critical"), scripted("POL014", (10, 60), persistence=8)]
    found = story(rules, 30)
    assert told(found) == [
        ("POL009", "fired", "critical", [], False),
        ("POL014", "fired", "critical", ["explains POL009"], False),
        ("POL009", "explained", "critical", ["explained_by POL014"], False),
    ]


def test_a_late_cause_explains_what_was_reported_and_switches_its_actions_off() -> None:
    rules = [
        scripted("POL003", (10, 60), severity="critical", proposals=(proposal(),)),
        scripted("POL014", (12, 60), persistence=10),
    ]
    found = story(rules, 30)
    assert told(found) == [
        ("POL003", "fired", "critical", [], False),
        ("POL014", "fired", "critical", ["explains POL003"], False),
        ("POL003", "explained", "critical", ["explained_by POL014"], True),
    ]
    assert found[0].actions[0].disabled is None
    assert found[2].actions[0].disabled == "explained by rule-pol014/learner#1: answer that one first"


def test_a_chain_holds_link_by_link_and_severity_climbs_to_the_root() -> None:
    rules = [
        scripted("OFF001", (10, 60)),
        scripted("POL003", (12, 60)),
        scripted("POL001", (14, 60), severity="critical"),
    ]
    found = story(rules, 20)
    assert told(found) == [
        ("OFF001", "fired", "warning", [], False),
        ("POL003", "fired", "warning", ["explained_by OFF001"], True),
        ("POL001", "fired", "critical", ["explained_by POL003"], True),
        ("POL003", "escalated", "critical", ["explained_by OFF001", "explains POL001"], True),
        ("OFF001", "escalated", "critical", ["explains POL003"], False),
    ]


def test_without_the_link_in_the_middle_nothing_is_suppressed() -> None:
    found = story([scripted("OFF001", (10, 60)), scripted("POL001", (14, 60))], 30)
    assert [(item.code, item.relations, item.suppressed) for item in found] == [
        ("OFF001", [], False),
        ("POL001", [], False),
    ]


def test_among_causes_of_one_time_the_rule_ranks_and_otherwise_the_earlier_one_counts() -> None:
    ranked = scripted("POL003", (15, 60), causes={"POL014": 0.3, "OFF004": 0.6})
    together = story([scripted("POL014", (10, 60)), scripted("OFF004", (13, 60)), ranked], 20)
    assert told(together)[-1][3] == ["explained_by OFF004"]
    ranked = scripted("POL003", (55, 60), causes={"POL014": 0.3, "OFF004": 0.6})
    apart = story([scripted("POL014", (10, 60)), scripted("OFF004", (50, 60)), ranked], 60)
    assert told(apart)[-1][3] == ["explained_by POL014"]


def test_groups_that_all_fail_after_a_collapse_are_its_consequence() -> None:
    found = story([scripted("POL009", (10, 60)), scripted("RWD001", (15, 60))], 20)
    assert told(found)[1] == ("RWD001", "fired", "warning", ["explained_by POL009"], True)
    found = story([scripted("POL014", (10, 60)), scripted("RWD001", (10, 60))], 20)
    assert told(found)[1] == ("RWD001", "fired", "warning", ["explained_by POL014"], True)


@pytest.mark.parametrize(
    ("cause", "consequence"),
    [
        ("OFF011", "OFF016"),
        ("OFF013", "OFF004"),
        ("OFF014", "OFF001"),
        ("SYS004", "OFF016"),
        ("SYS006", "OFF016"),
    ],
)
def test_what_servers_and_syncs_do_to_the_learner_is_their_consequence(cause: str, consequence: str) -> None:
    found = story([scripted(consequence, (12, 60)), scripted(cause, (10, 60))], 20)
    assert told(found)[:2] == [
        (cause, "fired", "warning", [], False),
        (consequence, "fired", "warning", [f"explained_by {cause}"], True),
    ]


@pytest.mark.parametrize("persistence", [1, 4])
def test_a_constant_reward_is_no_consequence_of_the_fall_that_it_causes(persistence: int) -> None:
    rules = [scripted("RWD001", (10, 60), persistence=3), scripted("POL009", (11, 60), persistence=persistence)]
    found = story(rules, 60)
    assert {item.code: item.relations for item in found} == {"RWD001": [], "POL009": []}
    assert [item.fired and item.fired.step for item in found if item.code == "RWD001"] == [12]


def test_what_outlasts_one_cause_is_explained_by_the_next_one_at_once() -> None:
    rules = [scripted("POL014", (10, 20)), scripted("POL009", (12, 60)), scripted("RWD001", (14, 60))]
    found = [item for item in story(rules, 30) if item.code == "RWD001"]
    assert told(found) == [
        ("RWD001", "fired", "warning", ["explained_by POL014"], True),
        ("RWD001", "explained", "warning", ["explained_by POL009"], True),
    ]
    assert found[1].event_seq == 22


def test_what_outlasts_its_cause_speaks_for_itself_after_a_while() -> None:
    found = story([scripted("POL014", (10, 20)), scripted("POL003", (12, 80))], 60)
    assert [(item.code, item.reason, item.suppressed) for item in found] == [
        ("POL014", "fired", False),
        ("POL003", "fired", True),
        ("POL014", "resolved", False),
        ("POL003", "unexplained", False),
    ]
    assert found[-1].event_seq == 22 + 19
    assert found[-1].relations == []


def test_an_explained_finding_resolves_with_its_relation_and_starts_free_the_next_time() -> None:
    found = story([scripted("POL014", (10, 20)), scripted("POL003", (12, 15), (30, 35))], 40)
    assert told(found)[2] == ("POL003", "resolved", "warning", ["explained_by POL014"], True)
    assert told(found)[4] == ("POL003", "fired", "warning", [], False)
    assert found[4].id == "rule-pol003/learner#2"


def test_readers_list_the_root_first_and_count_what_it_stands_for_apart(tmp_path: Path) -> None:
    rules = [
        scripted("POL014", (10, 60)),
        scripted("POL003", (12, 60), severity="critical"),
        scripted("POL009", (14, 60), severity="critical"),
        scripted("SYS001", (1, 60), severity="info"),
    ]
    records = run(Engine(rules), quiet_steps(20))
    with RunWriter(tmp_path, "r") as writer:
        for record in records:
            writer.record(record)
        page = FeedReader(tmp_path).page()
        named = [record.code for record in FeedReader(tmp_path).active()]
    assert page.active.model_dump() == {"critical": 2, "warning": 0, "info": 1, "explained": 1}
    assert named == ["POL014", "POL009", "SYS001", "POL003"]


def test_a_circle_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.diagnostics.causes.PAIRS", (*PAIRS, type(PAIRS[0])("POL003", "POL014", "no")))
    with pytest.raises(ValueError, match=re.escape("must form no circle, got one among ['POL003', 'POL014']")):
        in_causal_order([scripted("POL003"), scripted("POL014")])
