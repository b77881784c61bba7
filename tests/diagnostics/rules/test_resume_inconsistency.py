"""SYS014: the first updates after a resume beside those before, apart from a schedule and from knobs that moved."""

import math
from typing import Any

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, synced, transitions, unevaluated
from tocsin.diagnostics.rules.resume_inconsistency import ResumeInconsistency
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, RunResumed
from tocsin.schemas.knobs import Knobs
from tocsin.schemas.setup import RunSetup

RULE = ResumeInconsistency()
SETUP = RunSetup(schedule="linear", warmup_steps=10)
RATE = 1e-3


def scheduled(step_index: int) -> float:
    """The linear decay of 1000 steps after a warm-up of ten."""
    return RATE * (1 - (step_index - 10) / 990)


def updates(first: int, num: int, *, size: float = 0.5, **fields: Any) -> list[list[BaseEvent]]:
    """Updates of `size` times the learning rate, a fifth more or less, from step number `first` on."""
    made = []
    for i in range(first, first + num):
        rate = scheduled(i)
        ratio = size * rate * (1 + 0.2 * math.sin(i))
        made.append([step(**{"learning_rate": rate, "update_ratio": ratio, **fields})])
    return made


def resumed(rate: float = RATE, at: int = 60) -> BaseEvent:
    knobs = Knobs(learning_rate=rate).model_dump()
    return RunResumed(checkpoint_step=at, rewound_from_step=at, knobs=knobs, devices=[], versions={}, setup=SETUP)


BEFORE: list[list[BaseEvent]] = [
    [started(setup=SETUP, learning_rate=RATE)],
    *([[step(learning_rate=RATE / 10, update_ratio=1e-6)]] * 10),
    *updates(10, 50),
]


def test_a_lost_optimizer_shows_in_the_first_updates() -> None:
    run = [*BEFORE, [resumed(), synced(version=60)], *updates(60, 5, size=3.0), *updates(65, 130)]
    (found, over) = diagnostics(RULE, run)
    assert (found.severity, found.kind, found.last.step) == ("warning", "fault", 63)
    assert found.summary.startswith("The first 3 updates after the resume are ")
    assert (over.reason, over.last.step) == ("resolved", 160)


def test_one_large_update_is_enough_because_moments_make_sizes_smooth() -> None:
    after = [*updates(60, 1, size=3.0), *updates(61, 1, size=1.4), *updates(62, 20)]
    found = transitions(RULE, [*BEFORE, [resumed(), synced(version=60)], *after])
    assert [reason for _, reason in found] == ["fired"]


def test_a_resume_that_goes_on_as_before_says_nothing() -> None:
    assert transitions(RULE, [*BEFORE, [resumed(), synced(version=60)], *updates(60, 100)]) == []


def test_twice_the_size_is_within_what_batches_do() -> None:
    assert transitions(RULE, [*BEFORE, [resumed(), synced(version=60)], *updates(60, 100, size=1.2)]) == []


def test_a_schedule_that_began_again() -> None:
    (found,) = diagnostics(RULE, [*BEFORE, [resumed()], *updates(60, 3, learning_rate=RATE / 10)])
    assert found.last.step == 61
    assert found.summary == "The learning rate is 0.0001 after the resume where the schedule asks for 0.000949"


def test_a_knob_that_somebody_moved_is_no_lost_schedule() -> None:
    halved = updates(60, 60, learning_rate=0.5 * scheduled(60), update_ratio=0.25 * scheduled(60))
    assert transitions(RULE, [*BEFORE, [resumed(RATE / 2), synced(version=60)], *halved]) == []
    moved = KnobChanged(path="learning_rate", before=RATE, after=RATE / 2, actor="person:a", effective_step=60)
    assert transitions(RULE, [*BEFORE, [resumed(), moved, synced(version=60)], *halved]) == []


def test_weights_of_another_step_are_critical() -> None:
    (record,) = diagnostics(RULE, [*BEFORE, [resumed(), synced(version=10)], *updates(60, 3)])
    assert record.severity == "critical"
    assert record.summary == "The sampler began with weights 10 after a resume from step 60"
    assert record.causes[0].text == "weights of another step were sent or loaded"


def test_an_unknown_schedule_and_too_few_updates_are_not_judged() -> None:
    plain = RunResumed(checkpoint_step=5, rewound_from_step=5, knobs={}, devices=[], versions={})
    few = [[started()], *updates(0, 5), [plain, synced(version=5)], *updates(5, 30, size=9.0)]
    assert transitions(RULE, few) == []


@pytest.mark.parametrize("ratio", [math.nan, None])
def test_updates_that_were_not_measured_are_left_out(ratio: float | None) -> None:
    run = [*BEFORE, [resumed(), synced(version=60)], *updates(60, 60, update_ratio=ratio)]
    assert transitions(RULE, run) == []


def test_says_that_the_run_was_not_resumed() -> None:
    assert unevaluated(RULE, BEFORE) == ("not_applicable", "the run was not resumed")
