"""One record becomes one line that a person can act on and that a terminal cannot be tricked with."""

import logging
from typing import Any

import pytest

from tocsin.diagnostics import render
from tocsin.schemas.actions import Action, ActionRecord
from tocsin.schemas.base import NonFinite
from tocsin.schemas.diagnosis import At, Coverage, Diagnostic, Evidence, NotEvaluated, Relation
from tocsin.schemas.feed import UnknownRecord

EVIDENCE = Evidence(
    metric="zero_spread_frac",
    observed=0.81,
    operator=">",
    threshold=0.5,
    window=64,
    window_unit="groups",
    n=64,
)


def at(step: int) -> At:
    return At(step=step, policy_version=step, ts="2026-01-31T12:00:00.000Z")


def action(title: str, **changes: Any) -> Action:
    return Action(**{"id": "a/b#1/c", "title": title, "applicability": "review", "risk": "low", **changes})


def diagnostic(**changes: Any) -> Diagnostic:
    content = {
        "event_seq": 7,
        "code": "RWD001",
        "name": "zero-std-groups",
        "kind": "fault",
        "id": "zero-std-groups/trainer#1",
        "fingerprint": "f",
        "episode": 1,
        "state": "firing",
        "reason": "fired",
        "severity": "warning",
        "summary": "52 of 64 groups had no reward spread over steps 40-50.",
        "labels": {},
        "config_generation": 0,
        "started": at(38),
        "fired": at(40),
        "last": at(50),
        "count": 3,
        "evidence": [EVIDENCE],
        "causes": [],
        "actions": [action("raise group_size 8 to 16")],
        "help": "tocsin explain RWD001",
    }
    return Diagnostic(**{**content, **changes})


def test_a_finding_reads_severity_code_name_summary_action_help():
    assert render.line(diagnostic()) == (
        "[tocsin] WARNING RWD001 zero-std-groups: 52 of 64 groups had no reward spread over steps 40-50. "
        "-> raise group_size 8 to 16 [review]; tocsin explain RWD001"
    )


def test_a_finding_without_an_action_points_to_its_explanation():
    text = render.line(diagnostic(actions=[]))
    assert text.endswith("over steps 40-50. -> tocsin explain RWD001")


def test_the_preferred_action_is_shown_and_a_disabled_one_never():
    actions = [
        action("lower the learning rate", disabled="already at its bound"),
        action("raise group_size 8 to 16"),
        action("choose harder prompts", preferred=True, applicability="advisory"),
    ]
    assert render.best_action(diagnostic(actions=actions[:1])) is None
    assert render.best_action(diagnostic(actions=actions[:2])) == actions[1]
    assert "-> choose harder prompts [advisory];" in render.line(diagnostic(actions=actions))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reason": "escalated", "severity": "critical"}, "CRITICAL RWD001 zero-std-groups (escalated): S. -> "),
        ({"reason": "reopened", "episode": 2}, "WARNING RWD001 zero-std-groups (reopened, episode 2): S. -> "),
        ({"reason": "reminder", "last": at(140)}, "WARNING RWD001 zero-std-groups (still open after 100 steps): S. "),
        ({"reason": "data_back"}, "WARNING RWD001 zero-std-groups (data is back): S. -> "),
        (
            {"reason": "data_lost", "state": "no_data"},
            "NO DATA RWD001 zero-std-groups: its data stopped after step 50, open since step 40: S.",
        ),
        (
            {"reason": "resolved", "state": "resolved", "resolved": at(160)},
            "RESOLVED RWD001 zero-std-groups: no longer holds after 120 steps (40 to 160); last: S.",
        ),
        (
            {"reason": "run_ended"},
            "RUN ENDED RWD001 zero-std-groups while warning was open since step 40: S.",
        ),
        (
            {"suppressed": True, "relations": [Relation(kind="explained_by", id="nan-inf/learner#1")]},
            "EXPLAINED RWD001 zero-std-groups (explained by nan-inf/learner#1): S.",
        ),
        (
            {"reason": "unexplained"},
            "WARNING RWD001 zero-std-groups (still open, and its cause is not): S. -> ",
        ),
        (
            {"reason": "explained", "relations": [Relation(kind="explained_by", id="nan-inf/learner#1")]},
            "WARNING RWD001 zero-std-groups (explained by nan-inf/learner#1): S.",
        ),
    ],
)
def test_every_reason_reads_differently(changes, expected):
    assert render.line(diagnostic(summary="S.", **changes)).startswith(f"[tocsin] {expected}")


def test_an_action_record_says_what_changed_who_did_it_and_for_what():
    record = ActionRecord(
        event_seq=9,
        ts="",
        step=60,
        config_generation=1,
        action_id="zero-std-groups/trainer#1/raise-group-size",
        diagnostic_id="zero-std-groups/trainer#1",
        state="applied",
        actor="person:ada",
        path="group_size",
        before=8,
        after=16,
        note="approved",
    )
    assert render.line(record) == (
        "[tocsin] ACTION applied group_size 8 -> 16 by person:ada at step 60 for zero-std-groups/trainer#1: approved"
    )


def test_a_coverage_record_says_what_is_not_evaluated_and_why():
    record = Coverage(
        event_seq=2,
        at=at(1),
        evaluated=["POL015", "RWD001"],
        not_evaluated={
            "OFF001": NotEvaluated(reason="warm_up", detail="fewer than 10 batches were seen"),
            "POL003": NotEvaluated(reason="warm_up", detail="fewer than 5 steps were seen"),
            "SYS001": NotEvaluated(reason="not_applicable", detail="no accelerator"),
        },
        health="ok",
    )
    assert render.line(record) == (
        "[tocsin] COVERAGE ok: 2 of 5 rules evaluated; warm up: OFF001, POL003; not applicable: SYS001"
    )


def test_a_coverage_record_says_what_the_feed_keeps_back():
    record = Coverage(
        event_seq=2,
        at=at(1),
        evaluated=["POL015"],
        not_evaluated={},
        health="degraded",
        held_back=4,
        silenced={"POL003": 90},
    )
    assert render.line(record) == (
        "[tocsin] COVERAGE degraded: 1 of 1 rule evaluated; 4 findings held back: too many fired at once; "
        "POL003 silenced until step 90"
    )


def test_a_record_of_a_newer_version_is_named():
    assert "`verdict`; a newer version" in render.line(UnknownRecord(record="verdict", seq=3))


def test_control_characters_never_reach_the_terminal():
    hostile = "a\x1b[31mred\x07\x9b2J\nb\u202eevil\u200b\u2028c\x7f"
    assert render.clean(hostile) == "a?[31mred??2J b?evil??c?"
    text = render.line(diagnostic(summary=hostile, help=hostile, actions=[action(hostile)]))
    assert text.isprintable()


def test_ordinary_text_of_any_script_stays_as_it_is():
    assert render.clean("Grüße, 世界: p ≤ 0.5") == "Grüße, 世界: p ≤ 0.5"


def test_the_styled_line_has_the_same_text_and_no_markup():
    record = diagnostic(summary="groups [bold]x[/bold] of [red]")
    assert render.styled(record).plain == render.line(record)
    assert "[bold]x[/bold]" in render.styled(record).plain


def test_severities_and_outcomes_have_their_own_colour():
    assert render.record_style(diagnostic(severity="critical")) == "bold red"
    assert render.record_style(diagnostic(state="resolved")) == "green"


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        (None, "-"),
        (NonFinite(nonfinite="nan"), "nan"),
        (0.123456, "0.1235"),
        (0, "0"),
        (16384, "16,384"),
        (3e-7, "3e-07"),
    ],
)
def test_numbers_are_short_and_absent_is_not_zero(measured, text):
    assert render.number(measured) == text


def test_knob_values_read_as_they_are_written_in_toml():
    assert [render.value(item) for item in (True, 8, 1e-6, None)] == ["true", "8", "1e-06", "?"]


def test_a_record_reaches_the_standard_logger_at_the_level_of_its_severity(caplog: pytest.LogCaptureFixture):
    critical = diagnostic(severity="critical")
    resolved = diagnostic(severity="critical", state="resolved", reason="resolved", resolved=at(60))
    with caplog.at_level(logging.INFO, logger="tocsin.feed"):
        render.log_record(critical)
        render.log_record(resolved)
    assert [(item.levelname, item.message) for item in caplog.records] == [
        ("CRITICAL", render.line(critical)),
        ("INFO", render.line(resolved)),
    ]
