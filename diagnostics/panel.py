"""A run as a person watches it: one panel, or one line. Drawn from a `History`, whoever collects it.

`tocsin train` draws it live, `tocsin watch` draws it from the files of a run.
"""

import math
from collections import Counter
from itertools import pairwise
from statistics import fmean
from typing import Final, NamedTuple

from rich.panel import Panel
from rich.text import Text

from tocsin.diagnostics import render
from tocsin.diagnostics.display import duration
from tocsin.diagnostics.history import ABSENT, Finding, History
from tocsin.schemas.base import Number, as_float
from tocsin.schemas.events import EvaluationCompleted

LATE_S: Final = 10.0
LATE_STEPS: Final = 5
"""The panel says how long ago the last step was once both limits are passed."""
TWO_COLUMNS: Final = 68
LABEL: Final = 11
SHOWN_FINDINGS: Final = 5
BLOCKS: Final = "▁▂▃▄▅▆▇█"


class Stage(NamedTuple):
    """What goes on outside the steps, and which share of it is done; None when that is not known."""

    text: str
    portion: float | None


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
            f"waits learner {percent(learner)} sampler {percent(sampler)}",
            f"{_count(history.tokens_per_s())} tok/s",
        ]
        severities = [item.severity for item in history.found() if item.is_open and not item.latest.suppressed]
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
        end = f"{percent(portion)}, {_time_left(history)}"
    else:
        name, portion = stage
        end = "" if portion is None else percent(portion)
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
        ("waits", f"learner {percent(learner)}, sampler {percent(sampler)}"),
        ("entropy", ABSENT if history.entropy is None else f"{history.entropy:.3f} nats"),
        ("no spread", f"{percent(history.zero_spread())} of groups"),
        ("updates", f"{history.outcomes['updated']} of {render.plural(history.outcomes.total(), 'step')}"),
    ]


def _evaluations(history: History) -> tuple[str, str]:
    """The newest held-out result, with its step when it is not that of now, and the first one."""
    pair = next(iter(history.evaluations.values()), None)
    if pair is None:
        return ABSENT, ABSENT
    first, newest = pair
    step = f" (step {newest.version})" if newest.version < history.step else ""
    return f"{estimate(newest)}{step}", estimate(first)


def _staleness(history: History, of: str) -> str:
    return f"{history.staleness[0]:.1f}{of}{history.staleness[1]}" if history.staleness else ABSENT


def percent(portion: float | None) -> str:
    """`23 %`, or a dash when not known. A wait that began before its steps is longer than they are: `100 %`."""
    return ABSENT if portion is None else f"{100 * min(1.0, portion):.0f} %"


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
        word = (render.headline(record), render.record_style(record))
        what = f" {record.code} {record.name}: {render.clean(record.summary)}"
        lines.append(_row("" if lines else "open", "").append_text(Text.assemble(word, what)))
    if len(findings) > SHOWN_FINDINGS:
        lines.append(_row("", f"and {len(findings) - SHOWN_FINDINGS} more: tocsin status", render.QUIET))
    return lines


def share(value: Number | None) -> str:
    """Two decimals for rewards and rates; a dash when not measured, `nan` or `inf` when not finite."""
    if value is None:
        return ABSENT
    return f"{as_float(value):.2f}" if abs(as_float(value)) < 100 else f"{as_float(value):.4g}"


def estimate(event: EvaluationCompleted) -> str:
    """`0.79 ± 0.03`: the pass rate, or the reward when no pass rate is declared, with its standard error."""
    if event.pass_rate is None:
        return f"{share(event.reward_mean)} ± {share(event.reward_se)}"
    return f"{share(event.pass_rate)} ± {share(event.pass_rate_se)}"


def causes(counts: Counter[str]) -> str:
    """`2 reward_error, 1 reward_timeout`."""
    return ", ".join(f"{num} {cause}" for cause, num in counts.most_common())
