"""Processes that run the reward functions and can be killed.

A thread cannot be killed, so a reward function that hangs needs a process around it; and math-verify's alarm needs
a main thread. The rollout process owns the pool; its event loop never waits for a worker. One exchange:

    pool -> worker   (completions, prompts, columns)      8-byte length, then a pickle
    worker -> pool   `Scores`

Before the first exchange a worker says which arguments its reward functions require, or why one could not be loaded.
"""

import asyncio
import io
import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from typing import Any, Final

from tocsin.schemas.config import RewardConfig, RewardWorkerConfig
from tocsin.trainer.data import Scores
from tocsin.trainer.processes import SPAWN, child_main_setup, start_child
from tocsin.trainer.rewards import RewardError, load_rewards, score

START_TIMEOUT_S: Final = 300.0
"""For importing the modules of the reward functions, which may load models of their own."""

END_TIMEOUT_S: Final = 1.0
"""For an idle worker to end by itself, and for the kernel to end a killed one."""

LENGTH: Final = struct.Struct("!Q")
"""Frame header: bytes of the pickle that follows."""


class RewardTimeout(Exception):
    """The group took longer than `reward_workers.timeout_s`; its worker was killed and started again."""


class RewardWorkerDied(Exception):
    """The worker was lost with the group in it, and started again."""


class RewardWorkers:
    """A pool of `config.num` processes. `await start()` first; `score` one group per free worker at a time."""

    def __init__(self, config: RewardWorkerConfig, rewards: Sequence[RewardConfig]) -> None:
        self.config = config
        self.rewards = tuple(rewards)
        self.requires: dict[str, frozenset[str]] = {}
        """By label, the arguments without a default that a function must get; known after `start`."""
        self.restarts = 0
        """Workers that were replaced."""
        self._workers: list[_Worker] = []
        self._free: asyncio.Queue[_Worker] = asyncio.Queue()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the present workers."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    async def start(self) -> None:
        """Start all workers. Raises `RewardError` when a reward function cannot be loaded; nothing is left running."""
        try:
            for _ in range(self.config.num):
                self._workers.append(await _Worker.launch(self.rewards))
            await asyncio.gather(*(worker.ready() for worker in self._workers))
        except BaseException:  # no process may outlive a failed or cancelled start
            await self.close()
            raise
        self.requires = self._workers[0].requires
        for worker in self._workers:
            self._free.put_nowait(worker)

    async def score(self, completions: list[str], prompts: list[str], columns: dict[str, list[Any]]) -> Scores:
        """Rewards of one group; waits for a free worker first, which does not count towards the timeout.

        Raises `RewardTimeout` or `RewardWorkerDied` when the group could not be scored. Other groups go on, and
        the next call finds a fresh worker.
        """
        assert self._workers, "`start` comes before `score`"
        worker = await self._free.get()
        try:
            await worker.ready()
            async with asyncio.timeout(self.config.timeout_s):
                answer = await worker.exchange((completions, prompts, columns))
        except TimeoutError:
            worker = await self._replaced(worker)
            limit = f"`reward_workers.timeout_s` = {self.config.timeout_s:g} s"
            raise RewardTimeout(f"scoring must take at most {limit} per group; raise it or speed it up") from None
        except RewardError as error:  # the replacement of a lost worker cannot load what the first one could
            worker = await self._replaced(worker)
            raise RewardWorkerDied(str(error)) from error
        except (EOFError, OSError) as error:
            lost, worker = worker, await self._replaced(worker)
            raise RewardWorkerDied(f"reward worker {lost.process.pid} {lost.ending()}") from error
        except BaseException:  # a cancelled exchange leaves half an answer in the pipe
            worker = await self._replaced(worker)
            raise
        finally:
            self._free.put_nowait(worker)
        assert isinstance(answer, Scores)
        return answer

    async def close(self) -> None:
        """End all workers; those that are busy are killed."""
        self._closed = True
        await asyncio.gather(*(worker.close() for worker in self._workers))

    async def _replaced(self, worker: "_Worker") -> "_Worker":
        """Kill `worker` and launch another in its place, which loads while the pool goes on."""
        await worker.kill()
        if self._closed:
            return worker
        self.restarts += 1
        fresh = await _Worker.launch(self.rewards)
        self._workers[self._workers.index(worker)] = fresh
        return fresh


class _Worker:
    """The pool's side of one worker process."""

    def __init__(self, process: SpawnProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self._is_ready = False
        self.requires: dict[str, frozenset[str]] = {}
        # Without `close`, the end of the pool's process would wait for its children first, and they for it.
        self._at_exit = Finalize(None, self._kill_group, exitpriority=10)

    @classmethod
    async def launch(cls, rewards: Sequence[RewardConfig]) -> "_Worker":
        """Start the process without waiting for it to load."""
        ours, theirs = socket.socketpair()
        # Not a daemon, which could not have children: code that is judged often runs in a process of its own.
        process = SPAWN.Process(target=worker_main, args=(theirs, rewards), name="reward-worker")
        try:
            start_child(process)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()  # else the end of the worker would not end the stream
        return cls(process, *await asyncio.open_connection(sock=ours))

    async def ready(self) -> None:
        """Wait until the reward functions are loaded. Raises `RewardError` when they cannot be."""
        if self._is_ready:
            return
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                answer = await self._receive()
        except TimeoutError:
            raise RewardError(f"reward functions must load within {START_TIMEOUT_S:g} s; import less") from None
        except (EOFError, OSError) as error:
            await self.kill()
            raise RewardError(f"reward worker {self.ending()} while it loaded the reward functions") from error
        if isinstance(answer, str):
            raise RewardError(answer)
        self.requires, self._is_ready = answer, True

    async def exchange(self, job: Any) -> Any:
        """Send a job, wait for its answer. Raises `EOFError` or `OSError` when the worker is gone."""
        data = pickle.dumps(job, pickle.HIGHEST_PROTOCOL)
        self._writer.write(LENGTH.pack(len(data)))
        self._writer.write(data)
        await self._writer.drain()
        return await self._receive()

    async def kill(self) -> None:
        """End the process and what it started, at once."""
        self._writer.close()
        await self._gone(0.0)

    async def close(self) -> None:
        """End of the stream is the end of an idle worker; a busy one is killed."""
        self._writer.close()
        await self._gone(END_TIMEOUT_S)

    def ending(self) -> str:
        """How the process ended, for a message."""
        code = self.process.exitcode
        if code is None:
            return "does not answer"
        return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    async def _receive(self) -> Any:
        (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return pickle.loads(await self._reader.readexactly(length))

    async def _gone(self, patience_s: float) -> None:
        """Wait for the end of the process; after `patience_s`, kill its group."""
        loop = asyncio.get_running_loop()
        start, killed = loop.time(), False
        while self.process.exitcode is None and loop.time() - start < patience_s + END_TIMEOUT_S:
            if not killed and loop.time() - start >= patience_s:
                killed = True
                self._kill_group()
            await asyncio.sleep(0.005)
        self._at_exit.cancel()
        with suppress(OSError):  # the peer may have closed the connection first
            await self._writer.wait_closed()

    def _kill_group(self) -> None:
        if self.process.pid is None or self.process.exitcode is not None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not made its group yet
            self.process.kill()


def worker_main(channel: socket.socket, rewards: Sequence[RewardConfig]) -> None:
    """Body of a worker process: load the functions, say so, score groups until the pool closes the channel."""
    child_main_setup("reward")
    # A group of its own, so that a kill also reaches programs that reward functions start.
    os.setpgid(0, 0)
    # What user code prints belongs on stderr; stdout is data of the run.
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    with channel, channel.makefile("rwb") as stream:
        try:
            functions = load_rewards(rewards)
        except RewardError as error:
            _send(stream, str(error))
            return
        _send(stream, {function.label: function.requires for function in functions})
        while header := stream.read(LENGTH.size):
            (length,) = LENGTH.unpack(header)
            completions, prompts, columns = pickle.loads(stream.read(length))
            _send(stream, score(functions, completions, prompts, columns))


def _send(stream: io.BufferedIOBase, answer: Any) -> None:
    data = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()
