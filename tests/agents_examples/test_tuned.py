"""Training with a policy of one's own: the program as it stands, with the fault that it plants."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents_examples import tuned
from tests.agents_examples.wasteful import CURE, EXAMPLES, actions, states
from tests.diagnostics.run_folder import Run, example
from tests.diagnostics.tuning import LOWER, finding, now, patch
from tests.trainer.runs import PATIENCE_S, Recording
from tocsin.diagnostics.autotune import Autotune
from tocsin.diagnostics.rules.lr_too_high import LrTooHigh
from tocsin.diagnostics.runs import list_runs, read_manifest
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.autotune import AutotuneConfig
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.events import KnobChanged
from tocsin.trainer.tuner import make_policy


@pytest.mark.training
def test_the_night_shift_lowers_a_rate_that_is_too_high_and_raises_nothing(tmp_path: Path):
    command = [sys.executable, str(EXAMPLES / "tuned.py"), "--steps", "60", "--runs-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = list_runs(tmp_path)
    autotune = read_manifest(folder).config.autotune
    assert autotune is not None
    assert autotune.policy == "tuned:NightShift"

    recording = Recording(folder)
    planted, cured = recording.of(KnobChanged)
    assert (planted.actor, planted.after) == ("fault:lr-too-high", pytest.approx(3e-3))
    assert (cured.path, cured.actor) == ("learning_rate", "autotune")
    assert cured.after <= planted.after / LrTooHigh().factor, "by as much as its updates were too large, at least"
    lived = states(folder, "lr-too-high/learner#1/lower-learning-rate", "autotune")
    assert lived[:2] == ["approved", "applied"]
    assert lived[2] in ("target_met", "inconclusive"), "it has its verdict"
    (refused,) = [record for record in actions(folder) if record.action_id == CURE]
    assert (refused.state, refused.note) == ("rejected", "the night shift raises no knob")
    rewards = [as_float(batch.reward_mean) for batch in recording.of(BatchConsumed)[-8:]]
    assert sum(rewards) / 8 > 0.3, "with nobody acting it is near 0 by then"
    assert "learning_rate 0.003 -> " in done.stdout
    assert "the night shift raises no knob" in done.stdout


def test_a_configuration_names_the_policy_by_its_import_path():
    allow = {"POL014": ["learning_rate"]}
    config = AutotuneConfig(mode="on", policy="agents_examples.tuned:NightShift", allow=allow)
    policy = make_policy(config)
    assert isinstance(policy, Autotune)
    higher = LOWER.model_copy(update={"patches": [patch("learning_rate", 1e-3, 2e-3)]})
    assert policy.objection(finding("POL014", higher), higher, now()) == "the night shift raises no knob"
    assert policy.objection(finding("POL014", LOWER), LOWER, now()) is None


def test_it_tells_of_its_own_run_though_another_one_began_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def new_run(config: Any, runs_dir: Path, name: str, prepare: Callable[[Path, Any], Any]) -> int:
        for run_id, actor in (("1-mine", "autotune"), ("2-newer", "agent:other")):
            run = Run(runs_dir, run_id)
            run.writer.record(example(ActionRecord, actor=actor))
            run.kill()
        prepare(runs_dir / "1-mine", None)
        return 0

    monkeypatch.setattr(tuned, "new_run", new_run)
    monkeypatch.setattr(tuned, "prepare_demo", lambda *_, **__: None)
    assert tuned.main(["--runs-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "by autotune" in out


def test_a_run_that_was_interrupted_before_it_began_leaves_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    older = Run(tmp_path, "older")
    older.writer.record(example(ActionRecord))
    older.kill()

    def new_run(config: Any, runs_dir: Path, name: str, prepare: Callable[[Path, Any], Any]) -> int:
        prepare(runs_dir / "removed", None)
        return 130

    monkeypatch.setattr(tuned, "new_run", new_run)
    monkeypatch.setattr(tuned, "prepare_demo", lambda *_, **__: None)
    assert tuned.main(["--runs-dir", str(tmp_path)]) == 130
    assert capsys.readouterr().out == ""
