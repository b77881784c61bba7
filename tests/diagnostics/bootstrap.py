"""Healthy noise without an end: block bootstrap of recorded runs, with counters that go on as in one run.

A step is everything from its `batch_consumed` up to the next one. Blocks of consecutive steps are drawn with a length
that is geometric (Politis and Romano, 1994), so that what is correlated within a step and from step to step stays so.
"""

import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from tests.diagnostics.recordings.record import FOLDER, RECIPES
from tocsin.schemas.base import read
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EVENT, EvaluationCompleted, QueueSampled, RunStarted
from tocsin.schemas.generation import SamplerSampled, WeightsSynced, WeightSyncStarted
from tocsin.schemas.step import StepCompleted

NAMES: Final = tuple(RECIPES)
BLOCK: Final = 20
"""Mean length of a block in steps; more than the windows of most rules."""
OF_WEIGHTS: Final = (WeightSyncStarted, WeightsSynced, SamplerSampled, EvaluationCompleted)
"""Events that name a version of the weights, which is the step that made it."""


class Moment(NamedTuple):
    """An event and the seconds since the one before it."""

    event: BaseEvent
    after_s: float


@dataclass(frozen=True)
class Recording:
    """A stationary part of a healthy run."""

    start: RunStarted
    steps: tuple[tuple[Moment, ...], ...]
    """Whole steps in their order."""


@cache
def recording(name: str) -> Recording:
    """The recording of this name, without the steps that it holds only a part of."""
    lines = lzma.decompress((FOLDER / f"{name}.jsonl.xz").read_bytes()).splitlines()
    start, *events = [read(EVENT, line) for line in lines[1:]]
    assert isinstance(start, RunStarted), "a run begins with `run_started`"
    moments = [Moment(event, max(0.0, event.mono - before.mono)) for before, event in pairwise(events)]
    begins = [i for i, moment in enumerate(moments) if isinstance(moment.event, BatchConsumed)]
    steps = tuple(tuple(moments[first:end]) for first, end in pairwise(begins))
    assert all(sum(isinstance(moment.event, StepCompleted) for moment in step) == 1 for step in steps)
    return Recording(start, steps)


def bootstrapped(recorded: Recording, *, steps: int, seed: int) -> Iterator[list[BaseEvent]]:
    """The start of a run, and then `steps` steps drawn from a recording, each a list of events."""
    rng = np.random.default_rng(seed)
    drawn: list[tuple[Moment, ...]] = []
    while len(drawn) < steps:
        first, length = int(rng.integers(len(recorded.steps))), int(rng.geometric(1 / BLOCK))
        drawn += recorded.steps[first : first + length]
    drawn[0] = tuple(Moment(_at_the_reference(event), after_s) for event, after_s in drawn[0])
    counters = Counters()
    yield [counters.stamp(Moment(recorded.start.model_copy(update={"num_steps": steps}), 0.0), 0)]
    for step in drawn[:steps]:
        yield counters.stamped(step)


def _at_the_reference(event: BaseEvent) -> BaseEvent:
    """Before its first update a policy is its reference, which a block from later in a run does not know."""
    is_far = isinstance(event, StepCompleted) and event.kl_ref is not None
    return event.model_copy(update={"kl_ref": 0.0}) if is_far else event


class Counters:
    """What goes on from event to event in one run."""

    def __init__(self) -> None:
        self._seq = self._consumed = self._steps = 0
        self._mono = 1000.0

    def stamped(self, step: tuple[Moment, ...]) -> list[BaseEvent]:
        """The events of the next step."""
        recorded_at = step[0].event.step
        events = [self.stamp(moment, recorded_at) for moment in step]
        self._steps += 1
        return events

    def stamp(self, moment: Moment, recorded_at: int) -> BaseEvent:
        """The event with counters of its own; its step was recorded when `recorded_at` steps were finished."""
        event, shift = moment.event, self._steps - recorded_at
        self._seq += 1
        self._mono += moment.after_s
        changes: dict[str, Any] = {
            "run_id": "r",
            "seq": self._seq,
            "mono": self._mono,
            "step": event.step + shift,
            "policy_version": event.policy_version + shift,
        }
        if isinstance(event, BatchConsumed):
            indices = list(range(self._consumed, self._consumed + len(event.groups.size)))
            changes["groups"] = event.groups.model_copy(update={"group_index": indices})
            self._consumed = indices[-1] + 1
        elif isinstance(event, QueueSampled):
            ledger = event.ledger
            elsewhere = ledger.launched - ledger.consumed
            counts = {"consumed": self._consumed, "launched": self._consumed + elsewhere}
            changes["ledger"] = ledger.model_copy(update=counts)
        elif isinstance(event, OF_WEIGHTS):
            changes["version"] = max(0, event.version + shift)  # nothing is older than the start
        return event.model_copy(update=changes)
