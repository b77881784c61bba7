"""A healthy run from the command line to the last file, and everything that it says about itself."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.trainer.runs import Recording, start, still_alive, tocsin, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.config import EvaluationConfig
from tocsin.schemas.events import (
    CheckpointSaved,
    EvaluationCompleted,
    QueueSampled,
    RunEnded,
    RunStarted,
)
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.weights import PREFIX, SHARED_MEMORY

pytestmark = pytest.mark.training

STEPS = 40
GROUPS = 16
SIZE = 8
HELD_OUT = 128


@dataclass(frozen=True)
class Healthy:
    """The run that all tests of this file look at."""

    code: int
    recording: Recording
    children: list[psutil.Process]
    """The processes that it had started."""
    weights: list[Path]
    """Its folders in shared memory."""
    stderr: str


@pytest.fixture(scope="module")
def healthy(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    """A completed run in which nothing was wrong."""
    folder = tmp_path_factory.mktemp("healthy")
    config = tiny_config(
        tiny_policy,
        steps=STEPS,
        knobs={"groups_per_step": GROUPS, "group_size": SIZE},
        evaluation=EvaluationConfig(every=20, prompts=HELD_OUT),
    )
    with start("train", write_config(config, folder / "run.toml"), runs_dir=folder / "runs") as run:
        run.until_step(2)
        children = run.children()
        weights = list(SHARED_MEMORY.glob(f"{PREFIX}{run.process.pid}-*"))
        return Healthy(run.wait(), run.recording(), children, weights, run.stderr)


def test_a_run_that_completes_exits_with_0_and_says_so_last(healthy: Healthy) -> None:
    assert healthy.code == 0, healthy.stderr
    first, last = healthy.recording.events[0], healthy.recording.events[-1]
    assert isinstance(first, RunStarted)
    assert (first.num_steps, first.step, first.knobs["group_size"]) == (STEPS, 0, SIZE)
    assert isinstance(last, RunEnded)
    assert (last.outcome, last.error, last.step) == ("completed", None, STEPS)


def test_the_held_out_pass_rate_rises_by_more_than_chance(healthy: Healthy) -> None:
    evaluations = healthy.recording.of(EvaluationCompleted)
    assert [(event.version, event.n, event.failed) for event in evaluations] == [
        (0, HELD_OUT, 0),
        (20, HELD_OUT, 0),
        (STEPS, HELD_OUT, 0),
    ]
    first, last = evaluations[0], evaluations[-1]
    error = np.hypot(as_float(first.pass_rate_se or 0), as_float(last.pass_rate_se or 0))
    assert as_float(last.pass_rate or 0) - as_float(first.pass_rate or 0) > 4 * error > 0


def test_events_are_numbered_without_gaps_and_steps_never_go_back(healthy: Healthy) -> None:
    events = healthy.recording.events
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(before.step <= after.step for before, after in pairwise(events))
    assert [event.step for event in healthy.recording.of(StepCompleted)] == list(range(1, STEPS + 1))
    assert [event.step for event in healthy.recording.of(BatchConsumed)] == list(range(STEPS))


def test_the_ledger_accounts_for_every_group_at_every_step(healthy: Healthy) -> None:
    ledgers = [event.ledger for event in healthy.recording.of(QueueSampled)]
    assert [ledger.balance() for ledger in ledgers] == [0] * STEPS
    assert [ledger.consumed for ledger in ledgers] == [GROUPS * step for step in range(1, STEPS + 1)]
    assert ledgers[-1].failed == {}
    assert ledgers[-1].launched == ledgers[-1].consumed, "nothing is generated for steps after the last one"


def test_every_group_is_trained_on_exactly_once(healthy: Healthy) -> None:
    consumed = [index for event in healthy.recording.of(BatchConsumed) for index in event.groups.group_index]
    assert consumed == list(range(GROUPS * STEPS))


def test_no_group_is_staler_than_the_bound_and_staleness_is_used(healthy: Healthy) -> None:
    stale = [value for event in healthy.recording.of(BatchConsumed) for value in event.groups.staleness]
    assert set(stale) == {0, 1}  # the first step can only be on-policy
    assert {event.max_staleness for event in healthy.recording.of(BatchConsumed)} == {1}


def test_every_sync_is_proved_by_the_probe(healthy: Healthy) -> None:
    syncs = healthy.recording.of(WeightsSynced)
    assert [event.version for event in syncs] == list(range(STEPS + 1))
    assert all(event.verified for event in syncs)
    assert max(as_float(event.probe_gap) for event in syncs) < as_float(syncs[0].probe_tolerance) / 2
    # A probe that could not see an update would prove nothing.
    moved = [as_float(event.probe_moved) for event in syncs[1:]]
    assert float(np.median(moved)) > as_float(syncs[0].probe_tolerance)


def test_waits_are_parts_of_the_step(healthy: Healthy) -> None:
    completed = healthy.recording.of(StepCompleted)
    sampled = healthy.recording.of(QueueSampled)
    assert [event.seconds["total"] for event in completed] == [event.step_s for event in sampled]
    for event in completed:
        assert sum(value for name, value in event.seconds.items() if name != "total") <= event.seconds["total"] * 1.001


def test_the_groups_of_a_step_were_generated_and_scored_before_the_step_ended(healthy: Healthy) -> None:
    for event in healthy.recording.of(QueueSampled):
        assert event.generating is not None
        assert event.scoring is not None
        assert event.generating.began < event.scoring.began < event.scoring.ended < event.mono
        assert event.generating.began < event.generating.ended <= event.scoring.ended


def test_a_healthy_run_raises_no_alarm(healthy: Healthy) -> None:
    assert [(record.code, record.summary) for record in healthy.recording.findings()] == []


def test_every_completion_is_kept_with_the_reward_that_the_events_report(healthy: Healthy) -> None:
    rows = healthy.recording.rollouts()
    assert len(rows) == STEPS * GROUPS * SIZE
    rewards = np.array([row["reward"] for row in rows]).reshape(STEPS * GROUPS, SIZE)
    reported = [as_float(mean) for event in healthy.recording.of(BatchConsumed) for mean in event.groups.reward_mean]
    assert rewards.mean(1).tolist() == pytest.approx(reported)
    right = [float(row["completion"] == "".join(sorted(row["prompt"].rstrip(">")))) for row in rows]
    assert [row["reward"] for row in rows] == right


def test_the_last_checkpoint_is_a_model_that_transformers_loads(healthy: Healthy) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  seconds of import

    (saved,) = healthy.recording.of(CheckpointSaved)
    folder = healthy.recording.folder / saved.path
    prompt = AutoTokenizer.from_pretrained(folder)("402917>", return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(folder)
    answer = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert AutoTokenizer.from_pretrained(folder).decode(answer, skip_special_tokens=True) == "012479"


def test_nothing_is_left_behind_in_processes_or_shared_memory(healthy: Healthy) -> None:
    assert len(healthy.children) >= 3
    assert still_alive(healthy.children) == []
    assert len(healthy.weights) == 1
    assert not healthy.weights[0].exists()


def test_status_reads_the_ended_run_as_clear(healthy: Healthy) -> None:
    done = tocsin("status", healthy.recording.folder, "--json", cwd=healthy.recording.folder)
    assert (done.code, done.stderr) == (0, "")
    line = json.loads(done.stdout.splitlines()[0])
    assert (line["writer"]["state"], line["writer"]["step"]) == ("ended", STEPS)


def test_replay_of_the_events_gives_the_feed_again(healthy: Healthy) -> None:
    done = tocsin("replay", healthy.recording.folder, "--json", cwd=healthy.recording.folder)
    assert done.code == 0
    live = (healthy.recording.folder / "feed.jsonl").read_text().splitlines()[1:]
    written_only = {"seq", "run_id"}
    again = [json.loads(line) for line in done.stdout.splitlines()]
    assert [{k: v for k, v in record.items() if k not in written_only} for record in again] == [
        {k: v for k, v in json.loads(line).items() if k not in written_only} for line in live
    ]


def test_the_summary_says_what_was_learned_and_where_the_files_are(healthy: Healthy) -> None:
    assert f"completed at step {STEPS} of {STEPS}" in healthy.stderr
    assert "held-out pass rate" in healthy.stderr
    assert healthy.recording.folder.name in healthy.stderr
    assert "Traceback" not in healthy.stderr
