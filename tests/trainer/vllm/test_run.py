"""Runs that start their own vLLM servers: to the end, through the death of a server, and out again on Ctrl-C."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trainer.runs import LiveRun, Recording, start, still_alive, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.events import (
    ComponentHeartbeat,
    EvaluationCompleted,
    QueueSampled,
    RolloutFailed,
    RunEnded,
)
from tocsin.schemas.generation import EngineSampled, WeightsSynced
from tocsin.schemas.sampler import SamplerConfig
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.vllm.interpreter import Interpreter

pytestmark = pytest.mark.vllm

STEPS, GROUPS = 12, 4
ENDLESS = 100_000
PATIENCE_S = 900.0
"""A server starts twice in some of these runs, on a machine that may have other things to do."""

Begin = Callable[..., Any]


@pytest.fixture
def begin(tiny_policy: TinyPolicy, vllm_python: Interpreter, tmp_path: Path) -> Begin:
    """Begins a run with servers of its own."""

    @contextmanager
    def begun(*, steps: int = STEPS, **settings: Any) -> Iterator[LiveRun]:
        sampler = SamplerConfig(kind="vllm", launch=True, python=str(vllm_python.python), poll_s=0.5, **settings)
        config = write_config(tiny_config(tiny_policy, steps=steps, sampler=sampler), tmp_path / "run.toml")
        with start("train", config, runs_dir=tmp_path / "runs") as run:
            run.patience_s = PATIENCE_S
            yield run

    return begun


def server_groups(run: LiveRun) -> set[int]:
    """Process groups of the servers that a run has started."""
    found = set()
    for child in run.children():
        try:
            if "vllm.entrypoints.openai.api_server" in child.cmdline():
                found.add(os.getpgid(child.pid))
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return found


def kill_a_server(run: LiveRun) -> None:
    """Kill -9 everything that belongs to one server."""
    os.killpg(min(server_groups(run)), signal.SIGKILL)


def states(recording: Recording) -> Counter[str]:
    """How often each thing happened to servers."""
    news = [e for e in recording.of(ComponentHeartbeat) if e.component == "sampler" and e.state != "alive"]
    return Counter(event.state for event in news)


def is_lost(event: Any) -> bool:
    """Whether it says that a server died."""
    return isinstance(event, ComponentHeartbeat) and (event.component, event.state) == ("sampler", "died")


def was_sampled(engine: str) -> Callable[[Any], bool]:
    """Whether an event holds the numbers of that server."""
    return lambda event: isinstance(event, EngineSampled) and event.engine == engine


def assert_balanced(recording: Recording) -> None:
    """Nothing is missing from the ledger, and nothing was trained on twice."""
    assert {event.ledger.balance() for event in recording.of(QueueSampled)} == {0}
    batches = recording.of(BatchConsumed)
    assert [len(event.groups.size) for event in batches] == [GROUPS] * len(batches)
    consumed = [index for event in batches for index in event.groups.group_index]
    assert len(consumed) == len(set(consumed))
    assert recording.of(QueueSampled)[-1].ledger.consumed == len(consumed)
    assert max(value for event in batches for value in event.groups.staleness) <= 1


def test_a_run_trains_to_its_end_with_a_server_of_its_own(begin: Begin) -> None:
    with begin() as run:
        run.until_step(2)
        children = run.children()
        assert run.wait() == 0, run.stderr
        recording = run.recording()
    assert still_alive(children) == []
    assert [event.step for event in recording.of(StepCompleted)] == list(range(1, STEPS + 1))
    assert recording.of(RunEnded)[-1].outcome == "completed"
    assert_balanced(recording)
    assert recording.findings() == []
    assert recording.of(RolloutFailed) == []
    syncs = recording.of(WeightsSynced)
    assert [event.version for event in syncs] == list(range(STEPS + 1))
    assert all(event.verified and event.attempt_number == 1 for event in syncs)
    assert {frozenset(event.seconds) for event in syncs} == {
        frozenset({"write", "pause", "load", "verify", "resume", "total"})
    }
    assert {event.prefix_cache for event in syncs} == {"reset"}
    assert {tuple(event.checksums) for event in syncs} == {("vllm-0",)}
    assert all(as_float(event.probe_moved) > as_float(event.probe_gap) for event in syncs if event.version > 0)
    assert [event.version for event in recording.of(EvaluationCompleted)] == [0, STEPS]
    looks = recording.of(EngineSampled)
    assert {look.engine for look in looks} == {"vllm-0"}
    assert sum(look.requests_failed for look in looks) == 0
    assert states(recording) == {"started": 1}
    (log,) = recording.folder.rglob("vllm-0.log")
    assert "Application startup complete" in log.read_text()


def test_a_run_whose_server_is_killed_starts_another_one_and_completes(begin: Begin) -> None:
    with begin() as run:
        run.until_step(3)
        kill_a_server(run)
        assert run.wait() == 0, run.stderr
        recording = run.recording()
    assert [event.step for event in recording.of(StepCompleted)] == list(range(1, STEPS + 1))
    assert_balanced(recording)
    assert states(recording) == {"started": 2, "died": 1, "restarted": 1}
    assert all(event.verified for event in recording.of(WeightsSynced))
    assert recording.of(RolloutFailed) == [], "waiting for a server is not a failure of the groups that wait"
    assert [event.version for event in recording.of(EvaluationCompleted)] == [0, STEPS]


def test_a_run_goes_on_with_the_servers_that_are_left_and_ctrl_c_ends_everything(begin: Begin) -> None:
    with begin(steps=ENDLESS, num_servers=2, max_restarts=0) as run:
        run.until_step(3)
        assert len(server_groups(run)) == 2
        for name in ("vllm-0", "vllm-1"):  # the steps of a fast machine are done before a server is looked at twice
            run.until_event(was_sampled(name))
        kill_a_server(run)
        run.until_event(is_lost)
        run.until_step(run.last_step() + 5)
        children = run.children()
        run.press_ctrl_c()
        code, recording = run.wait(), run.recording()
    assert code == 130, run.stderr
    assert still_alive(children) == []
    assert recording.of(RunEnded)[-1].outcome == "interrupted"
    assert_balanced(recording)
    assert states(recording) == {"started": 2, "died": 2}, "lost, and then given up"
    assert recording.of(RolloutFailed) == [], "its work moved to the other"
    lost = next(event for event in recording.of(ComponentHeartbeat) if is_lost(event))
    before, after = (
        [event for event in recording.of(WeightsSynced) if (event.seq < lost.seq) == is_before]
        for is_before in (True, False)
    )
    assert all(event.verified for event in before + after)
    assert {len(event.checksums) for event in before[:2]} == {2}
    assert {len(event.checksums) for event in after[1:]} == {1}
    assert {event.engine for event in recording.of(EngineSampled)} == {"vllm-0", "vllm-1"}


def test_ctrl_c_while_servers_start_leaves_none(begin: Begin) -> None:
    with begin(num_servers=2) as run:
        run.until(lambda: len(server_groups(run)) == 2)
        children = run.children()
        run.press_ctrl_c()
        assert run.wait() == 130, run.stderr
    assert still_alive(children) == []
    assert "Traceback" not in run.stderr
