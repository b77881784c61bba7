"""Runs that are stopped before they have begun."""

import signal
from pathlib import Path

import pytest

from tests.trainer.runs import Recording, start, still_alive, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.base import as_float
from tocsin.schemas.events import (
    CheckpointSaved,
    EvaluationCompleted,
)
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training


def test_ctrl_c_during_start_up_ends_at_once_and_leaves_nothing(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    with start(
        "train", write_config(tiny_config(tiny_policy), tmp_path / "early.toml"), runs_dir=tmp_path / "early"
    ) as run:
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


def test_a_stop_before_the_first_step_can_be_resumed(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    runs_dir = tmp_path / "first"
    with start("train", write_config(tiny_config(tiny_policy), tmp_path / "first.toml"), runs_dir=runs_dir) as run:
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
    assert (first.version, as_float(first.reward_mean) > 0) == (0, True)
