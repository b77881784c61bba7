"""From judged runs to the numbers of one detector."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median, quantiles
from typing import Final

from tocsin.trainer.bench.judge import Judged
from tocsin.trainer.bench.rates import Rate, clustered_rate, upper_bound

PER_STEPS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How one detector did on a set of runs."""

    detector: str
    recall: Rate
    """Harmful runs in which an acceptable code was said within the horizon."""
    strict: Rate
    """Harmful runs whose first cause was the fault itself."""
    lenient: Rate
    """Harmful runs whose first cause was the fault or what it does at once."""
    chance: float
    """Share of lenient first causes if the answers were dealt to runs of other faults."""
    precision: Rate
    """Findings that stand by themselves and are acceptable, of those in runs with a fault and of all alarms in healthy
    runs and before an onset. A dose that did no harm was there all the same."""
    alarmed: Rate
    """Healthy runs with a false alarm."""
    false_alarms: int
    healthy_runs: int
    healthy_steps: int
    """Of healthy runs, and of the others before their onset."""
    early_alarms: int
    """Alarms in runs with a fault, before its onset."""
    delays: tuple[float, float]
    """Median and 90th percentile of the steps from onset to the first acceptable finding."""
    delays_beyond: tuple[float, float]
    """The same, without the persistence that the detector asks for."""
    harmless_named: int
    harmless: int
    """Runs whose dose did no measurable harm, and how many of them were named all the same."""

    @property
    def alarm_rate_bound(self) -> float:
        """Upper end of the 95 % interval of false alarms per healthy run."""
        return upper_bound(self.false_alarms, self.healthy_runs)

    @property
    def per_thousand(self) -> tuple[float, float]:
        """False alarms per 1,000 healthy steps, and the upper end of the 95 % interval."""
        alarms = self.false_alarms + self.early_alarms
        thousands = self.healthy_steps / PER_STEPS
        return (alarms / thousands if thousands else math.nan), upper_bound(alarms, thousands)


def score(detector: str, runs: Sequence[Judged]) -> Score:
    """The numbers of a detector over `runs`."""
    healthy = [run for run in runs if run.case.kind is None]
    planted = [run for run in runs if run.case.kind is not None]
    harmful = [run for run in planted if run.harm]
    harmless = [run for run in planted if not run.harm]
    clusters = [_kind(run) for run in harmful]
    alarms = sum(len(run.false_alarms) for run in healthy)
    return Score(
        detector=detector,
        recall=clustered_rate([run.recalled for run in harmful], clusters),
        strict=clustered_rate([run.is_first_strict for run in harmful], clusters),
        lenient=clustered_rate([run.is_first_lenient for run in harmful], clusters),
        chance=_chance(harmful),
        precision=_precision(planted, healthy),
        alarmed=clustered_rate([bool(run.false_alarms) for run in healthy], [run.case.name for run in healthy]),
        false_alarms=alarms,
        healthy_runs=len(healthy),
        healthy_steps=sum(run.steps for run in healthy) + sum(min(run.case.onset, run.steps) for run in planted),
        early_alarms=sum(len(run.false_alarms) for run in planted),
        delays=_middle(run.delay for run in harmful),
        delays_beyond=_middle(run.delay_beyond for run in harmful),
        harmless_named=sum(run.recalled for run in harmless),
        harmless=len(harmless),
    )


def _kind(run: Judged) -> str:
    assert run.case.kind is not None, "a healthy run has no fault"
    return run.case.kind.name


def _middle(values: Iterable[int | None]) -> tuple[float, float]:
    known = sorted(value for value in values if value is not None)
    if len(known) < 2:
        return (float(known[0]), float(known[0])) if known else (math.nan, math.nan)
    return median(known), quantiles(known, n=10, method="inclusive")[-1]


def _chance(runs: Sequence[Judged]) -> float:
    hits = [
        bool(other.first_codes & (run.case.kind.strict | run.case.kind.lenient))
        for run, other in product(runs, runs)
        if run.case.kind is not None and _kind(run) != _kind(other)
    ]
    return sum(hits) / len(hits) if hits else math.nan


def _precision(planted: Sequence[Judged], healthy: Sequence[Judged]) -> Rate:
    hits: list[bool] = []
    clusters: list[str] = []
    for run in (*planted, *healthy):
        misses = len(run.wrong) + len(run.false_alarms)
        hits += [True] * run.right + [False] * misses
        clusters += [_kind(run) if run.case.kind else run.case.name] * (run.right + misses)
    return clustered_rate(hits, clusters)
