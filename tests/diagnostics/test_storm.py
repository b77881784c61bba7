"""Storms: so many findings at once are reported, the others are counted and come when there is room."""

from tests.diagnostics.scenario import run, step
from tests.diagnostics.scripted import quiet_steps, scripted
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.storm import MAX_FIRING, STEPS
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.event import BaseEvent

MANY = [scripted(f"SYS{n:03}", (10, 500)) for n in range(100, 112)]


def test_beyond_the_limit_findings_wait_and_coverage_counts_them_once() -> None:
    records = run(Engine(MANY), quiet_steps(50))
    assert len([record for record in records if isinstance(record, Diagnostic)]) == MAX_FIRING
    covers = [(record.at.step, record.held_back, record.health) for record in records if isinstance(record, Coverage)]
    assert covers == [(1, 0, "ok"), (10, 4, "degraded")]


def test_what_is_held_back_and_still_holds_is_reported_when_there_is_room() -> None:
    records = run(Engine(MANY), quiet_steps(130))
    late = [record for record in records if isinstance(record, Diagnostic)][MAX_FIRING:]
    assert [(record.code, record.started.step, record.fired and record.fired.step) for record in late] == [
        (rule.code, 10, 10 + STEPS) for rule in MANY[MAX_FIRING:]
    ]
    assert [record.held_back for record in records if isinstance(record, Coverage)] == [0, 4, 0]


def test_what_is_held_back_is_shown_as_pending() -> None:
    engine = Engine(MANY)
    run(engine, quiet_steps(20))
    assert [record.code for record in engine.pending()] == [rule.code for rule in MANY[MAX_FIRING:]]


def test_what_is_held_back_and_goes_away_is_counted_and_never_reported() -> None:
    brief = [scripted(f"SYS{n:03}", (10, 30)) for n in range(100, 112)]
    records = run(Engine(brief), quiet_steps(60))
    fired = {record.code for record in records if isinstance(record, Diagnostic)}
    assert len(fired) == MAX_FIRING
    assert [record.held_back for record in records if isinstance(record, Coverage)] == [0, 4, 0]


def test_what_is_explained_or_never_hidden_needs_no_room() -> None:
    rules = [*MANY[:8], scripted("POL014", (5, 500)), scripted("POL003", (12, 500)), scripted("SYS002", (12, 500))]
    records = run(Engine(rules), quiet_steps(20))
    fired = [record.code for record in records if isinstance(record, Diagnostic) and record.reason == "fired"]
    assert len(fired) == 10
    assert {"POL014", "POL003", "SYS002"} <= set(fired)
    assert "SYS107" not in fired


def test_a_healthy_run_has_room() -> None:
    steps: list[list[BaseEvent]] = [[step()] for _ in range(5)]
    assert [record.held_back for record in run(Engine(), steps) if isinstance(record, Coverage)][-1] == 0
