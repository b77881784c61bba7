"""Reward workers: a reward function may hang, crash or exit, and only its group is lost."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tocsin.schemas.config import RewardConfig, RewardWorkerConfig
from tocsin.trainer.reward_workers import RewardTimeout, RewardWorkerDied, RewardWorkers
from tocsin.trainer.rewards import RewardError


@pytest.fixture(autouse=True)
def _reward_functions_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@asynccontextmanager
async def pool(function, *, num=1, timeout_s=20.0):
    workers = RewardWorkers(
        RewardWorkerConfig(num=num, timeout_s=timeout_s),
        [RewardConfig(function=f"reward_functions:{function}", name="r")],
    )
    await workers.start()
    try:
        yield workers
    finally:
        await workers.close()


async def rewards(workers, *completions):
    scores = await workers.score(list(completions), ["p"] * len(completions), {})
    assert scores.errors == {}
    return scores.components["r"]


def wait_until_gone(pids):
    for _ in range(500):
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            return True
        time.sleep(0.01)
    return False


def test_a_group_is_scored_in_another_process_and_errors_come_back():
    async def run():
        async with pool("raises_on_bad") as workers:
            assert os.getpid() not in workers.pids
            return await workers.score(["good", "bad"], ["p", "p"], {"answer": [1, 1]})

    scores = asyncio.run(run())
    assert scores.components == {"r": [1.0, None]}
    assert scores.errors == {1: ("reward_error", 'r: the function raised "ValueError: a bad completion"')}


def test_unicode_and_a_megabyte_pass_unharmed():
    async def run():
        async with pool("utf8_bytes") as workers:
            return await rewards(workers, "naïve 🙂 日本\0", "x" * 1_000_000, "")

    assert asyncio.run(run()) == [19.0, 1_000_000.0, 0.0]


def test_a_function_that_hangs_is_killed_after_the_timeout_and_the_next_group_is_scored():
    async def run():
        async with pool("hangs_on_hang", timeout_s=0.3) as workers:
            (pid,) = workers.pids
            start = time.monotonic()
            with pytest.raises(RewardTimeout, match=r"`reward_workers.timeout_s` = 0.3 s per group"):
                await rewards(workers, "hang")
            assert time.monotonic() - start >= 0.3
            assert wait_until_gone([pid])
            assert await rewards(workers, "fine") == [1.0]
            assert workers.restarts == 1

    asyncio.run(run())


def test_the_event_loop_goes_on_while_a_function_hangs_or_a_worker_loads():
    async def run():
        pauses = []

        async def beat():
            while True:
                start = time.monotonic()
                await asyncio.sleep(0.005)
                pauses.append(time.monotonic() - start)

        async with pool("hangs_on_hang", timeout_s=1.0) as workers:
            heart = asyncio.create_task(beat())
            with pytest.raises(RewardTimeout):
                await rewards(workers, "hang", "x" * 1_000_000)
            await rewards(workers, "fine")
            heart.cancel()
        return max(pauses)

    assert asyncio.run(run()) < 1.0, "the loop stood still for as long as the function hung"


def test_a_program_started_by_a_function_is_killed_with_it():
    async def run():
        async with pool("hangs_in_a_program", timeout_s=0.3) as workers:
            worker = psutil.Process(workers.pids[0])
            scoring = asyncio.create_task(rewards(workers, "60"))
            while not (children := worker.children()):
                await asyncio.sleep(0.01)
            with pytest.raises(RewardTimeout):
                await scoring
            return [child.pid for child in children]

    assert wait_until_gone(asyncio.run(run()))


def test_a_hanging_group_does_not_hold_up_the_groups_of_other_workers():
    async def run():
        async with pool("hangs_on_hang", num=2, timeout_s=1.0) as workers:
            hanging = asyncio.create_task(rewards(workers, "hang"))
            done = [await rewards(workers, "a"), await rewards(workers, "b")]
            assert not hanging.done()
            with pytest.raises(RewardTimeout):
                await hanging
            return done

    assert asyncio.run(run()) == [[1.0], [1.0]]


@pytest.mark.parametrize(
    ("function", "completion", "ending"),
    [("exits_the_process", "die", "exited with code 7"), ("crashes", "crash", "was killed by SIGSEGV")],
)
def test_a_function_that_ends_its_process_costs_one_group(function, completion, ending):
    async def run():
        async with pool(function) as workers:
            results = await asyncio.gather(
                *(rewards(workers, text) for text in ("before", completion, "after")), return_exceptions=True
            )
            return results, workers.restarts

    (before, lost, after), restarts = asyncio.run(run())
    assert (before, after, restarts) == ([1.0], [1.0], 1)
    assert isinstance(lost, RewardWorkerDied)
    assert str(lost).endswith(ending)


def test_an_idle_worker_that_is_killed_costs_one_group():
    async def run():
        async with pool("length") as workers:
            os.kill(workers.pids[0], signal.SIGKILL)
            with pytest.raises(RewardWorkerDied, match="was killed by SIGKILL"):
                await rewards(workers, "a")
            return await rewards(workers, "abc")

    assert asyncio.run(run()) == [3.0]


def test_a_cancelled_group_does_not_leave_its_answer_for_the_next():
    async def run():
        async with pool("hangs_on_hang") as workers:
            scoring = asyncio.create_task(rewards(workers, "hang"))
            await asyncio.sleep(0.1)
            scoring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await scoring
            return await rewards(workers, "fine", "fine")

    assert asyncio.run(run()) == [1.0, 1.0]


def test_close_ends_busy_workers_and_fails_their_groups():
    async def run():
        async with pool("hangs_on_hang", num=2) as workers:
            pids = workers.pids
            scoring = asyncio.create_task(rewards(workers, "hang"))
            await asyncio.sleep(0.1)
        with pytest.raises(RewardWorkerDied):
            await scoring
        return pids

    assert wait_until_gone(asyncio.run(run()))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("missing", "reward function `reward_functions:missing` must exist"),
        ("positional", "must take its arguments by name"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_reported_at_the_start(function, message):
    async def run():
        async with pool(function, num=2):
            raise AssertionError("the pool must not start")

    with pytest.raises(RewardError, match=message):
        asyncio.run(run())


def test_a_module_that_kills_its_process_is_reported_at_the_start(tmp_path, monkeypatch):
    (tmp_path / "fatal_rewards.py").write_text("import os\nos._exit(9)\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    async def run():
        workers = RewardWorkers(RewardWorkerConfig(), [RewardConfig(function="fatal_rewards:f")])
        await workers.start()

    with pytest.raises(RewardError, match="exited with code 9 while it loaded the reward functions"):
        asyncio.run(run())


def test_prints_of_a_function_go_to_stderr(capfd):
    async def run():
        async with pool("prints") as workers:
            return await rewards(workers, "a")

    assert asyncio.run(run()) == [1.0]
    out, err = capfd.readouterr()
    assert out == ""
    assert [line for line in sorted(err.splitlines()) if line.startswith("to stdout")] == [
        "to stdout from C",
        "to stdout from Python",
        "to stdout from a program",
    ]


def test_a_function_may_use_processes_of_its_own_and_has_one_passive_thread():
    async def run():
        async with pool("runs_a_process") as workers:
            processes = await rewards(workers, "a")
        async with pool("threads") as workers:
            return processes, await rewards(workers, "a")

    before = dict(os.environ)
    assert asyncio.run(run()) == ([1.0], [1.0])
    assert dict(os.environ) == before


def test_a_worker_ignores_interrupts():
    async def run():
        async with pool("length") as workers:
            os.kill(workers.pids[0], signal.SIGINT)
            return await rewards(workers, "abc"), workers.restarts

    assert asyncio.run(run()) == ([3.0], 0)


def test_math_verify_works_in_a_worker_because_it_has_a_main_thread():
    async def run():
        workers = RewardWorkers(RewardWorkerConfig(), [RewardConfig(function="math")])
        await workers.start()
        try:
            return await workers.score(["$0.5$", "$2$"], ["p", "p"], {"answer": ["1/2", "1/2"]})
        finally:
            await workers.close()

    assert asyncio.run(run()).components == {"math": [1.0, 0.0]}


SCRIPT = """
import asyncio, os, signal, sys
from tocsin.schemas.config import RewardConfig, RewardWorkerConfig
from tocsin.trainer.reward_workers import RewardWorkers

async def main():
    workers = RewardWorkers(RewardWorkerConfig(num=2), [RewardConfig(function="reward_functions:hangs_on_hang")])
    await workers.start()
    scoring = asyncio.create_task(workers.score(["hang"], ["p"], {}))
    await asyncio.sleep(0.1)
    print(*workers.pids, "torch" in sys.modules, "transformers" in sys.modules, flush=True)
    ENDING

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("ending", "code"), [("os.kill(os.getpid(), signal.SIGKILL)", -9), ("raise RuntimeError('lost')", 1)]
)
def test_workers_end_with_their_parent_and_need_no_torch(tmp_path, ending, code):
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(SCRIPT).replace("ENDING", ending))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == code
    *pids, torch, transformers = done.stdout.split()
    assert (torch, transformers) == ("False", "False")
    assert len(pids) == 2
    assert wait_until_gone([int(pid) for pid in pids])
