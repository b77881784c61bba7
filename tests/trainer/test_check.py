"""`tocsin check` at the command line, and the same gates at the start of a run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.trainer.runs import Finished, Recording, start, tocsin, tocsin_forked, train, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.base import as_float
from tocsin.schemas.check import CheckReport
from tocsin.schemas.config import CheckpointConfig, DeviceConfig, FaultConfig, ModelConfig, RewardConfig, RunConfig
from tocsin.schemas.events import RunEnded
from tocsin.schemas.export import schema
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training

NAMES = [
    "configuration",
    "prompts",
    "disk",
    "memory",
    "chat template",
    "rewards",
    "end of sequence",
    "vocabulary",
    "log-probs",
    "weights",
]


def checked(config: RunConfig, folder: Path, *arguments: str) -> Finished:
    done = tocsin_forked("check", write_config(config, folder / "run.toml"), *arguments, cwd=folder)
    assert not (folder / "runs").exists(), "a check leaves no run behind"
    assert "Traceback" not in done.stderr
    return done


def report(done: Finished) -> CheckReport:
    document = json.loads(done.stdout)
    Draft202012Validator(schema("check_report")).validate(document)
    return CheckReport.model_validate(document)


def test_every_gate_passes_on_a_sound_configuration(tiny_policy: TinyPolicy, tmp_path: Path):
    done = checked(tiny_config(tiny_policy), tmp_path)
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("  ")[:2] for line in lines[:-1]] == [["pass", name] for name in NAMES]
    assert "exact: 8 of 8 right answers pass, 0 of 8 wrong ones" in done.stdout
    assert "at most 0.01 allowed" in done.stdout
    assert lines[-1] == "10 gates, none failed"
    assert "[tocsin] loading the sampler" in done.stderr


def test_json_is_one_valid_document_and_says_what_failed(tiny_policy: TinyPolicy, tmp_path: Path):
    """With weights that the sampler claims to take, a real fault of the trainer."""
    config = tiny_config(tiny_policy, fault=FaultConfig(name="stale-weights", onset_step=0))
    done = checked(config, tmp_path, "--json", "--set", "group_size=2")
    assert done.code == 1, done.stderr
    seen = report(done)
    assert not seen.passed
    assert {gate.name: gate.outcome for gate in seen.gates} == {
        name: "failed" if name == "weights" else "passed" for name in NAMES
    }
    found = {item.code: item.severity for gate in seen.gates for item in gate.findings}
    assert found == {"RWD005": "info", "OFF010": "critical"}


def test_findings_are_printed_as_lines_of_the_feed(tiny_policy: TinyPolicy, tmp_path: Path):
    done = checked(tiny_config(tiny_policy, rewards=[RewardConfig(function="exact", answer_column="no")]), tmp_path)
    assert done.code == 1
    assert "FAIL  rewards" in done.stdout
    assert "[tocsin] CRITICAL GEN011 verifier-errors: " in done.stdout
    assert done.stdout.splitlines()[-1] == "1 of 10 gates failed (1 critical)"


def test_bad_input_is_refused_like_that_of_a_run(tiny_policy: TinyPolicy, tmp_path: Path):
    for config, part in (
        (tiny_config(tiny_policy, model=ModelConfig(path="no/such/model")), "`model.path` must be"),
        (tiny_config(tiny_policy, rewards=[RewardConfig(function="nowhere:score")]), "`nowhere:score` must be"),
    ):
        done = checked(config, tmp_path)
        assert done.code == 2
        assert "gates" not in done.stdout, "there is no verdict"
        errors = [line for line in done.stderr.splitlines() if line.startswith("tocsin: ")]
        assert len(errors) == 1
        assert part in errors[0]


def test_a_sampler_that_does_not_start_fails_its_gates_and_leaves_the_others(tiny_policy: TinyPolicy, tmp_path: Path):
    config = tiny_config(tiny_policy, device=DeviceConfig(learner="cpu", sampler="mps"))
    done = tocsin("check", write_config(config, tmp_path / "run.toml"), "--json", cwd=tmp_path)
    assert done.code == 1
    gates = {gate.name: gate for gate in report(done).gates}
    assert [found.name for found in gates["log-probs"].findings] == ["sampler-failed"]
    assert "the sampler process ended with exit code 1" in gates["log-probs"].summary
    assert gates["weights"].outcome == "not_evaluated"
    assert gates["vocabulary"].summary == "13 tokens, 13 rows in the model"


@pytest.fixture
def other_eos(tiny_policy: TinyPolicy, tmp_path: Path) -> Path:
    """The policy with a generation_config.json that knows nothing of the tokenizer's end of sequence."""
    folder = tmp_path / "other-model"
    shutil.copytree(tiny_policy.model, folder)
    path = folder / "generation_config.json"
    settings: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "eos_token_id": 5}))
    return folder


def test_a_run_with_a_critical_finding_is_refused_and_leaves_no_folder(tiny_policy: TinyPolicy, tmp_path: Path):
    config = tiny_config(tiny_policy, rewards=[RewardConfig(function="exact", answer_column="no")])
    done = tocsin_forked("train", write_config(config, tmp_path / "run.toml"), cwd=tmp_path)
    assert done.code == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("tocsin: ")]
    assert len(errors) == 1
    assert "rewards: exact: 16 of 16 completions not scored (column `no` is missing" in errors[0]
    assert "correct rewards.answer_column" in errors[0]
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_run_with_a_milder_finding_shows_it_and_goes_on(tiny_policy: TinyPolicy, other_eos: Path, tmp_path: Path):
    config = tiny_config(tiny_policy, steps=2, model=ModelConfig(path=str(other_eos)))
    with start("train", write_config(config, tmp_path / "run.toml"), runs_dir=tmp_path / "runs") as run:
        assert run.wait() == 0, run.stderr
    assert "[tocsin] WARNING GEN002 eos-missing: The tokenizer ends a text with token 1" in run.stderr


def test_a_run_stops_at_its_first_sync_when_the_sampler_computes_differently(tiny_policy: TinyPolicy, tmp_path: Path):
    config = tiny_config(tiny_policy, steps=4, checkpoint=CheckpointConfig(every=2))
    recording = train(config, tmp_path)
    # The sampler's copy of the model now has another function for the same weights.
    path = recording.folder / "policy" / "config.json"
    settings: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "rms_norm_eps": 1.0}))
    with start("train", "--resume", recording.folder, "--from", "2", runs_dir=tmp_path / "runs") as run:
        assert run.wait() == 1
        stderr = " ".join(run.stderr.split())
    again = Recording(recording.folder)
    assert again.of(StepCompleted, attempt=2) == []
    gaps = [as_float(event.probe_gap) for event in again.of(WeightsSynced, attempt=2)]
    assert len(gaps) == 2, "the weights are sent twice before the run gives up"
    (ended,) = again.of(RunEnded, attempt=2)
    assert ended.outcome == "failed"
    expected = f"must agree within 0.01 nats on the first weights, got a gap of {gaps[-1]:.3g}: "
    assert expected in (ended.error or "")
    assert expected in stderr
    assert "Traceback" not in stderr
