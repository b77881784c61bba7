"""Whether anybody still writes a run, as an onlooker can tell: from the lock, the process and the last events."""

import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from tocsin.diagnostics.clock import unix_seconds
from tocsin.diagnostics.feed import EVENTS_FILE, parse_event
from tocsin.diagnostics.jsonl import NotAFeed, lines_backwards, read_header
from tocsin.diagnostics.lock import has_writer
from tocsin.diagnostics.runs import BadManifest, RunNotFound, read_manifest
from tocsin.schemas.config import DiagnosticsConfig
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, RunEnded
from tocsin.schemas.feed import WriterState

SILENCE_S: Final = 60.0
"""The monitor writes a tick every few seconds, so silence this long (or of `SILENT_TICKS`) means it hangs itself."""
SILENT_TICKS: Final = 12
IDLE_S: Final = 300.0
"""Ticks arrive and nothing else has for this long, without a pause that somebody asked for: the trainer hangs."""
LAST_EVENTS: Final = 32
"""How far before its end an attempt may have said `run_ended`; stragglers of other threads come after it."""

State = Literal["alive", "stalled", "dead", "ended"]


class RunWatch:
    """Watches the writer of one run folder. `now` is Unix time, as the events' `ts`."""

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now
        self._silence_s: float | None = None

    def state(self) -> WriterState:
        """What the writer is doing now. A run without lock and without `run_ended` is dead, whatever its age."""
        held = has_writer(self._folder)  # before the events are read, so that an end in between is seen
        created, newest = self._newest(1 if held else LAST_EVENTS)
        age = self._age(newest[0].ts) if newest else None
        silent_s = age if newest else self._age(created)
        return WriterState(
            state=self._judge(held, newest, silent_s or 0.0),
            last_event_age_s=age,
            step=newest[0].step if newest else 0,
        )

    def _judge(self, held: bool, newest: list[BaseEvent], silent_s: float) -> State:
        if any(isinstance(event, RunEnded) and event.attempt == newest[0].attempt for event in newest):
            return "ended"
        if not held:
            return "dead"
        tick = newest[0] if newest and isinstance(newest[0], ClockTicked) else None
        idle_s = 0.0 if tick is None or tick.paused else tick.idle_s
        return "stalled" if silent_s > self._longest_silence() or idle_s > IDLE_S else "alive"

    def _age(self, ts: str) -> float | None:
        written = unix_seconds(ts)
        return None if written is None else max(0.0, self._now() - written)

    def _longest_silence(self) -> float:
        """Depends on the tick of the run, which its manifest states; assumes the default until there is one."""
        if self._silence_s is None:
            try:
                tick_s = read_manifest(self._folder).config.diagnostics.tick_s
            except (RunNotFound, BadManifest):
                return max(SILENCE_S, SILENT_TICKS * DiagnosticsConfig().tick_s)
            self._silence_s = max(SILENCE_S, SILENT_TICKS * tick_s)
        return self._silence_s

    def _newest(self, num: int) -> tuple[str, list[BaseEvent]]:
        """When the file was made, and its last `num` readable events, newest first; nothing when there is no file."""
        path = self._folder / EVENTS_FILE
        try:
            header, start = read_header(path, "events")
        except NotAFeed:
            return "", []
        with path.open("rb") as file:
            backwards = lines_backwards(file, start, file.seek(0, os.SEEK_END))
            events = (event for line in backwards if (event := parse_event(line)) is not None)
            return header.created, list(islice(events, num))
