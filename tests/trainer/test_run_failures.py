"""Processes that die, reward functions that misbehave, rows that cannot be used: a run outlives what it can."""

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import Finished, LiveRun, Recording, start, still_alive, tocsin, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.config import CheckpointConfig, EvaluationConfig, RewardConfig, RewardWorkerConfig, RunConfig
from tocsin.schemas.events import (
    ComponentHeartbeat,
    EvaluationCompleted,
    QueueSampled,
    RolloutFailed,
    RunEnded,
)
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training

GROUPS = 4
STEPS = 12
STRUCK_STEPS = 40

REWARDS = '''
import math
import sys
import time


def score(completions, prompts, trouble):
    """1 for every completion, except in the rows that say what goes wrong."""
    what = trouble[0]
    print("to standard output")
    print("to standard error", file=sys.stderr)
    if what == "raise":
        raise RuntimeError("cannot score this row")
    if what == "hang":
        time.sleep(600)
    if what == "nan":
        return [math.nan for _ in completions]
    if what == "none":
        return [None for _ in completions]
    if what == "short":
        return [1.0 for _ in completions][1:]
    if what == "one":
        return [math.nan, *[float(index) for index in range(1, len(completions))]]
    return [float(index) + 1 for index in range(len(completions))]


def always_raises(completions):
    raise RuntimeError("no reward today")


def slow(completions, answer):
    time.sleep(0.05)
    return [float(completion == right) for completion, right in zip(completions, answer)]
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a module of reward functions."""
    folder = tmp_path_factory.mktemp("failures")
    (folder / "mine.py").write_text(REWARDS)
    return folder


def without_evaluation(config: RunConfig, **data: str) -> RunConfig:
    """`config` with other data and no held-out prompts."""
    return config.model_copy(update={"data": config.data.model_copy(update={"evaluation": None, **data})})


@dataclass(frozen=True)
class Struck:
    """A run whose rollout process, sampler and reward worker were killed one after the other."""

    code: int
    recording: Recording
    second: Finished
    """A second `tocsin train --resume` while it ran."""
    stderr: str
    left: list[Any]


def strike(run: LiveRun, component: str) -> None:
    """Kill -9 one component, and wait until the run has gone on for two steps after that."""
    before = run.last_step()
    run.component(component).kill()
    run.until_step(before + 3)


@pytest.fixture(scope="module")
def struck(tiny_policy: TinyPolicy, folder: Path) -> Struck:
    """A run that loses each of its processes once."""
    config = tiny_config(
        tiny_policy,
        steps=STRUCK_STEPS,
        rewards=[RewardConfig(function="mine:slow", range=(0.0, 1.0))],
        knobs={"groups_per_step": GROUPS},
        checkpoint=CheckpointConfig(every=1),
        evaluation=EvaluationConfig(every=0, prompts=32),
    )
    with start("train", write_config(config, folder / "struck.toml"), runs_dir=folder / "struck") as run:
        run.until_step(2)
        second = tocsin("train", "--resume", run.folder, cwd=folder)
        strike(run, "reward")
        strike(run, "sampler")
        strike(run, "rollout")
        children = run.children()
        code = run.wait()
        return Struck(code, run.recording(), second, run.stderr, still_alive(children))


def test_a_run_that_loses_each_of_its_processes_completes(struck: Struck) -> None:
    assert struck.code == 0, struck.stderr
    assert [event.step for event in struck.recording.of(StepCompleted)] == list(range(1, STRUCK_STEPS + 1))
    (ended,) = struck.recording.of(RunEnded)
    assert ended.outcome == "completed"
    assert struck.left == []


def test_every_death_and_restart_is_an_event(struck: Struck) -> None:
    beats = struck.recording.of(ComponentHeartbeat)
    # How often it says that it is alive depends on how long the restarts take.
    news = [(event.component, event.state) for event in beats if not event.is_routine]
    assert Counter(news) == {
        ("rollout", "started"): 2,
        ("rollout", "died"): 1,
        ("rollout", "restarted"): 1,
        ("sampler", "died"): 1,
        ("sampler", "restarted"): 1,
    }
    (lost,) = struck.recording.of(RolloutFailed)
    # A killed reward worker looks like a reward function that ends its process, so the group is not tried again.
    assert (lost.cause, lost.whole_group, lost.completions) == ("reward_error", True, 4)
    assert "killed by SIGKILL" in lost.error


def test_groups_that_were_in_flight_are_issued_again_and_trained_once(struck: Struck) -> None:
    ledgers = [event.ledger for event in struck.recording.of(QueueSampled)]
    assert {ledger.balance() for ledger in ledgers} == {0}
    assert ledgers[-1].consumed == GROUPS * STRUCK_STEPS
    assert ledgers[-1].failed["reward_error"] == 1
    assert ledgers[-1].failed["worker_died"] >= 1
    consumed = [index for event in struck.recording.of(BatchConsumed) for index in event.groups.group_index]
    assert len(consumed) == len(set(consumed)) == GROUPS * STRUCK_STEPS
    assert max(value for event in struck.recording.of(BatchConsumed) for value in event.groups.staleness) <= 1


def test_the_weights_of_a_new_sampler_are_proved_like_all_others(struck: Struck) -> None:
    syncs = struck.recording.of(WeightsSynced)
    versions = [event.version for event in syncs]
    assert list(dict.fromkeys(versions)) == list(range(STRUCK_STEPS + 1))
    assert versions == sorted(versions), "a sampler that came back is proved by the weights that it got"
    assert all(event.verified for event in syncs)


def test_the_evaluations_of_a_struck_run_are_complete(struck: Struck) -> None:
    assert [event.version for event in struck.recording.of(EvaluationCompleted)] == [0, STRUCK_STEPS]


def test_a_run_that_goes_on_cannot_be_taken_up_by_somebody_else(struck: Struck) -> None:
    assert struck.second.code == 2
    assert "must have one writer, and process" in struck.second.stderr
    assert "wait for that run to end or stop it" in struck.second.stderr
    assert len(struck.second.stderr.splitlines()) == 1
    assert not struck.second.imported_torch
    assert {event.attempt for event in struck.recording.events} == {1}


TROUBLE = ("raise", "hang", "nan", "none", "short", "one")


@dataclass(frozen=True)
class Troubled:
    """A run whose data and reward function are bad in places."""

    code: int
    recording: Recording
    rows: dict[str, str]
    """Trouble by prompt id prefix: the row number."""


@pytest.fixture(scope="module")
def troubled(tiny_policy: TinyPolicy, folder: Path) -> Troubled:
    """Six rows in trouble, three that cannot be used, and thirty good ones; more than one epoch."""
    good = [json.loads(line) for line in tiny_policy.train.read_text().splitlines()[:36]]
    kinds = dict(enumerate(TROUBLE, start=3))
    lines = [json.dumps({**row, "trouble": kinds.get(n, "")}) for n, row in enumerate(good, start=1)]
    lines += ['{"prompt": "123', json.dumps({"prompt": "", "trouble": ""}), json.dumps({"prompt": "1" * 70 + ">"})]
    (folder / "troubled.jsonl").write_text("\n".join(lines) + "\n")
    config = without_evaluation(
        tiny_config(
            tiny_policy,
            steps=STEPS,
            rewards=[RewardConfig(function="mine:score", range=(0.0, 4.0))],
            reward_workers=RewardWorkerConfig(timeout_s=1.5),
            knobs={"groups_per_step": GROUPS},
        ),
        train=str(folder / "troubled.jsonl"),
    )
    with start("train", write_config(config, folder / "troubled.toml"), runs_dir=folder / "troubled") as run:
        code = run.wait()
        return Troubled(code, run.recording(), {str(number): kind for number, kind in kinds.items()})


def test_a_run_with_bad_rows_and_rewards_completes(troubled: Troubled) -> None:
    assert troubled.code == 0
    assert [event.step for event in troubled.recording.of(StepCompleted)] == list(range(1, STEPS + 1))
    ledger = troubled.recording.of(QueueSampled)[-1].ledger
    assert (ledger.balance(), ledger.consumed) == (0, GROUPS * STEPS)


def test_each_trouble_has_its_cause(troubled: Troubled) -> None:
    failed = [event for event in troubled.recording.of(RolloutFailed) if event.group_index is not None]
    causes: dict[str, set[tuple[str, bool, int]]] = {}
    for event in failed:
        kind = troubled.rows[event.prompt_id.partition("-")[0]]
        causes.setdefault(kind, set()).add((event.cause, event.whole_group, event.completions))
    assert causes == {
        "raise": {("reward_error", True, 4)},
        "hang": {("reward_timeout", True, 4)},
        "nan": {("reward_invalid", True, 4)},
        "none": {("reward_invalid", True, 4)},
        "short": {("reward_error", True, 4)},
        "one": {("reward_invalid", False, 1)},
    }


def test_a_failure_never_becomes_a_reward(troubled: Troubled) -> None:
    bad = {number for number, kind in troubled.rows.items() if kind != "one"}
    rows = troubled.recording.rollouts()
    assert {row["prompt_id"].partition("-")[0] for row in rows} & bad == set()
    assert 0.0 not in {row["reward"] for row in rows}
    (partly,) = (number for number, kind in troubled.rows.items() if kind == "one")
    kept = [row["reward"] for row in rows if row["prompt_id"].startswith(f"{partly}-")]
    assert kept[:3] == [1.0, 2.0, 3.0]
    sizes = {
        size: failed
        for event in troubled.recording.of(BatchConsumed)
        for size, failed in zip(event.groups.size, event.groups.num_failed, strict=True)
    }
    assert sizes == {4: 0, 3: 1}


def test_rows_that_cannot_be_used_are_reported_once_and_never_sampled(troubled: Troubled) -> None:
    refused = [event for event in troubled.recording.of(RolloutFailed) if event.group_index is None]
    assert [(event.cause, event.prompt_id, event.completions) for event in refused] == [
        ("bad_row", "37-refused", 0),
        ("bad_row", "38-refused", 0),
        ("prompt_too_long", "39-refused", 0),
    ]
    consumed = {prompt for event in troubled.recording.of(BatchConsumed) for prompt in event.groups.prompt_id}
    assert all(int(prompt.partition("-")[0]) <= 36 for prompt in consumed)


def test_a_failed_group_is_replaced_for_the_same_step(troubled: Troubled) -> None:
    assert [len(event.groups.size) for event in troubled.recording.of(BatchConsumed)] == [GROUPS] * STEPS
    indices = [index for event in troubled.recording.of(BatchConsumed) for index in event.groups.group_index]
    assert len(indices) == len(set(indices))
    assert max(value for event in troubled.recording.of(BatchConsumed) for value in event.groups.staleness) <= 1


def test_a_reward_that_always_raises_ends_the_run_with_its_message(tiny_policy: TinyPolicy, folder: Path) -> None:
    config = without_evaluation(
        tiny_config(
            tiny_policy,
            rewards=[RewardConfig(function="mine:always_raises")],
            reward_workers=RewardWorkerConfig(max_consecutive_failures=6),
        )
    )
    with start("train", write_config(config, folder / "always.toml"), runs_dir=folder / "always") as run:
        assert run.wait() == 1
        recording, stderr = run.recording(), run.stderr
    (ended,) = recording.of(RunEnded)
    assert ended.outcome == "failed"
    assert ended.error is not None
    assert "6 groups in a row could not be scored" in ended.error
    assert "no reward today" in ended.error
    assert "no reward today" in stderr
    assert "Traceback" not in stderr
    assert recording.of(StepCompleted) == []
    assert {event.cause for event in recording.of(RolloutFailed)} == {"reward_error"}
    assert tocsin("status", recording.folder, cwd=folder).code == 1


@pytest.mark.parametrize("struck", ["removed", "blocked"])
def test_a_run_that_cannot_write_fails_with_one_line_and_its_summary(
    tiny_policy: TinyPolicy, folder: Path, struck: str
) -> None:
    config = without_evaluation(tiny_config(tiny_policy, steps=30, checkpoint=CheckpointConfig(every=30)))
    with start("train", write_config(config, folder / f"{struck}.toml"), runs_dir=folder / struck) as run:
        run.until_step(2)
        place = run.folder
        if struck == "removed":
            # The run may put a file there between the last look and the removal.
            while place.exists():
                shutil.rmtree(place, ignore_errors=True)
        else:
            (place / "checkpoints").write_text("in the way")
        assert run.wait() == 1
        stderr = run.stderr
    assert "Traceback" not in stderr
    assert "failed at step" in stderr
    words = "is gone: it was removed or moved" if struck == "removed" else "could not be written: "
    assert words in " ".join(stderr.split())
    assert place.exists() == (struck == "blocked")
