"""What can be asked of the runs below a folder: one function per question, each from a run's files to a model.

    runs = Runs(Path("runs"))
    status(runs.open("latest"))
    page(runs.open("demo-1"), cursor="0badcafe0bad.17")

Every function may block on a disk. Errors: `RunNotFound`, `NotAFeed`, `BadCursor`, `UnknownId`, `NoSuchStep`,
`UnknownRule`,
`BadManifest`, `OSError`.
"""

import asyncio
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

from pydantic import FiniteFloat, StrictBool, StrictInt

from tocsin.diagnostics.catalogue import describe, entries, find_entry
from tocsin.diagnostics.control import look_at
from tocsin.diagnostics.feed import EVENTS_FILE, FEED_FILE
from tocsin.diagnostics.integrity import FeedCheck, check_feed
from tocsin.diagnostics.knob_patch import reach
from tocsin.diagnostics.modes import Gap
from tocsin.diagnostics.reader import FeedReader, NotAFeed, read_events
from tocsin.diagnostics.recording import Verdict
from tocsin.diagnostics.runs import NAME, find_run_below, is_run, list_runs
from tocsin.diagnostics.serve.untrusted import error_name, event_type, numbers_of, plain_name
from tocsin.diagnostics.snapshot import around
from tocsin.diagnostics.status import StatusLine, gather
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.base import Count, Model, Number
from tocsin.schemas.diagnosis import Coverage, Diagnostic, Severity
from tocsin.schemas.feed import ActiveCounts, Page, WriterState
from tocsin.schemas.knobs import KNOBS, Knob, KnobValue

KEPT_RUNS: Final = 64
"""Runs whose readers are kept between questions."""

Stamp = tuple[tuple[int, int, int], ...]


class OpenRun:
    """One run, with what is worth keeping between questions. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reader = FeedReader(folder)
        self.readings: dict[Any, asyncio.Future[Page]] = {}
        """Pages that are being read, by what was asked; see `waiting`."""
        self._checked: tuple[Stamp, FeedCheck] | None = None

    def check_feed(self, folder: Path, active: list[Diagnostic], replayed: Verdict | None = None) -> FeedCheck:
        """`check_feed`, which judges a whole run again, once as long as its files stay as they are."""
        stamp = tuple(_stamp(folder / name) for name in (EVENTS_FILE, FEED_FILE))
        if self._checked is None or self._checked[0] != stamp:
            self._checked = stamp, check_feed(folder, active, replayed)
        return self._checked[1]

    def feed_stamp(self) -> tuple[int, int, int]:
        """What changes when the feed does: inode, size, time of the last change."""
        return _stamp(self.folder / FEED_FILE)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        seen = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (seen.st_ino, seen.st_size, seen.st_mtime_ns)


class Runs:
    """The runs below one folder. Safe to use from several threads."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._guard = threading.Lock()
        self._kept: OrderedDict[Path, OpenRun] = OrderedDict()

    def open(self, run: str) -> OpenRun:
        """The run with this id, with this unique prefix of an id, or the `latest`. Raises `RunNotFound`."""
        return self._keep(find_run_below(run, self.runs_dir))

    def known(self, run: str) -> OpenRun | None:
        """The run with exactly this id, if it was opened before; looks no further than for its files."""
        kept = self._kept.get(self.runs_dir / run) if NAME.fullmatch(run) else None
        return self._keep(kept.folder) if kept is not None and is_run(kept.folder) else None

    def newest(self, limit: int) -> list[OpenRun]:
        """The newest runs, newest first."""
        return [self._keep(folder) for folder in list_runs(self.runs_dir)[:limit]]

    def _keep(self, folder: Path) -> OpenRun:
        with self._guard:
            kept = self._kept.pop(folder, None) or OpenRun(folder)
            self._kept[folder] = kept
            if len(self._kept) > KEPT_RUNS:
                self._kept.popitem(last=False)
        return kept


class RunLine(Model):
    """One run in a list."""

    run: str
    """What other questions name it by."""
    writer: WriterState
    active: ActiveCounts | None = None
    """Absent while there is no feed."""


class RunList(Model):
    """The newest runs, newest first."""

    runs: list[RunLine]


class RunStatus(Model):
    """A run at a glance."""

    status: StatusLine
    """`exit_code` sums it up: 0 clear, 1 something is open or the run failed, 3 cannot tell."""
    active: list[Diagnostic]
    """Open diagnostics, what to answer first first."""
    coverage: Coverage | None = None


class Finding(Model):
    """One diagnostic or action, with its history."""

    id: str
    diagnostic: Diagnostic | None = None
    """Its newest record; absent for an action that no diagnostic proposed."""
    history: list[Diagnostic | ActionRecord]
    """Every record about it, oldest first."""


class SnapshotRow(Model):
    """The numbers of one event. Text is left out: it may come from a model or from data."""

    seq: Count
    attempt: Count
    step: Count
    ts: str
    type: str
    metrics: dict[str, StrictBool | StrictInt | Number]


class Snapshot(Model):
    """Every number around a step."""

    rows: list[SnapshotRow]
    first_step: Count
    """First step that the run recorded."""
    last_step: Count


class KnobState(Model):
    """A knob of this run."""

    knob: Knob
    value: KnobValue
    """In force now."""
    launched: KnobValue
    """At the first launch of the run."""
    low: FiniteFloat
    """Smallest value that one change may set now."""
    high: FiniteFloat
    """Largest value that one change may set now."""


class KnobStates(Model):
    """All knobs of a run."""

    config_generation: Count
    step: Count
    paused: bool
    knobs: list[KnobState]


class RuleLine(Model):
    """One failure mode in a list."""

    code: str
    name: str
    title: str
    has_rule: bool
    """Without a rule its silence means nothing."""


class Rules(Model):
    """Every failure mode that has a code, in the order of the registry."""

    rules: list[RuleLine]


class Rule(Model):
    """The documentation of a failure mode."""

    code: str
    name: str
    title: str
    details: dict[str, Any]
    """Kind, evidence, timing, thresholds, causes and documentation; or `not_evaluated`, for one without a rule."""


class UnknownRule(ValueError):
    """A code or name that no failure mode has."""


def run_lines(runs: Runs, limit: int) -> RunList:
    """The newest runs."""
    return RunList(runs=[_line(run) for run in runs.newest(limit)])


def _line(run: OpenRun) -> RunLine:
    writer = run.reader.writer_state()
    try:
        active = run.reader.page(limit=1).active
    except NotAFeed:
        active = None
    return RunLine(run=run.folder.name, writer=writer, active=active)


def status(run: OpenRun) -> RunStatus:
    """The writer, the newest metrics, what is open, and which rules are evaluated."""
    seen = gather(run.folder, reader=run.reader, check=run.check_feed)
    line = seen.line()
    told = line.metrics
    safe = {"error": error_name(told.error), "evaluation": plain_name(told.evaluation)}
    safe |= {"paused_by": plain_name(told.paused_by), "outcome": plain_name(told.outcome)}
    line = line.model_copy(update={"folder": run.folder.name, "metrics": told.model_copy(update=safe)})
    return RunStatus(status=line, active=seen.active, coverage=seen.coverage)


def page(run: OpenRun, cursor: str | None = None, *, limit: int = 20, min_severity: Severity | None = None) -> Page:
    """The records after `cursor`; see `FeedReader.page`."""
    return run.reader.page(cursor, limit=limit, min_severity=min_severity)


def finding(run: OpenRun, id: str) -> Finding:
    """A diagnostic or an action by its id, or the newest finding of the rule that `id` names. Raises `UnknownId`."""
    known = run.reader.known_id(id)
    history = run.reader.history(known)
    newest = [record for record in history if isinstance(record, Diagnostic)][-1:]
    return Finding(id=known, diagnostic=newest[0] if newest else None, history=history)


def snapshot(run: OpenRun, step: int, *, window: int = 2, contains: str = "") -> Snapshot:
    """The numbers of every event from `step - window` to `step + window`.

    `contains` keeps those whose name, event type included, contains it. Reads the whole recording. Raises `NoSuchStep`.
    """
    seen = around(read_events(run.folder / EVENTS_FILE), step=step, width=window)
    rows = []
    for row in seen.rows:
        kind = event_type(row.type)
        numbers = {name: leaf for name, leaf in numbers_of(row.metrics).items() if contains in f"{kind}.{name}"}
        if numbers:
            metrics: Any = numbers
            rows.append(
                SnapshotRow(seq=row.seq, attempt=row.attempt, step=row.step, ts=row.ts, type=kind, metrics=metrics)
            )
    return Snapshot(rows=rows, first_step=seen.first_step, last_step=seen.last_step)


def knobs(run: OpenRun) -> KnobStates:
    """Every knob with its value in force and how far one change may move it. Raises `BadManifest`."""
    situation = look_at(run.folder).situation
    now, launched = situation.knobs.model_dump(), situation.launched.model_dump()
    return KnobStates(
        config_generation=situation.config_generation,
        step=situation.step,
        paused=situation.is_paused,
        knobs=[_state(knob, now[knob.path], launched[knob.path]) for knob in KNOBS],
    )


def _state(knob: Knob, value: KnobValue, launched: KnobValue) -> KnobState:
    low, high = (knob.min, knob.max) if knob.type == "bool" else reach(knob.path, value, launched)
    return KnobState(knob=knob, value=value, launched=launched, low=low, high=high)


def rule(code: str) -> Rule:
    """The documentation of a failure mode, by code or name. Raises `UnknownRule`, which names close matches."""
    try:
        entry = find_entry(code)
    except ValueError as error:
        raise UnknownRule(str(error)) from None
    described = describe(entry)
    named = {name: described.pop(name) for name in ("code", "name", "title")}
    return Rule(**named, details=described)


def rules() -> Rules:
    """Every failure mode."""
    return Rules(
        rules=[
            RuleLine(code=entry.code, name=entry.name, title=entry.title, has_rule=not isinstance(entry, Gap))
            for entry in entries()
        ]
    )
