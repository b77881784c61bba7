"""Importance ratios by the age of their tokens: what tells old weights, other numbers and missing ratios apart.

The ratio is that of the learner to the sampler. Over tokens that the sampler drew from its whole distribution its mean
is 1 whatever the distance between the two; its spread grows with the distance.
"""

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import as_float
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.step import RatioMoments, StepCompleted

FLAT: Final = 1e-6
"""Distance from one, of a mean ratio and of its mean square, within which all ratios are one but for rounding."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Ratios of many tokens."""

    tokens: int
    mean: float
    mean_square: float

    @property
    def ess(self) -> float:
        """Effective sample size of the ratios over their number; NaN when all are zero."""
        return self.mean * self.mean / self.mean_square if self.mean_square > 0 else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean, as if tokens were independent."""
        return math.sqrt(max(0.0, self.mean_square - self.mean * self.mean) / self.tokens) if self.tokens else math.inf


NOTHING: Final = Bucket(0, math.nan, math.nan)
"""No tokens: every comparison with its numbers is false."""


@dataclass(frozen=True, slots=True)
class StepRatios:
    """What one step said about its ratios."""

    buckets: list[RatioMoments]
    tokens: int
    first: float
    """Sum of the ratios."""
    second: float
    """Sum of their squares."""
    one_sided: float
    """Mean of log sampler - log learner over the mean of its absolute value; NaN when not measured. 1: the sampler
    gives every token the higher log-prob."""


@dataclass(frozen=True, slots=True)
class Flat:
    """Updates in a row whose ratios were all one although their tokens were older than the weights they train."""

    steps: int = 0
    first_step: int = 0
    syncs: int = 0
    moved: float = 0.0
    """Sum of the learner's own movement on the probe meanwhile, in nats."""

    @property
    def moved_per_sync(self) -> float:
        """Mean movement of a sync, in nats; 0 without one."""
        return self.moved / self.syncs if self.syncs else 0.0


class Ratios(Feature):
    """The last five updates with ratios, or as many as hold 256 tokens, and the streak of those that were all one."""

    takes = (StepCompleted, WeightsSynced)
    moved_by = frozenset({"logprob_gap"})
    STEPS: ClassVar[int] = 5
    TOKENS: ClassVar[int] = 256
    """Tokens below which updates say too little about a mean."""
    MOST: ClassVar[int] = 50
    """Updates above which tokens are too far apart to be pooled."""

    def __init__(self) -> None:
        self.window: deque[StepRatios] = deque(maxlen=self.MOST)
        self.pooled = NOTHING
        """All tokens of the window, once it has enough of them."""
        self.was_judged = False
        """Whether it ever had."""
        self.flat = Flat()
        self.has_older = False
        """Whether tokens older than the weights were ever trained on."""
        self.unmeasured = 0
        """Updates in a row that reported no ratios."""
        self.tolerance = math.nan
        """Of the probe, in nats; NaN until a sync stated it."""

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step, or follow the learner's movement on the probe."""
        if isinstance(event, WeightsSynced):
            self.tolerance = as_float(event.probe_tolerance)
            moved = as_float(event.probe_moved)
            if self.flat.steps and math.isfinite(moved):
                self.flat = replace(self.flat, syncs=self.flat.syncs + 1, moved=self.flat.moved + moved)
        elif isinstance(event, StepCompleted) and event.outcome == "updated":
            self.unmeasured = 0 if event.ratio else self.unmeasured + 1
            if event.ratio:
                self._take(event)

    def restart(self) -> None:
        """Start the window over: another bound or rate puts other distances into it."""
        self.window.clear()
        self.pooled = NOTHING
        self.flat = Flat()

    @property
    def one_sided(self) -> float:
        """Mean over the window of what each step says about it; NaN when one does not."""
        return math.fsum(step.one_sided for step in self.window) / len(self.window) if self.window else math.nan

    @property
    def by_age(self) -> dict[int, Bucket]:
        """The window pooled by staleness, youngest tokens first."""
        found: dict[int, list[RatioMoments]] = {}
        for step in self.window:
            for item in step.buckets:
                found.setdefault(item.staleness, []).append(item)
        return {age: _pooled(found[age]) for age in sorted(found)}

    def _take(self, event: StepCompleted) -> None:
        tokens, first, second, is_flat, has_older = 0, 0.0, 0.0, True, False
        for item in event.ratio:
            mean, square = as_float(item.mean), as_float(item.mean_square)
            tokens += item.tokens
            first += item.tokens * mean
            second += item.tokens * square
            if item.staleness > 0:
                has_older = True
                is_flat = is_flat and abs(mean - 1) <= FLAT and abs(square - 1) <= FLAT
        if not (math.isfinite(first) and math.isfinite(second)):
            return  # a step with ratios that are not finite says nothing here; POL015 names it
        gap, one_sided = event.logprob_gap, math.nan
        if gap is not None:
            distance = as_float(gap.abs_mean)
            one_sided = as_float(gap.k1) / distance if distance > 0 else 0.0
        self.window.append(StepRatios(event.ratio, tokens, first, second, one_sided))
        self._pool()
        if has_older:
            self.has_older = True
            self._follow(event.step, is_flat=is_flat)

    def _pool(self) -> None:
        tokens = sum(step.tokens for step in self.window)
        while len(self.window) > self.STEPS and tokens - self.window[0].tokens >= self.TOKENS:
            tokens -= self.window.popleft().tokens
        if len(self.window) < self.STEPS or tokens < self.TOKENS:
            self.pooled = NOTHING
            return
        self.was_judged = True
        first, second = sum(step.first for step in self.window), sum(step.second for step in self.window)
        self.pooled = Bucket(tokens, first / tokens, second / tokens)

    def _follow(self, step: int, *, is_flat: bool) -> None:
        if is_flat:
            first = self.flat.first_step if self.flat.steps else step
            self.flat = replace(self.flat, steps=self.flat.steps + 1, first_step=first)
        elif self.flat.steps:
            self.flat = Flat()


class PolicySteps(Feature):
    """Distance that the policy moved under the youngest older tokens, over the last thirty updates that had enough."""

    takes = (StepCompleted,)
    moved_by = frozenset({"staleness"})
    UPDATES: ClassVar[int] = 30
    BEFORE: ClassVar[int] = 100
    TOKENS: ClassVar[int] = 128
    """Tokens below which one of them may make up the mean."""

    def __init__(self) -> None:
        self.window: deque[tuple[float, int]] = deque(maxlen=self.UPDATES)
        """k3 beyond that of tokens of the present weights, in nats, and number of tokens."""
        self.before: deque[float] = deque(maxlen=self.BEFORE)
        """The same for the last hundred, the window included."""
        self.largest = 0.0
        """Of the window."""
        self.has_older = False
        """Whether tokens older than the weights were ever trained on."""
        self.unmeasured = 0
        """Updates in a row with older tokens and without their k3."""

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step."""
        if not isinstance(event, StepCompleted) or event.outcome != "updated":
            return
        youngest, fresh = None, 0.0
        for item in event.ratio:
            if item.staleness == 0:
                fresh = 0.0 if item.k3 is None else as_float(item.k3)
            elif youngest is None or item.staleness < youngest.staleness:
                youngest = item
        if youngest is None:
            return
        self.has_older = True
        self.unmeasured = self.unmeasured + 1 if youngest.k3 is None else 0
        k3 = as_float(youngest.k3) - fresh
        if youngest.tokens >= self.TOKENS and math.isfinite(k3):
            self._take(k3, youngest.tokens)

    def restart(self) -> None:
        """Start over: another bound has another distance."""
        self.window.clear()
        self.before.clear()
        self.largest = 0.0

    def _take(self, k3: float, tokens: int) -> None:
        leaving = self.window[0][0] if len(self.window) == self.UPDATES else 0.0
        self.window.append((k3, tokens))
        self.before.append(k3)
        if leaving >= self.largest > 0:
            self.largest = max(value for value, _ in self.window)
        else:
            self.largest = max(self.largest, k3)


def _pooled(items: list[RatioMoments]) -> Bucket:
    """All tokens of one age as one bucket; its means are NaN when there are none."""
    tokens = sum(item.tokens for item in items)
    first = sum(item.tokens * as_float(item.mean) for item in items)
    second = sum(item.tokens * as_float(item.mean_square) for item in items)
    return Bucket(tokens, first / tokens, second / tokens) if tokens else NOTHING
