"""OFF018: the clock goes on and nothing else does, and the heartbeats say who it is."""

from collections.abc import Iterable

import pytest

from tests.diagnostics.scenario import diagnostics, numbered, started, step, sync_started, ticks, unevaluated
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rules.weight_sync_hang import WeightSyncHang
from tocsin.diagnostics.rules.worker_hang import WorkerHang
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    Busy,
    CheckpointSaved,
    ClockTicked,
    ComponentHeartbeat,
    RolloutFailed,
    RunEnded,
    RunResumed,
)
from tocsin.schemas.generation import SamplerSampled

RULE = WorkerHang()


def going(last: float = 100.0, *, total: float = 1.0) -> list[BaseEvent]:
    """A run whose steps of `total` seconds end every ten seconds until `last`."""
    num = round(last / 10)
    steps = [step(seconds={"total": total}).model_copy(update={"mono": 10.0 * (i + 1)}) for i in range(num)]
    return [started(), *steps]


def sampled(at: float, seconds: float) -> SamplerSampled:
    return SamplerSampled(
        sampler="local", version=1, groups=1, completions=8, tokens=80, seconds=seconds, purpose="train", mono=at
    )


def beats(what: Busy, first: float, last: float, *, since: float = 100.0) -> list[BaseEvent]:
    """Heartbeats every ten seconds, and ticks every five."""
    found: list[BaseEvent] = [*ticks(first, last)]
    at = first
    while at <= last:
        beat = ComponentHeartbeat(component="rollout", state="alive", busy=what, busy_s=at - since, mono=at)
        found.append(beat)
        at += 10.0
    return sorted(found, key=lambda event: event.mono)


def told(events: Iterable[BaseEvent], *rules: WorkerHang | WeightSyncHang) -> list[tuple[float, str, str]]:
    """When on the monotonic clock which rule said what."""
    engine, found = Engine(rules or [RULE]), []
    for event in numbered([events]):
        said = [record for record in engine.observe(event) if isinstance(record, Diagnostic)]
        found += [(event.mono, record.code, record.reason) for record in said]
    return found


@pytest.mark.parametrize(
    ("busy", "words"),
    [
        ("generate", "the rollout process has waited for its sampler for 65 s"),
        ("score", "the rollout process has waited for a reward function for 65 s"),
        ("idle", "the rollout process is idle, and the learner waits for groups"),
    ],
)
def test_a_minute_without_progress_is_a_hang_with_a_name(busy: Busy, words: str) -> None:
    (found,) = diagnostics(RULE, [[*going(), *beats(busy, 105.0, 200.0)]])
    assert told([*going(), *beats(busy, 105.0, 200.0)]) == [(165.0, "OFF018", "fired")]
    assert (found.kind, found.severity) == ("fault", "warning")
    assert found.summary.startswith("Nothing has happened for 65 s; ")
    assert words.split(" for ", maxsplit=1)[0] in found.summary
    weights = [cause.weight for cause in found.causes]
    assert weights[0] == max(weights) == 0.8


def test_heartbeats_that_stop_point_at_the_learner_or_at_the_rollout_process() -> None:
    run = [*going(), *beats("generate", 105.0, 115.0), *ticks(120.0, 200.0)]
    (found,) = diagnostics(RULE, [run])
    assert found.summary == (
        "Nothing has happened for 65 s; the rollout process says nothing, and the learner reads nothing from it"
    )
    assert found.causes[0].text.startswith("the learner hangs")


def test_a_run_without_heartbeats_hangs_all_the_same() -> None:
    (found,) = diagnostics(RULE, [[*going(), *ticks(105.0, 200.0)]])
    assert found.summary == "Nothing has happened for 65 s; nobody says what is under way"


def test_exactly_the_limit_is_no_hang() -> None:
    assert told([*going(), *ticks(160.0, 160.0)]) == []
    assert told([*going(), *ticks(160.5, 160.5)]) == [(160.5, "OFF018", "fired")]


def test_ten_times_a_long_step_or_batch_may_pass() -> None:
    assert told([*going(total=20.0), *ticks(105.0, 300.0)]) == []
    assert told([*going(total=20.0), *ticks(105.0, 400.0)]) == [(305.0, "OFF018", "fired")]
    assert told([*going(), sampled(100.0, 20.0), *ticks(105.0, 300.0)]) == []


def test_the_first_step_of_an_attempt_may_take_ten_minutes() -> None:
    assert told([started(), *ticks(5.0, 600.0)]) == []
    assert told([started(), *ticks(5.0, 700.0)]) == [(605.0, "OFF018", "fired")]


def test_a_checkpoint_takes_its_time() -> None:
    saved = CheckpointSaved(path="checkpoints/10", seconds=30.0, bytes=1, mono=100.0)
    assert told([*going(), saved, *ticks(105.0, 220.0)]) == []
    assert told([*going(), saved, *ticks(105.0, 240.0)]) == [(225.0, "OFF018", "fired")]


def test_failures_that_are_dealt_with_are_progress() -> None:
    timed_out = [
        RolloutFailed(
            cause="reward_timeout", prompt_id="1", completions=8, whole_group=True, error="late", mono=float(at)
        )
        for at in range(130, 400, 30)
    ]
    assert told(sorted([*going(), *timed_out, *ticks(105.0, 420.0)], key=lambda event: event.mono)) == []


def test_a_pause_that_somebody_asked_for_is_no_hang() -> None:
    paused: list[BaseEvent] = [ClockTicked(idle_s=0.0, paused=True, mono=float(at)) for at in range(105, 500, 5)]
    assert told([*going(), *paused]) == []
    assert told([*going(), *paused, *ticks(500.0, 600.0)]) == [(560.0, "OFF018", "fired")]


def test_a_sync_that_hangs_is_left_to_its_own_rule() -> None:
    run = [*going(), sync_started(11, 100.0), *beats("sync", 105.0, 1000.0)]
    assert {code for _, code, _ in told(run, RULE, WeightSyncHang())} == {"OFF011"}
    silent = [*going(), sync_started(11, 100.0), *ticks(105.0, 1000.0)]
    assert {code for _, code, _ in told(silent, RULE, WeightSyncHang())} == {"OFF011"}


def test_a_sampler_that_hangs_in_a_batch_explains_the_weights_that_it_does_not_take() -> None:
    run = [*going(), sync_started(11, 100.0), *beats("generate", 105.0, 1000.0)]
    engine = Engine([RULE, WeightSyncHang()])
    found = [r for event in numbered([run]) for r in engine.observe(event) if isinstance(r, Diagnostic)]
    assert found[0].code == "OFF018"
    assert [record.suppressed for record in found if record.code == "OFF011"] == [True]


def test_grows_critical_and_resolves_with_the_next_progress() -> None:
    run = [*going(), *ticks(105.0, 500.0), sampled(501.0, 1.0), *ticks(505.0, 520.0)]
    assert told(run) == [
        (165.0, "OFF018", "fired"),
        (405.0, "OFF018", "escalated"),
        (505.0, "OFF018", "resolved"),
    ]


def test_a_run_that_ended_or_began_again_does_not_hang() -> None:
    assert told([*going(), RunEnded(outcome="completed", mono=101.0), *ticks(105.0, 900.0)]) == []
    resumed = RunResumed(checkpoint_step=5, rewound_from_step=10, knobs={}, devices=[], versions={}, mono=1.0)
    assert told([*going(), resumed, *ticks(5.0, 500.0)]) == []


def test_waits_for_the_clock() -> None:
    assert unevaluated(RULE, [going()]) == ("warm_up", "waits for its first `clock_ticked` event")


@pytest.mark.parametrize("floor", [0.0, 600.0, float("nan")])
def test_a_limit_must_lie_below_that_of_the_first_step(floor: float) -> None:
    with pytest.raises(ValueError, match="OFF018"):
        WorkerHang(floor=floor)
