"""vLLM servers that are ours: started as processes, waited for, ended.

    Interpreter -> ServerSpec -> VllmServer: start -> wait_until_healthy -> ... -> stop

A server ends with the process that started it, however that ends (`guard`), and does not hear the terminal's Ctrl-C:
whoever started it decides.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import httpx
import psutil

from tocsin.schemas.config import RunConfig
from tocsin.trainer.processes import thread_environment
from tocsin.trainer.vllm import server_log
from tocsin.trainer.vllm.interpreter import Interpreter, find_interpreter
from tocsin.trainer.vllm.transfer import FILE_BACKEND, Backend

HOST: Final = "127.0.0.1"
"""The routes for weights ask for no key, so nothing but this machine may reach them."""
SERVED_NAME: Final = "policy"
GUARD: Final = Path(__file__).with_name("guard.py")
POLL_S: Final = 0.25
HEALTH_TIMEOUT_S: Final = 5.0
STOP_GRACE_S: Final = 20.0
"""From SIGTERM to SIGKILL. A server without work needs two seconds."""
KILL_WAIT_S: Final = 5.0
"""From SIGKILL until a process is gone, which takes long only where a driver takes back memory."""
KILL_POLL_S: Final = 0.01
LOG_TAIL_BYTES: Final = 1 << 20
CPU_MEMORY_FRACTION: Final = 0.2
"""Of the machine's memory that must be free at the start; what is used is `VLLM_CPU_KVCACHE_SPACE`."""
CPU_KV_CACHE_GIB: Final = 1
SEEDS: Final = 2**31
"""Seeds of vLLM are smaller."""
SHARED_GPU_FRACTION: Final = 0.45
"""Of a GPU's memory for all servers of a run: its learner computes there too."""


class ServerFailed(RuntimeError):
    """A server ended, or did not become healthy in time. The message names it, the reason and the log."""


class PortInUse(ServerFailed):
    """Something listens already where a server should."""


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One server, as it is started."""

    name: str
    """In events and messages, for instance `vllm-0`."""
    interpreter: Interpreter
    model: str
    """Folder or hub id."""
    dtype: Literal["float32", "bfloat16", "float16"]
    port: int
    log: Path
    """File that its output is appended to. Its folder is the server's working folder."""
    max_model_len: int | None = None
    """Longest prompt plus completion, in tokens; None is what the model allows."""
    weight_transfer: Backend = FILE_BACKEND
    """What takes new weights."""
    memory_fraction: float | None = None
    """Share of the device's memory; None is `CPU_MEMORY_FRACTION`, or vLLM's own default on a GPU."""
    threads: int = 1
    """CPU threads of a server without a GPU."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of vLLM; they come last and win."""

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.port}"

    def command(self) -> list[str]:
        """The command line."""
        is_cpu = self.interpreter.device == "cpu"
        fraction = CPU_MEMORY_FRACTION if self.memory_fraction is None and is_cpu else self.memory_fraction
        # The `vllm` script is missing from builds that are published under another name than `vllm`.
        command = [str(self.interpreter.python), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(Path(self.model).resolve()) if self._is_local else self.model]
        command += ["--served-model-name", SERVED_NAME, "--host", HOST, "--port", str(self.port)]
        command += ["--dtype", self.dtype, "--logprobs-mode", "processed_logprobs"]
        # Prompts and completions as token ids, with the version of the weights that each token came from.
        command += ["--enable-scale-out"]
        command += ["--weight-transfer-config", json.dumps({"backend": self.weight_transfer})]
        command += ["--disable-uvicorn-access-log"]
        command += ["--enforce-eager"] if is_cpu else []
        command += ["--max-model-len", str(self.max_model_len)] if self.max_model_len is not None else []
        command += ["--gpu-memory-utilization", f"{fraction:g}"] if fraction is not None else []
        return [*command, *self.extra_args]

    def environment(self) -> dict[str, str]:
        """Environment variables of the server: ours, and what vLLM needs."""
        chosen = {
            "VLLM_SERVER_DEV_MODE": "1",  # without it the routes for weights answer 404
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONSAFEPATH": "1",  # nothing that lies in the working folder hides a package
        }
        if self._is_local:
            chosen["HF_HUB_OFFLINE"] = "1"
        if self.interpreter.device == "cpu":
            chosen |= thread_environment(self.threads)
            chosen |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
            chosen |= {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", str(CPU_KV_CACHE_GIB))}
        return {**os.environ, **chosen}

    @property
    def _is_local(self) -> bool:
        return Path(self.model).is_dir()


class VllmServer:
    """One server and its process, which can be started again after it ended. Not for use by two threads at once."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        """Where it answers."""
        return self.spec.url

    def start(self) -> None:
        """Start it and come back at once. Raises `ServerFailed` when that is impossible."""
        assert self._process is None, "a server is started when none runs"
        spec = self.spec
        # Another server there would answer in place of this one.
        if not _is_free(spec.port):
            raise PortInUse(f"{spec.name}: port {spec.port} must be free, and something listens there; choose another")
        try:
            with spec.log.open("ab") as log:
                self._log_start = log.tell()
                self._process = subprocess.Popen(
                    [sys.executable, "-I", GUARD, *spec.command()],
                    stdin=subprocess.PIPE,  # never written to: its end tells the guard that we are gone
                    stdout=log,
                    stderr=log,
                    cwd=spec.log.parent,
                    env=spec.environment(),
                    start_new_session=True,
                )
        except OSError as error:
            raise ServerFailed(f"{spec.name} could not be started: {error}") from error

    @property
    def pid(self) -> int | None:
        """Of the process that leads the server's group; None while none runs."""
        return None if self._process is None else self._process.pid

    def is_running(self) -> bool:
        """Whether it was started and has not ended. Once it has ended, nothing of it is left."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()
        return self._process is not None

    async def wait_until_healthy(self, timeout_s: float, on_progress: Callable[[str], object]) -> None:
        """Wait until it can generate. `on_progress` is told what the server does, whenever that changes.

        Raises `ServerFailed`; the server is then no longer running.
        """
        deadline = time.monotonic() + timeout_s
        stage = ""
        async with httpx.AsyncClient(timeout=HEALTH_TIMEOUT_S, trust_env=False) as client:
            while self.is_running():
                if await _is_healthy(client, self.url):
                    return
                before, stage = stage, server_log.stage(self._log())
                if stage != before:
                    on_progress(stage)
                if time.monotonic() > deadline:
                    self.kill()
                    raise ServerFailed(
                        f"{self.spec.name} must be healthy within {timeout_s:g} s, and was not; the last that it said: "
                        f"{stage or 'nothing'}; see {self.spec.log}"
                    )
                await asyncio.sleep(POLL_S)
        raise self.failure()

    async def wait_until_ended(self) -> None:
        """Wait until it is no longer running, for whatever reason."""
        while self.is_running():
            await asyncio.sleep(POLL_S)

    def failure(self) -> ServerFailed:
        """What to raise when it ended and should not have: its name, the reason out of its log, and the log."""
        return ServerFailed(f"{self.spec.name} ended: {server_log.reason(self._log())}; see {self.spec.log}")

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to end, and kill it when it does not within `grace_s`. Afterwards nothing of it is left."""
        if self._process is not None and self.is_running():
            self._process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wait_until_ended(), grace_s)
        self.kill()

    def kill(self) -> None:
        """End it at once, with every process that it started. Waits, shortly, until port and memory are free again."""
        if self._process is None:
            return
        # The id stays taken as long as the group has a member, and the guard is its first.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + KILL_WAIT_S
        while _is_alive(self._process.pid) and time.monotonic() < deadline:
            time.sleep(KILL_POLL_S)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process = None

    def _log(self) -> str:
        with self.spec.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")


def specs(
    config: RunConfig, *, model: Path, max_length: int, weight_transfer: Backend, folder: Path
) -> list[ServerSpec]:
    """The servers of a run that starts its own; their logs go to `folder`.

    `model` is a local folder, `max_length` the longest prompt plus completion in tokens. Raises `Unusable`.
    """
    settings = config.sampler
    interpreter = find_interpreter(settings.python)
    fraction = settings.memory_fraction
    if fraction is None and interpreter.device == "cuda":
        fraction = SHARED_GPU_FRACTION / settings.num_servers
    return [
        ServerSpec(
            name=f"vllm-{number}",
            interpreter=interpreter,
            model=str(model),
            dtype=config.model.dtype,
            port=port,
            log=folder / f"vllm-{number}.log",
            max_model_len=max_length,
            weight_transfer=weight_transfer,
            memory_fraction=fraction,
            threads=config.device.threads,
            # Servers that draw the same random numbers would give the same answers to a prompt.
            extra_args=("--seed", str((config.seed + number) % SEEDS), *settings.server_args),
        )
        for number, port in enumerate(free_ports(settings.num_servers))
    ]


def free_ports(num: int) -> list[int]:
    """`num` different ports that nothing listens on at the moment."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(num)]
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does: connections that linger after an earlier one do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _is_alive(group: int) -> bool:
    """Whether a process group has a member that holds anything: a zombie does not."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


async def _is_healthy(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
