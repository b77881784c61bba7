"""The states of one finding, answer by answer."""

from collections.abc import Iterable

import pytest

from tocsin.diagnostics.lifecycle import Track
from tocsin.diagnostics.rule import Answer, Finding, Timing, not_evaluated
from tocsin.schemas.diagnosis import At, Evidence, Severity

TIMING = Timing(
    unit="steps",
    window=1,
    warm_up=0,
    persistence=3,
    clear_persistence=2,
    absent_after=4,
    reminder_every=10,
    reopen_within=5,
)


def found(severity: Severity = "warning") -> Finding:
    evidence = Evidence(metric="m", observed=1.0, operator=">", threshold=0.5, window=1, window_unit="steps", n=1)
    return Finding(severity=severity, summary="m is 1", evidence=(evidence,))


ANSWERS: dict[str, Answer] = {
    "w": found("warning"),
    "c": found("critical"),
    "i": found("info"),
    ".": None,
    "m": not_evaluated("missing_input", "no input"),
    "e": not_evaluated("error", "the rule raised"),
    "u": not_evaluated("warm_up", "too early"),
}


def drive(letters: Iterable[str], track: Track | None = None) -> list[tuple[int, str]]:
    """Position (from 1) and reason of each record; one letter is one evaluation, see `ANSWERS`."""
    track = track or Track(TIMING)
    reasons = []
    for n, letter in enumerate(letters, start=1):
        reason = track.advance(ANSWERS[letter], At(step=n, policy_version=n, ts=""))
        if reason is not None:
            reasons.append((n, str(reason)))
    return reasons


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("ww.ww.ww.", []),  # never held for three evaluations
        ("www", [(3, "fired")]),
        ("www.w.w.w", [(3, "fired")]),  # one clear evaluation is not enough
        ("www..", [(3, "fired"), (5, "resolved")]),
        ("www..www", [(3, "fired"), (5, "resolved"), (8, "reopened")]),
        ("www.......www", [(3, "fired"), (5, "resolved"), (13, "fired")]),  # too late for the same episode
        ("wwwmmm.", [(3, "fired")]),  # a short gap
        ("wwwmmmmmmmm", [(3, "fired"), (7, "data_lost")]),  # said once
        ("wwwmmmmw", [(3, "fired"), (7, "data_lost"), (8, "data_back")]),
        ("wwwmmmm..", [(3, "fired"), (7, "data_lost"), (8, "data_back"), (9, "resolved")]),
        ("wwweeee", [(3, "fired"), (7, "data_lost")]),
        ("wwwuuuuuuuuw", [(3, "fired")]),  # a restarted window leaves what fires alone
        ("wwmw", []),  # what is pending must earn it again
        ("www" + "w" * 25, [(3, "fired"), (13, "reminder"), (23, "reminder")]),
        ("wwwccwccc", [(3, "fired"), (9, "escalated")]),  # graver for three evaluations in a row
        ("wwc", [(3, "fired")]),
        ("iiiwwwccc", [(3, "fired"), (6, "escalated"), (9, "escalated")]),
    ],
)
def test_says_what_changed_and_nothing_else(answers: str, expected: list[tuple[int, str]]) -> None:
    assert drive(answers) == expected


def test_severity_of_an_episode_is_what_held_and_never_falls() -> None:
    track = Track(TIMING)
    drive("wwwccciii", track)
    assert track.episode is not None
    assert track.episode.severity == "critical"


def test_a_reopened_episode_keeps_its_number_start_and_count() -> None:
    track = Track(TIMING)
    drive("www..www", track)
    assert track.episode is not None
    assert (track.episode.number, track.episode.count, track.episode.resolved) == (1, 6, None)
    assert track.episode.started.step == 1
    assert track.episode.fired is not None
    assert track.episode.fired.step == 3


def test_a_later_return_is_the_next_episode() -> None:
    track = Track(TIMING)
    drive("www.......www", track)
    assert track.episode is not None
    assert (track.episode.number, track.episode.count, track.episode.started.step) == (2, 3, 11)


def test_missing_data_never_resolves() -> None:
    track = Track(TIMING)
    assert ("resolved" in {reason for _, reason in drive("www" + "m" * 500, track)}) is False
    assert track.state == "no_data"


def test_what_is_held_stays_pending_until_it_may_fire() -> None:
    track = Track(TIMING)
    moments = [At(step=n, policy_version=n, ts="") for n in range(1, 7)]
    assert [track.is_due(found()) for at in moments[:1]] == [False]
    reasons = [track.advance(found(), at, hold=True) for at in moments[:5]]
    assert reasons == [None] * 5
    assert track.is_due(found())
    assert not track.is_due(None)
    assert track.candidate is not None
    assert track.candidate.count == 5
    assert track.advance(found(), moments[5]) == "fired"
    assert track.episode is not None
    assert (track.episode.count, track.episode.started.step) == (6, 1)


def test_an_inherited_severity_lasts_and_is_no_escalation_of_its_own() -> None:
    track = Track(TIMING)
    drive("www", track)
    track.inherit("critical")
    assert drive("cccc", track) == []
    assert track.episode is not None
    assert track.episode.severity == "critical"


def test_the_end_of_a_run_is_reported_for_what_is_open_and_resolves_nothing() -> None:
    track = Track(TIMING)
    assert track.run_ended() is None
    drive("www", track)
    assert track.run_ended() == "run_ended"
    assert track.state == "firing"
