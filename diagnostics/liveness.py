"""Whether anybody still writes a run, as an onlooker can tell: from the lock, the process and the last events."""

import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tocsin.diagnostics.clock import unix_seconds
from tocsin.diagnostics.feed import EVENTS_FILE, parse_event
from tocsin.diagnostics.jsonl import NotAFeed, lines_backwards, read_header
from tocsin.diagnostics.lock import Holder, living_writer
from tocsin.diagnostics.runs import BadManifest, RunNotFound, read_manifest
from tocsin.schemas.config import DiagnosticsConfig
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, ComponentHeartbeat, RunEnded
from tocsin.schemas.feed import WriterState
from tocsin.schemas.manifest import Attempt

SILENCE_S: Final = 60.0
"""The monitor writes a tick every few seconds, so silence this long (or of `SILENT_TICKS`) means it hangs itself."""
SILENT_TICKS: Final = 12
IDLE_S: Final = 300.0
"""Ticks arrive and nothing else has for this long, without a pause that somebody asked for: the trainer hangs."""
START_S: Final = 1800.0
"""A process that has held the run for longer and whose attempt has no event yet is stalled, not starting."""
LAST_EVENTS: Final = 32
"""How far before its end an attempt may have said `run_ended`; stragglers of other threads come after it."""

State = Literal["alive", "starting", "stalled", "dead", "ended"]


class _Declared(NamedTuple):
    """What the manifest says; the defaults are for a run without a readable one."""

    attempt: Attempt | None = None
    """The newest."""
    tick_s: float = DiagnosticsConfig().tick_s


class RunWatch:
    """Watches the writer of one run folder. `now` is Unix time, as the events' `ts`."""

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now

    def state(self) -> WriterState:
        """What the writer is doing now. A run without lock and without `run_ended` is dead, whatever its age."""
        holder = living_writer(self._folder)  # before the events are read, so that an end in between is seen
        newest = self._newest(LAST_EVENTS if holder is None else 1)
        age = self._age(newest[0].ts) if newest else None
        state, attempt = self._judge(holder, newest, age or 0.0)
        return WriterState(state=state, attempt=attempt, last_event_age_s=age, step=newest[0].step if newest else 0)

    def _judge(self, holder: Holder | None, newest: list[BaseEvent], silent_s: float) -> tuple[State, int | None]:
        """The state, and the attempt that is starting."""
        if holder is None:
            return "ended" if _has_ended(newest) else "dead", None
        declared = self._declared()
        attempt = _starting(holder, declared.attempt, newest[0] if newest else None)
        if attempt is not None:
            is_late = self._now() - holder.since > START_S
            return ("stalled", None) if is_late else ("starting", attempt)
        return "ended" if _has_ended(newest) else _speaking(newest[0], silent_s, declared.tick_s), None

    def _age(self, ts: str) -> float | None:
        written = unix_seconds(ts)
        return None if written is None else max(0.0, self._now() - written)

    def _declared(self) -> _Declared:
        try:
            manifest = read_manifest(self._folder)
        except (RunNotFound, BadManifest):
            return _Declared()
        return _Declared(manifest.attempts[-1], manifest.config.diagnostics.tick_s)

    def _newest(self, num: int) -> list[BaseEvent]:
        """The last `num` readable events, newest first, without routine heartbeats, which a hung trainer may go on
        giving; none when there is no file."""
        path = self._folder / EVENTS_FILE
        try:
            _, start = read_header(path, "events")
        except NotAFeed:
            return []
        with path.open("rb") as file:
            backwards = lines_backwards(file, start, file.seek(0, os.SEEK_END))
            events = (event for line in backwards if (event := parse_event(line)) is not None)
            return list(islice((event for event in events if not _is_routine(event)), num))


def _starting(holder: Holder, declared: Attempt | None, newest: BaseEvent | None) -> int | None:
    """Number of the attempt that the holder of the lock has begun and that has no event yet; None when it has one.

    A writer declares its attempt in the manifest some time after it took the lock. Until then it is told from the
    process that wrote `run_ended`, and that still holds the lock for a moment, by the process id.
    """
    number = declared.attempt if declared else 1
    if newest is None:
        return number
    if 0 < newest.attempt < number:
        return number
    is_itself = declared is not None and (declared.pid, declared.host) == (holder.pid, holder.host)
    return newest.attempt + 1 if isinstance(newest, RunEnded) and not is_itself else None


def _is_routine(event: BaseEvent) -> bool:
    return isinstance(event, ComponentHeartbeat) and event.is_routine


def _has_ended(newest: list[BaseEvent]) -> bool:
    return any(isinstance(event, RunEnded) and event.attempt == newest[0].attempt for event in newest)


def _speaking(newest: BaseEvent, silent_s: float, tick_s: float) -> Literal["alive", "stalled"]:
    """Of a process that lives and has spoken. The silence that is too long depends on the tick of the run."""
    is_idle = isinstance(newest, ClockTicked) and not newest.paused and newest.idle_s > IDLE_S
    return "stalled" if is_idle or silent_s > max(SILENCE_S, SILENT_TICKS * tick_s) else "alive"
