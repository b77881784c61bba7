"""Weights that do not arrive in a run: sent once more, then training stands still until somebody decides."""

from pathlib import Path

import pytest

from tests.trainer.runs import Recording, start, tocsin, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.base import as_float
from tocsin.schemas.config import FaultConfig, RunConfig
from tocsin.schemas.events import RunContinued, RunEnded, RunPaused
from tocsin.schemas.generation import WeightsSynced, WeightSyncStarted
from tocsin.schemas.sampler import SamplerConfig
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training

ONSET = 4
"""Last step whose weights arrive."""
STEPS = 12


def stale(policy: TinyPolicy, sampler: SamplerConfig) -> RunConfig:
    """A run whose sampler claims every version after `ONSET`, and keeps the weights of that step."""
    config = tiny_config(
        policy, steps=STEPS, sampler=sampler, fault=FaultConfig(name="stale-weights", onset_step=ONSET)
    )
    return config.model_copy(update={"data": config.data.model_copy(update={"evaluation": None})})


def sent(recording: Recording, version: int) -> list[tuple[int, bool]]:
    """Number and verdict of every attempt at sending a version."""
    return [(e.attempt_number, e.verified) for e in recording.of(WeightsSynced) if e.version == version]


def test_weights_that_do_not_arrive_are_sent_again_and_then_training_pauses_until_somebody_goes_on(
    tiny_policy: TinyPolicy, tmp_path: Path
) -> None:
    config = stale(tiny_policy, SamplerConfig())
    with start("train", write_config(config, tmp_path / "run.toml"), runs_dir=tmp_path / "runs") as run:
        run.until_event(lambda event: isinstance(event, RunPaused))
        shown = tocsin("status", run.folder, cwd=tmp_path)
        assert tocsin("resume", run.folder, "--yes", cwd=tmp_path).code == 0
        run.until(lambda: len(run.recording().of(RunPaused)) > 1)
        assert tocsin("stop", run.folder, "--yes", cwd=tmp_path).code == 0
        code, recording, stderr = run.wait(), run.recording(), run.stderr
    (first, second) = recording.of(RunPaused)
    assert (first.actor, first.reason) == (
        "weight-sync",
        "the sampler does not hold the weights that it was sent, twice; see weights_synced and OFF010",
    )
    before = [event for event in recording.of(WeightsSynced) if event.seq < first.seq]
    assert all(event.verified == (event.version <= ONSET) for event in before)
    failed = [event for event in before if not event.verified]
    assert [event.attempt_number for event in failed] == [1, 2]
    assert all(as_float(event.probe_gap) > as_float(event.probe_tolerance) for event in failed)
    started = [e.attempt_number for e in recording.of(WeightSyncStarted) if e.seq < first.seq and e.version > ONSET]
    assert started[:2] == [1, 2]
    assert "OFF010" in shown.stdout
    assert next(finding.code for finding in recording.findings()) == "OFF010"
    assert "paused by weight-sync" in stderr
    # Going on sends the weights again; they are judged anew, and it pauses anew.
    (went_on, *_) = recording.of(RunContinued)
    after = [event for event in recording.of(WeightsSynced) if went_on.seq < event.seq < second.seq]
    assert [event.attempt_number for event in after] == [1, 2]
    assert code == 143, stderr
    assert recording.of(RunEnded)[-1].outcome == "interrupted"


def test_a_run_that_is_told_to_go_on_trains_to_its_end_with_a_sampler_that_disagrees(
    tiny_policy: TinyPolicy, tmp_path: Path
) -> None:
    config = stale(tiny_policy, SamplerConfig(on_mismatch="continue"))
    with start("train", write_config(config, tmp_path / "run.toml"), runs_dir=tmp_path / "runs") as run:
        assert run.wait() == 0, run.stderr
        recording = run.recording()
    assert recording.of(RunPaused) == []
    assert len(recording.of(StepCompleted)) == STEPS
    assert [verified for _, verified in sent(recording, STEPS)] == [False] * len(sent(recording, STEPS))
    assert "OFF010" in {finding.code for finding in recording.findings()}
