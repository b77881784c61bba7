"""One case, run as users run theirs: `tocsin train` in a process of its own. What is done is kept and not done again.

The process is forked from this one, which has imported torch and transformers and computed nothing: of the seconds of
a run on a small model, more than half are imports.

FOLDER/material/<material>/         model and data, shared
FOLDER/<split>/<case>/run.toml      configuration
                      runs/<run>/   run.json, events.jsonl, feed.jsonl: `tocsin replay` reads it
                      done.json     how it ended; a case without it, or with another run.toml, is run again
"""

import json
import os
import shutil
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tocsin.diagnostics.feed import EVENTS_FILE
from tocsin.diagnostics.jsonl import NotAFeed
from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.runs import list_runs
from tocsin.schemas.config import RunConfig
from tocsin.schemas.fault import FaultConfig
from tocsin.trainer.bench.cases import PLAIN, Case, merged
from tocsin.trainer.bench.material import MADE, Material, prepare
from tocsin.trainer.processes import die_with, fork_children

LIMIT_S: Final = 240.0
"""For one run: many times what it takes on two cores. A run that stands still is ended, and judged as it is."""
DONE: Final = "done.json"
CONFIGURATION: Final = "run.toml"
FAILED: Final = 1
LARGE: Final = ("checkpoints", "rollouts", "policy")
"""Parts of a run folder that nothing is judged by."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A case that was run."""

    case: Case
    folder: Path
    """Run folder."""
    code: int
    """Exit code of the last attempt."""
    seconds: float

    @property
    def events_path(self) -> Path:
        """What it recorded."""
        return self.folder / EVENTS_FILE


def configuration(case: Case, material: Path) -> RunConfig:
    """The configuration of a case whose model and data lie in `material`."""
    document = merged(
        PLAIN,
        {
            "seed": case.material.seed,
            "model": {"path": str(material / "model")},
            "data": {"train": str(material / "train.jsonl"), "evaluation": str(material / "held_out.jsonl")},
        },
        case.changes,
    )
    config = RunConfig.model_validate(document)
    if case.kind is None:
        return config
    fault = FaultConfig(name=case.kind.name, onset_step=case.onset, dose=case.dose)
    return RunConfig.model_validate({**config.model_dump(), "fault": fault.model_dump()})


def finished(case: Case, root: Path) -> Trial | None:
    """The trial of a case if it was run to its end before, with the configuration that it has today."""
    place = _place(case, root)
    try:
        done = json.loads((place / DONE).read_text())
        was, wanted = (place / CONFIGURATION).read_text(), _document(case, _materials(root) / case.material.name)
        if _without_place(was) != _without_place(wanted):
            return None
        return Trial(case, place / "runs" / done["run"], int(done["code"]), float(done["seconds"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def run(case: Case, root: Path) -> Trial:
    """Run a case, whatever it left behind when it was interrupted before. Raises `RuntimeError` for one that fails
    before its first step, and for a healthy one that fails at all."""
    place = _place(case, root)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    path = place / CONFIGURATION
    path.write_text(_document(case, _material(case.material, _materials(root))))
    began = time.monotonic()
    code = _attempt(["train", str(path)], place, stop_at=case.stop_at)
    folders = list_runs(place / "runs")
    if case.stop_at is not None and folders:
        code = _attempt(["train", "--resume", folders[0].name], place)
    if not folders or not any(event.step for event in read_events(folders[0] / EVENTS_FILE)):
        raise RuntimeError(f"{case.name} must take at least one step, and ended with {code}; see {place / 'log.txt'}")
    if case.kind is None and code:
        raise RuntimeError(f"{case.name} is healthy and must complete, and ended with {code}; see {place / 'log.txt'}")
    for part in LARGE:
        shutil.rmtree(folders[0] / part, ignore_errors=True)
    seconds = time.monotonic() - began
    done = {"run": folders[0].name, "code": code, "seconds": round(seconds, 2)}
    aside = place / f"{DONE}.part"
    aside.write_text(json.dumps(done))
    aside.replace(place / DONE)
    return Trial(case, folders[0], code, seconds)


def _document(case: Case, material: Path) -> str:
    config = configuration(case, material)
    return toml_of(config.model_dump(mode="json", exclude_defaults=True, exclude_none=True))


def _without_place(text: str) -> dict[str, Any]:
    """A configuration whose material is known by its name alone: a folder of runs may be moved."""
    document = tomllib.loads(text)
    for section, key in (("model", "path"), ("data", "train"), ("data", "evaluation")):
        document[section][key] = Path(document[section][key]).parts[-2:]
    return document


def _materials(root: Path) -> Path:
    return root / "material"


def _material(material: Material, folder: Path) -> Path:
    """Where the material lies. It is made in a process of its own: this one must not compute."""
    folder.mkdir(parents=True, exist_ok=True)
    place = (folder / material.name).absolute()
    if not (place / MADE).exists():
        wait_for(forked(lambda: prepare(material, folder), folder / "log.txt"), time.monotonic() + LIMIT_S)
    return prepare(material, folder).absolute()


def _place(case: Case, root: Path) -> Path:
    return root / case.split / case.name.replace("/", "-")


def import_libraries() -> None:
    """Import what every run needs; call it once, before the first `run`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: F401, PLC0415

    from tocsin.trainer import launch, local_sampler, run, summary  # noqa: F401, PLC0415

    fork_children()


def forked(target: Callable[[], object], log: Path) -> int:
    """Start `target` in a process of a session of its own, which writes to `log`; returns its process id.

    Its exit code is that of the `SystemExit` that `target` ends with.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        os.setsid()
        die_with(parent)
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ["TERM"] = "dumb"
        target()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
    except Exception:  # the child must end here: past this line it would go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait_for(child: int, until: float, tick: Callable[[], None] = lambda: None) -> int:
    """Exit code of a child of `forked`, which is killed with all of its own at `until` (monotonic) or on an error."""
    try:
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            tick()
            time.sleep(0.1)
    except BaseException:
        _kill(child)
        raise
    return _kill(child)


def _kill(child: int) -> int:
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _attempt(arguments: list[str], place: Path, stop_at: int | None = None) -> int:
    """Run `tocsin` to its end, its limit, or until `stop_at` steps are done; returns the exit code."""
    from tocsin.diagnostics.cli import main  # noqa: PLC0415

    argv = [*arguments, "--runs-dir", str(place / "runs")]
    child = forked(lambda: sys.exit(main(argv)), place / "log.txt")
    asked = False

    def stop() -> None:
        nonlocal asked
        if stop_at is not None and not asked and _last_step(place) >= stop_at:
            asked = True
            os.kill(child, signal.SIGTERM)

    return wait_for(child, time.monotonic() + LIMIT_S, stop)


def _last_step(place: Path) -> int:
    try:
        return max(
            (event.step for run in list_runs(place / "runs") for event in read_events(run / EVENTS_FILE)), default=0
        )
    except (NotAFeed, OSError):
        return 0


def toml_of(document: dict[str, Any]) -> str:
    """`document` as TOML. Every value in a configuration is one that JSON and TOML write alike."""
    return "\n".join(_lines(document, "")) + "\n"


def _lines(document: dict[str, Any], prefix: str) -> list[str]:
    """Plain values first, then tables and arrays of tables."""
    lines, nested = [], []
    for key, value in document.items():
        rows = [value] if isinstance(value, dict) else value if _is_rows(value) else None
        if rows is None:
            lines.append(f"{key} = {json.dumps(value)}")
            continue
        for row in rows:
            head = f"[{prefix}{key}]" if isinstance(value, dict) else f"[[{prefix}{key}]]"
            nested += [head, *_lines(row, f"{prefix}{key}.")]
    return lines + nested


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)
