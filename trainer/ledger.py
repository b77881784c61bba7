"""The ledger: where every group is, kept by the learner's side so that it survives a lost rollout process.

`launched = in_flight + queued + consumed + sum(dropped) + sum(failed)` holds after every message.
"""

from collections import Counter
from dataclasses import dataclass, field

from tocsin.schemas.events import Ledger


@dataclass
class GroupLedger:
    """Counts of groups by fate, and the target step of each one that is still in flight."""

    launched: int = 0
    consumed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    in_flight: dict[int, int] = field(default_factory=dict)
    """Target step by group index."""
    queued: dict[int, int] = field(default_factory=dict)
    """Target step by group index, of scored groups that wait for the learner."""

    @classmethod
    def resumed(cls, saved: Ledger) -> "GroupLedger":
        """The ledger of a checkpoint for the next attempt: what was open is given up, to be launched again."""
        ledger = cls(saved.launched, saved.consumed, Counter(saved.dropped), Counter(saved.failed))
        ledger._drop("resumed", saved.in_flight + saved.queued)
        return ledger

    def launch(self, index: int, target_step: int) -> None:
        """A group was handed to the sampler."""
        self.launched += 1
        self.in_flight[index] = target_step

    def arrive(self, index: int) -> None:
        """A scored group reached the queue. Raises `KeyError` for a group that was never launched."""
        self.queued[index] = self.in_flight.pop(index)

    def fail(self, index: int, cause: str) -> None:
        """A group will never come. Raises `KeyError` for a group that is not in flight."""
        del self.in_flight[index]
        self.failed[cause] += 1

    def consume(self, index: int) -> None:
        """The learner took a group. Raises `KeyError` for a group that is not queued."""
        del self.queued[index]
        self.consumed += 1

    def drop_open(self, cause: str) -> None:
        """Everything in flight or queued is given up, for instance because the run ends."""
        self._drop(cause, len(self.in_flight) + len(self.queued))
        self.in_flight.clear()
        self.queued.clear()

    def _drop(self, cause: str, groups: int) -> None:
        # A cause with no group behind it would read as if something had been lost.
        if groups:
            self.dropped[cause] += groups

    def snapshot(self) -> Ledger:
        """The ledger as it goes into an event."""
        return Ledger(
            launched=self.launched,
            in_flight=len(self.in_flight),
            queued=len(self.queued),
            consumed=self.consumed,
            dropped=dict(self.dropped),
            failed=dict(self.failed),
        )
