"""A recorded run, judged again offline: its events, and the engine that its manifest asks for."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tocsin.diagnostics.added_rules import Added, added, engine_for, without_absent
from tocsin.diagnostics.engine import Engine, Record
from tocsin.diagnostics.feed import EVENTS_FILE
from tocsin.diagnostics.output import note
from tocsin.diagnostics.reader import Unreadable, read_events
from tocsin.diagnostics.render import plural
from tocsin.diagnostics.replay import replay
from tocsin.diagnostics.runs import BadManifest, RunNotFound, find_run, read_manifest
from tocsin.schemas.config import DiagnosticsConfig
from tocsin.schemas.event import BaseEvent


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the engine said, numbered as a feed numbers it, and the engine as the recording left it."""

    records: list[Record]
    engine: Engine


def events_file(run: str, runs_dir: Path) -> Path:
    """The recording that `run` names: a file, or a run as `find_run` knows it."""
    path = Path(run)
    return path if path.suffix == ".jsonl" else find_run(run, runs_dir) / EVENTS_FILE


def recorded_events(path: Path) -> Iterator[BaseEvent]:
    """The events of a recording; lines that cannot be read are counted on standard error. Raises `NotAFeed`."""
    unreadable = Unreadable()
    yield from read_events(path, unreadable)
    if unreadable.count:
        note(f"{path}: {plural(unreadable.count, 'line')} left out: {'; '.join(unreadable.examples)}")


def judge_again(path: Path, extra: Added | None = None) -> Verdict:
    """Run every rule over a recording, switched and tuned as in the run. Raises `NotAFeed`.

    `extra` has the rules beside ours: by default those of the packages that are installed here.
    """
    engine = _engine_of(path.parent, added() if extra is None else extra)
    records = enumerate(replay(recorded_events(path), engine), start=1)
    return Verdict([record.model_copy(update={"seq": seq}) for seq, record in records], engine)


def _engine_of(folder: Path, extra: Added) -> Engine:
    """The engine of a run. A recording without a readable manifest gets the default rules."""
    try:
        config = read_manifest(folder).config.diagnostics
    except (RunNotFound, BadManifest):
        config = DiagnosticsConfig()
    return engine_for(without_absent(config, extra), extra)
