"""SYS012: sums that do not add up and fields that go missing, apart from steps that have fewer of them."""

import math
from typing import Any

import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, waited
from tocsin.diagnostics.rules.telemetry_gap import TelemetryGap
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, KnobChanged, Ledger, RunResumed

RULE = TelemetryGap()
MIXED = [[0.0] * 4 + [1.0] * 4] * 8 + [[1.0] * 8] * 8


def steps(n: int, **fields: Any) -> list[list[BaseEvent]]:
    return [[step(entropy=0.3, **fields)] for _ in range(n)]


def ledger(**counts: int) -> list[BaseEvent]:
    made = {"launched": 100, "in_flight": 10, "queued": 20, "consumed": 70, "dropped": {}, "failed": {}, **counts}
    return [waited(0.1, 0.1, ledger=Ledger.model_validate(made)), step(entropy=0.3)]


def first(events: list[list[BaseEvent]]) -> str:
    return diagnostics(RULE, events)[0].summary


def test_groups_that_the_ledger_cannot_account_for() -> None:
    (found,) = diagnostics(RULE, [[started()], *steps(5), *([ledger(consumed=69)] * 5)])
    assert (found.kind, found.severity, found.last.step) == ("fault", "warning", 6)
    assert found.summary == "The ledger cannot account for 1 of 100 groups; first seen at step 5"


def test_a_group_that_is_consumed_twice_in_an_attempt() -> None:
    once = batch(MIXED, group_index=list(range(100, 116)))
    again = batch(MIXED, group_index=list(range(115, 131)))
    assert first([[once, step()], [again, step()]]).startswith("1 of 16 groups of a step were consumed before")
    twin = batch(MIXED, group_index=[5] * 2 + list(range(100, 114)))
    assert first([[twin, step()]]).startswith("1 of 16 groups of a step were consumed before")


def test_a_resume_does_groups_over() -> None:
    once = batch(MIXED, group_index=list(range(100, 116)))
    resumed = RunResumed(checkpoint_step=0, rewound_from_step=1, knobs={}, devices=[], versions={})
    assert transitions(RULE, [[once, step()], [resumed, once, step()]]) == []


def test_a_queue_beyond_its_slots_and_one_that_was_allowed_more_before() -> None:
    run = [[started(groups_per_step=8, max_staleness=1)], ledger(queued=17, consumed=73)]
    assert first(run).startswith("17 groups are queued where at most 16 can be")
    fewer = KnobChanged(path="groups_per_step", before=16, after=8, actor="person:a", effective_step=1)
    assert transitions(RULE, [[started(groups_per_step=16, max_staleness=1)], [fewer], ledger()]) == []


@pytest.mark.parametrize(
    ("fields", "summary"),
    [
        ({"ess_frac": 1.2}, "Step_completed.ess_frac is 1.2, and a share; first seen at step 1"),
        ({"clip_low_frac": -0.1}, "Step_completed.clip_low_frac is -0.1, and a share; first seen at step 1"),
        ({"entropy": -0.5}, "Entropy is -0.5; first seen at step 1"),
        (
            {"seconds": {"wait": 1.0, "forward_backward": 1.0, "total": 1.5}},
            "The parts of a step add up to 2 s of 1.5 s; first seen at step 1",
        ),
    ],
)
def test_numbers_that_cannot_be(fields: dict[str, Any], summary: str) -> None:
    assert first([[step(**fields)]]) == summary


def test_numbers_at_their_bounds_and_those_that_are_not_finite_are_no_gap() -> None:
    whole = {"ess_frac": 1.0, "clip_low_frac": 0.0, "clip_high_frac": 1.0, "entropy": 0.0}
    assert transitions(RULE, [[step(**whole)] for _ in range(30)]) == []
    broken = dict.fromkeys(whole, math.nan)
    assert transitions(RULE, [[step(**broken)] for _ in range(30)]) == []


def test_a_field_that_goes_missing_and_comes_back() -> None:
    gone: list[list[BaseEvent]] = [[step(entropy=None)] for _ in range(5)]
    run = [*steps(10), *gone, *steps(40)]
    assert first(run) == "Entropy has been missing for 3 updates, after 10 with it; first seen at step 13"
    assert [reason for _, reason in transitions(RULE, run)] == ["fired", "resolved"]


def test_a_field_that_was_never_there_and_steps_without_an_update_are_no_gap() -> None:
    assert transitions(RULE, [[step(logprob_gap=None)] for _ in range(60)]) == []
    idle: list[list[BaseEvent]] = [[step(outcome="no_signal", entropy=None, grad_norm=None)] for _ in range(20)]
    assert transitions(RULE, [*steps(20), *idle]) == []


def test_two_steps_without_a_field_are_no_gap() -> None:
    gone: list[list[BaseEvent]] = [[step(entropy=None)] for _ in range(2)]
    assert transitions(RULE, [*steps(10), *gone, *steps(10)]) == []


def test_lost_events() -> None:
    tick = ClockTicked(idle_s=0.0, events_dropped=3)
    assert first([*steps(3), [tick], *steps(3)]) == "3 events were lost so far; first seen at step 3"
    assert len(diagnostics(RULE, [*steps(3), *([[tick], *steps(3)] * 3)])) == 1


def test_fewer_groups_without_spread_than_there_must_be() -> None:
    one_fails = [[1.0] * 7 + [0.0]] * 16
    run: list[list[BaseEvent]] = [[batch(one_fails), step()] for _ in range(20)]
    assert first(run) == ("0% of 128 groups have no spread; at pass rate 0.88 at least 34% must; first seen at step 10")
    other = [[batch([[1.0] * 7 + [0.5]] * 16), step()] for _ in range(20)]
    assert transitions(RULE, other) == []
    natural = [[batch([[1.0] * 8] * 11 + [[1.0] * 4 + [0.0] * 4] * 5), step()] for _ in range(20)]
    assert transitions(RULE, natural) == []


def test_what_happened_once_is_forgotten_after_twenty_steps() -> None:
    found = transitions(RULE, [[step(entropy=-1.0)], *steps(40)])
    assert found == [(1, "fired"), (22, "resolved")]


def test_the_oldest_is_named_and_the_others_are_counted() -> None:
    both: list[list[BaseEvent]] = [[step(entropy=-1.0, ess_frac=2.0)]]
    assert first(both) == "Step_completed.ess_frac is 2, and a share (and 1 more); first seen at step 1"
