"""Views for people: a run at a glance, one diagnostic in full, and the tables of rules, knobs and metrics."""

from collections.abc import Callable, Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tocsin.diagnostics import render
from tocsin.diagnostics.liveness import SILENCE_S
from tocsin.diagnostics.modes import WORDS, Gap
from tocsin.diagnostics.reader import count
from tocsin.diagnostics.rule import Rule
from tocsin.diagnostics.snapshot import Cell, Grid, Span
from tocsin.diagnostics.status import Metrics, Status
from tocsin.schemas.actions import Action
from tocsin.schemas.base import NonFinite
from tocsin.schemas.diagnosis import SEVERITIES, Cost, Coverage, Diagnostic, Evidence
from tocsin.schemas.feed import WriterState
from tocsin.schemas.knobs import Knob


def labelled() -> Table:
    """An empty table of labels and values without lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=render.QUIET, no_wrap=True)
    table.add_column(overflow="fold")
    return table


def listing(*headings: str) -> Table:
    """An empty table with headings and without lines."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def status_view(status: Status) -> RenderableType:
    """A run at a glance."""
    head = labelled()
    head.add_row("run", Text(render.clean(status.run_id), style="bold"))
    if status.task:
        head.add_row("task", Text(render.clean(status.task)))
    head.add_row("writer", writer_text(status.writer, status.metrics))
    for label, text in metric_lines(status.metrics):
        head.add_row(label, Text(text))
    hint = f"`tocsin replay {render.clean(status.run_id)}` judges the events again"
    if status.feed.state == "unreadable":
        head.add_row("feed", Text(f"it cannot be read, so what is open is not known; {hint}", style="bold yellow"))
        return head
    if status.feed.state == "incomplete":
        head.add_row("feed", Text(f"it is incomplete or was changed, or the rules were; {hint}", style="bold yellow"))
    elif status.feed.why:
        head.add_row("feed", Text(f"not compared with the events: {status.feed.why}", style=render.QUIET))
    parts: list[RenderableType] = [head, Text(), open_title(status.active)]
    parts += [open_view(item, hint=f"tocsin get {status.run_id} {item.id}") for item in status.active]
    if status.pending is not None:
        parts += [Text(), Text(f"{len(status.pending)} pending", style="bold")]
        parts += [open_view(item) for item in status.pending]
    return Group(*parts, Text(), coverage_view(status.coverage))


def writer_text(writer: WriterState, metrics: Metrics) -> Text:
    """`dead: no process holds the run; last event 312 s ago, at step 40`."""
    age = "no event yet" if writer.last_event_age_s is None else f"last event {duration(writer.last_event_age_s)} ago"
    details = {
        "alive": age,
        "starting": f"attempt {writer.attempt}; {age}",
        "stalled": f"{stall(writer)}; {age}",
        "dead": f"no process holds the run and it never said that it ended; {age}",
        "ended": f"{metrics.outcome or 'the run is over'}, {age}",
    }
    pause = "" if metrics.paused_by is None else f"{pause_text(metrics.paused_by, metrics.paused_s or 0.0)}; "
    text = Text.assemble((writer.state, render.WRITER_STYLES[writer.state]), f": {pause}{details[writer.state]}")
    text.append(f", at step {writer.step}")
    if metrics.error:
        text.append(f"; {render.clean(metrics.error)}", style="red")
    return text


def pause_text(actor: str, seconds: float) -> str:
    """`paused by person:ada for 12 s`."""
    return f"paused by {render.clean(actor)} for {duration(seconds)}"


def stall(writer: WriterState) -> str:
    """Which of the two kinds of a stalled writer this is: a monitor that ticks speaks for a trainer that hangs."""
    ticks = writer.last_event_age_s is not None and writer.last_event_age_s < SILENCE_S
    return "the clock ticks and the trainer does nothing" if ticks else "the process lives and says nothing"


def duration(seconds: float) -> str:
    """`0.4 s`, `312 s`, `2.1 h`, `3.0 days`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 3600:
        return f"{seconds:.0f} s"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def metric_lines(metrics: Metrics) -> list[tuple[str, str]]:
    """Label and text of the numbers that were measured."""
    lines = []
    if metrics.reward_mean is not None:
        rate = f", pass rate {render.number(metrics.pass_rate)}" if metrics.pass_rate is not None else ""
        lines.append(("reward", f"{render.number(metrics.reward_mean)}{rate}"))
    if metrics.evaluation is not None:
        reward, error = render.number(metrics.evaluation_reward), render.number(metrics.evaluation_reward_se)
        what = render.clean(metrics.evaluation)
        if metrics.evaluation_step is not None and metrics.evaluation_step < metrics.step:
            what += f", step {metrics.evaluation_step}"
        lines.append(("held out", f"reward {reward} ± {error} ({what})"))
    if metrics.staleness_p50 is not None:
        median, most = render.number(metrics.staleness_p50), render.number(metrics.staleness_max)
        lines.append(("staleness", f"median {median}, max {most}, bound {metrics.max_staleness}"))
    if metrics.learner_wait_frac is not None and metrics.sampler_wait_frac is not None:
        # A wait that began before its step is longer than it.
        learner, sampler = min(1.0, metrics.learner_wait_frac), min(1.0, metrics.sampler_wait_frac)
        lines.append(("waits", f"learner {learner:.0%}, sampler {sampler:.0%} of the step"))
    return lines


def open_title(active: Iterable[Diagnostic]) -> Text:
    """`1 critical, 2 warning open, 3 more explained by them`, or that nothing is."""
    counts = count(active).model_dump()
    named = [f"{counts[severity]} {severity}" for severity in reversed(SEVERITIES) if counts[severity]]
    explained = f", {counts['explained']} more explained by them" if counts["explained"] else ""
    return Text(f"{', '.join(named)} open{explained}" if named else "nothing is open", style="bold")


def open_view(record: Diagnostic, *, hint: str = "") -> RenderableType:
    """An open diagnostic on a few lines: what and since when, the numbers, what to do, where to read on."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=9)
    table.add_column(overflow="fold")
    words = {"pending": "PENDING", "no_data": "NO DATA"}
    word = "EXPLAINED" if record.suppressed else words.get(record.state, record.severity.upper())
    title = f"{record.code} {record.name}, since step {render.onset(record)}"
    style = render.QUIET if record.suppressed else render.severity_style(record.severity)
    table.add_row(Text(word, style=style), Text(title, style=render.QUIET if record.suppressed else "bold"))
    table.add_row("", Text(render.clean(record.summary)))
    for relation in record.relations:
        table.add_row("", Text(render.relation_text(relation)))
    if record.cost is not None and not record.suppressed:
        table.add_row("", Text(f"since then {cost_text(record.cost)}", style=render.QUIET))
    action = render.best_action(record)
    if action is not None:
        table.add_row("", Text(f"-> {render.action_title(action)}"))
    if hint:
        table.add_row("", Text(render.clean(hint), style=render.QUIET))
    return table


def coverage_view(coverage: Coverage | None) -> RenderableType:
    """Which rules are evaluated, and why the others are not."""
    table = labelled()
    if coverage is None:
        table.add_row("rules", Text("nothing evaluated yet: silence proves nothing", style="yellow"))
        return table
    evaluated = ", ".join(render.clean(code) for code in coverage.evaluated) or "none"
    total = len(coverage.evaluated) + len(coverage.not_evaluated)
    health = "" if coverage.health == "ok" else f" ({coverage.health})"
    title = f"{len(coverage.evaluated)} of {total} evaluated{health}: {evaluated}"
    table.add_row("rules", Text(title, style=render.HEALTH_STYLES[coverage.health] if health else ""))
    for code, why in coverage.not_evaluated.items():
        table.add_row("", Text(f"not {render.clean(code)}: {render.not_evaluated(why.reason, why.detail)}"))
    for text in render.withheld(coverage):
        table.add_row("", Text(text, style="yellow"))
    return table


def diagnostic_view(record: Diagnostic) -> RenderableType:
    """One diagnostic in full: facts, evidence, causes, actions, links."""
    head = labelled()
    head.add_row("id", Text(render.clean(record.id), style="bold"))
    reason = "" if record.reason == record.state else f" ({record.reason})"
    state = f"{record.state}{reason}, {record.severity}, {record.kind}, episode {record.episode}"
    head.add_row("state", Text(state, style=render.record_style(record)))
    head.add_row("what", Text(render.clean(record.summary)))
    head.add_row("when", Text(_times(record)))
    if record.cost is not None:
        head.add_row("since then", Text(cost_text(record.cost)))
    for item in record.evidence:
        head.add_row("evidence", Text(_evidence(item)))
    for cause in record.causes:
        code = f"{render.clean(cause.code)}: " if cause.code else ""
        head.add_row("cause", Text(f"{code}{render.clean(cause.text)} (weight {cause.weight:g})"))
        head.add_row("", Text(f"check: {render.clean(cause.check)}", style=render.QUIET))
    for action in record.actions:
        for label, text in _action_lines(action):
            head.add_row(label, Text(text))
    for relation in record.relations:
        head.add_row(relation.kind.replace("_", " "), Text(render.clean(relation.id)))
    head.add_row("more", Text(render.clean(record.help)))
    return head


def cost_text(cost: Cost) -> str:
    """`2.1 h, 53,745 tokens (31,961 without gradient); learner idle 312 s, sampler idle 9.0 s, 1 device`."""
    spent = []
    if cost.hours is not None:
        spent.append(duration(3600 * cost.hours))
    if cost.tokens is not None:
        without = cost.tokens_without_gradient
        spent.append(f"{cost.tokens:,} tokens{'' if without is None else f' ({without:,} without gradient)'}")
    waits = {"learner": cost.learner_idle_s, "sampler": cost.sampler_idle_s}
    idle = [f"{who} idle {duration(seconds)}" for who, seconds in waits.items() if seconds is not None]
    if cost.devices is not None:
        idle.append(render.plural(cost.devices, "device"))
    return "; ".join(", ".join(part) for part in (spent, idle) if part)


def _times(record: Diagnostic) -> str:
    parts = [f"held first at step {record.started.step}"]
    if record.fired:
        parts.append(f"fired at {record.fired.step}")
    parts.append(f"held last at {record.last.step}")
    if record.resolved:
        parts.append(f"resolved at {record.resolved.step}")
    return f"{', '.join(parts)}; {render.plural(record.count, 'evaluation')}"


def _evidence(item: Evidence) -> str:
    unit = f" {render.clean(item.unit)}" if item.unit else ""
    baseline = f", expected {render.number(item.baseline)}" if item.baseline is not None else ""
    return (
        f"{render.clean(item.metric)} {render.number(item.observed)} {item.operator} "
        f"{render.number(item.threshold)}{unit} over {item.window} {item.window_unit} (n {item.n}{baseline})"
    )


def _action_lines(action: Action) -> Iterable[tuple[str, str]]:
    yield "action", f"{render.action_title(action)}, risk {action.risk}{', preferred' if action.preferred else ''}"
    for patch in action.patches:
        change = f"{render.clean(patch.path)} {render.value(patch.expect)} -> {render.value(patch.to)}"
        limits = f"within {render.value(patch.min)} to {render.value(patch.max)}"
        yield "", f"{change}, {limits}, effective {patch.effective.replace('_', ' ')}"
    if action.verify:
        check = action.verify
        threshold = f"{check.operator} {check.threshold:g} within {check.within} {render.clean(check.unit)}"
        yield "", f"worked when {render.clean(check.metric)} {threshold}; if not: {action.on_failure}"
    if action.disabled:
        yield "", f"disabled: {render.clean(action.disabled)}"


def rule_table(entries: Iterable[Rule | Gap], package_of: Callable[[Rule], str | None]) -> Table:
    """Every failure mode; the evidence is what shows that its rule is right and who says so, or why there is none."""
    table = listing("code", "name", "kind", "evidence", "what is wrong")
    for entry in entries:
        if isinstance(entry, Gap):
            row = (entry.code, entry.name, "-", WORDS[entry.why], entry.title)
            table.add_row(*(Text(cell, style=render.QUIET) for cell in row))
        else:
            package = package_of(entry)
            proof = f"{entry.proof}, says {package}" if package else entry.proof
            cells = (entry.name, entry.kind, proof, entry.title)
            table.add_row(Text(entry.code, style="bold"), *map(render.clean, cells))
    return table


def knob_table(knobs: Iterable[Knob]) -> Table:
    """The registry of knobs: default, bounds, when a change takes effect, and what it is."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for knob in knobs:
        bounds = f"{render.number(knob.min)} to {render.number(knob.max)}"
        if knob.type == "bool":
            bounds = "false or true"
        unit = f" {knob.unit}" if knob.unit else ""
        effective = f"effective {knob.effective.replace('_', ' ')}"
        table.add_row(knob.path, Text(f"{render.value(knob.default)}{unit}, {bounds}, {effective}"))
        table.add_row("", Text(knob.description, style=render.QUIET))
    return table


def grid_table(grid: Grid, *, around: int) -> Table:
    """Metrics in rows and steps in columns; the step that was asked for is bold.

    `x3` beside an event type: the step has three of them and the last one is shown.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("metric", no_wrap=True, header_style="bold")
    for step in grid.steps:
        style = "bold" if step == around else ""
        table.add_column(f"step {step}", justify="right", overflow="fold", header_style="bold", style=style)
    section = ""
    for metric, cells in grid.cells.items():
        kind, name = metric.split(".", 1)
        if kind != section:
            section = kind
            counts = [_times_seen(grid.counts[kind].get(step, 0)) for step in grid.steps]
            table.add_row(Text(render.clean(kind), style="bold cyan"), *(Text(text, style="dim") for text in counts))
        table.add_row(Text(f"  {render.clean(name)}"), *(Text(_cell(cells.get(step))) for step in grid.steps))
    return table


def _times_seen(times: int) -> str:
    return f"x{times}" if times > 1 else ""


def _cell(leaf: Cell | None) -> str:
    if leaf is None:
        return "-"
    if isinstance(leaf, Span):
        low, high = f"{leaf.low:.3g}", f"{leaf.high:.3g}"
        return low if low == high else f"{low}..{high}"
    if isinstance(leaf, str):
        return render.clean(leaf)
    if isinstance(leaf, bool):
        return "yes" if leaf else "no"
    return leaf.nonfinite if isinstance(leaf, NonFinite) else f"{leaf:.4g}"
