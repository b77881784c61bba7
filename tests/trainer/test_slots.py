"""Slots: order, replacement, and the staleness bound against a random learner and a random sampler."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.trainer.slots import Slot, Slots


def opened(slots: Slots, *, acknowledged: int, max_staleness: int, groups: int = 2) -> list[tuple[int, int]]:
    new = slots.open(acknowledged=acknowledged, max_staleness=max_staleness, groups_per_step=groups, group_size=8)
    return [(slot.step, slot.index) for slot in new]


def take_all(slots: Slots) -> list[tuple[int, int]]:
    taken = []
    while slots.peek() is not None:
        slot = slots.take()
        taken.append((slot.step, slot.index))
    return taken


def test_every_step_within_the_bound_opens_with_its_own_slots():
    slots = Slots(next_step=0, next_index=0)
    assert opened(slots, acknowledged=0, max_staleness=1) == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert opened(slots, acknowledged=0, max_staleness=1) == []
    assert opened(slots, acknowledged=1, max_staleness=1, groups=1) == [(2, 4)]


def test_a_failed_group_frees_its_slot_for_the_next_group_of_the_sequence():
    slots = Slots(next_step=0, next_index=0)
    slots.open(acknowledged=0, max_staleness=1, groups_per_step=2, group_size=8)
    assert slots.take() == Slot(step=0, index=0, group_size=8, replacement=False)
    assert slots.failed(0) == Slot(step=0, index=4, group_size=8, replacement=True)
    assert take_all(slots) == [(0, 4), (0, 1), (1, 2), (1, 3)]
    assert slots.held == 4


def test_a_replacement_stands_behind_earlier_steps_and_ahead_of_its_own():
    slots = Slots(next_step=0, next_index=0)
    slots.open(acknowledged=0, max_staleness=2, groups_per_step=2, group_size=8)
    for _ in range(3):
        slots.take()
    slots.failed(2)
    slots.failed(0)
    assert take_all(slots) == [(0, 7), (1, 6), (1, 3), (2, 4), (2, 5)]


def test_a_replacement_keeps_the_size_that_its_slot_was_opened_with():
    slots = Slots(next_step=0, next_index=0)
    slots.open(acknowledged=0, max_staleness=0, groups_per_step=1, group_size=8)
    slots.take()
    slots.open(acknowledged=1, max_staleness=0, groups_per_step=1, group_size=2)
    assert slots.failed(0).group_size == 8


def test_a_group_that_was_lost_with_its_process_keeps_index_and_step():
    slots = Slots(next_step=5, next_index=20)
    slots.reissue(Slot(step=3, index=11, group_size=4, replacement=False))
    slots.open(acknowledged=5, max_staleness=0, groups_per_step=1, group_size=8)
    assert take_all(slots) == [(3, 11), (5, 20)]


def test_without_staleness_nothing_opens_before_the_weights_of_the_step_before():
    slots = Slots(next_step=0, next_index=0)
    assert opened(slots, acknowledged=-1, max_staleness=0) == []
    for step in range(5):
        assert {s for s, _ in opened(slots, acknowledged=step, max_staleness=0)} == {step}
        assert opened(slots, acknowledged=step, max_staleness=0) == []


def test_taking_from_nothing_is_an_error():
    with pytest.raises(IndexError):
        Slots(next_step=0, next_index=0).take()


@dataclass
class Simulation:
    """A learner and a sampler that drive slots, in an order that hypothesis chooses."""

    data: st.DataObject
    slots: Slots = field(default_factory=lambda: Slots(next_step=0, next_index=0))
    step: int = 0
    acknowledged: int = 0
    bound_of_step: dict[int, int] = field(default_factory=dict)
    plan_of_step: dict[int, tuple[int, int]] = field(default_factory=dict)
    flying: dict[int, tuple[Slot, int]] = field(default_factory=dict)
    """By index: the slot and the weights that sample it."""
    ready: dict[int, list[tuple[Slot, int]]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    consumed: list[int] = field(default_factory=list)

    def draw(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def open(self) -> None:
        bound, groups, size = self.draw(0, 3), self.draw(1, 4), self.draw(2, 6)
        new = self.slots.open(
            acknowledged=self.acknowledged, max_staleness=bound, groups_per_step=groups, group_size=size
        )
        for slot in new:
            self.bound_of_step[slot.step] = bound
            self.plan_of_step[slot.step] = (groups, size)

    def launch(self) -> None:
        slot = self.slots.take()
        assert slot.index not in self.seen
        assert slot.group_size == self.plan_of_step[slot.step][1]
        self.seen.add(slot.index)
        self.flying[slot.index] = (slot, self.acknowledged)

    def land(self) -> None:
        """Any group that is in flight, so also a straggler after much later ones; one in four fails."""
        index = self.data.draw(st.sampled_from(sorted(self.flying)))
        slot, version = self.flying.pop(index)
        if self.draw(0, 3) == 0:
            replacement = self.slots.failed(index)
            assert (replacement.step, replacement.replacement) == (slot.step, True)
        else:
            self.slots.done(index)
            self.ready.setdefault(slot.step, []).append((slot, version))

    def train(self) -> None:
        """Consume the step if it is whole, and send its weights."""
        groups = self.ready.get(self.step, [])
        if self.step not in self.plan_of_step or len(groups) < self.plan_of_step[self.step][0]:
            return
        assert len(groups) == self.plan_of_step[self.step][0]
        for _, version in groups:
            assert 0 <= self.step - version <= self.bound_of_step[self.step]
        self.consumed.append(self.step)
        self.step += 1

    def sync(self) -> None:
        self.acknowledged = self.step

    def act(self) -> None:
        """One thing that can happen now, chosen at random."""
        possible = [self.open, self.train, self.sync]
        if self.slots.peek() is not None:
            possible.append(self.launch)
        if self.flying:
            possible += [self.land, self.land]
        self.data.draw(st.sampled_from(possible))()
        assert self.slots.held == len(self.flying)

    def drain(self) -> None:
        """Everything that can be done without luck: the run must get on."""
        target = self.step + 3
        for _ in range(100):
            self.sync()
            self.slots_opened_at_bound_zero()
            while self.slots.peek() is not None:
                self.launch()
            for index in sorted(self.flying):
                slot, version = self.flying.pop(index)
                self.slots.done(index)
                self.ready.setdefault(slot.step, []).append((slot, version))
            self.train()
            if self.step >= target:
                return
        raise AssertionError(f"the run is stuck at step {self.step}")

    def slots_opened_at_bound_zero(self) -> None:
        new = self.slots.open(acknowledged=self.acknowledged, max_staleness=0, groups_per_step=1, group_size=2)
        for slot in new:
            self.bound_of_step[slot.step], self.plan_of_step[slot.step] = 0, (1, 2)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_no_order_of_failures_stragglers_and_changes_breaks_the_bound_or_stops_the_run(data: st.DataObject):
    run = Simulation(data)
    for _ in range(data.draw(st.integers(0, 60))):
        run.act()
    run.drain()
    assert run.consumed == list(range(run.step))
    assert sorted(run.seen) == list(range(len(run.seen))), "an index was left out"
