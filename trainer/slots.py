"""Slots: the staleness bound, kept by admission instead of by throwing finished work away.

Each optimizer step opens a fixed number of slots, frozen when it opens. A group is admitted only into a slot, and a
step opens only while `step <= acknowledged + max_staleness`, where `acknowledged` is the step of the weights that the
sampler confirmed. A failed group frees its slot at once, for the next group of the endless sequence. So
`max_staleness = 0` is exactly on-policy, stragglers cannot age without bound, and no failure can deadlock the run.

    slots = Slots(next_step=0, next_index=0)
    slots.open(acknowledged=0, max_staleness=1, groups_per_step=2, group_size=8)   # opens steps 0 and 1
    slots.take()     # Slot(step=0, index=0, group_size=8)
    slots.failed(0)  # slot of step 0 is free again ...
    slots.take()     # ... and index 1 was taken before, so this is Slot(step=0, index=2, ...)
"""

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Slot:
    """The right of one group to be generated for one step."""

    step: int
    index: int
    """Group index; fixes prompt and random numbers."""
    group_size: int
    replacement: bool
    """Whether an earlier group in this slot failed. Replacements are generated alone, because the moment of a
    failure must not decide which groups share a sampler batch."""


@dataclass
class Slots:
    """Open slots of all open steps. Not thread-safe; one owner."""

    next_step: int
    """Step that opens next."""
    next_index: int
    """Group index that is assigned next."""
    _free: deque[Slot] = field(default_factory=deque)
    _held: dict[int, Slot] = field(default_factory=dict)

    def open(self, *, acknowledged: int, max_staleness: int, groups_per_step: int, group_size: int) -> list[Slot]:
        """Open every step that the bound allows; returns the new slots."""
        opened = []
        while self.next_step <= acknowledged + max_staleness:
            for _ in range(groups_per_step):
                opened.append(Slot(self.next_step, self._take_index(), group_size, replacement=False))
            self.next_step += 1
        self._free.extend(opened)
        return opened

    def reissue(self, slot: Slot) -> None:
        """Take over a slot whose group was lost with its process; it keeps index and step."""
        self._free.append(slot)

    def peek(self) -> Slot | None:
        """The free slot that is next in line: lowest step first, in order of index."""
        return self._free[0] if self._free else None

    def take(self) -> Slot:
        """Hold the next free slot. Raises `IndexError` when there is none."""
        slot = self._free.popleft()
        self._held[slot.index] = slot
        return slot

    def done(self, index: int) -> None:
        """The group is on its way to the learner."""
        del self._held[index]

    def failed(self, index: int) -> Slot:
        """The group will never come: its slot, freed for another group, ahead of those of the same step."""
        lost = self._held.pop(index)
        position = sum(slot.step < lost.step for slot in self._free)
        freed = Slot(lost.step, self._take_index(), lost.group_size, replacement=True)
        self._free.insert(position, freed)
        return freed

    @property
    def held(self) -> int:
        """Groups that are being generated or scored."""
        return len(self._held)

    def _take_index(self) -> int:
        self.next_index += 1
        return self.next_index - 1
