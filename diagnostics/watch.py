"""`tocsin watch`: the live view of a run from its files alone, wherever the run is and whoever started it.

events.jsonl --> EventTail --> History --+--> panel (terminal) or lines
feed.jsonl  ---> FeedReader --^          |
lock, age   ---> FeedReader.writer_state-+
"""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tocsin.diagnostics import render
from tocsin.diagnostics.display import duration, pause_text, stall
from tocsin.diagnostics.feed import EVENTS_FILE, parse_event
from tocsin.diagnostics.history import History
from tocsin.diagnostics.jsonl import lines, read_header
from tocsin.diagnostics.panel import draw, progress_line
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.runs import read_manifest
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunContinued, RunEnded, RunPaused, RunResumed
from tocsin.schemas.feed import Page, WriterState

REFRESH_S: Final = 0.5
LINE_EVERY_S: Final = 5.0
MAX_WIDTH: Final = 110
MAX_PAGE: Final = 1000
"""Records of the feed taken in one go."""
OVER: Final = ("ended", "dead")


class EventTail:
    """The events of a growing `events.jsonl`, each once. Raises `NotAFeed` when the file is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._epoch, self._offset = "", 0

    def skip(self) -> None:
        """Pass over what is written already."""
        self._epoch = read_header(self.path, "events")[0].epoch
        self._offset = self.path.stat().st_size

    def new(self) -> Iterator[BaseEvent]:
        """Events written since the last call. A replaced file is read from its start."""
        header, start = read_header(self.path, "events")
        if header.epoch != self._epoch or self.path.stat().st_size < self._offset:
            self._epoch, self._offset = header.epoch, start
        with self.path.open("rb") as file:
            for line in lines(file, self._offset):
                if line.torn:
                    return  # it is being written; the next call meets it whole
                self._offset = line.end
                event = parse_event(line.data)
                if event is not None:
                    yield event


class RunClock:
    """The run's own monotonic clock: that of its newest event, going on from when the event was written."""

    def __init__(self) -> None:
        self._mono, self._written_at = 0.0, math.inf

    def stand_at(self, mono: float) -> None:
        """While catching up, time is that of the event."""
        self._mono, self._written_at = mono, math.inf

    def go_on(self, age_s: float) -> None:
        """The newest event was written `age_s` ago."""
        self._written_at = time.monotonic() - age_s

    def __call__(self) -> float:
        return self._mono + max(0.0, time.monotonic() - self._written_at)


class Watcher:
    """What is known of a run from its files; `refresh` brings it up to date."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = RunClock()
        self.steps = read_manifest(folder).config.steps
        self.history = self._fresh()
        self.ended: RunEnded | None = None
        self.pause: RunPaused | None = None
        """What training stands still for."""
        self.writer: WriterState | None = None
        self._tail = EventTail(folder / EVENTS_FILE)
        self._reader = FeedReader(folder)
        self._cursor: str | None = None

    def _fresh(self) -> History:
        return History(self.steps, clock=self.clock)

    def refresh(self) -> list[Diagnostic | ActionRecord | Coverage]:
        """Read what was added; returns the new feed records."""
        newest = None
        for event in self._tail.new():
            self.clock.stand_at(event.mono)
            if newest is None and not self.history.outcomes:
                self.history.began = event.mono
            newest = event
            self._take(event)
        page = self._page()
        self.writer = page.writer
        if newest is not None:
            self.clock.go_on(max(0.0, page.writer.last_event_age_s or 0.0))
        records = [r for r in page.records if isinstance(r, Diagnostic | ActionRecord | Coverage)]
        for record in records:
            self.history.record(record)
        return records

    def _take(self, event: BaseEvent) -> None:
        """One event. Another attempt may run on another host, so its clock and its display start over."""
        if isinstance(event, RunResumed):
            self.history, self.ended = self._fresh(), None
            self.history.began = event.mono
        self.ended = event if isinstance(event, RunEnded) else self.ended
        if isinstance(event, RunPaused):
            self.pause = event
        elif isinstance(event, RunContinued | RunResumed | RunEnded):
            self.pause = None
        self.history.observe(event)

    def _page(self) -> Page:
        page = self._reader.page(self._cursor, limit=MAX_PAGE)
        self._cursor = page.next_cursor
        return page

    @property
    def is_over(self) -> bool:
        """Whether nobody will write any more."""
        return self.writer is not None and self.writer.state in OVER

    def state_line(self) -> Text:
        """Who writes, and when they last did."""
        assert self.writer is not None, "`refresh` comes first"
        style = render.WRITER_STYLES[self.writer.state]
        age = self.writer.last_event_age_s
        seen = "no event yet" if age is None else f"last event {duration(age)} ago"
        outcome = f": {self.ended.outcome}" if self.ended and self.writer.state == "ended" else ""
        attempt = f": attempt {self.writer.attempt}" if self.writer.state == "starting" else ""
        why = f" ({stall(self.writer)})" if self.writer.state == "stalled" else ""
        if self.pause is not None and self.writer.state in ("alive", "stalled"):
            why += f", {pause_text(self.pause.actor, self.clock() - self.pause.mono)}"
        said = f"{self.writer.state}{outcome}{attempt}{why}"
        return Text.assemble((said, style), f", {seen}  ", (self.folder.name, render.QUIET))

    def panel(self, width: int) -> RenderableType:
        """The panel of the run with the state of its writer below."""
        with self.history.guard:
            return Group(draw(self.history, None, min(width, MAX_WIDTH)), self.state_line())


def watch(folder: Path, console: Console, *, is_over: Callable[[Watcher], bool] = lambda seen: seen.is_over) -> Watcher:
    """Show the run until it ends or is dead; returns what was seen. Raises `NotAFeed`, `BadManifest`."""
    seen = Watcher(folder)
    (_watch_live if console.is_terminal else _watch_plainly)(seen, console, is_over)
    return seen


def _watch_live(seen: Watcher, console: Console, is_over: Callable[[Watcher], bool]) -> None:
    seen.refresh()  # what is old is in the panel already
    with Live(seen.panel(console.width), console=console, auto_refresh=False) as live:
        while not is_over(seen):
            time.sleep(REFRESH_S)
            for record in seen.refresh():
                if _is_news(record):
                    live.console.print(render.styled(record))
            live.update(seen.panel(console.width), refresh=True)


def _watch_plainly(seen: Watcher, console: Console, is_over: Callable[[Watcher], bool]) -> None:
    last_step, last_s = -1, -LINE_EVERY_S
    while True:
        for record in seen.refresh():
            if _is_news(record):
                console.print(Text(render.line(record)), soft_wrap=True)
        over = is_over(seen)
        due = time.monotonic() - last_s >= LINE_EVERY_S and seen.history.step != last_step
        if over or due:
            last_step, last_s = seen.history.step, time.monotonic()
            console.print(Text.assemble(progress_line(seen.history), "  ", seen.state_line()), soft_wrap=True)
        if over:
            return
        time.sleep(REFRESH_S)


def _is_news(record: Diagnostic | ActionRecord | Coverage) -> bool:
    return not isinstance(record, Coverage) or record.health == "degraded"
