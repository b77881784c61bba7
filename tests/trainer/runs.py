"""Runs in processes of their own, started, watched and ended the way a user's shell does it.

    with start(config, folder) as run:
        run.until(lambda: run.steps() >= 4)
        run.interrupt()
        assert run.wait() == 130

Whatever a test leaves running is killed when its `with` block ends, with everything that it started.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
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

    def findings(self) -> list[Diagnostic]:
        """Every record of a fault or of an efficiency finding at warning or above, in order of `seq`."""
        lines = (self.folder / FEED_FILE).read_bytes().splitlines()[1:]
        records = [parse_record(line) for line in lines]
        assert None not in records
        found = [record for record in records if isinstance(record, Diagnostic)]
        return [record for record in found if record.severity in ("warning", "critical")]

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

    def __init__(self, process: "subprocess.Popen[bytes]", runs_dir: Path, stderr: Path, before: set[Path]) -> None:
        self.process = process
        self._runs_dir = runs_dir
        self._stderr = stderr
        self._before = before

    @property
    def folder(self) -> Path:
        """The run folder; waits until there is one."""
        self.until(lambda: set(list_runs(self._runs_dir)) - self._before)
        (folder,) = set(list_runs(self._runs_dir)) - self._before
        return folder

    @property
    def stderr(self) -> str:
        """What it printed on standard error so far."""
        return self._stderr.read_text()

    def recording(self) -> Recording:
        """What it recorded so far."""
        return Recording(self.folder)

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until `condition` holds. Fails when the process ends before, or when it takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None:
                assert condition(), f"the run ended with {self.process.returncode}:\n{self.stderr}"
                return
            assert time.monotonic() < deadline, f"the run took longer than {PATIENCE_S:g} s:\n{self.stderr}"
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
        return self.process.wait(PATIENCE_S)


@contextmanager
def start(*arguments: str | Path, runs_dir: Path) -> Iterator[LiveRun]:
    """`tocsin <arguments> --runs-dir <runs_dir>`, in the folder that holds `runs_dir`."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    stderr = runs_dir.parent / f"stderr-{time.monotonic_ns()}.txt"
    before = set() if "--resume" in arguments else set(list_runs(runs_dir))
    with stderr.open("wb") as errors:
        process = subprocess.Popen(
            [*COMMAND, *map(str, arguments), "--runs-dir", str(runs_dir)],
            cwd=runs_dir.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    run = LiveRun(process, runs_dir, stderr, before)
    try:
        yield run
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def still_alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that do not end within a few seconds. A zombie that nobody reaps has ended."""
    _, alive = psutil.wait_procs(processes, timeout=5)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


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


def train(config: RunConfig, folder: Path) -> Recording:
    """Train to the end in `folder`, which must succeed."""
    with start("train", write_config(config, folder / "run.toml"), runs_dir=folder / "runs") as run:
        assert run.wait() == 0, run.stderr
        return run.recording()


def write_config(config: RunConfig, path: Path) -> Path:
    """Write `config` as TOML."""
    document = config.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(toml_lines(document)) + "\n")
    return path


def toml_lines(document: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """`document` as lines of TOML: plain values first, then tables and arrays of tables."""
    tables = {key: value for key, value in document.items() if _is_table(value)}
    for key, value in document.items():
        if key not in tables:
            yield f"{key} = {json.dumps(value)}"
    for key, value in tables.items():
        name = f"{prefix}{key}"
        for table in value if isinstance(value, list) else [value]:
            yield f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
            yield from toml_lines(table, f"{name}.")


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))
