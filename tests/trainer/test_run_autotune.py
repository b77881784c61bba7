"""Runs that act on their own findings: a pretended device of which a small token budget leaves most unused."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import Recording, start, tocsin, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.diagnostics.feed import FEED_FILE, parse_record
from tocsin.diagnostics.runs import read_manifest
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.autotune import AutotuneConfig
from tocsin.schemas.config import CheckpointConfig, DeviceConfig, EvaluationConfig, RunConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.events import ControlAnswered, KnobChanged
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training

FINDING = "vram-underused/learner#1"


def wasteful(policy: TinyPolicy, *, steps: int, **autotune: Any) -> RunConfig:
    """16 completions of some 15 padded tokens in micro-batches of two, on a device with room for 500 tokens."""
    return tiny_config(
        policy,
        steps=steps,
        knobs={"microbatch_tokens": 32, "skip_zero_spread": False},
        device=DeviceConfig(learner="cpu", sampler="cpu", simulated_memory_gib=2),
        evaluation=EvaluationConfig(every=0, prompts=4),
        checkpoint=CheckpointConfig(every=20),
        autotune=AutotuneConfig.model_validate(autotune),
    )


def story(recording: Recording) -> list[Diagnostic | ActionRecord]:
    """What the feed says about the finding and what was done about it."""
    records = map(parse_record, (recording.folder / FEED_FILE).read_bytes().splitlines()[1:])
    return [
        record
        for record in records
        if (isinstance(record, Diagnostic) and record.id == FINDING)
        or (isinstance(record, ActionRecord) and record.diagnostic_id == FINDING)
    ]


@pytest.fixture(scope="module")
def tuned(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A run that may raise its budget, and does."""
    allowed = {"SYS001": ["microbatch_tokens"]}
    folder = tmp_path_factory.mktemp("tuned")
    config = write_config(wasteful(tiny_policy, steps=140, mode="on", allow=allowed), folder / "run.toml")
    with start("train", config, runs_dir=folder / "runs") as run:
        run.patience_s *= 3
        assert run.wait() == 0, run.stderr
        return run.recording()


def test_the_feed_reads_cause_warning_change_effect(tuned: Recording) -> None:
    first = story(tuned)[0]
    assert isinstance(first, Diagnostic)
    assert (first.code, first.severity) == ("SYS001", "warning")
    told = [(record.record, record.state) for record in story(tuned)]
    assert told[:3] == [("diagnostic", "firing"), ("action", "approved"), ("action", "applied")]
    verdicts = [record.note for record in story(tuned) if record.state in ("target_met", "inconclusive", "no_effect")]
    assert verdicts[0].startswith("resources_sampled")


def test_the_learner_uses_what_the_tuner_set_and_the_request_went_through_the_door(tuned: Recording) -> None:
    changes = tuned.of(KnobChanged)
    assert (changes[0].path, changes[0].before, changes[0].after) == ("microbatch_tokens", 32, 128)
    assert {change.actor for change in changes} == {"autotune"}
    budgets = {e.step: e.microbatches.token_budget for e in tuned.of(StepCompleted) if e.microbatches}
    assert {budget for step, budget in budgets.items() if step <= changes[0].step} == {32}
    after = changes[1].step if len(changes) > 1 else max(budgets)
    assert {budget for step, budget in budgets.items() if changes[0].step < step <= after} == {128}
    answers = {e.request_id: e for e in tuned.of(ControlAnswered)}
    assert all(answers[change.request_id or ""].verb == "act" for change in changes)
    done = tuned.folder / "control" / "done"
    assert {path.stem for path in done.iterdir()} == set(answers)


def test_what_is_not_enough_is_followed_by_more_once_the_pipeline_has_had_its_time(tuned: Recording) -> None:
    first, second = tuned.of(KnobChanged)[:2]
    assert second.before == first.after == 128
    assert second.after > 128
    assert second.step >= first.step + 20


def test_a_replay_of_the_events_says_what_the_live_feed_said(tuned: Recording) -> None:
    def contents(lines: list[str]) -> list[dict[str, Any]]:
        return [{k: v for k, v in json.loads(line).items() if k not in ("seq", "run_id")} for line in lines]

    replayed = tocsin("replay", tuned.folder / "events.jsonl", "--json", cwd=tuned.folder)
    live = contents((tuned.folder / FEED_FILE).read_text().splitlines()[1:])
    assert contents(replayed.stdout.splitlines()) == live
    assert "applied" in {record.get("state") for record in live}


def test_a_dry_run_leaves_everything_as_it_is_and_a_resume_may_turn_it_on(
    tiny_policy: TinyPolicy, tmp_path: Path
) -> None:
    config = write_config(wasteful(tiny_policy, steps=100_000), tmp_path / "run.toml")
    with start("train", config, runs_dir=tmp_path / "runs") as run:
        run.patience_s *= 3
        run.until_step(58)
        run.interrupt()
        assert run.wait() == 130
        dry = run.recording()
    assert [record.state for record in story(dry)] == ["firing", "dry_run", "firing"]
    assert dry.of(KnobChanged) == []
    assert tocsin("train", "--resume", dry.folder, "--autotune", "on", cwd=tmp_path).code == 2, "nothing is allowed"
    assert read_manifest(dry.folder).config.autotune == AutotuneConfig()
