"""Runs that are stopped before they have begun."""

import signal
from pathlib import Path

import pytest

from tests.trainer.runs import Recording, start, still_alive, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.base import as_float
from tocsin.schemas.config import FaultConfig
from tocsin.schemas.events import CheckpointSaved, EvaluationCompleted, QueueSampled, RunEnded
from tocsin.schemas.generation import WeightSyncStarted
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training


def test_ctrl_c_during_start_up_ends_at_once_and_leaves_nothing(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    config = write_config(tiny_config(tiny_policy), tmp_path / "early.toml")
    with start("train", config, runs_dir=tmp_path / "early", fork=False) as run:
        run.component("sampler")
        children = run.children()
        run.press_ctrl_c()
        assert run.wait() == 128 + signal.SIGINT
        assert "Traceback" not in run.stderr
    assert list((tmp_path / "early").iterdir()) == []
    assert still_alive(children) == []


def test_sigterm_while_the_demo_pre_trains_ends_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with start("demo", runs_dir=tmp_path / "demo") as run:
        run.until(lambda: list((tmp_path / "demo").glob("*/data/train.jsonl")))
        children = run.children()
        run.interrupt(signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM
        assert "Traceback" not in run.stderr
    assert list((tmp_path / "demo").iterdir()) == []
    assert still_alive(children) == []


def test_sigterm_ends_a_run_that_waits_for_a_sampler_which_never_takes_its_weights(
    tiny_policy: TinyPolicy, tmp_path: Path
) -> None:
    fault = FaultConfig(name="hung-sync", onset_step=2)
    config = write_config(tiny_config(tiny_policy, fault=fault), tmp_path / "hung.toml")
    with start("train", config, runs_dir=tmp_path / "hung") as run:
        run.until_event(lambda event: isinstance(event, WeightSyncStarted) and event.version > 2)
        run.until_step(3)
        children = run.children()
        run.interrupt(signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM, run.stderr
        recording = run.recording()
    (ended,) = recording.of(RunEnded)
    assert ended.outcome == "interrupted"
    assert still_alive(children) == []
    # A step that was made is on record, also when the stop came while its weights were waited for.
    (saved,) = recording.of(CheckpointSaved)
    steps = list(range(1, saved.step + 1))
    assert [event.step for event in recording.of(StepCompleted)] == steps
    assert [event.step for event in recording.of(QueueSampled)] == steps


def test_a_stop_before_the_first_step_can_be_resumed(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    runs_dir = tmp_path / "first"
    # A first batch that takes its time, so that the stop comes before the first step.
    config = tiny_config(tiny_policy, fault=FaultConfig(name="slow-sampler", onset_step=0))
    with start("train", write_config(config, tmp_path / "first.toml"), runs_dir=runs_dir) as run:
        run.until(lambda: any(runs_dir.glob("*/policy/tokenizer.json")))
        run.until_event(lambda event: event.type == "run_started")
        run.press_ctrl_c()
        assert run.wait() == 128 + signal.SIGINT, run.stderr
        recording = run.recording()
    (saved,) = recording.of(CheckpointSaved)
    assert saved.step <= 1
    with start("train", "--resume", "latest", runs_dir=runs_dir) as again:
        assert again.wait() == 0, again.stderr
    recording = Recording(recording.folder)
    assert [event.step for event in recording.of(StepCompleted)] == list(range(1, 13))
    first = recording.of(EvaluationCompleted)[0]
    # Weights that were replaced before their evaluation came back cannot be evaluated any more.
    assert first.version == 0 or saved.step == 1
    assert as_float(first.reward_mean) > 0
