"""Runs in processes of their own, started, watched and ended the way a user's shell does it.

    with start(config, folder) as run:
        run.until(lambda: run.steps() >= 4)
        run.interrupt()
        assert run.wait() == 130

Whatever a test leaves running is killed when its `with` block ends, with everything that it started.

Runs are forked from a process that has imported torch and transformers: importing them takes longer than most of these
runs. `start(..., fork=False)` begins with a fresh interpreter, as `tocsin train` in a shell does.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pyarrow.dataset

from tocsin.diagnostics.feed import EVENTS_FILE, FEED_FILE, parse_record
from tocsin.diagnostics.jsonl import NotAFeed
from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.runs import list_runs
from tocsin.schemas.config import RunConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.trainer.bench.trial import toml_of

COMMAND = [sys.executable, "-m", "tocsin.diagnostics.cli"]
PATIENCE_S = 120.0
"""For anything that a run is waited for. Many times what a run takes on an idle machine."""

E = TypeVar("E", bound=BaseEvent)


@dataclass(frozen=True)
class Recording:
    """What a run folder says, read after the fact."""

    folder: Path

    @cached_property
    def events(self) -> list[BaseEvent]:
        """Every event, in order of `seq`."""
        return list(read_events(self.folder / EVENTS_FILE))

    def of(self, kind: type[E], attempt: int | None = None) -> list[E]:
        """The events of one type, of one attempt or of all."""
        return [e for e in self.events if isinstance(e, kind) and attempt in (None, e.attempt)]

    def diagnostics(self) -> list[Diagnostic]:
        """Every diagnostic record, in order of `seq`."""
        lines = (self.folder / FEED_FILE).read_bytes().splitlines()[1:]
        records = [parse_record(line) for line in lines]
        assert None not in records
        return [record for record in records if isinstance(record, Diagnostic)]

    def findings(self) -> list[Diagnostic]:
        """Every record of a fault or of an efficiency finding at warning or above, in order of `seq`."""
        return [record for record in self.diagnostics() if record.severity in ("warning", "critical")]

    def rollouts(self) -> list[dict[str, Any]]:
        """Every stored completion, of the attempt whose step the final weights come from."""
        rows = pyarrow.dataset.dataset(self.folder / "rollouts").to_table().to_pylist()
        newest = {row["step"]: 0 for row in rows}
        for row in rows:
            newest[row["step"]] = max(newest[row["step"]], row["attempt"])
        return sorted(
            (row for row in rows if row["attempt"] == newest[row["step"]]),
            key=lambda row: (row["step"], row["group_index"]),
        )


class LiveRun:
    """A `tocsin train` that may still be going on."""

    def __init__(self, process: "Forked | subprocess.Popen[bytes]", runs_dir: Path, stderr: Path, before: set[Path]):
        self.process = process
        self._runs_dir = runs_dir
        self._stderr = stderr
        self._before = before
        self.patience_s = PATIENCE_S
        """For anything that it is waited for."""

    @property
    def folder(self) -> Path:
        """The run folder; waits until there is one."""
        self.until(lambda: set(list_runs(self._runs_dir)) - self._before)
        (folder,) = set(list_runs(self._runs_dir)) - self._before
        return folder

    @property
    def stderr(self) -> str:
        """What it printed on standard error so far."""
        return self._stderr.read_text() if self._stderr.exists() else ""

    def recording(self) -> Recording:
        """What it recorded so far."""
        return Recording(self.folder)

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until `condition` holds. Fails when the process ends before, or when it takes too long."""
        deadline = time.monotonic() + self.patience_s
        while not condition():
            if self.process.poll() is not None:
                assert condition(), f"the run ended with {self.process.returncode}:\n{self.stderr}"
                return
            assert time.monotonic() < deadline, f"the run took longer than {self.patience_s:g} s:\n{self.stderr}"
            time.sleep(0.05)

    def until_event(self, found: Callable[[BaseEvent], bool]) -> None:
        """Wait until an event of that kind is on file."""
        self.until(lambda: any(found(event) for event in self._events_so_far()))

    def until_step(self, step: int) -> None:
        """Wait until `step` optimizer steps are finished."""
        self.until_event(lambda event: event.step >= step)

    def last_step(self) -> int:
        """Optimizer steps finished so far."""
        return max((event.step for event in self._events_so_far()), default=0)

    def _events_so_far(self) -> list[BaseEvent]:
        try:
            return self.recording().events
        except NotAFeed:
            return []

    def component(self, name: str) -> psutil.Process:
        """The newest child called `tocsin-<name>`; waits until there is one."""
        self.until(lambda: self._components(name))
        return max(self._components(name), key=lambda process: process.create_time())

    def _components(self, name: str) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if child.name() == f"tocsin-{name}":
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found

    def children(self) -> list[psutil.Process]:
        """Everything that it started and that still lives."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send a signal to its main process."""
        self.process.send_signal(number)

    def press_ctrl_c(self) -> None:
        """Send SIGINT to the whole group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        """Its exit code; a negative one when a signal ended it."""
        return self.process.wait(self.patience_s)


class Forked:
    """A `tocsin` command in a process forked from the prepared one, with the methods of `subprocess.Popen` it needs."""

    def __init__(self, arguments: list[str], folder: Path, stdout: Path, stderr: Path) -> None:
        target = (arguments, folder, (stdout, stderr), dict(os.environ))
        self._process: ForkServerProcess = _prepared().Process(target=_command, args=target)
        self._process.start()

    @property
    def pid(self) -> int:
        """Of the process, and of the process group that it leads."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative when a signal ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Exit code, once there is one. Fails after `timeout` seconds without."""
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, f"the run took longer than {timeout} s"
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """To the process alone."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, and nothing that it started."""
        self._process.kill()


@cache
def _prepared() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainer.prepared"])
    return context


def _command(arguments: list[str], folder: Path, outputs: tuple[Path, Path], environment: dict[str, str]) -> None:
    """Be `tocsin <arguments>` as a shell starts it."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(outputs, start=1):
        with path.open("ab") as file:
            os.dup2(file.fileno(), number)
    from tocsin.diagnostics.cli import main  # noqa: PLC0415  where the environment is that of the command

    sys.exit(main(arguments))


@contextmanager
def start(*arguments: str | Path, runs_dir: Path, fork: bool = True, command: Sequence[str] = ()) -> Iterator[LiveRun]:
    """`tocsin <arguments> --runs-dir <runs_dir>`, or another command, in the folder that holds `runs_dir`."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    stderr = runs_dir.parent / f"stderr-{time.monotonic_ns()}.txt"
    before = set() if "--resume" in arguments else set(list_runs(runs_dir))
    words, folder = [*map(str, arguments), "--runs-dir", str(runs_dir)], runs_dir.parent
    process: Forked | subprocess.Popen[bytes]
    if fork and not command:
        process = Forked(words, folder, Path(os.devnull), stderr)
    else:
        process = _fresh([*(command or COMMAND), *words], folder, stderr)
    run = LiveRun(process, runs_dir, stderr, before)
    try:
        yield run
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _fresh(command: list[str], folder: Path, stderr: Path) -> "subprocess.Popen[bytes]":
    with stderr.open("wb") as errors:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )


def still_alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that do not end within half a minute, on a busy machine. A zombie that nobody reaps has ended."""
    deadline = time.monotonic() + 30
    while (alive := [process for process in processes if _lives(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


TORCH_FLAG = 200
"""Added to the exit code of a command that imported torch."""


@dataclass(frozen=True)
class Finished:
    """A `tocsin` command that ended by itself."""

    code: int
    stdout: str
    stderr: str
    imported_torch: bool
    """Whether the process of the command, not a child of it, imported torch."""


TELLING = (
    "import sys; from tocsin.diagnostics.cli import main; "
    f"code = main(sys.argv[1:]); sys.exit(code + {TORCH_FLAG} * ('torch' in sys.modules))"
)


def tocsin(*arguments: str | Path, cwd: Path) -> Finished:
    """Run `tocsin <arguments>` to its end."""
    done = subprocess.run(
        [sys.executable, "-c", TELLING, *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    imported_torch = done.returncode >= TORCH_FLAG
    return Finished(done.returncode - TORCH_FLAG * imported_torch, done.stdout, done.stderr, imported_torch)


def tocsin_forked(*arguments: str | Path, cwd: Path) -> Finished:
    """The same in a forked process, for commands that need torch and for nothing that starting up is asked about."""
    outputs = [cwd / f"{name}-{time.monotonic_ns()}.txt" for name in ("stdout", "stderr")]
    code = Forked([*map(str, arguments)], cwd, *outputs).wait(PATIENCE_S)
    return Finished(code, *(path.read_text() for path in outputs), imported_torch=True)


def train(config: RunConfig, folder: Path) -> Recording:
    """Train to the end in `folder`, which must succeed."""
    with start("train", write_config(config, folder / "run.toml"), runs_dir=folder / "runs") as run:
        assert run.wait() == 0, run.stderr
        return run.recording()


def write_config(config: RunConfig, path: Path) -> Path:
    """Write `config` as TOML."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(toml_of(config.model_dump(mode="json", exclude_defaults=True, exclude_none=True)))
    return path
