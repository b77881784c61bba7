"""OFF011: the clock goes on and the sync does not end, apart from everything that a sync may wait for."""

from collections.abc import Iterable

import pytest

from tests.diagnostics.scenario import diagnostics, numbered, started, step, sync_started, synced, ticks, unevaluated
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rules.weight_sync_hang import WeightSyncHang
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    CheckpointSaved,
    ComponentHeartbeat,
    RunContinued,
    RunEnded,
    RunPaused,
    RunResumed,
)
from tocsin.schemas.generation import SamplerSampled

RULE = WeightSyncHang()


def ended(version: int, at: float) -> BaseEvent:
    return synced(version=version, mono=at)


def usual(num: int = 10, *, takes: float = 1.0) -> list[BaseEvent]:
    """A run with `num` syncs of `takes` seconds each, one every 10 seconds from second 10 on, and the first one."""
    first: list[BaseEvent] = [started(), sync_started(0, 1.0), ended(0, 9.0)]
    later = [(sync_started(v, 10.0 * v), ended(v, 10.0 * v + takes), step()) for v in range(1, num + 1)]
    return [*first, *(event for sync in later for event in sync)]


def told(events: Iterable[BaseEvent]) -> list[tuple[float, str]]:
    """When on the monotonic clock the rule said what."""
    engine, found = Engine([RULE]), []
    for event in numbered([events]):
        found += [(event.mono, record.reason) for record in engine.observe(event) if isinstance(record, Diagnostic)]
    return found


def test_fires_a_minute_after_a_sync_that_nobody_answers() -> None:
    run = [*usual(), sync_started(11, 110.0), *ticks(115.0, 300.0)]
    (found,) = diagnostics(RULE, [run])
    assert told(run) == [(175.0, "fired")]
    assert (found.severity, found.kind) == ("critical", "fault")
    assert found.summary == "The sync of weights 11 has not ended after 65 s; this run's syncs take 1 s"
    assert [action.applicability for action in found.actions] == ["advisory", "advisory"]


def test_exactly_the_limit_is_no_hang() -> None:
    quick = [event for event in usual() if event.type != "step_completed"]
    assert told([*quick, sync_started(11, 110.0), *ticks(170.0, 170.0)]) == []
    assert told([*quick, sync_started(11, 110.0), *ticks(170.0, 170.5, every=0.5)]) == [(170.5, "fired")]


def test_a_run_whose_syncs_take_long_is_given_five_times_as_long() -> None:
    run = [*usual(takes=30.0), sync_started(11, 200.0)]
    assert told([*run, *ticks(205.0, 350.0)]) == []
    assert told([*run, *ticks(205.0, 400.0)]) == [(355.0, "fired")]


def test_the_first_sync_of_an_attempt_may_take_as_long_as_its_set_up() -> None:
    assert told([started(), sync_started(0, 1.0), *ticks(5.0, 600.0)]) == []
    assert told([started(), sync_started(0, 1.0), *ticks(5.0, 700.0)]) == [(605.0, "fired")]


def test_a_sync_that_waits_for_a_batch_or_for_the_learner_does_not_hang() -> None:
    def batch(at: float, seconds: float) -> SamplerSampled:
        return SamplerSampled(
            sampler="local", version=10, groups=1, completions=8, tokens=80, seconds=seconds, purpose="eval", mono=at
        )

    evaluated = [batch(float(at), 25.0) for at in range(120, 300, 25)]
    assert (
        told([*usual(), sync_started(11, 110.0), *sorted([*evaluated, *ticks(115, 390)], key=lambda e: e.mono)]) == []
    )
    long_steps = [step(seconds={"total": 120.0, "wait": 10.0, "sync_wait": 10.0})]
    assert told([*usual(), *long_steps, sync_started(11, 110.0), *ticks(115.0, 365.0)]) == []
    saved = [CheckpointSaved(path="checkpoints/10", seconds=90.0, bytes=1)]
    assert told([*usual(), *saved, sync_started(11, 110.0), *ticks(115.0, 345.0)]) == []


def test_waits_of_the_learner_are_no_excuse() -> None:
    waited = [step(seconds={"total": 120.0, "wait": 100.0, "sync_wait": 20.0})]
    assert told([*usual(), *waited, sync_started(11, 110.0), *ticks(115.0, 300.0)]) == [(175.0, "fired")]


def test_a_pause_that_somebody_asked_for_does_not_count() -> None:
    pause = [RunPaused(actor="person:a", mono=112.0), *ticks(115.0, 1000.0)]
    run = [*usual(), sync_started(11, 110.0), *pause]
    assert told(run) == []
    go_on = RunContinued(actor="person:a", paused_s=890.0, mono=1002.0)
    assert told([*run, go_on, *ticks(1005.0, 1060.0)]) == []
    assert told([*run, go_on, *ticks(1005.0, 1100.0)]) == [(1065.0, "fired")]


def test_a_sampler_that_is_started_again_gets_its_set_up_time() -> None:
    died = ComponentHeartbeat(component="sampler", state="died", mono=112.0)
    assert told([*usual(), sync_started(11, 110.0), died, *ticks(115.0, 600.0)]) == []
    assert told([*usual(), sync_started(11, 110.0), died, *ticks(115.0, 800.0)]) == [(715.0, "fired")]


def test_a_restart_does_not_end_what_hangs_and_the_answer_does() -> None:
    died = ComponentHeartbeat(component="sampler", state="died", mono=410.0)
    hung = [*usual(), sync_started(11, 110.0), *ticks(115.0, 400.0), died, *ticks(415.0, 500.0)]
    assert told(hung) == [(175.0, "fired")]
    back = [ended(11, 502.0), sync_started(12, 504.0), *ticks(505.0, 510.0)]
    assert told([*hung, *back]) == [(175.0, "fired"), (505.0, "resolved")]


def test_a_new_attempt_forgets_the_start() -> None:
    resumed = RunResumed(checkpoint_step=5, rewound_from_step=10, knobs={}, devices=[], versions={}, mono=1.0)
    run = [*usual(), sync_started(11, 110.0)]
    assert told([*run, resumed, *ticks(5.0, 900.0)]) == []
    assert told([*run, *ticks(115.0, 200.0), resumed, *ticks(5.0, 50.0)]) == [(175.0, "fired"), (5.0, "resolved")]


def test_a_run_that_ended_has_no_sync_under_way() -> None:
    run = [*usual(), sync_started(11, 110.0), RunEnded(outcome="interrupted", mono=111.0)]
    assert told([*run, *ticks(115.0, 400.0)]) == []


def test_the_version_that_was_answered_counts() -> None:
    run = [*usual(), sync_started(11, 110.0), ended(10, 111.0)]
    assert told([*run, *ticks(115.0, 200.0)]) == [(175.0, "fired")]
    again = sync_started(11, 112.0).model_copy(update={"attempt_number": 2})
    assert told([*usual(), sync_started(11, 110.0), ended(11, 111.0), again, *ticks(115.0, 200.0)]) == [
        (175.0, "fired")
    ]


def test_weights_that_are_handed_on_again_keep_their_age() -> None:
    run = [*usual(), sync_started(11, 110.0), *ticks(115.0, 150.0), sync_started(11, 152.0), *ticks(155.0, 200.0)]
    assert told(run) == [(175.0, "fired")]


def test_says_what_it_waits_for() -> None:
    assert unevaluated(RULE, [[started()], [step()]]) == ("warm_up", "waits for its first `clock_ticked` event")
    assert unevaluated(RULE, [[started(), *ticks(5.0, 5.0)]]) == ("warm_up", "no weight sync was started yet")
    silent = [[started(), ended(0, 9.0), ended(1, 19.0), *ticks(20.0, 90.0)]]
    assert unevaluated(RULE, silent) == ("missing_input", "weights are synced without a `weight_sync_started` event")
    assert unevaluated(RULE, [[*usual(), *ticks(115.0, 120.0)]]) is None


def test_starts_that_never_end_do_not_pile_up() -> None:
    engine = Engine([RULE])
    run = [started(), *(sync_started(version, 1.0 + version) for version in range(1000))]
    for event in numbered([run]):
        engine.observe(event)
    assert len(engine._features.open_sync._under_way) <= 32


@pytest.mark.parametrize("floor", [0.0, 600.0, float("nan")])
def test_a_limit_must_lie_below_that_of_the_first_sync(floor: float) -> None:
    with pytest.raises(ValueError, match="OFF011"):
        WeightSyncHang(floor=floor)
