"""What a fault cost, against the run with the same seed and configuration and without it."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np

from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, RolloutFailed
from tocsin.schemas.step import StepCompleted
from tocsin.trainer.bench.cases import Case

FALL: Final = 0.05
"""Of the pass rate, held out or in training over the last steps, besides being certain (3 standard errors)."""
SLOWER: Final = 1.25
"""Times as many seconds a step."""
WASTE: Final = 0.2
"""Share of groups that brought nothing, above that of the other run."""
GAP: Final = 0.05
"""Nats between the log-probs of sampler and learner, above those of the other run: no longer the algorithm that was
configured, whatever it learns."""
LOST: Final = 0.1
"""Share of updates that were skipped because a number was not finite."""
LAST: Final = 20
"""Steps at the end of a run that its training pass rate is taken from."""


def harm(case: Case, events: Sequence[BaseEvent], twin: Sequence[BaseEvent]) -> tuple[str, ...]:
    """One phrase for each measure that says harm; empty when none does."""
    assert case.kind is not None, "only a fault harms"
    found = [
        _held_out(events, twin),
        _training(events, twin),
        _slower(events, twin, case.onset),
        _waste(events, twin, case.onset),
        _gap(events, twin, case.onset),
        _lost_updates(events, case.onset),
        "by construction" if case.kind.always_harms else None,
    ]
    return tuple(one for one in found if one)


def _held_out(events: Sequence[BaseEvent], twin: Sequence[BaseEvent]) -> str | None:
    ends = [[e for e in run if isinstance(e, EvaluationCompleted)][-1:] for run in (events, twin)]
    if not all(ends):
        return None
    (bad,), (good,) = ends
    rates = [as_float(one.pass_rate) if one.pass_rate is not None else math.nan for one in (bad, good)]
    error = math.hypot(*(math.sqrt(rate * (1 - rate) / one.n) for rate, one in zip(rates, (bad, good), strict=True)))
    return _fallen("held-out pass rate", rates[1], rates[0], error)


def _training(events: Sequence[BaseEvent], twin: Sequence[BaseEvent]) -> str | None:
    means, errors = [], []
    for run in (events, twin):
        rates = [as_float(e.pass_rate) for e in run if isinstance(e, BatchConsumed) and e.pass_rate is not None][-LAST:]
        if len(rates) < LAST:
            return None
        means.append(float(np.mean(rates)))
        errors.append(float(np.std(rates)) / math.sqrt(LAST))
    return _fallen("training pass rate", means[1], means[0], math.hypot(*errors))


def _fallen(what: str, good: float, bad: float, error: float) -> str | None:
    if good - bad > max(FALL, 3 * error):
        return f"{what} {bad:.2f} instead of {good:.2f}"
    return None


def _slower(events: Sequence[BaseEvent], twin: Sequence[BaseEvent], onset: int) -> str | None:
    # The time of a step is the distance of two reports: `seconds` of a step leaves out what it waited for.
    times = []
    for run in (events, twin):
        monos = [e.mono for e in run if isinstance(e, StepCompleted) and e.step > onset + 2]
        if len(monos) < LAST:
            return None
        # A mean, since what is slow now and then is slow; without its ends, where evaluations and checkpoints are.
        steps = np.sort(np.diff(monos))
        times.append(float(steps[: math.ceil(0.95 * len(steps))].mean()))
    ratio = times[0] / times[1]
    return f"{ratio:.1f} times as long a step" if ratio > SLOWER else None


def _waste(events: Sequence[BaseEvent], twin: Sequence[BaseEvent], onset: int) -> str | None:
    shares = []
    for run in (events, twin):
        batches = [e for e in run if isinstance(e, BatchConsumed) and e.step > onset]
        flat = sum(sum(e.groups.zero_spread) for e in batches)
        groups = sum(len(e.groups.zero_spread) for e in batches)
        lost = sum(isinstance(e, RolloutFailed) and e.step > onset and e.whole_group for e in run)
        if not groups:
            return None
        shares.append((flat + lost) / (groups + lost))
    return (
        f"{shares[0]:.0%} of groups without gradient instead of {shares[1]:.0%}"
        if shares[0] - shares[1] > WASTE
        else None
    )


def _gap(events: Sequence[BaseEvent], twin: Sequence[BaseEvent], onset: int) -> str | None:
    gaps = []
    for run in (events, twin):
        found = [
            as_float(e.logprob_gap.abs_mean)
            for e in run
            if isinstance(e, StepCompleted) and e.step > onset and e.logprob_gap is not None
        ]
        if not found:
            return None
        gaps.append(median(found))
    return f"log-probs off by {gaps[0]:.2f} nats instead of {gaps[1]:.2f}" if gaps[0] - gaps[1] > GAP else None


def _lost_updates(events: Sequence[BaseEvent], onset: int) -> str | None:
    outcomes = [e.outcome for e in events if isinstance(e, StepCompleted) and e.step > onset]
    lost = outcomes.count("nonfinite")
    return f"{lost} of {len(outcomes)} updates skipped" if outcomes and lost > LOST * len(outcomes) else None
