"""Which records become messages, and when."""

import pytest

from tests.diagnostics.run_samples import diagnostic
from tests.schemas.examples import EVENT_EXAMPLES
from tocsin.diagnostics.alerts.book import Book
from tocsin.schemas.diagnosis import Diagnostic, Severity
from tocsin.schemas.events import RunEnded, RunResumed


def told(book: Book, *records: Diagnostic) -> list[tuple[str, str, str]]:
    """Status, reason and severity of each message."""
    alerts = [alert for record in records if (alert := book.take(record)) is not None]
    return [(alert.status, alert.reason, alert.severity) for alert in alerts]


def later(record: Diagnostic, reason: str, **changes: object) -> Diagnostic:
    return record.model_copy(update={"reason": reason, **changes})


FIRING = diagnostic()
RESOLVED = diagnostic(state="resolved")


def test_a_finding_is_told_once_when_it_fires_and_once_when_it_resolves():
    records = [FIRING, later(FIRING, "reminder"), later(FIRING, "reminder"), RESOLVED, RESOLVED]
    assert told(Book(), *records) == [("firing", "fired", "warning"), ("resolved", "resolved", "warning")]


def test_a_finding_that_comes_back_is_told_again():
    reasons = [reason for _, reason, _ in told(Book(), FIRING, RESOLVED, later(FIRING, "reopened"), RESOLVED)]
    assert reasons == ["fired", "resolved", "reopened", "resolved"]


def test_a_finding_that_becomes_graver_is_told_again_and_a_milder_one_is_not():
    critical = later(FIRING, "escalated", severity="critical")
    assert told(Book(), FIRING, critical, later(FIRING, "reminder")) == [
        ("firing", "fired", "warning"),
        ("firing", "escalated", "critical"),
    ]


@pytest.mark.parametrize(("least", "num"), [("info", 1), ("warning", 1), ("critical", 0)])
def test_what_is_milder_than_asked_for_is_left_out_and_so_is_its_end(least: Severity, num: int):
    assert len(told(Book(least), FIRING, RESOLVED)) == 2 * num


def test_a_finding_that_becomes_grave_enough_is_told_then():
    book = Book("critical")
    assert told(book, FIRING, later(FIRING, "escalated", severity="critical")) == [("firing", "fired", "critical")]


def test_a_finding_for_which_another_stands_is_told_only_when_its_cause_is_gone():
    explained = later(FIRING, "explained", suppressed=True)
    assert told(Book(), explained, later(explained, "reminder")) == []
    assert told(Book(), explained, later(FIRING, "unexplained")) == [("firing", "unexplained", "warning")]


def test_lost_data_and_the_end_of_the_run_are_no_resolution():
    lost, ended = later(FIRING, "data_lost", state="no_data"), later(FIRING, "run_ended")
    assert told(Book(), FIRING, lost, ended) == [("firing", "fired", "warning"), ("firing", "run_ended", "warning")]


def test_every_message_about_a_finding_has_the_same_key_whatever_its_episode():
    book = Book()
    records = [FIRING, RESOLVED, later(FIRING, "fired", id="nan-inf/learner#2", episode=2)]
    alerts = [book.take(record) for record in records]
    assert {alert.dedup_key for alert in alerts if alert} == {FIRING.fingerprint}


def test_a_message_names_rule_run_and_the_first_thing_to_try():
    record = next(item for item in [FIRING.model_copy(update={"run_id": "run-a"})])
    alert = Book().take(record)
    assert alert is not None
    assert alert.text == (
        "[tocsin] WARNING POL015 nan-inf: The loss was not finite in 2 of 2 steps -> tocsin explain POL015 "
        "(run run-a, step 1)"
    )
    assert (alert.run_id, alert.code, alert.labels) == ("run-a", "POL015", {"component": "learner"})


def test_a_failed_run_is_told_and_over_when_it_goes_on():
    ended = next(event for event in EVENT_EXAMPLES if isinstance(event, RunEnded))
    resumed = next(event for event in EVENT_EXAMPLES if isinstance(event, RunResumed))
    failed = ended.model_copy(update={"outcome": "failed", "error": "a text from elsewhere"})
    book = Book()
    alerts = [book.observe(event) for event in (failed, resumed, resumed)]
    assert [alert and (alert.id, alert.status, alert.severity) for alert in alerts] == [
        ("run-failed", "firing", "critical"),
        ("run-failed", "resolved", "critical"),
        None,
    ]
    assert "elsewhere" not in str(alerts)


@pytest.mark.parametrize("outcome", ["completed", "interrupted"])
def test_a_run_that_ends_as_it_should_is_no_alert(outcome: str):
    ended = next(event for event in EVENT_EXAMPLES if isinstance(event, RunEnded))
    assert Book().observe(ended.model_copy(update={"outcome": outcome})) is None
