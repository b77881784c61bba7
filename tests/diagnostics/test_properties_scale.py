"""In which units rewards are told changes no verdict: neither on healthy noise nor on any fault."""

from collections.abc import Iterable, Iterator
from typing import Final

import pytest

from tests.diagnostics.bootstrap import NAMES, bootstrapped, recording
from tests.diagnostics.planted import FAULTS, Plant, planted
from tests.diagnostics.planted_rewards import REWARD_FAULTS, SIDE_FAULTS, Units, continuous, outlier, undeclared
from tocsin.diagnostics.engine import Engine
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunStarted

STEPS: Final = 200
ONSET: Final = 110
END: Final = 170
UNITS: Final = [
    *(Units(factor=factor, by_weight=by_weight) for factor in (0.01, 10.0, 1000.0) for by_weight in (False, True)),
    Units(shift=-3.75),
]
PLANTS: Final[dict[str, tuple[str, Plant, str]]] = {
    **{fault: ("two-rewards", *FAULTS[fault]) for fault in FAULTS},
    **{fault: ("demo", *REWARD_FAULTS[fault]) for fault in REWARD_FAULTS},
    **{fault: ("two-rewards", *SIDE_FAULTS[fault]) for fault in SIDE_FAULTS},
}
"""By fault: the recording that it is planted into, the fault, and the rule that must name it."""
Verdict = tuple[int, str, str, str]
"""Step, code, reason, severity."""


def verdicts(events: Iterable[BaseEvent]) -> list[Verdict]:
    engine = Engine()
    return [
        (event.step, record.code, record.reason, record.severity)
        for event in events
        for record in engine.observe(event)
        if isinstance(record, Diagnostic)
    ]


def noise(name: str, fault: Plant | None = None) -> list[BaseEvent]:
    steps: Iterator[list[BaseEvent]] = bootstrapped(recording(name), steps=STEPS, seed=11)
    if fault is not None:
        steps = planted(steps, fault, first=ONSET, last=END)
    return [event for step in steps for event in step]


def judged_alike(events: list[BaseEvent]) -> list[Verdict]:
    """The verdicts, after holding those in all other units against them."""
    start = events[0]
    assert isinstance(start, RunStarted)
    assert start.setup is not None
    found = verdicts(events)
    for units in UNITS:
        assert verdicts(units.of(event, start.setup.rewards) for event in events) == found, units
    return found


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_units_change_no_verdict_on_healthy_noise(name: str, is_declared: bool) -> None:
    events = noise(name)
    judged_alike(events if is_declared else list(map(undeclared, events)))


@pytest.mark.parametrize("fault", PLANTS)
def test_units_change_no_verdict_on_a_fault(fault: str) -> None:
    name, plant, code = PLANTS[fault]
    found = judged_alike(noise(name, plant))
    assert code in {verdict[1] for verdict in found if verdict[0] >= ONSET}


@pytest.mark.parametrize("fault", PLANTS)
def test_units_change_no_verdict_on_a_fault_without_a_declared_range(fault: str) -> None:
    name, plant, _ = PLANTS[fault]
    judged_alike(list(map(undeclared, noise(name, plant))))


def test_units_change_no_verdict_on_distances_between_rewards() -> None:
    steps = ([continuous(event) for event in step] for step in bootstrapped(recording("demo"), steps=STEPS, seed=11))
    events = [event for step in planted(steps, outlier, first=ONSET, last=END) for event in step]
    found = judged_alike(list(map(undeclared, events)))
    assert ("RWD012", "fired") in {verdict[1:3] for verdict in found}


def test_rwd012_depends_on_the_units_of_a_range_that_is_declared_and_not_kept() -> None:
    # A declared range states what is possible: rewards in other units than their range are the fault itself.
    events = noise("demo")
    start = events[0]
    assert isinstance(start, RunStarted)
    assert start.setup is not None
    assert "RWD012" not in {verdict[1] for verdict in verdicts(events)}
    kept: list[BaseEvent] = [start]
    for event in events[1:]:
        other = Units(factor=10.0).of(event, start.setup.rewards)
        is_batch = isinstance(event, BatchConsumed) and isinstance(other, BatchConsumed)
        kept.append(other.model_copy(update={"reward_range": event.reward_range}) if is_batch else other)  # type: ignore[attr-defined]
    assert ("RWD012", "fired", "critical") in {verdict[1:] for verdict in verdicts(kept)}
