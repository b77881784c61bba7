"""Runs that are stopped, terminated or killed, and taken up again: nothing lost, nothing twice, and bit for bit."""

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import Finished, Recording, start, still_alive, tocsin, train, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.config import CheckpointConfig, EvaluationConfig, RunConfig
from tocsin.schemas.events import (
    CheckpointSaved,
    EvaluationCompleted,
    QueueSampled,
    RunEnded,
    RunResumed,
    RunStarted,
)
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.weights import PREFIX, SHARED_MEMORY

pytestmark = pytest.mark.training

GROUPS = 4
EXACT_STEPS = 30
STALE_STEPS = 60


def exact_config(policy: TinyPolicy) -> RunConfig:
    """On-policy, so that a resumed run must equal the uninterrupted one bit for bit."""
    return tiny_config(
        policy,
        steps=EXACT_STEPS,
        knobs={"max_staleness": 0, "groups_per_step": GROUPS},
        evaluation=EvaluationConfig(every=10, prompts=32),
        checkpoint=CheckpointConfig(every=6),
    )


@dataclass(frozen=True)
class Killed:
    """A run that was interrupted by Ctrl-C, resumed, killed with signal 9, and resumed to its end."""

    recording: Recording
    interrupted: int
    """Exit code after Ctrl-C."""
    interrupted_stderr: str
    status: Finished
    """`tocsin status` after the kill."""
    feed: Finished
    """`tocsin feed` after the kill."""
    survivors: list[Any]
    """Child processes that outlived the killed run."""
    orphans: list[Path]
    """Its files in shared memory, after the next attempt began."""
    last_stderr: str


@pytest.fixture(scope="module")
def uninterrupted(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The run that the others must equal."""
    return train(exact_config(tiny_policy), tmp_path_factory.mktemp("uninterrupted"))


@pytest.fixture(scope="module")
def killed(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """The same configuration in three attempts."""
    folder = tmp_path_factory.mktemp("killed")
    runs_dir = folder / "runs"
    with start("train", write_config(exact_config(tiny_policy), folder / "run.toml"), runs_dir=runs_dir) as first:
        first.until_step(2)
        first.press_ctrl_c()
        interrupted = first.wait()
        run = first.folder
    with start("train", "--resume", "latest", runs_dir=runs_dir) as second:
        second.until_event(lambda event: event.attempt == 2 and event.step >= 13)
        children = second.children()
        second.interrupt(signal.SIGKILL)
        assert second.wait() == -signal.SIGKILL
        survivors = still_alive(children)
    status = tocsin("status", run, "--json", cwd=folder)
    feed = tocsin("feed", run, "--json", cwd=folder)
    with start("train", "--resume", run, runs_dir=runs_dir) as third:
        third.until_event(lambda event: event.attempt == 3)
        orphans = list(SHARED_MEMORY.glob(f"{PREFIX}{second.process.pid}-*"))
        assert third.wait() == 0, third.stderr
    return Killed(Recording(run), interrupted, first.stderr, status, feed, survivors, orphans, third.stderr)


def surviving(recording: Recording) -> dict[int, BatchConsumed]:
    """By step, the batch that the final weights come from: that of the newest attempt."""
    return {event.step: event for event in recording.of(BatchConsumed)}


def test_a_step_without_staleness_trains_on_its_own_weights_only(uninterrupted: Recording) -> None:
    batches = uninterrupted.of(BatchConsumed)
    assert [event.step for event in batches] == list(range(EXACT_STEPS))
    assert {value for event in batches for value in event.groups.staleness} == {0}
    ratios = [moments for event in uninterrupted.of(StepCompleted) for moments in event.ratio]
    assert max(abs(as_float(moments.mean) - 1) for moments in ratios) < 1e-5


def test_a_run_in_three_attempts_ends_with_the_very_same_weights(uninterrupted: Recording, killed: Killed) -> None:
    name = f"checkpoints/step-{EXACT_STEPS:06d}/model.safetensors"
    assert (killed.recording.folder / name).read_bytes() == (uninterrupted.folder / name).read_bytes()


def test_a_run_in_three_attempts_saw_the_very_same_completions(uninterrupted: Recording, killed: Killed) -> None:
    columns = ("step", "group_index", "prompt_id", "completion", "reward", "advantage", "logprob_mean")
    once = [[row[name] for name in columns] for row in uninterrupted.rollouts()]
    assert [[row[name] for name in columns] for row in killed.recording.rollouts()] == once
    rewards = {step: event.groups.reward_mean for step, event in surviving(uninterrupted).items()}
    assert {step: event.groups.reward_mean for step, event in surviving(killed.recording).items()} == rewards


def test_ctrl_c_saves_a_checkpoint_and_says_how_to_go_on(killed: Killed) -> None:
    assert killed.interrupted == 128 + signal.SIGINT
    (ended,) = killed.recording.of(RunEnded, attempt=1)
    assert (ended.outcome, ended.error) == ("interrupted", None)
    (saved,) = killed.recording.of(CheckpointSaved, attempt=1)[-1:]
    assert saved.step == ended.step >= 2
    assert f"interrupted at step {ended.step} of {EXACT_STEPS}" in killed.interrupted_stderr
    assert "tocsin train --resume" in killed.interrupted_stderr
    assert "Traceback" not in killed.interrupted_stderr


def test_an_interrupted_run_goes_on_at_the_very_step(killed: Killed) -> None:
    (ended,) = killed.recording.of(RunEnded, attempt=1)
    (resumed,) = killed.recording.of(RunResumed, attempt=2)
    assert (resumed.checkpoint_step, resumed.rewound_from_step, resumed.step) == (ended.step, ended.step, ended.step)
    first, second = (killed.recording.of(StepCompleted, attempt=number) for number in (1, 2))
    assert [event.step for event in first] == list(range(1, ended.step + 1))
    assert second[0].step == ended.step + 1


def test_a_killed_run_reads_as_dead_and_its_feed_stays_readable(killed: Killed) -> None:
    assert killed.status.code == 3
    assert '"state":"dead"' in killed.status.stdout.replace(" ", "")
    assert killed.feed.code == 3
    assert '"record":"coverage"' in killed.feed.stdout.replace(" ", "")
    assert killed.recording.of(RunEnded, attempt=2) == []


def test_the_children_of_a_killed_run_die_with_it_and_its_memory_is_freed(killed: Killed) -> None:
    assert killed.survivors == []
    assert killed.orphans == []


def test_a_killed_run_goes_on_from_its_last_checkpoint(killed: Killed) -> None:
    (resumed,) = killed.recording.of(RunResumed, attempt=3)
    last = max(event.step for event in killed.recording.of(CheckpointSaved, attempt=2))
    assert resumed.checkpoint_step == last >= 12
    assert resumed.rewound_from_step >= 13
    steps = [event.step for event in killed.recording.of(StepCompleted, attempt=3)]
    assert steps == list(range(last + 1, EXACT_STEPS + 1))
    (ended,) = killed.recording.of(RunEnded, attempt=3)
    assert (ended.outcome, ended.step) == ("completed", EXACT_STEPS)


def test_evaluations_are_neither_lost_nor_repeated_by_stops(killed: Killed) -> None:
    due = {0, 10, 20, EXACT_STEPS}
    counted = Counter(event.version for event in killed.recording.of(EvaluationCompleted))
    (rewound,) = killed.recording.of(RunResumed, attempt=3)
    done_over = {version for version in due if rewound.checkpoint_step < version <= rewound.rewound_from_step}
    assert set(counted) == due
    assert {version for version, count in counted.items() if count > 1} <= done_over


def test_numbers_of_events_go_on_over_all_attempts(killed: Killed) -> None:
    assert [event.seq for event in killed.recording.events] == list(range(1, len(killed.recording.events) + 1))
    assert isinstance(killed.recording.events[0], RunStarted)


def test_the_ledger_of_a_killed_run_balances_and_counts_what_survived(killed: Killed) -> None:
    ledgers = [event.ledger for event in killed.recording.of(QueueSampled)]
    assert {ledger.balance() for ledger in ledgers} == {0}
    assert ledgers[-1].consumed == GROUPS * EXACT_STEPS
    assert ledgers[-1].failed == {}


@pytest.fixture(scope="module")
def stopped(tiny_policy: TinyPolicy, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], Recording]:
    """Exit codes and recording of a stale run: SIGINT, resume, SIGTERM, resume with another knob."""
    folder = tmp_path_factory.mktemp("stopped")
    runs_dir = folder / "runs"
    config = tiny_config(
        tiny_policy,
        steps=STALE_STEPS,
        knobs={"max_staleness": 2, "groups_per_step": GROUPS},
        evaluation=EvaluationConfig(every=0, prompts=32),
    )
    with start("train", write_config(config, folder / "run.toml"), runs_dir=runs_dir) as first:
        first.until_step(3)
        first.interrupt(signal.SIGINT)
        codes = [first.wait()]
        run = first.folder
    with start("train", "--resume", run.name[:-2], runs_dir=runs_dir) as second:
        second.until_event(lambda event: event.attempt == 2 and event.step >= 20)
        second.interrupt(signal.SIGTERM)
        codes.append(second.wait())
    with start("train", "--resume", run, "--set", "learning_rate=1e-4", runs_dir=runs_dir) as third:
        codes.append(third.wait())
    return codes, Recording(run)


def test_sigint_sigterm_and_completion_have_their_exit_codes(stopped: tuple[list[int], Recording]) -> None:
    codes, recording = stopped
    assert codes == [130, 143, 0]
    assert [event.outcome for event in recording.of(RunEnded)] == ["interrupted", "interrupted", "completed"]
    assert [event.attempt for event in recording.of(RunResumed)] == [2, 3]


def test_with_staleness_no_step_is_missing_and_no_group_is_trained_twice(
    stopped: tuple[list[int], Recording],
) -> None:
    _, recording = stopped
    assert [event.step for event in recording.of(StepCompleted)] == list(range(1, STALE_STEPS + 1))
    batches = recording.of(BatchConsumed)
    assert [event.step for event in batches] == list(range(STALE_STEPS))
    assert [index for event in batches for index in event.groups.group_index] == list(range(GROUPS * STALE_STEPS))
    assert max(value for event in batches for value in event.groups.staleness) == 2


def test_with_staleness_the_ledger_accounts_for_what_was_given_up(stopped: tuple[list[int], Recording]) -> None:
    _, recording = stopped
    ledgers = [event.ledger for event in recording.of(QueueSampled)]
    assert {ledger.balance() for ledger in ledgers} == {0}
    last = ledgers[-1]
    assert last.launched == GROUPS * STALE_STEPS + last.dropped["resumed"]
    assert (last.consumed, set(last.dropped), last.failed) == (GROUPS * STALE_STEPS, {"resumed"}, {})


def test_the_sampler_of_a_resumed_run_starts_with_the_weights_of_the_checkpoint(
    stopped: tuple[list[int], Recording],
) -> None:
    _, recording = stopped
    for resumed in recording.of(RunResumed):
        first = recording.of(WeightsSynced, attempt=resumed.attempt)[0]
        assert (first.version, first.verified) == (resumed.checkpoint_step, True)


def test_a_knob_set_at_the_resume_holds_from_its_first_step(stopped: tuple[list[int], Recording]) -> None:
    _, recording = stopped
    assert {as_float(event.learning_rate) for event in recording.of(StepCompleted, attempt=2)} == {3e-4}
    assert {as_float(event.learning_rate) for event in recording.of(StepCompleted, attempt=3)} == {1e-4}


def test_a_completed_run_cannot_be_resumed(stopped: tuple[list[int], Recording]) -> None:
    _, recording = stopped
    before = (recording.folder / "run.json").read_bytes()
    done = tocsin("train", "--resume", recording.folder, cwd=recording.folder)
    assert done.code == 2
    assert done.stderr.splitlines() == [
        f"tocsin: `{recording.folder.name}` must have steps left to resume, and all {STALE_STEPS} are done"
    ]
    assert not done.imported_torch
    assert (recording.folder / "run.json").read_bytes() == before


def test_a_run_goes_back_to_the_checkpoint_before_a_step(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    config = tiny_config(tiny_policy, steps=8, checkpoint=CheckpointConfig(every=2, keep=4))
    first = train(config, tmp_path)
    done = tocsin("train", "--resume", first.folder, "--from", "1", cwd=tmp_path)
    assert (done.code, len(done.stderr.splitlines())) == (2, 1)
    assert "--from must be at or after the first checkpoint, got 1; there are: 2, 4, 6, 8" in done.stderr
    with start("train", "--resume", first.folder, "--from", "5", runs_dir=tmp_path / "runs") as again:
        assert again.wait() == 0, again.stderr
    recording = Recording(first.folder)
    (resumed,) = recording.of(RunResumed)
    assert (resumed.checkpoint_step, resumed.rewound_from_step) == (4, 8)
    assert [event.step for event in recording.of(StepCompleted, attempt=2)] == [5, 6, 7, 8]
