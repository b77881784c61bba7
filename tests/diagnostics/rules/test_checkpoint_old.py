"""SYS011: hours and steps at stake, pauses left out."""

from collections.abc import Iterable

from tests.diagnostics.scenario import diagnostics, numbered, started, step, ticks, unevaluated
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rules.checkpoint_old import CheckpointOld
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import CheckpointSaved, ClockTicked, RunEnded, RunResumed
from tocsin.schemas.setup import RunSetup

RULE = CheckpointOld()


def saved(at: float) -> CheckpointSaved:
    return CheckpointSaved(path="checkpoints/1", seconds=1.0, bytes=1, mono=at)


def steps(num: int, at: float) -> list[BaseEvent]:
    """Of 1000 planned ones."""
    return [step().model_copy(update={"mono": at}) for _ in range(num)]


def told(events: Iterable[BaseEvent]) -> list[tuple[float, str]]:
    engine, found = Engine([RULE]), []
    for event in numbered([events]):
        found += [(event.mono, record.reason) for record in engine.observe(event) if isinstance(record, Diagnostic)]
    return found


def test_an_hour_and_a_tenth_of_the_plan_is_worth_a_word() -> None:
    run = [started(), saved(100.0), *steps(101, 110.0), *ticks(200.0, 3800.0, every=100.0)]
    (found,) = diagnostics(RULE, [run])
    assert told(run) == [(3800.0, "fired")]
    assert (found.severity, found.kind) == ("info", "lint")
    assert found.summary == "1.0 h and 101 steps since the last checkpoint"


def test_exactly_a_tenth_of_the_plan_is_little() -> None:
    assert told([started(), saved(100.0), *steps(100, 110.0), *ticks(200.0, 7000.0, every=100.0)]) == []


def test_two_hours_without_any_are_much_however_few_the_steps() -> None:
    setup = RunSetup(checkpoint_every=0)
    run = [started(setup=setup), *steps(3, 10.0), *ticks(100.0, 8000.0, every=100.0)]
    (found,) = diagnostics(RULE, [run])
    assert told(run) == [(7300.0, "fired")]
    assert found.summary == (
        "2.0 h and 3 steps since the start, without a checkpoint (they are written at the end only)"
    )


def test_pauses_do_not_count() -> None:
    paused: list[BaseEvent] = [ClockTicked(idle_s=0.0, paused=True, mono=200.0 + 100 * i) for i in range(100)]
    assert told([started(), saved(100.0), *steps(101, 110.0), *paused]) == []


def test_resolves_with_the_next_checkpoint() -> None:
    run = [started(), saved(100.0), *steps(101, 110.0), *ticks(200.0, 4000.0, every=100.0)]
    assert told([*run, saved(4010.0), *ticks(4020.0, 4020.0)]) == [(3800.0, "fired"), (4020.0, "resolved")]


def test_a_resume_begins_at_a_checkpoint_and_an_end_is_an_end() -> None:
    resumed = RunResumed(checkpoint_step=101, rewound_from_step=101, knobs={}, devices=[], versions={}, mono=5.0)
    run = [started(), *steps(101, 110.0), resumed, *ticks(10.0, 7500.0, every=100.0)]
    assert told(run) == []
    ended = RunEnded(outcome="completed", mono=120.0)
    assert told([started(), *steps(101, 110.0), ended, *ticks(200.0, 9000.0, every=100.0)]) == []


def test_waits_for_the_clock() -> None:
    assert unevaluated(RULE, [[started(), *steps(5, 1.0)]]) == ("warm_up", "waits for its first `clock_ticked` event")
