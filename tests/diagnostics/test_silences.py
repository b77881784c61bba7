"""Silences: records are held back on request, the state behind them goes on, and everything is made up for."""

from typing import Any

from tests.diagnostics.scenario import run, step
from tests.diagnostics.scripted import scripted
from tocsin.diagnostics.engine import Engine, Record
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ControlAnswered, RunEnded


def silence(code: str, until_step: int, **fields: Any) -> ControlAnswered:
    """An accepted request of Ada's to hold back the records of `code`."""
    return ControlAnswered(
        request_id="0123456789abcdef",
        verb="silence",
        state="accepted",
        reason="held back",
        actor="person:ada",
        code=code,
        until_step=until_step,
        **fields,
    )


def timeline(events: dict[int, BaseEvent], num: int) -> list[list[BaseEvent]]:
    """`num` quiet steps, with an event at the start of some of them."""
    return [[*([events[t]] if t in events else []), step()] for t in range(1, num + 1)]


def said(records: list[Record]) -> list[tuple[int, str, str]]:
    """`event_seq`, code and reason of each diagnostic."""
    return [(r.event_seq, r.code, r.reason) for r in records if isinstance(r, Diagnostic)]


def actions(records: list[Record]) -> list[tuple[int, str, str, str]]:
    return [(r.step, r.state, r.actor, r.note) for r in records if isinstance(r, ActionRecord)]


def test_a_silenced_rule_speaks_again_with_a_reminder_when_it_still_fires() -> None:
    records = run(Engine([scripted("POL003", (10, 60))]), timeline({5: silence("POL003", 20)}, 30))
    assert said(records) == [(21, "POL003", "reminder")]
    assert actions(records) == [
        (4, "applied", "person:ada", "records of POL003 are held back until step 20"),
        (20, "expired", "person:ada", "the silence of POL003 ended at step 20"),
    ]
    covers = [record.silenced for record in records if isinstance(record, Coverage)]
    assert covers[-2:] == [{"POL003": 20}, {}]


def test_a_resolution_in_a_silence_is_made_up_for_so_that_no_reader_thinks_it_open() -> None:
    rule = scripted("POL003", (3, 8), (12, 40))
    records = run(Engine([rule]), timeline({5: silence("POL003", 20)}, 30))
    assert said(records) == [(3, "POL003", "fired"), (21, "POL003", "resolved"), (21, "POL003", "reminder")]
    found = [record for record in records if isinstance(record, Diagnostic)]
    assert [item.id for item in found] == [f"rule-pol003/learner#{n}" for n in (1, 1, 2)]
    assert found[1].resolved is not None
    assert found[1].resolved.step == 10


def test_what_fired_and_resolved_within_a_silence_is_never_written() -> None:
    assert said(run(Engine([scripted("POL003", (8, 12))]), timeline({5: silence("POL003", 20)}, 30))) == []


def test_a_second_request_ends_a_silence_early() -> None:
    events: dict[int, BaseEvent] = {5: silence("POL003", 900), 15: silence("POL003", 0)}
    records = run(Engine([scripted("POL003", (10, 60))]), timeline(events, 20))
    assert said(records) == [(16, "POL003", "reminder")]
    assert [state for _, state, _, _ in actions(records)] == ["applied", "expired", "applied"]
    assert actions(records)[-1][3] == "POL003 speaks again; person:ada had silenced it"


def test_the_end_of_the_run_ends_a_silence() -> None:
    steps = [*timeline({5: silence("POL003", 900)}, 20), [RunEnded(outcome="completed")]]
    records = run(Engine([scripted("POL003", (10, 60))]), steps)
    assert said(records) == [(22, "POL003", "run_ended")]
    assert actions(records)[-1][1] == "expired"


def test_a_silenced_cause_keeps_its_severity_and_hides_nobody() -> None:
    rules = [scripted("POL014", (10, 60)), scripted("POL003", (12, 60), severity="critical")]
    records = run(Engine(rules), timeline({5: silence("POL014", 20)}, 30))
    found = [record for record in records if isinstance(record, Diagnostic)]
    assert [(item.code, item.reason, item.severity, item.suppressed) for item in found] == [
        ("POL003", "fired", "critical", False),
        ("POL014", "reminder", "critical", False),
    ]
    assert found[0].relations[0].id == "rule-pol014/learner#1"


def test_a_refused_silence_holds_nothing_back() -> None:
    refused = silence("POL009", 900).model_copy(update={"state": "refused", "reason": "must never be silenced"})
    records = run(Engine([scripted("POL009", (10, 60))]), timeline({5: refused}, 20))
    assert said(records) == [(11, "POL009", "fired")]
    assert actions(records) == [(4, "rejected", "person:ada", "must never be silenced")]
