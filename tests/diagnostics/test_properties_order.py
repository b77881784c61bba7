"""Events of producers that do not wait for each other may arrive in any order; what the engine says is the same.

Each producer writes its own events one after the other; whose come first within a step is chance, as far as none waits
for another. What a rule says must not depend on it, however many of them it reads.
"""

import random
import re
from collections.abc import Iterable, Iterator
from typing import Final

import pytest

from tests.diagnostics.bootstrap import NAMES, bootstrapped, recording
from tests.diagnostics.planted import FAULTS, planted
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    EVENT_TYPES,
    CheckpointSaved,
    ClockTicked,
    ComponentHeartbeat,
    EvaluationCompleted,
    QueueSampled,
    ResourcesSampled,
    RolloutFailed,
    RunStarted,
)
from tocsin.schemas.generation import SamplerSampled, WeightsSynced, WeightSyncStarted
from tocsin.schemas.step import StepCompleted

STEPS: Final = 130
ONSET: Final = 60
END: Final = 90
PRODUCERS: Final[dict[str, tuple[type[BaseEvent], ...]]] = {
    "learner": (RunStarted, WeightSyncStarted, StepCompleted, QueueSampled, CheckpointSaved, BatchConsumed),
    "sampler": (SamplerSampled,),
    "rollout": (RolloutFailed, ComponentHeartbeat),
    "sync": (WeightsSynced,),
    "evaluation": (EvaluationCompleted,),
    "resources": (ResourcesSampled,),
    "monitor": (ClockTicked,),
}
"""Who writes what; each keeps its own order."""


def shuffled(events: list[BaseEvent], rng: random.Random) -> list[BaseEvent]:
    """The events with those of the same step in another order that could have been; times stay in order."""
    by_step: dict[int, list[BaseEvent]] = {}
    for event in events:
        by_step.setdefault(event.step, []).append(event)
    mixed = [event for step in by_step.values() for event in _mixed(step, rng)]
    return _numbered(mixed)


def _numbered(events: Iterable[BaseEvent]) -> list[BaseEvent]:
    """Numbered in the order given. Events of a step happen at one moment, so that order is all that differs."""
    return [event.model_copy(update={"seq": i, "mono": float(event.step)}) for i, event in enumerate(events, start=1)]


def _mixed(events: list[BaseEvent], rng: random.Random) -> Iterator[BaseEvent]:
    """A random interleaving of the producers' queues in which nothing comes before what it waits for."""
    queues = {name: [event for event in events if isinstance(event, kinds)] for name, kinds in PRODUCERS.items()}
    assert sum(map(len, queues.values())) == len(events), "every event has one producer"
    while any(queues.values()):
        waiting = [event for queue in queues.values() for event in queue]
        ready = [name for name, queue in queues.items() if queue and not _waits(queue[0], waiting)]
        yield queues[rng.choice(ready)].pop(0)


def _waits(event: BaseEvent, waiting: list[BaseEvent]) -> bool:
    """Whether something among `waiting` must have been before it: a sync begins and then ends, one after the other; a
    group is whole before it is trained on."""
    if isinstance(event, WeightsSynced):
        return any(isinstance(other, WeightSyncStarted) and other.version == event.version for other in waiting)
    if isinstance(event, WeightSyncStarted):
        return any(isinstance(other, WeightsSynced) and other.version < event.version for other in waiting)
    return isinstance(event, BatchConsumed) and any(isinstance(other, RolloutFailed) for other in waiting)


def run_with(name: str, fault: str | None) -> list[BaseEvent]:
    steps: Iterable[list[BaseEvent]] = bootstrapped(recording(name), steps=STEPS, seed=5)
    if fault is not None:
        steps = planted(steps, FAULTS[fault][0], first=ONSET, last=END)
    return _numbered(event for step in steps for event in step)


def said(events: Iterable[BaseEvent]) -> tuple[list[tuple[int, Diagnostic]], Coverage]:
    """Every diagnostic with the step of its event, without `event_seq`, and what is evaluated at the end."""
    engine = Engine()
    found = [
        (event.step, record.model_copy(update={"event_seq": 0}))
        for event in events
        for record in engine.observe(event)
        if isinstance(record, Diagnostic)
    ]
    assert engine.coverage is not None
    return found, engine.coverage.model_copy(update={"event_seq": 0})


def of(code: str, found: list[tuple[int, Diagnostic]]) -> list[tuple[int, Diagnostic]]:
    return [(step, record) for step, record in found if record.code == code]


def verdicts(found: list[tuple[int, Diagnostic]]) -> list[tuple[str, str, str]]:
    """What is told, without when and with which numbers."""
    return [(record.reason, record.state, record.severity) for _, record in found]


def producers_of(code: str) -> set[str]:
    """Who writes the events that the rule is triggered by and reads."""
    rule = next(rule for rule in ALL_RULES if rule.code == code)
    kinds = {EVENT_TYPES[path.split(".")[0]] for path in rule.reads} | {rule.trigger}
    return {name for name, written in PRODUCERS.items() if kinds & set(written)}


LATER: Final = {"SYS008": 5}
"""Steps by which a rule may speak earlier or later. SYS008 leaves out the step in which an evaluation came in, and
which one that is depends on the order; it takes the pace anew every five steps."""


@pytest.mark.parametrize("fault", [None, *FAULTS])
@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_independent_events_within_a_step_changes_no_record(name: str, fault: str | None) -> None:
    events = run_with(name, fault)
    found, coverage = said(events)
    codes = {record.code for _, record in found}
    assert fault is None or FAULTS[fault][1] in codes
    for seed in range(2):
        mixed = shuffled(events, random.Random(seed))
        assert [event.type for event in mixed] != [event.type for event in events]
        other, covered = said(mixed)
        assert (set(covered.evaluated), covered.not_evaluated) == (set(coverage.evaluated), coverage.not_evaluated)
        assert {record.code for _, record in other} == codes
        for code in codes:
            mine, its = of(code, found), of(code, other)
            assert verdicts(its) == verdicts(mine), code
            if len(producers_of(code)) == 1 and code not in LATER:
                assert its == mine
            # A rule that reads what two of them write sees the newest of the other one step sooner or later.
            assert max(abs(a - b) for (a, _), (b, _) in zip(its, mine, strict=True)) <= LATER.get(code, 1), code


def test_an_order_that_is_mixed_is_one_that_could_have_been() -> None:
    events = run_with("small-groups", "verifier-outage")
    mixed = shuffled(events, random.Random(0))
    for kinds in PRODUCERS.values():
        mine, its = ([e.type for e in run if isinstance(e, kinds)] for run in (events, mixed))
        assert its == mine
    for run in (events, mixed):
        begun = [event.version for event in run if isinstance(event, WeightSyncStarted | WeightsSynced)]
        assert begun == [event.version for event in events if isinstance(event, WeightSyncStarted | WeightsSynced)]
        at = {event.group_index: i for i, event in enumerate(run) if isinstance(event, RolloutFailed)}
        for i, event in enumerate(run):
            if isinstance(event, BatchConsumed):
                assert all(at.get(index, -1) < i for index in event.groups.group_index)


@pytest.mark.parametrize("fault", FAULTS)
def test_evidence_is_about_no_event_that_the_rule_does_not_say_it_reads(fault: str) -> None:
    reads = {rule.code: {path.split(".")[0] for path in rule.reads} for rule in ALL_RULES}
    found, _ = said(run_with("on-policy", fault))
    named = {
        (record.code, kind)
        for _, record in found
        for evidence in record.evidence
        for kind in re.findall(r"(?<![\w.])([a-z_]+)\.[a-z_]", evidence.metric)
        if kind in EVENT_TYPES
    }
    assert named
    assert [(code, kind) for code, kind in sorted(named) if kind not in reads[code]] == []
