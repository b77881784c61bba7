"""What a run adds up to: `History` collects it while the run goes on, `summarise` reports it at the end.

Everything is of one attempt. Memory is bounded: by windows, and by the number of rules, causes and evaluations.
"""

import math
import os
import shlex
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from tocsin.diagnostics import render
from tocsin.diagnostics.display import duration, labelled
from tocsin.diagnostics.feed import EVENTS_FILE, FEED_FILE, Record
from tocsin.diagnostics.lifecycle import graver
from tocsin.diagnostics.monitor import MonitorCost
from tocsin.diagnostics.runs import MANIFEST_FILE
from tocsin.schemas.base import Number, as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import SEVERITIES, Coverage, Diagnostic, Severity
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, QueueSampled, RolloutFailed, RunEnded, RunResumed, SamplerSampled
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.checkpoint import FOLDER, find_all

RECENT: Final = 20
"""Steps over which speed, waits and the two ends of the learning curve are averaged."""
SMOOTHED: Final = 5
"""Steps over which reward, pass rate and zero spread are averaged for the display."""
TIMED_STEPS: Final = 4096
"""Newest steps whose lengths are kept for the median."""
CURVE_POINTS: Final = 120
ABSENT: Final = "–"  # noqa: RUF001 - a dash, so that nothing reads as a minus sign
OUTCOME_STYLES: Final = {"completed": "bold green", "interrupted": "bold yellow", "failed": "bold red"}


Rows = Iterator[tuple[str, Text]]
"""Label and text of lines of the report."""


class Curve:
    """A series in bounded memory: when it is full, neighbours are averaged two by two. NaN stays visible."""

    def __init__(self) -> None:
        self.first: list[float] = []
        """At most `RECENT` values."""
        self.last: deque[float] = deque(maxlen=RECENT)
        self.points: list[float] = []
        """Fewer than `CURVE_POINTS` means, each over equally many values."""
        self._per_point = 1
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        """Append one value."""
        if len(self.first) < RECENT:
            self.first.append(value)
        self.last.append(value)
        self._pending.append(value)
        if len(self._pending) == self._per_point:
            self.points.append(fmean(self._pending))
            self._pending.clear()
        if len(self.points) == CURVE_POINTS:
            self.points = [fmean(pair) for pair in zip(self.points[::2], self.points[1::2], strict=True)]
            self._per_point *= 2

    def recent(self) -> float | None:
        """Mean of the newest `SMOOTHED` values; None before there are any."""
        return fmean(list(self.last)[-SMOOTHED:]) if self.last else None


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule said about one place in all its episodes."""

    latest: Diagnostic
    first_step: int
    severity: Severity
    """The gravest of all episodes."""

    @property
    def is_open(self) -> bool:
        """Whether it fires, or fired when its data went missing."""
        return self.latest.state in ("firing", "no_data")


class History:
    """Numbers of one attempt. Threads that write are kept apart; who reads several numbers holds `guard`."""

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.guard = threading.RLock()
        self.clock, self.began = clock, clock()
        self.steps, self.step, self.resumed_at = steps, 0, 0
        self.error: str | None = None
        """What ended a failed attempt. Untrusted."""
        self.rewards, self.pass_rates = Curve(), Curve()
        self.evaluations: dict[str, tuple[EvaluationCompleted, EvaluationCompleted]] = {}
        """By name: the first and the newest."""
        self.tokens = self.tokens_trained = 0
        """Completion tokens generated for training, and those that went through the forward pass."""
        self.train_s = 0.0
        """Sum of the lengths of all steps."""
        self.step_s: deque[float] = deque(maxlen=TIMED_STEPS)
        self.outcomes = Counter[str]()
        """Attempts at a step by outcome."""
        self.refused, self.failed = Counter[str](), Counter[str]()
        """Rows refused, and completions failed, by cause."""
        self.findings: dict[str, Finding] = {}
        """By fingerprint."""
        self.coverage: Coverage | None = None
        self.staleness: tuple[float, int] | None = None
        """Mean over the completions of the newest batch, and the bound, in optimizer steps."""
        self.entropy: float | None = None
        """Of the newest step that trained a token, in nats."""
        self._marks: deque[tuple[float, int]] = deque(maxlen=RECENT + 1)
        self._waits: deque[tuple[float, float, float]] = deque(maxlen=RECENT)
        self._zero_spread: deque[tuple[int, int]] = deque(maxlen=SMOOTHED)

    def observe(self, event: BaseEvent) -> None:
        """Take in an event, stamped or not."""
        with self.guard:
            match event:
                case StepCompleted():
                    self._step_completed(event)
                case BatchConsumed():
                    self._batch_consumed(event)
                case QueueSampled():
                    self._waits.append((event.learner_wait_s, event.sampler_wait_s, event.step_s))
                case SamplerSampled(purpose="train"):
                    self.tokens += event.tokens
                case EvaluationCompleted():
                    first, _ = self.evaluations.get(event.name, (event, event))
                    self.evaluations[event.name] = (first, event)
                case RolloutFailed(group_index=None):
                    self.refused[event.cause] += 1
                case RolloutFailed():
                    self.failed[event.cause] += event.completions
                case RunResumed():
                    self.step = self.resumed_at = event.checkpoint_step
                case RunEnded():
                    self.error = event.error

    def _step_completed(self, event: StepCompleted) -> None:
        self.step = max(self.step + 1, event.step)  # an event that nobody stamped yet carries step 0
        self.outcomes[event.outcome] += 1
        self.tokens_trained += event.tokens_trained
        if event.entropy is not None:
            self.entropy = as_float(event.entropy)
        if (seconds := event.seconds.get("total")) is not None:
            self.train_s += seconds
            self.step_s.append(seconds)
        self._marks.append((self.clock(), self.tokens))

    def _batch_consumed(self, event: BatchConsumed) -> None:
        self.rewards.add(as_float(event.reward_mean))
        if event.pass_rate is not None:
            self.pass_rates.add(as_float(event.pass_rate))
        self._zero_spread.append((sum(event.groups.zero_spread), len(event.groups.zero_spread)))
        self.staleness = (as_float(event.staleness.mean), event.max_staleness)

    def record(self, record: Record) -> None:
        """Take in a record of the feed."""
        with self.guard:
            if isinstance(record, Coverage):
                self.coverage = record
            elif isinstance(record, Diagnostic):
                old = self.findings.get(record.fingerprint)
                first = old.first_step if old else render.onset(record)
                severity = graver(old.severity, record.severity) if old else record.severity
                self.findings[record.fingerprint] = Finding(record, first, severity)

    def pace_s(self) -> float | None:
        """Mean time from step to step over the newest `RECENT` steps, evaluations and checkpoints included."""
        num = len(self._marks) - 1
        return (self._marks[-1][0] - self._marks[0][0]) / num if num > 0 else None

    def since_step_s(self) -> float:
        """Seconds since the newest step, or since the start."""
        return self.clock() - (self._marks[-1][0] if self._marks else self.began)

    def tokens_per_s(self) -> float | None:
        """Completion tokens generated for training per second over the newest `RECENT` steps."""
        span = self._marks[-1][0] - self._marks[0][0] if self._marks else 0.0
        return (self._marks[-1][1] - self._marks[0][1]) / span if span > 0 else None

    def wait_shares(self) -> tuple[float, float] | None:
        """Shares of the newest `RECENT` steps that the learner and the sampler stood still."""
        total = sum(step for _, _, step in self._waits)
        if total <= 0:
            return None
        return sum(wait for wait, _, _ in self._waits) / total, sum(wait for _, wait, _ in self._waits) / total

    def zero_spread(self) -> float | None:
        """Share of the groups of the newest `SMOOTHED` batches whose rewards were all equal."""
        groups = sum(num for _, num in self._zero_spread)
        return sum(flat for flat, _ in self._zero_spread) / groups if groups else None

    def found(self) -> list[Finding]:
        """All findings: open before resolved, grave before mild, early before late."""
        return sorted(
            self.findings.values(), key=lambda f: (not f.is_open, -SEVERITIES.index(f.severity), f.first_step)
        )


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


def summarise(history: History, folder: Path, outcome: str, cost: MonitorCost | None, wall_s: float) -> RenderableType:
    """The report at the end of an attempt. `folder` is the run's; `outcome` that of `RunEnded`."""
    table = labelled()
    with history.guard:
        rows = [*_learned(history), *_work(history, wall_s), *_diagnostics(history)]
        rows += [*_cost(history, cost), *_files(folder), *_next(folder, outcome)]
    shown = ""
    for label, text in rows:
        table.add_row("" if label == shown else label, text)
        shown = label
    style, run = OUTCOME_STYLES.get(outcome, "bold"), render.clean(folder.name)
    title = Text.assemble((outcome, style), f" at step {history.step} of {history.steps}", (f"  {run}", render.QUIET))
    parts: list[RenderableType] = [Rule(title, align="left", style=render.QUIET), table]
    if history.error:
        parts.insert(1, Text(render.clean(history.error), style="red"))
    return Group(*parts)


def _learned(history: History) -> Rows:
    for name, (first, last) in history.evaluations.items():
        what = "reward" if last.pass_rate is None else "pass rate"
        is_later = last.version > first.version
        values = f"{estimate(first)} → {estimate(last)}" if is_later else estimate(last)
        steps = f"step {first.version} → {last.version}" if is_later else f"step {last.version}"
        failed = f", {last.failed} could not be scored" if last.failed else ""
        yield "learned", Text(f"{render.clean(name)} {what} {values} ({steps}, n {last.n}{failed})")
    if not history.evaluations:
        yield "learned", Text("held-out results: not measured")
    num = min(RECENT, history.outcomes.total() // 2)
    curves = [("reward", history.rewards), ("pass rate", history.pass_rates)]
    means = [(what, fmean(c.first[:num]), fmean([*c.last][-num:])) for what, c in curves if num and c.last]
    if means:
        ends = ", ".join(f"{what} {share(first)} → {share(last)}" for what, first, last in means)
        yield "learned", Text(f"training {ends} ({num}-step means)")


def _work(history: History, wall_s: float) -> Rows:
    done = history.outcomes.total()
    pace = f", {median(history.step_s):.3g} s a step (median)" if history.step_s else ""
    resumed = f", resumed at step {history.resumed_at}" if history.resumed_at else ""
    yield "took", Text(f"{duration(wall_s)} for {render.plural(done, 'step')}{pace}{resumed}")
    skipped = {"no_signal": "without a signal", "nonfinite": "not finite, skipped"}
    notes = [f"{history.outcomes[key]} {words}" for key, words in skipped.items() if history.outcomes[key]]
    if notes:
        yield "updates", Text(f"{history.outcomes['updated']} of {render.plural(done, 'step')}; {', '.join(notes)}")
    if history.tokens:
        rate = f", {history.tokens / history.train_s:,.0f} a second of training" if history.train_s > 0 else ""
        yield "tokens", Text(f"{history.tokens:,} generated{rate}; {history.tokens_trained:,} trained on")
    for what, counts in (("row", history.refused), ("completion", history.failed)):
        if counts:
            yield "left out", Text(f"{render.plural(counts.total(), what)}: {causes(counts)}", style="yellow")


def causes(counts: Counter[str]) -> str:
    """`2 reward_error, 1 reward_timeout`."""
    return ", ".join(f"{num} {cause}" for cause, num in counts.most_common())


def _diagnostics(history: History) -> Rows:
    for finding in history.found():
        record = finding.latest
        word = (finding.severity.upper(), render.severity_style(finding.severity))
        first, end = finding.first_step, record.resolved
        until = f"since step {first}" if end is None else f"steps {first} to {end.step}"
        state = ("open at the end", "bold") if finding.is_open else ("resolved", render.GOOD)
        notes = [f", {render.plural(record.episode, 'episode')}"] if record.episode > 1 else []
        notes += [f", explained by {render.clean(r.id)}" for r in record.relations if r.kind == "explained_by"]
        yield "diagnostics", Text.assemble(word, f" {record.code} {record.name}, {until}, ", state, *notes)
    coverage = history.coverage
    if coverage is None:
        yield "diagnostics", Text("no rule was evaluated: silence proves nothing", style="yellow")
        return
    total = len(coverage.evaluated) + len(coverage.not_evaluated)
    found = "" if history.findings else "none fired; " if coverage.evaluated else "silence proves nothing: "
    yield "diagnostics", Text(f"{found}{len(coverage.evaluated)} of {render.plural(total, 'rule')} evaluated")
    for code, why in coverage.not_evaluated.items():
        reason = render.not_evaluated(why.reason, why.detail)
        style = "yellow" if why.reason == "error" else render.QUIET
        yield "diagnostics", Text(f"not {render.clean(code)}: {reason}", style=style)


def _cost(history: History, cost: MonitorCost | None) -> Rows:
    if cost is None or not history.step_s:
        return
    step_us = median(history.step_s) * 1e6
    stages = {"rules": cost.rules, "events": cost.write, "emit": cost.emit}
    medians = {name: spent.step_median_us for name, spent in stages.items()}
    texts = [f"{name} {us:,.0f} µs ({100 * us / step_us:.2f} %)" for name, us in medians.items() if math.isfinite(us)]
    if texts:
        yield "cost a step", Text(", ".join(texts))


def _files(folder: Path) -> Rows:
    saved = find_all(folder)
    contents = {
        EVENTS_FILE: "every event",
        FEED_FILE: "diagnostics and actions, for agents",
        "rollouts": "completions with their rewards",
        FOLDER: f"newest: {saved[-1].name}" if saved else "none complete",
        MANIFEST_FILE: "configuration, versions, attempts",
    }
    yield "files", Text(f"{_shown(folder)}{os.sep}")
    for name, what in contents.items():
        path = folder / name
        if path.exists():
            entry = f"{name}/" if path.is_dir() else name
            yield "files", Text(f"  {entry:<14}{what}")


def _shown(folder: Path) -> str:
    """The folder as somebody in the present directory would type it."""
    path = folder.absolute()
    return render.clean(str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path))


def _next(folder: Path, outcome: str) -> Rows:
    is_default = folder.absolute().parent == Path.cwd() / "runs"
    run = shlex.quote(folder.name if is_default else _shown(folder))
    commands = [f"tocsin status {run}", f"tocsin feed {run}"]
    if outcome != "completed" and find_all(folder):
        commands.insert(0, f"tocsin train --resume {run}")
    for command in commands:
        yield "next", Text(command, style="bold")
