"""What training is for: the reward against the best that the run has reached, and how completions end.

Windows are counted in completions, because a rule that is right at 256 of them is useless at eight. The best window
never overlaps the newest one. Errors of means are taken between groups: completions of one prompt are no independent
observations.
"""

import math
from collections import deque
from collections.abc import Iterable
from typing import ClassVar, Final

from tocsin.diagnostics.feature import Feature
from tocsin.diagnostics.rewards import Rewards, Totals
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent

COMPLETIONS: Final = 256
"""Completions that a window holds at least."""
SIGMAS: Final = 3.0
"""Standard errors by which a fall must exceed chance."""


class Outcome:
    """Reward of the newest window, of the last few steps, and of the best earlier window. No knob restarts it."""

    STEPS: ClassVar[int] = 5
    """Steps that a window holds at least, so that the causes of a fall have time to be named first."""
    FAST_STEPS: ClassVar[int] = 3
    FAST_COMPLETIONS: ClassVar[int] = 120

    def __init__(self, rewards: Rewards) -> None:
        self.recent = Totals()
        self.best: Totals | None = None
        """None until a window has passed."""
        self.best_step = 0
        """Last step of the best window."""
        self._rewards = rewards
        self._steps: deque[tuple[int, Totals]] = deque()
        self._earlier = Totals()
        self._earlier_steps: deque[tuple[int, Totals]] = deque()

    def update(self, step: int, totals: Totals) -> None:
        """Take in the groups of one step."""
        if totals.groups == 0:
            return
        self._steps.append((step, totals))
        self.recent.add(totals, 1)
        while self._is_full(self.recent, but=self._steps[0][1]):
            old = self._steps.popleft()
            self.recent.add(old[1], -1)
            self._retire(*old)

    @property
    def is_known(self) -> bool:
        """Whether there is a best window to compare the newest one with."""
        return self.best is not None

    @property
    def first_step(self) -> int:
        """Oldest step of the newest window."""
        return self._steps[0][0] if self._steps else 0

    def fast(self) -> Totals:
        """The last three steps, or as many as hold 120 completions."""
        return pooled(reversed(self._steps), steps=self.FAST_STEPS, completions=self.FAST_COMPLETIONS)

    def level(self, totals: Totals) -> float:
        """Mean reward of `totals` above the lowest one, relative to the range; NaN without a range."""
        low, high = self._rewards.span
        return (totals.mean - low) / (high - low) if high > low else math.nan

    def share_of_best(self, totals: Totals) -> float:
        """Level of `totals` relative to that of the best window; NaN when it is unknown or at the floor."""
        best = math.nan if self.best is None else self.level(self.best)
        return self.level(totals) / best if best > 0 else math.nan

    def fell_below(self, share: float, totals: Totals) -> bool:
        """Whether `totals` lie below `share` of the best level by more than chance."""
        low, high = self._rewards.span
        if self.best is None or not high > low:
            return False
        missing = share * (self.best.mean - low) - (totals.mean - low)
        # A window without a single success has no spread of its own; what the best one had says how lucky that is.
        chance = self.best.error * math.sqrt(self.best.groups / totals.groups) if totals.groups else math.inf
        error = math.hypot(max(totals.error, chance), share * self.best.error)
        return missing > SIGMAS * error and missing > 0

    def _is_full(self, totals: Totals, *, but: Totals) -> bool:
        return totals.completions - but.completions >= COMPLETIONS and totals.steps - but.steps >= self.STEPS

    def _retire(self, step: int, totals: Totals) -> None:
        """Move a step out of the newest window into the earlier one, which may be the best so far."""
        self._earlier_steps.append((step, totals))
        self._earlier.add(totals, 1)
        while self._is_full(self._earlier, but=self._earlier_steps[0][1]):
            self._earlier.add(self._earlier_steps.popleft()[1], -1)
        if self._earlier.completions < COMPLETIONS or self._earlier.steps < self.STEPS:
            return
        if self.best is None or self._earlier.mean > self.best.mean:
            self.best, self.best_step = self._earlier.copy(), step


def pooled(newest_first: Iterable[tuple[int, Totals]], *, steps: int, completions: int) -> Totals:
    """Sums over the newest steps, until there are enough of them and of completions."""
    found = Totals()
    for _, totals in newest_first:
        found.add(totals, 1)
        if found.steps >= steps and found.completions >= completions:
            break
    return found


class PooledShare:
    """Share of completions with some property: the newest window, and the lowest share of an earlier one.

    The two never overlap, so that what begins now is compared with what was before.
    """

    def __init__(self) -> None:
        self.n = 0
        """Completions in the window."""
        self.hits = 0
        """Those with the property."""
        self.first_step = 0
        """Oldest step in the window."""
        self.lowest = math.nan
        """Smallest share of an earlier window; NaN until there was one."""
        self._steps: deque[tuple[int, int, int]] = deque()
        """Step, completions, hits."""
        self._earlier: deque[tuple[int, int]] = deque()
        self._earlier_n = self._earlier_hits = 0

    def add(self, step: int, n: int, hits: int) -> None:
        """Take in the completions of one step, at least one."""
        self._steps.append((step, n, hits))
        self.n += n
        self.hits += hits
        while self.n - self._steps[0][1] >= COMPLETIONS:
            _, gone, gone_hits = self._steps.popleft()
            self.n -= gone
            self.hits -= gone_hits
            self._retire(gone, gone_hits)
        self.first_step = self._steps[0][0]

    @property
    def is_full(self) -> bool:
        """Whether the window holds enough to be judged."""
        return self.n >= COMPLETIONS

    @property
    def share(self) -> float:
        """Share in the window; NaN until it is full."""
        return self.hits / self.n if self.n >= COMPLETIONS else math.nan

    @property
    def error(self) -> float:
        """Standard error of `share`, as if completions were independent; NaN until the window is full."""
        return math.sqrt(self.share * (1 - self.share) / self.n) if self.n else math.nan

    def _retire(self, n: int, hits: int) -> None:
        self._earlier.append((n, hits))
        self._earlier_n += n
        self._earlier_hits += hits
        while self._earlier_n - self._earlier[0][0] >= COMPLETIONS:
            gone, gone_hits = self._earlier.popleft()
            self._earlier_n -= gone
            self._earlier_hits -= gone_hits
        if self._earlier_n >= COMPLETIONS:
            share = self._earlier_hits / self._earlier_n
            self.lowest = share if math.isnan(self.lowest) else min(self.lowest, share)


class Truncation(Feature):
    """Completions that ended at the length limit: the newest window, and the lowest share of an earlier one."""

    takes = (BatchConsumed,)
    moved_by = frozenset({"truncation"})

    def __init__(self) -> None:
        self.window = PooledShare()
        self.longest = 0.0
        """Tokens of the longest completion of the last step."""

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch."""
        if not isinstance(event, BatchConsumed):
            return
        n = sum(event.finish_reasons.values())
        if n:
            self.longest = _largest(event)
            self.window.add(event.step, n, event.finish_reasons.get("length", 0))

    @property
    def share(self) -> float:
        """Share of completions in the window that were cut; NaN until the window is full."""
        return self.window.share

    def restart(self) -> None:
        """Start over: another limit cuts another share."""
        self.window = PooledShare()


def _largest(event: BatchConsumed) -> float:
    top = event.length.max
    return float(top) if isinstance(top, float | int) else math.nan
