"""How old training data is, and whether the sampler computes with the weights that it was sent."""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunResumed
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.step import StepCompleted

TRIANGLE: Final = 1.05
"""A sampler that kept its weights is at most as far from the learner as the learner has moved; rounding included."""


@dataclass(frozen=True, slots=True)
class StepStaleness:
    """Staleness of the completions of one step, in optimizer steps."""

    step: int
    mean: float
    p95: float
    max: float
    bound: int


class Staleness(Feature):
    """Staleness over the last batches."""

    takes = (BatchConsumed,)
    moved_by = frozenset({"staleness"})
    BATCHES: ClassVar[int] = 10

    def __init__(self) -> None:
        self.window: deque[StepStaleness] = deque(maxlen=self.BATCHES)

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch."""
        if not isinstance(event, BatchConsumed):
            return
        found = event.staleness
        mean, p95, top = as_float(found.mean), as_float(found.p95), as_float(found.max)
        if all(math.isfinite(value) for value in (mean, p95, top)):
            entry = StepStaleness(step=event.step, mean=mean, p95=p95, max=top, bound=event.max_staleness)
            self.window.append(entry)

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()


@dataclass(frozen=True, slots=True)
class Streak:
    """Syncs in a row whose probe did not agree, beside how far the learner moved meanwhile. All distances in nats."""

    syncs: int = 0
    first_step: int = 0
    gap: float = 0.0
    """Largest difference of log-probs on the probe, at the newest sync."""
    moved: float = 0.0
    """Sum of the learner's own movement on the probe since the last sync that agreed."""
    tolerance: float = 0.0
    peak_share: float = 0.0
    """Largest share of the movement that the gap made up, from the second sync on."""
    is_within: bool = True
    """Whether the gap never exceeded the movement, as old weights demand."""

    @property
    def share(self) -> float:
        """The gap over the movement; infinite when the learner did not move."""
        return self.gap / self.moved if self.moved > 0 else math.inf

    def longer(self, event: WeightsSynced, gap: float, moved: float) -> "Streak":
        """This streak with one more sync."""
        total = self.moved + moved
        tolerance = as_float(event.probe_tolerance)
        share = gap / total if total > 0 else math.inf
        return Streak(
            syncs=self.syncs + 1,
            first_step=self.first_step if self.syncs else event.step,
            gap=gap,
            moved=total,
            tolerance=tolerance,
            peak_share=max(self.peak_share, share) if self.syncs else 0.0,
            is_within=self.is_within and gap <= TRIANGLE * total + tolerance,
        )


class Syncs(Feature):
    """The newest syncs that failed their probe without one that passed between them."""

    takes = (RunResumed, WeightsSynced)
    OLD_WEIGHTS: ClassVar[float] = 0.6
    """Share of its movement at which the learner's distance shows that the sampler did not follow."""

    def __init__(self) -> None:
        self.seen = 0
        self.streak = Streak()

    def update(self, event: BaseEvent) -> None:
        """Take in a sync. One whose numbers are not finite says nothing about which weights were compared."""
        if isinstance(event, RunResumed):
            self.streak = Streak()
        if not isinstance(event, WeightsSynced):
            return
        self.seen += 1
        gap, moved = as_float(event.probe_gap), as_float(event.probe_moved)
        if event.verified:
            self.streak = Streak()
        elif math.isfinite(gap) and math.isfinite(moved):
            self.streak = self.streak.longer(event, gap, moved)

    @property
    def holds_old_weights(self) -> bool:
        """Whether the gap grew with the learner's movement and never beyond it, over two syncs or more."""
        streak = self.streak
        return streak.syncs >= 2 and streak.is_within and streak.peak_share >= self.OLD_WEIGHTS

    def restart(self) -> None:
        """Which weights the sampler holds has no baseline: nothing to forget."""


class OnPolicyGap(Feature):
    """Difference of log-probs in steps whose tokens all came from the weights that train on them.

    There staleness has no part in the difference, so it is mismatch alone.
    """

    takes = (StepCompleted,)
    moved_by = frozenset({"logprob_gap"})
    STEPS: ClassVar[int] = 5

    def __init__(self) -> None:
        self.window: deque[float] = deque(maxlen=self.STEPS)
        """Mean absolute difference per step, in nats."""

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step; a step with older tokens says nothing here."""
        if not isinstance(event, StepCompleted) or event.logprob_gap is None or not event.ratio:
            return
        value = as_float(event.logprob_gap.abs_mean)
        if all(bucket.staleness == 0 for bucket in event.ratio) and math.isfinite(value):
            self.window.append(value)

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()
