"""What a person sees while a run goes on: a panel in a terminal, plain lines anywhere else.

    the trainer's thread:  `observe`, `stage`, `note` --> History, lines --+
    the monitor's thread:  `record` --------------------> History, lines --+--> the display's thread, 4 times a second

Only the display's own thread writes, so a terminal or a pipe that stands still does not hold up training.
"""

import contextlib
import logging
import math
import queue
import sys
import threading
from typing import Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tocsin.diagnostics import render
from tocsin.diagnostics.feed import Record
from tocsin.diagnostics.history import History
from tocsin.diagnostics.panel import Stage, draw, percent, progress_line
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ComponentHeartbeat, RolloutFailed, RunContinued, RunPaused
from tocsin.schemas.step import StepCompleted

REFRESH_S: Final = 0.25
LINE_EVERY_S: Final = 5.0
LINES: Final = 30
"""Plain lines of a run that is long enough; a short one has one per `LINE_EVERY_S`."""
SILENCE_S: Final = 600.0
"""A plain line is due after this time, however few steps were made."""
MAX_WIDTH: Final = 110

log: Final = logging.getLogger("tocsin")


class Progress:
    """The display of one attempt, a context manager. Its methods never raise and never wait for the terminal.

    `stream` is standard error by default. `live` None means a panel if `stream` is a terminal that can show one.
    """

    def __init__(self, *, steps: int, stream: TextIO | None = None, live: bool | None = None) -> None:
        self.history = History(steps)
        """The numbers so far, for the summary."""
        target = sys.stderr if stream is None else stream
        console = Console(file=target, force_terminal=live, highlight=False)
        can_draw = console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")
        self._screen = _Terminal(console) if (can_draw if live is None else live) else _Log(target)
        self._stage: Stage | None = None
        self._lines: queue.SimpleQueue[Text] = queue.SimpleQueue()
        self._causes: set[str] = set()
        self._is_broken = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tocsin-display", daemon=True)

    def __enter__(self) -> "Progress":
        self._screen.held.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        try:
            self._thread.join()
            self._show()
        finally:
            with contextlib.suppress(OSError):  # a terminal that went away needs no restoring
                self._screen.held.__exit__(None, None, None)

    def stage(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Say what goes on outside the steps, with a bar when `done` of `total` is given. The next step ends it."""
        portion = min(1.0, max(0.0, done / total)) if done is not None and total else None
        self._stage = Stage(render.clean(text), portion)

    def note(self, text: str) -> None:
        """Print a sentence."""
        self._lines.put(Text(f"[tocsin] {render.clean(text)}"))

    def observe(self, event: BaseEvent) -> None:
        """Take in an event of the trainer, stamped or not, in whatever thread it happens."""
        try:
            self.history.observe(event)
            if isinstance(event, StepCompleted):
                self._stage = None
            elif isinstance(event, RunPaused):
                self.stage(f"paused by {event.actor}")
            elif isinstance(event, RunContinued):
                self.stage("going on")
            elif isinstance(event, RolloutFailed) and event.cause not in self._causes:
                self._causes.add(event.cause)
                self.note(f"{event.cause} at prompt {event.prompt_id}: {event.error} (others are only counted)")
            elif isinstance(event, ComponentHeartbeat):
                self._tell_of(event)
        except Exception:  # the boundary around training: a faulty display costs itself, never the run
            self._complain()

    def _tell_of(self, event: ComponentHeartbeat) -> None:
        if event.state in ("died", "restarted"):
            self.note(f"{event.component} {event.state}: {event.detail}")
        elif event.component == "sampler" and event.state == "alive" and event.detail:
            # Before the first step there is nothing else to look at; later it is news.
            tell = self.note if self._stage is None else self.stage
            tell(f"sampler: {event.detail}")

    def record(self, record: Record) -> None:
        """Take in a new record of the feed, in the monitor's thread."""
        try:
            self.history.record(record)
            if _is_loud(record):
                self._lines.put(render.styled(record))
        except Exception:  # the boundary around the monitor: a faulty display costs itself, never a record
            self._complain()

    def _run(self) -> None:
        while not self._stopping.wait(REFRESH_S):
            self._show()

    def _show(self) -> None:
        """Print what waits and bring the screen up to date."""
        if self._is_broken:
            return
        try:
            while not self._lines.empty():
                self._screen.say(self._lines.get_nowait())
            self._screen.show(self.history, self._stage)
        except Exception:  # the boundary around the display: a terminal or pipe that is gone never ends a run
            self._complain()

    def _complain(self) -> None:
        """Switch the display off."""
        if not self._is_broken:
            self._is_broken = True
            log.exception("tocsin progress: the display failed and is off; training is not affected")


def _is_loud(record: Record) -> bool:
    """Whether a record is printed: actions, diagnostics above info for which no other stands, bad coverage."""
    if isinstance(record, Diagnostic):
        return record.severity != "info" and not record.suppressed
    return isinstance(record, ActionRecord) or record.health == "degraded"


class _Terminal:
    """The panel at the bottom of a terminal, lines above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.held = Live(console=console, auto_refresh=False, transient=True)
        self.say = console.print

    def show(self, history: History, stage: Stage | None) -> None:
        with history.guard:
            panel = draw(history, stage, min(self._console.width, MAX_WIDTH))
        self.held.update(panel, refresh=True)


class _Log:
    """A line now and then, each with everything that matters."""

    def __init__(self, stream: TextIO) -> None:
        self.held = contextlib.nullcontext()
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        self._last_s = -math.inf
        self._stage = ""
        self._step: int | None = None

    def say(self, line: Text) -> None:
        shown = line.plain.encode(self._encoding, "replace").decode(self._encoding)
        self._stream.write(f"{shown}\n")
        self._stream.flush()

    def show(self, history: History, stage: Stage | None) -> None:
        now = history.clock()
        text = self._step_line(history, now) if stage is None else self._stage_line(stage, now)
        if text is not None:
            self._last_s = now
            self.say(Text(text))

    def _stage_line(self, stage: Stage, now: float) -> str | None:
        if stage.text != self._stage:
            self._stage = stage.text
            return stage.text
        is_due = stage.portion is not None and now - self._last_s >= LINE_EVERY_S
        return f"{stage.text}: {percent(stage.portion)}" if is_due else None

    def _step_line(self, history: History, now: float) -> str | None:
        waited, before, step = now - self._last_s, self._step, history.step
        if not history.outcomes or step == before:
            return None
        is_due = before is None or step == history.steps or waited >= SILENCE_S
        if not is_due and (waited < LINE_EVERY_S or (step - (before or 0)) * LINES < history.steps):
            return None
        self._step = step
        return progress_line(history)
