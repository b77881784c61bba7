"""Trials: applied actions on the way to their verdict, fed by events.

knob_changed -> waits for a batch generated wholly under the change -> collects -> looks -> verdict
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from tocsin.diagnostics.readings import Metric, metric
from tocsin.diagnostics.verdicts import MIN_OBSERVATIONS, Judgement, Series, Verdict
from tocsin.schemas.actions import Action, Verify
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Kind
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, KnobChanged, QueueSampled
from tocsin.schemas.generation import EngineSampled, WeightsSynced
from tocsin.schemas.knobs import KnobValue
from tocsin.schemas.resources import ResourcesSampled
from tocsin.schemas.step import StepCompleted

KEPT: Final = 64
"""Events of each type that are kept to read from them what was before a change."""
LONGEST_STEPS: Final = 500
"""Batches after which a trial ends, however little of what it waits for has come."""
EXTENSION: Final = 3.0
"""How many times `within` a trial goes on while there are too few readings to decide."""
MEASURED: Final = (
    BatchConsumed,
    StepCompleted,
    QueueSampled,
    ResourcesSampled,
    WeightsSynced,
    EngineSampled,
    EvaluationCompleted,
)
"""Events that a metric may be read from."""

REWARD: Final = metric("batch_consumed.reward_mean")
THROUGHPUT: Final = metric("step_completed.tokens / seconds.total")


class Past:
    """The newest events of each measured type."""

    def __init__(self) -> None:
        self._events: dict[type[BaseEvent], deque[BaseEvent]] = {kind: deque(maxlen=KEPT) for kind in MEASURED}

    def add(self, event: BaseEvent) -> None:
        """Keep an event, if a metric may be read from it."""
        kept = self._events.get(type(event))
        if kept is not None:
            kept.append(event)

    def values(self, wanted: Metric, since_step: int) -> list[float]:
        """Readings from step `since_step` on, and never fewer than the last `MIN_OBSERVATIONS`, oldest first."""
        known = self._known(wanted)
        recent = [value for step, value in known if step >= since_step]
        return recent if len(recent) >= MIN_OBSERVATIONS else [value for _, value in known[-MIN_OBSERVATIONS:]]

    def earlier(self, wanted: Metric, since_step: int) -> list[float]:
        """Readings before step `since_step`, oldest first."""
        return [value for step, value in self._known(wanted) if step < since_step]

    def _known(self, wanted: Metric) -> list[tuple[int, float]]:
        events = self._events.get(wanted.event, deque())
        found = [(event.step, wanted.read(event)) for event in events]
        return [(step, value) for step, value in found if not math.isnan(value)]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """An action as a diagnostic offers it."""

    action: Action
    diagnostic_id: str
    kind: Kind
    since_step: int
    """When the condition of the diagnostic first held."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A knob change that is in force."""

    action_id: str
    diagnostic_id: str | None
    path: str
    before: KnobValue
    after: KnobValue
    actor: str
    request_id: str | None
    idempotency_key: str | None
    is_undo: bool = False
    """It took back the change before it, so that the same action may be applied again."""


class Trial:
    """One applied action. `take` answers its verdict once there is one."""

    def __init__(self, change: Change, offer: Offer, verify: Verify, *, generation: int, past: Past) -> None:
        self.change = change
        self.offer = offer
        self._verify = verify
        self._metric = metric(verify.metric)
        outcomes = [REWARD, THROUGHPUT] if offer.kind == "efficiency" else [REWARD]
        self._outcomes = {wanted: Series() for wanted in outcomes}
        # A knob of the learner moves its metric at once, so what comes after the change is not before it, even while
        # batches of the old configuration are still being consumed. An outcome follows those batches.
        since = offer.since_step
        self._series = Series(before=past.values(self._metric, since), earlier=past.earlier(self._metric, since))
        self._judgement = Judgement(
            verify, self._series, {wanted.path: series for wanted, series in self._outcomes.items()}
        )
        self._generation = generation
        self._batches = 0
        self._waited = 0
        self._groups = 0
        self._completions = 0

    def widen(self, event: KnobChanged) -> None:
        """Another patch of the same request: the trial is about all of them."""
        self._generation = max(self._generation, event.config_generation)

    def take(self, event: BaseEvent, past: Past) -> Verdict | None:
        """Count an event in; `past` holds the events before it."""
        if isinstance(event, BatchConsumed):
            self._count(event, past)
        if not self._batches:
            return None if self._waited < LONGEST_STEPS else self.end("no batch was generated under the change")
        if isinstance(event, self._metric.event):
            _add(self._series, self._metric.read(event))
        for wanted, series in self._outcomes.items():
            if isinstance(event, wanted.event):
                _add(series, wanted.read(event))
        if not isinstance(event, StepCompleted):
            return None
        verdict = self._judgement.look(self._progress())
        if verdict is None and (self._progress() >= EXTENSION or self._batches >= LONGEST_STEPS):
            return self.end(f"too little was measured in {self._batches} steps")
        return verdict

    def end(self, why: str) -> Verdict:
        """The verdict when nothing more will come."""
        return self._judgement.last_look(why)

    def confounded(self, why: str) -> Verdict:
        """The verdict when the effect can no longer be told apart from another one."""
        return Verdict("confounded", why)

    def _count(self, batch: BatchConsumed, past: Past) -> None:
        generations = batch.groups.config_generation
        self._waited += 1
        if not self._batches:
            if not generations or min(generations) < self._generation:
                return
            for wanted, series in self._outcomes.items():
                series.before.extend(past.values(wanted, self.offer.since_step))
        self._batches += 1
        self._groups += len(generations)
        self._completions += sum(batch.groups.size)

    def _progress(self) -> float:
        passed = {"steps": self._batches, "groups": self._groups, "completions": self._completions}
        return passed.get(self._verify.unit, len(self._series.after)) / self._verify.within


def _add(series: Series, value: float) -> None:
    if not math.isnan(value):
        series.after.append(value)
