"""Planted faults, each in a run of its own: what the events show, and which rule names it first."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.runs import Recording, start, train, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.base import NonFinite, as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.config import DiagnosticsConfig, FaultConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.events import ClockTicked, KnobChanged, QueueSampled
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training

ONSET = 8

Plant = Callable[..., Recording]


@pytest.fixture
def plant(tiny_policy: TinyPolicy, tmp_path: Path) -> Plant:
    """Trains with a fault from step `ONSET` on; the run must complete."""

    def planted(name: str, *, steps: int, group_size: int = 4) -> Recording:
        fault = FaultConfig.model_validate({"name": name, "onset_step": ONSET})
        config = tiny_config(tiny_policy, steps=steps, fault=fault, knobs={"group_size": group_size})
        changes = {
            "data": config.data.model_copy(update={"evaluation": None}),
            # Otherwise weights that never arrive end in a pause, and what follows is not seen.
            "sampler": config.sampler.model_copy(update={"on_mismatch": "continue"}),
        }
        return train(config.model_copy(update=changes), tmp_path)

    return planted


def first_named(recording: Recording) -> Diagnostic:
    """The first diagnostic at warning or above."""
    found = recording.findings()
    assert found, "nothing was named"
    return found[0]


def test_nan_losses_are_skipped_named_and_survived(plant: Plant) -> None:
    recording = plant("nan", steps=20)
    named = first_named(recording)
    assert (named.code, named.state) == ("POL015", "firing")
    assert ONSET < named.fired.step <= ONSET + 3
    skipped = [event for event in recording.of(StepCompleted) if event.outcome == "nonfinite"]
    assert {event.step - 1 for event in skipped} <= {step for step in range(ONSET, 20) if step % 3 != 2}
    assert skipped[0].loss == NonFinite(nonfinite="nan")
    assert skipped[0].nonfinite == ["loss", "grad_norm"]
    assert {event.update_ratio for event in skipped} == {None}


def test_a_constant_reward_is_named_within_30_steps(plant: Plant) -> None:
    recording = plant("constant-reward", steps=ONSET + 32, group_size=8)
    named = first_named(recording)
    assert (named.code, named.state) == ("RWD001", "firing")
    assert ONSET < named.fired.step <= ONSET + 30
    batches = recording.of(BatchConsumed)
    assert all(all(event.groups.zero_spread) for event in batches[ONSET:])
    assert not all(all(event.groups.zero_spread) for event in batches[:ONSET])
    assert {event.outcome for event in recording.of(StepCompleted)[ONSET:]} == {"no_signal"}


def test_truncated_completions_end_at_the_length_limit(plant: Plant) -> None:
    recording = plant("truncated", steps=16)
    before, after = recording.of(BatchConsumed)[:ONSET], recording.of(BatchConsumed)[ONSET:]
    assert all(event.finish_reasons.get("length", 0) <= 4 for event in before)
    assert [event.finish_reasons for event in after] == [{"length": 16}] * 8
    assert {as_float(event.length.max) for event in after} == {4.0}
    assert {as_float(event.reward_mean) for event in after} == {0.0}


def test_stale_weights_are_found_by_the_probe_although_the_version_is_echoed(plant: Plant) -> None:
    recording = plant("stale-weights", steps=16)
    syncs = recording.of(WeightsSynced)
    # Weights that did not arrive are sent once more, unless newer ones are about to be sent anyway.
    assert list(dict.fromkeys(event.version for event in syncs)) == list(range(17))
    assert len(syncs) <= 18
    assert all(event.verified for event in syncs if event.version <= ONSET)
    stale = [event for event in syncs if event.version > ONSET]
    assert not any(event.verified for event in stale)
    # One step after the last real sync the gap is exactly what that step moved.
    assert as_float(stale[0].probe_gap) == pytest.approx(as_float(stale[0].probe_moved), rel=1e-3)
    assert as_float(stale[-1].probe_gap) > as_float(stale[0].probe_gap)


def test_a_slow_sampler_makes_the_learner_wait(plant: Plant) -> None:
    sampled = plant("slow-sampler", steps=14).of(QueueSampled)[ONSET + 1 :]
    waited, spent = sum(event.learner_wait_s for event in sampled), sum(event.step_s for event in sampled)
    # More than anybody waits in a run without the fault, on a machine with other work as well.
    assert waited > 0.3 * spent
    assert sum(event.sampler_wait_s for event in sampled) < 0.3 * spent


def test_a_slow_learner_makes_the_sampler_wait(plant: Plant) -> None:
    sampled = plant("slow-learner", steps=14).of(QueueSampled)[ONSET + 1 : -1]
    waited, spent = sum(event.sampler_wait_s for event in sampled), sum(event.step_s for event in sampled)
    assert waited > 0.7 * spent
    assert sum(event.learner_wait_s for event in sampled) < 0.1 * spent


def test_a_raised_learning_rate_is_on_record_and_shows_in_the_updates(plant: Plant) -> None:
    recording = plant("lr-too-high", steps=16)
    (changed,) = recording.of(KnobChanged)
    assert (changed.path, changed.actor, changed.effective_step) == ("learning_rate", "fault:lr-too-high", ONSET)
    assert (changed.before, changed.after) == (3e-4, pytest.approx(3e-3))
    rates = [as_float(event.learning_rate) for event in recording.of(StepCompleted)]
    assert rates == [3e-4] * ONSET + [pytest.approx(3e-3)] * ONSET
    updated = [as_float(event.update_ratio) for event in recording.of(StepCompleted) if event.update_ratio is not None]
    assert max(updated[ONSET:]) > 4 * max(updated[2:ONSET])
    assert {event.config_generation for event in recording.of(StepCompleted)} == {0, 1}


def test_slow_syncs_are_named(plant: Plant) -> None:
    recording = plant("slow-sync", steps=ONSET + 32, group_size=8)
    named = first_named(recording)
    assert (named.code, named.state) == ("OFF012", "firing")
    assert ONSET < named.fired.step <= ONSET + 30
    loads = {event.version: event.seconds["load"] for event in recording.of(WeightsSynced)}
    assert all((seconds > 0.25) == (version > ONSET) for version, seconds in loads.items())


def test_a_sync_that_hangs_is_named_by_the_clock(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    fault = FaultConfig.model_validate({"name": "hung-sync", "onset_step": ONSET})
    diagnostics = DiagnosticsConfig(tick_s=0.5, thresholds={"OFF011": {"floor": 2.0}})
    config = tiny_config(tiny_policy, steps=ONSET + 8, fault=fault, diagnostics=diagnostics)
    config = config.model_copy(update={"data": config.data.model_copy(update={"evaluation": None})})
    with start("train", write_config(config, tmp_path / "run.toml"), runs_dir=tmp_path / "runs") as run:
        run.until_event(lambda event: isinstance(event, ClockTicked) and event.idle_s > 10)
        recording = run.recording()
    named = first_named(recording)
    assert (named.code, named.severity) == ("OFF011", "critical")
    assert named.summary.startswith(f"The sync of weights {ONSET + 1} has not ended after ")
