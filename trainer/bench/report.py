"""The tables of the benchmark, as Markdown: the one in README, and the page that has every fault."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tocsin.trainer.bench.judge import HORIZON, Judged
from tocsin.trainer.bench.rates import Rate, upper_bound
from tocsin.trainer.bench.score import Score
from tocsin.trainer.bench.sham import Sham

BEGIN: Final = "<!-- bench detect: begin -->"
END: Final = "<!-- bench detect: end -->"


def summary_table(scores: Sequence[Score]) -> list[str]:
    """One column a detector."""
    rows: list[tuple[str, list[str]]] = [
        ("recall of faults that harm", [_rate(one.recall) for one in scores]),
        ("first cause named, strictly", [_rate(one.strict) for one in scores]),
        ("first cause named, or its direct effect", [_rate(one.lenient) for one in scores]),
        ("the same by chance", [_share(one.chance) for one in scores]),
        ("precision", [_rate(one.precision) for one in scores]),
        ("false alarms per healthy run", [_alarms(one) for one in scores]),
        ("healthy runs with a false alarm", [_rate(one.alarmed) for one in scores]),
        ("false alarms per 1,000 healthy steps", [_per_thousand(one) for one in scores]),
        ("steps to detection, median and p90", [_pair(one.delays) for one in scores]),
        ("the same beyond the rule's persistence", [_pair(one.delays_beyond) for one in scores]),
    ]
    head = ["", *(one.detector for one in scores)]
    return [_row(head), _row(["---"] * len(head)), *(_row([name, *cells]) for name, cells in rows)]


def summary_lines(scores: Sequence[Score], runs: Sequence[Judged], shams: Sequence[Sham]) -> list[str]:
    """The table, with what it is of."""
    harmful = [run for run in runs if run.harm]
    kinds = {run.case.kind.name for run in harmful if run.case.kind}
    seeds = {run.case.material.seed for run in runs}
    first = scores[0]
    return [
        f"{len(harmful)} runs with one of {len(kinds)} faults at a dose that did harm, {first.healthy_runs} healthy "
        f"runs, {len(seeds)} seeds; intervals of 95 %, clustered by fault. The first cause is asked for {HORIZON} "
        "steps after the onset.",
        "",
        *summary_table(scores),
        "",
        f"{first.harmless} further runs had a dose that did no measurable harm; {first.harmless_named} of them were "
        f"named all the same. {_sham_line(shams)}",
    ]


def fault_table(runs: Iterable[Judged]) -> list[str]:
    """One row for each fault and dose."""
    doses: dict[tuple[str, float], list[Judged]] = defaultdict(list)
    for run in runs:
        if run.case.kind is not None:
            doses[run.case.kind.name, run.case.dose].append(run)
    head = ["fault", "dose", "harm", "recalled", "first, strict", "first, lenient", "delay", "first cause named"]
    lines = [_row(head), _row(["---"] * len(head))]
    for (name, dose), found in doses.items():
        harmful = [run for run in found if run.harm]
        delays = sorted(run.delay for run in harmful if run.delay is not None)
        firsts = Counter(run.first or "nothing" for run in harmful).most_common()
        n = len(harmful)
        lines.append(
            _row(
                [
                    f"`{name}`",
                    f"{dose:g}",
                    f"{n} of {len(found)}",
                    f"{sum(run.recalled for run in harmful)} of {n}",
                    f"{sum(run.is_first_strict for run in harmful)} of {n}",
                    f"{sum(run.is_first_lenient for run in harmful)} of {n}",
                    ", ".join(map(str, delays)),
                    ", ".join(f"{what} {count}" for what, count in firsts),
                ]
            )
        )
    return lines


def detection_page(summary: Sequence[str], runs: Sequence[Judged]) -> list[str]:
    """The whole page: numbers, every fault, and every run that was judged wrongly."""
    return [
        "# How well faults are detected",
        "",
        "Written by `tocsin bench detect`. Each run trains the embedded model on a task that no threshold was chosen",
        "on; a fault is planted at a random step. *Harm* is measured against the run with the same seed without the",
        "fault: a lower pass rate, slower steps, groups without gradient, log-probs that are off, or updates that were",
        "skipped. A leak, a full disk, lost events and a lost optimizer count as harm by what they are.",
        "",
        "The tasks of the test set are always the same; its seeds are replaced before a threshold is touched after its",
        "results were read, which what was wrong in them may have prompted. So the numbers are of fresh seeds, and not",
        "of fresh kinds of faults: those in `HELD_BACK` of `trainer/bench/cases.py` are in no tuning run.",
        "",
        *summary,
        "",
        "## Every fault",
        "",
        *fault_table(runs),
        "",
        "## Runs that were judged wrongly",
        "",
        *[f"- {line}" for line in misses(runs)],
    ]


def misses(runs: Iterable[Judged]) -> list[str]:
    """Every run that was judged wrongly, one line each: what to work on."""
    lines = []
    for run in runs:
        said = ", ".join(f"{one.name} {one.severity} at {one.step}" for one in (*run.false_alarms, *run.wrong))
        if run.false_alarms or (run.harm and not (run.recalled and run.is_first_lenient)):
            wanted = " ".join(sorted(run.case.kind.strict)) if run.case.kind else "nothing"
            onset = f", onset {run.case.onset}" if run.case.kind else ""
            lines.append(
                f"{run.case.name}{onset}: wanted {wanted}; recalled {run.recalled}, first cause {run.first}; "
                f"said {said or 'nothing else'}; harm {'; '.join(run.harm) or 'none'}"
            )
    return lines


def check_marks(path: Path) -> tuple[str, str]:
    """What stands before and after the marks of a Markdown file. Raises `ValueError` when it has none."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} must have the marks `{BEGIN}` and `{END}` around the table")
    return before, after


def write_between(path: Path, lines: Sequence[str]) -> None:
    """Put `lines` between the two marks of a Markdown file. Raises `ValueError` when it has none."""
    before, after = check_marks(path)
    path.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")


def _sham_line(shams: Sequence[Sham]) -> str:
    if not shams:
        return "No sham action was judged."
    met = sum(one.outcome == "target_met" for one in shams)
    harmed = sum(one.outcome == "harmed" for one in shams)
    share, bound = met / len(shams), upper_bound(met, len(shams))
    each = Counter(one.metric for one in shams)
    good = Counter(one.metric for one in shams if one.outcome == "target_met")
    by_metric = ", ".join(f"`{metric}` {good[metric]} of {n}" for metric, n in sorted(each.items()))
    return (
        f"Of {len(shams)} actions that changed nothing, taken on healthy runs where a metric stood out by chance, "
        f"{met} were called a success ({share:.1%}, at most {bound:.1%}) and {harmed} harmful; by the metric that they "
        f"were judged by: {by_metric}."
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _rate(rate: Rate) -> str:
    return f"{rate.value:.2f} [{rate.low:.2f}, {rate.high:.2f}]" if rate.n else "-"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _alarms(one: Score) -> str:
    return f"{one.false_alarms} in {one.healthy_runs}, at most {one.alarm_rate_bound:.2f} a run"


def _per_thousand(one: Score) -> str:
    rate, bound = one.per_thousand
    return f"{rate:.2f}, at most {bound:.2f}"


def _pair(values: tuple[float, float]) -> str:
    return "-" if math.isnan(values[0]) else f"{values[0]:.0f} and {values[1]:.0f}"
