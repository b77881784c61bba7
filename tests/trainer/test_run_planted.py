"""Planted faults whose effect only a whole run has: what its events show."""

from pathlib import Path

import pytest

from tests.trainer.runs import Recording, start, train, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.config import CheckpointConfig, RunConfig
from tocsin.schemas.events import KnobChanged, QueueSampled, ResourcesSampled, RolloutFailed, RunStarted
from tocsin.schemas.fault import FaultConfig, FaultName
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training

ONSET = 4


def planted(policy: TinyPolicy, name: FaultName, **changes: object) -> RunConfig:
    """A run of 8 steps without evaluation, with a fault from step `ONSET` on."""
    config = tiny_config(policy, steps=8, fault=FaultConfig(name=name, onset_step=ONSET), **changes)
    return config.model_copy(update={"data": config.data.model_copy(update={"evaluation": None})})


def test_a_reward_of_the_fault_is_reported_like_any_other(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    recording = train(planted(tiny_policy, "length-reward", knobs={"max_completion_tokens": 32}), tmp_path)
    (first,) = recording.of(RunStarted)
    assert first.setup is not None
    assert [(reward.label, reward.passes) for reward in first.setup.rewards] == [("exact", True), ("planted", False)]
    batches = recording.of(BatchConsumed)
    means = [as_float(event.components["planted"]) for event in batches]
    assert means[:ONSET] == [0.0] * ONSET
    lengths = [as_float(event.length.mean) for event in batches]
    assert means[ONSET:] == pytest.approx([0.2 * length for length in lengths[ONSET:]])
    assert {event.reward_range for event in batches} == {None}
    assert all(event.groups.passed is not None for event in batches)


def test_an_outage_costs_groups_and_the_run_goes_on(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    recording = train(planted(tiny_policy, "verifier-outage"), tmp_path)
    failed = recording.of(RolloutFailed)
    assert {event.cause for event in failed} == {"reward_error"}
    assert all(event.group_index is not None and event.group_index % 2 for event in failed)
    assert {sum(event.groups.size) for event in recording.of(BatchConsumed)} == {16}
    late = [index for event in recording.of(BatchConsumed)[ONSET:] for index in event.groups.group_index]
    assert {index % 2 for index in late} == {0}
    assert recording.of(QueueSampled)[-1].ledger.balance() == 0


def test_a_knob_that_a_fault_turns_is_on_record_and_a_spike_is_not(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    (changed,) = train(planted(tiny_policy, "lr-too-low"), tmp_path / "low").of(KnobChanged)
    assert (changed.path, changed.actor, changed.effective_step) == ("learning_rate", "fault:lr-too-low", ONSET)
    spiked = train(planted(tiny_policy, "lr-spike"), tmp_path / "spike")
    assert spiked.of(KnobChanged) == []
    rates = [as_float(event.learning_rate) for event in spiked.of(StepCompleted)]
    assert rates == [3e-4] * ONSET + [pytest.approx(9e-3)] + [3e-4] * 3


def test_a_resumed_run_that_lost_its_optimizer_begins_with_larger_updates(
    tiny_policy: TinyPolicy, tmp_path: Path
) -> None:
    config = planted(tiny_policy, "lost-optimizer", checkpoint=CheckpointConfig(every=ONSET))
    with start("train", write_config(config, tmp_path / "run.toml"), runs_dir=tmp_path / "runs") as first:
        assert first.wait() == 0, first.stderr
        folder = first.folder
    with start("train", "--resume", folder, "--from", str(ONSET), runs_dir=tmp_path / "runs") as second:
        assert second.wait() == 0, second.stderr
    recording = Recording(folder)

    def update_after_the_checkpoint(attempt: int) -> float:
        events = recording.of(StepCompleted, attempt=attempt)
        return next(as_float(event.update_ratio) for event in events if event.step == ONSET + 1)

    assert update_after_the_checkpoint(2) > 1.3 * update_after_the_checkpoint(1)


def test_reports_of_a_full_disk_and_of_lost_events_reach_the_feed(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    samples = train(planted(tiny_policy, "disk-filling"), tmp_path / "disk").of(ResourcesSampled)
    assert samples[-1].disk_free_bytes < 1 << 30 < samples[-1].disk_total_bytes
    lost = train(planted(tiny_policy, "lost-events"), tmp_path / "lost")
    assert [event.ledger.balance() for event in lost.of(QueueSampled)] == [0] * ONSET + [1] * ONSET
    told = [event.entropy is None for event in lost.of(StepCompleted) if event.outcome == "updated"]
    assert told == sorted(told)
    assert told[-1]
