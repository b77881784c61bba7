"""OFF012: only what a sync keeps somebody waiting for is lost."""

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, synced, transitions, unevaluated
from tocsin.diagnostics.rules.weight_sync_slow import WeightSyncSlow
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, RunPaused

RULE = WeightSyncSlow()


def steps(
    n: int,
    *,
    load: float,
    wait: float,
    write: float = 0.0,
    every: int = 1,
    outcome: str = "updated",
) -> list[list[BaseEvent]]:
    """Steps of one second, `wait` of it in waits for groups and syncs; every so many steps a sync took `load` seconds.

    The sampler finishes its batch before each sync, which takes nearly all of the step and never counts.
    """
    seconds = {"write": write, "pause": 0.9, "load": load, "verify": 0.0, "resume": 0.0, "total": load + write}
    parts = {"total": 1.0, "wait": wait / 2, "sync_wait": write + wait / 2}
    return [
        [*([synced(seconds=seconds)] if number % every == 0 else []), step(outcome=outcome, seconds=parts)]
        for number in range(n)
    ]


def answers(**knobs: int) -> list[str]:
    found = diagnostics(RULE, [[started(**knobs)], *steps(30, load=0.7, wait=0.6)])
    return [action.title for action in found[0].actions]


def test_warns_when_most_of_the_time_goes_into_syncs() -> None:
    run = [[started(max_staleness=1)], *steps(30, load=0.02, wait=0.1), *steps(30, load=0.7, wait=0.6)]
    found = diagnostics(RULE, run)
    assert [(record.reason, record.kind, record.severity) for record in found] == [("fired", "efficiency", "warning")]
    assert 36 <= found[0].last.step <= 42
    assert found[0].summary == "Weight syncs took 60% of the time over 10 syncs; the longest part is load, 0.7 s each"
    (rarer, less) = found[0].actions
    assert [(p.path, p.expect, p.to) for p in rarer.patches] == [("weight_sync_every", 1, 2)]
    assert rarer.verify is not None
    # Idle for 0.6 of the time, of which rarer syncs promise 0.6 - 0.6 / 1.4.
    assert rarer.verify.threshold == pytest.approx(0.6 - 0.171 / 2, abs=1e-3)
    assert less.applicability == "advisory"


def test_a_sync_that_overlaps_with_training_is_not_slow() -> None:
    assert transitions(RULE, steps(60, load=0.95, wait=0.0)) == []


def test_waits_for_generation_are_not_the_fault_of_a_quick_sync() -> None:
    assert transitions(RULE, steps(60, load=0.05, wait=0.9)) == []


def test_writing_stops_the_learner_and_counts_in_full() -> None:
    found = diagnostics(RULE, steps(30, load=0.0, wait=0.0, write=0.55))
    assert found[0].summary.endswith("the longest part is write, 0.55 s each")


def test_the_limits_are_two_fifths_for_info_and_half_for_a_warning() -> None:
    assert transitions(RULE, steps(60, load=0.39, wait=0.39)) == []
    assert {record.severity for record in diagnostics(RULE, steps(60, load=0.4, wait=0.4))} == {"info"}
    assert {record.severity for record in diagnostics(RULE, steps(60, load=0.5, wait=0.5))} == {"warning"}


def test_one_slow_sync_does_not_decide() -> None:
    quick = steps(20, load=0.02, wait=0.1)
    slow = [[synced(seconds={"load": 300.0}), step(seconds={"total": 300.0, "wait": 0.0, "sync_wait": 299.0})]]
    assert transitions(RULE, [*quick, *slow, *quick]) == []


def test_steps_between_syncs_share_the_cost() -> None:
    assert transitions(RULE, steps(80, load=0.7, wait=0.6, every=4)) == []
    assert unevaluated(RULE, steps(39, load=0.7, wait=0.6, every=4)) is None


def test_resolves_below_the_clear_limit_and_not_before() -> None:
    slow = steps(30, load=0.7, wait=0.6)
    assert [reason for _, reason in transitions(RULE, [*slow, *steps(40, load=0.35, wait=0.35)])] == ["fired"]
    assert [reason for _, reason in transitions(RULE, [*slow, *steps(40, load=0.1, wait=0.1)])] == ["fired", "resolved"]


def test_rarer_syncs_take_older_data_along_and_end_at_four() -> None:
    assert answers(max_staleness=3, weight_sync_every=2)[0] == "raise weight_sync_every 2 to 4"
    assert answers(max_staleness=0)[0] == "raise weight_sync_every 1 to 2 and max_staleness 0 to 1"
    assert answers(max_staleness=1, weight_sync_every=2)[0] == "raise weight_sync_every 2 to 4 and max_staleness 1 to 3"
    assert [title.split()[0] for title in answers(max_staleness=7, weight_sync_every=4)] == ["make"]


def test_a_rarer_sync_measures_anew() -> None:
    change = KnobChanged(path="weight_sync_every", before=1, after=2, actor="person:a", effective_step=31)
    run = [*steps(30, load=0.7, wait=0.6), [change], *steps(9, load=0.7, wait=0.6)]
    assert unevaluated(RULE, run) == ("warm_up", "fewer than 10 syncs with an update were seen")


def test_steps_without_signal_and_pauses_are_not_counted() -> None:
    assert unevaluated(RULE, steps(60, load=0.7, wait=0.6, outcome="no_signal")) is not None
    paused: list[list[BaseEvent]] = []
    for made in steps(60, load=0.7, wait=0.6):
        paused.append([RunPaused(actor="person:a"), *made])
    assert unevaluated(RULE, paused) == ("warm_up", "fewer than 10 syncs with an update were seen")


def test_says_that_its_input_is_missing() -> None:
    bare: list[list[BaseEvent]] = [[synced(), step()] for _ in range(30)]
    assert unevaluated(RULE, bare) == ("missing_input", "syncs or steps do not say where their time went")
    found = transitions(RULE, [*steps(30, load=0.7, wait=0.6), *bare])
    assert [reason for _, reason in found] == ["fired", "data_lost"]


def test_steps_without_length_are_no_shares() -> None:
    empty: list[list[BaseEvent]] = [
        [synced(seconds={"load": 0.0}), step(seconds={"total": 0.0, "sync_wait": 0.0})] for _ in range(60)
    ]
    assert transitions(RULE, empty) == []
