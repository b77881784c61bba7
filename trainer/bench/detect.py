"""From a folder of runs to the tables: run what is missing, judge all by every detector, count."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.schemas.event import BaseEvent
from tocsin.trainer.bench.baselines.base import Detector as Rival
from tocsin.trainer.bench.baselines.rldoctor import RlDoctor
from tocsin.trainer.bench.baselines.rlwatch import RlWatch
from tocsin.trainer.bench.baselines.thresholds import Thresholds
from tocsin.trainer.bench.cases import Case
from tocsin.trainer.bench.harm import harm
from tocsin.trainer.bench.judge import Detector, Judged, Naming, Tocsin, judge
from tocsin.trainer.bench.sham import Sham, shams
from tocsin.trainer.bench.trial import Trial, finished, import_libraries, run

WASTE: Final = frozenset(rule.code for rule in ALL_RULES if rule.kind == "efficiency")
"""Codes of resources that are unused, which are no alarm, whoever raises it."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a rival says, as it is judged. It asks for no persistence and takes nothing back."""

    rival: Rival

    @property
    def name(self) -> str:
        """Its own."""
        return self.rival.name

    def namings(self, events: Sequence[BaseEvent]) -> list[Naming]:
        """Its alarms."""
        return [
            Naming(
                name=alarm.name,
                codes=alarm.codes,
                severity=alarm.severity,
                is_fault=not alarm.codes or not alarm.codes <= WASTE,
                step=alarm.step,
                began=alarm.step,
            )
            for alarm in self.rival.alarms(events)
        ]


def all_rivals() -> list[Rival]:
    """Every detector that ours is compared with. Raises `ImportError` that says what to install."""
    return [Thresholds(), RlDoctor(), RlWatch()]


@dataclass(slots=True)
class Results:
    """All runs of a set, judged."""

    runs: dict[str, list[Judged]] = field(default_factory=dict)
    """By detector, in the order of the cases."""
    shams: list[Sham] = field(default_factory=list)


def run_missing(cases: Sequence[Case], root: Path, note: Callable[[int, str], None]) -> None:
    """Run every case that was not run to its end before. `note` is told how many are done and what is next.

    Raises `RuntimeError` for a run that fails before its first step.
    """
    missing = [case for case in cases if finished(case, root) is None]
    if missing:
        import_libraries()
    for number, case in enumerate(missing):
        note(len(cases) - len(missing) + number, case.name)
        run(case, root)


def judge_all(cases: Sequence[Case], root: Path, rivals: Sequence[Rival], note: Callable[[int, str], None]) -> Results:
    """Judge the finished runs among `cases` by our rules and by every rival."""
    detectors: list[Detector] = [Tocsin(), *map(Told, rivals)]
    results = Results({detector.name: [] for detector in detectors})
    trials = {case.name: trial for case in cases if (trial := finished(case, root)) is not None}
    twins: dict[str, list[BaseEvent]] = {}
    for number, trial in enumerate(trials.values()):
        note(number, trial.case.name)
        if trial.case.twin is not None and trial.case.twin not in trials:
            continue
        events = list(read_events(trial.events_path))
        damage = _damage(trial, events, trials, twins)
        for detector in detectors:
            judged = judge(trial.case, detector.namings(events), max(event.step for event in events), damage)
            results.runs[detector.name].append(judged)
        if trial.case.kind is None:
            results.shams += shams(events)
    return results


def _damage(
    trial: Trial, events: Sequence[BaseEvent], trials: dict[str, Trial], twins: dict[str, list[BaseEvent]]
) -> tuple[str, ...]:
    if trial.case.twin is None:
        return ()
    if trial.case.twin not in twins:
        twins[trial.case.twin] = list(read_events(trials[trial.case.twin].events_path))
    return harm(trial.case, events, twins[trial.case.twin])
