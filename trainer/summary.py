"""What a person reads when a run is over: what was learned, what it cost, what was found, where everything is."""

import math
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from tocsin.diagnostics import render
from tocsin.diagnostics.display import duration, labelled
from tocsin.diagnostics.feed import EVENTS_FILE, FEED_FILE
from tocsin.diagnostics.history import RECENT, History
from tocsin.diagnostics.monitor import MonitorCost
from tocsin.diagnostics.panel import causes, estimate, share
from tocsin.diagnostics.runs import MANIFEST_FILE
from tocsin.schemas.manifest import DiagnosticsCost
from tocsin.trainer.checkpoint import FOLDER, find_all

OUTCOME_STYLES: Final = {"completed": "bold green", "interrupted": "bold yellow", "failed": "bold red"}


Rows = Iterator[tuple[str, Text]]
"""Label and text of lines of the report."""


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


def cost_per_step(history: History, cost: MonitorCost | None) -> DiagnosticsCost | None:
    """Medians over the steps; None when there were too few to tell."""
    if cost is None or not history.step_s:
        return None
    medians_us = [stage.step_median_us for stage in (cost.rules, cost.write, cost.emit)]
    if not all(map(math.isfinite, medians_us)):
        return None
    rules_s, events_s, emit_s = (us / 1e6 for us in medians_us)
    return DiagnosticsCost(step_s=median(history.step_s), rules_s=rules_s, events_s=events_s, emit_s=emit_s)


def _cost(history: History, cost: MonitorCost | None) -> Rows:
    spent = cost_per_step(history, cost)
    if spent is not None:
        stages = {"rules": spent.rules_s, "events": spent.events_s, "emit": spent.emit_s}
        texts = [f"{name} {s * 1e6:,.0f} µs ({100 * s / spent.step_s:.2f} %)" for name, s in stages.items()]
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
    if not folder.is_dir():
        return
    is_default = folder.absolute().parent == Path.cwd() / "runs"
    run = shlex.quote(folder.name if is_default else _shown(folder))
    commands = [f"tocsin status {run}", f"tocsin feed {run}"]
    if outcome != "completed" and find_all(folder):
        commands.insert(0, f"tocsin train --resume {run}")
    for command in commands:
        yield "next", Text(command, style="bold")
