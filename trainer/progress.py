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
from itertools import pairwise
from statistics import fmean
from typing import Final, NamedTuple, TextIO

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from tocsin.diagnostics import render
from tocsin.diagnostics.display import duration
from tocsin.diagnostics.feed import Record
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ComponentHeartbeat, RolloutFailed
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.history import ABSENT, Finding, History
from tocsin.trainer.summary import causes, estimate, share

REFRESH_S: Final = 0.25
LINE_EVERY_S: Final = 5.0
LINES: Final = 30
"""Plain lines of a run that is long enough; a short one has one per `LINE_EVERY_S`."""
SILENCE_S: Final = 600.0
"""A plain line is due after this time, however few steps were made."""
LATE_S: Final = 10.0
LATE_STEPS: Final = 5
"""The panel says how long ago the last step was once both limits are passed."""
MAX_WIDTH: Final = 110
TWO_COLUMNS: Final = 68
LABEL: Final = 11
SHOWN_FINDINGS: Final = 5
BLOCKS: Final = "▁▂▃▄▅▆▇█"

log: Final = logging.getLogger("tocsin")


class Stage(NamedTuple):
    """What goes on outside the steps, and which share of it is done; None when that is not known."""

    text: str
    portion: float | None


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
            elif isinstance(event, RolloutFailed) and event.cause not in self._causes:
                self._causes.add(event.cause)
                self.note(f"{event.cause} at prompt {event.prompt_id}: {event.error} (others are only counted)")
            elif isinstance(event, ComponentHeartbeat) and event.state in ("died", "restarted"):
                self.note(f"{event.component} {event.state}: {event.detail}")
        except Exception:  # the boundary around training: a faulty display costs itself, never the run
            self._complain()

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
    """Whether a record is printed: actions, diagnostics above info, and coverage that cannot be trusted."""
    if isinstance(record, Diagnostic):
        return record.severity != "info"
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
        return f"{stage.text}: {_percent(stage.portion)}" if is_due else None

    def _step_line(self, history: History, now: float) -> str | None:
        waited, before, step = now - self._last_s, self._step, history.step
        if not history.outcomes or step == before:
            return None
        is_due = before is None or step == history.steps or waited >= SILENCE_S
        if not is_due and (waited < LINE_EVERY_S or (step - (before or 0)) * LINES < history.steps):
            return None
        self._step = step
        return progress_line(history)


def progress_line(history: History) -> str:
    """`step 120/400  reward 0.81  pass 0.80  held-out 0.79 ± 0.03  staleness 0.9/1  ...`."""
    with history.guard:
        learner, sampler = history.wait_shares() or (None, None)
        parts = [
            f"step {history.step}/{history.steps}",
            f"reward {share(history.rewards.recent())}",
            f"pass {share(history.pass_rates.recent())}",
            f"held-out {_evaluations(history)[0]}",
            f"staleness {_staleness(history, '/')}",
            f"waits learner {_percent(learner)} sampler {_percent(sampler)}",
            f"{_count(history.tokens_per_s())} tok/s",
        ]
        severities = [finding.severity for finding in history.found() if finding.is_open]
    if severities:
        counts = [f"{severities.count(severity)} {severity}" for severity in dict.fromkeys(severities)]
        parts.append(f"open {', '.join(counts)}")
    return "  ".join(parts)


def draw(history: History, stage: Stage | None, width: int) -> Panel:
    """The panel, `width` columns wide. The caller holds `history.guard`."""
    inner = width - 4
    lines = [_top(history, stage, inner)]
    if history.outcomes or history.evaluations:
        lines += _columns(_cells(history), inner)
        rates, rewards = history.pass_rates.points, history.rewards.points
        name, points, span = ("pass rate", rates, (0.0, 1.0)) if rates else ("reward", rewards, None)
        lines.append(_row(name, sparkline(points, inner - LABEL, span), "green"))
    if failed := history.refused + history.failed:
        lines.append(_row("left out", causes(failed), "yellow"))
    if history.outcomes or history.findings:
        lines += _open([finding for finding in history.found() if finding.is_open])
    for line in lines:
        line.truncate(inner, overflow="ellipsis")
    body = Text("\n", no_wrap=True).join(lines)
    panel = Panel(body, title="tocsin", title_align="left", border_style=render.QUIET, width=width)
    panel.subtitle, panel.subtitle_align = duration(history.clock() - history.began), "right"
    return panel


def _top(history: History, stage: Stage | None, inner: int) -> Text:
    """`step 120/400 ━━━━━━━━━━━━━━━━  30 %, 35 s left`, or the same for a stage."""
    if stage is None:
        name = f"step {history.step}/{history.steps}"
        portion = min(1.0, history.step / history.steps) if history.steps else None
        end = f"{_percent(portion)}, {_time_left(history)}"
    else:
        name, portion = stage
        end = "" if portion is None else _percent(portion)
    room = inner - len(name) - len(end) - 4
    if portion is None or room < 5:
        return Text(f"{name}  {end}".rstrip(), style="bold")
    full = round(room * portion)
    return Text.assemble((name, "bold"), "  ", ("━" * full, "green"), ("━" * (room - full), "grey37"), "  ", end)


def _time_left(history: History) -> str:
    pace, since = history.pace_s(), history.since_step_s()
    if history.outcomes and since > LATE_S and (pace is None or since > LATE_STEPS * pace):
        return f"last step {duration(since)} ago"
    return f"{ABSENT if pace is None else duration(pace * (history.steps - history.step))} left"


def _cells(history: History) -> list[tuple[str, str]]:
    learner, sampler = history.wait_shares() or (None, None)
    latest, first = _evaluations(history)
    return [
        ("reward", share(history.rewards.recent())),
        ("pass rate", share(history.pass_rates.recent())),
        ("held-out", latest),
        ("at first", first),
        ("staleness", _staleness(history, " of at most ")),
        ("speed", f"{_count(history.tokens_per_s())} tokens/s"),
        ("waits", f"learner {_percent(learner)}, sampler {_percent(sampler)}"),
        ("entropy", ABSENT if history.entropy is None else f"{history.entropy:.3f} nats"),
        ("no spread", f"{_percent(history.zero_spread())} of groups"),
        ("updates", f"{history.outcomes['updated']} of {render.plural(history.outcomes.total(), 'step')}"),
    ]


def _evaluations(history: History) -> tuple[str, str]:
    """The newest and the first held-out result."""
    pair = next(iter(history.evaluations.values()), None)
    return (ABSENT, ABSENT) if pair is None else (estimate(pair[1]), estimate(pair[0]))


def _staleness(history: History, of: str) -> str:
    return f"{history.staleness[0]:.1f}{of}{history.staleness[1]}" if history.staleness else ABSENT


def _percent(portion: float | None) -> str:
    return ABSENT if portion is None else f"{100 * portion:.0f} %"


def _count(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}"


def _row(label: str, value: str, style: str = "") -> Text:
    return Text.assemble((label.ljust(LABEL), render.QUIET), (value, style))


def _columns(cells: list[tuple[str, str]], inner: int) -> list[Text]:
    """Cells two by two where there is room, else one below the other."""
    if inner < TWO_COLUMNS:
        return [_row(label, value) for label, value in cells]
    room = inner // 2 - LABEL
    pairs = zip(cells[::2], cells[1::2], strict=True)
    return [_row(left[0], left[1].ljust(room)).append_text(_row(*right)) for left, right in pairs]


def sparkline(points: list[float], width: int, span: tuple[float, float] | None) -> str:
    """At most `width` blocks for the whole series. `span` is what the lowest and the highest block mean; None: its own.

    What is not finite is a dot.
    """
    num = min(width, len(points))
    cuts = [round(i * len(points) / num) for i in range(num + 1)] if num > 0 else []
    means = [fmean(points[start:end]) for start, end in pairwise(cuts)]
    finite = [value for value in means if math.isfinite(value)]
    low, high = span or (min(finite, default=0.0), max(finite, default=0.0))
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_block((value - low) * scale) for value in means)


def _block(level: float) -> str:
    return BLOCKS[min(len(BLOCKS) - 1, max(0, round(level)))] if math.isfinite(level) else "·"


def _open(findings: list[Finding]) -> list[Text]:
    """Open diagnostics, one on a line."""
    lines: list[Text] = [] if findings else [_row("open", "no diagnostic", render.QUIET)]
    for finding in findings[:SHOWN_FINDINGS]:
        record = finding.latest
        word = (render.headline(record), render.severity_style(record.severity))
        what = f" {record.code} {record.name}: {render.clean(record.summary)}"
        lines.append(_row("" if lines else "open", "").append_text(Text.assemble(word, what)))
    if len(findings) > SHOWN_FINDINGS:
        lines.append(_row("", f"and {len(findings) - SHOWN_FINDINGS} more: tocsin status", render.QUIET))
    return lines
