"""Reward spread of the groups: pooled counts over the last groups, and the streak of groups with one same reward.

A group has zero spread when all its completions got the same reward; it then carries no advantage. Counts tell
apart groups at the highest reward (pass), at the lowest (fail) and anywhere else (other). Groups with fewer than
two scored completions have no spread by definition and are left out.
"""

import math
from collections import deque
from dataclasses import dataclass, field, replace
from operator import mul
from typing import ClassVar, Final, Literal

from tocsin.diagnostics.prompt_stats import KindWindow
from tocsin.diagnostics.scored_groups import ScoredGroups, floats, scored_groups
from tocsin.diagnostics.streaks import Streak
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed

Position = Literal["top", "floor", "other"]

GROUPS: Final = 128
"""Groups that the pooled window holds at least, once there are so many; whole steps are kept."""
SETTLED: Final = 32
"""Length at which a streak counts as one, and what came before it is looked up."""
TOLERANCE: Final = 1e-6
"""Of the reward range: rewards closer than this are equal."""
MARGIN: Final = 0.01
"""Of the reward range: a reward further outside than this is out of scale and no rounding."""

POLARISED: Final = 0.5
"""Concentration a + b of the most polarised spread of difficulty that still counts as natural (Beta distribution)."""


@dataclass(slots=True)
class Totals:
    """Sums over the groups of one step, or of several."""

    steps: int = 0
    groups: int = 0
    zero: int = 0
    """Groups with zero spread: `passed` + `failed` + other."""
    passed: int = 0
    failed: int = 0
    completions: int = 0
    tokens: int = 0
    zero_tokens: int = 0
    """Completion tokens of the groups with zero spread."""
    reward_sum: float = 0.0
    """Over completions."""
    pass_sum: float = 0.0
    """Completions at the highest declared reward; without a declared range, the reward relative to the range seen."""
    mean_sum: float = 0.0
    """Sum of the groups' mean rewards."""
    square_sum: float = 0.0
    """Sum of their squares."""
    single: int = 0
    """Groups left out everywhere else, because fewer than two of their completions have a reward."""

    def add(self, other: "Totals", sign: int) -> None:
        """Put a step in (`sign` 1) or take it out (-1)."""
        self.steps += sign * other.steps
        self.groups += sign * other.groups
        self.zero += sign * other.zero
        self.passed += sign * other.passed
        self.failed += sign * other.failed
        self.completions += sign * other.completions
        self.tokens += sign * other.tokens
        self.zero_tokens += sign * other.zero_tokens
        self.reward_sum += sign * other.reward_sum
        self.pass_sum += sign * other.pass_sum
        self.mean_sum += sign * other.mean_sum
        self.square_sum += sign * other.square_sum
        self.single += sign * other.single

    def copy(self) -> "Totals":
        """A copy that later additions leave alone."""
        return replace(self)

    @property
    def mean(self) -> float:
        """Mean reward over completions."""
        return self.reward_sum / self.completions if self.completions else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean between groups; infinite with fewer than two."""
        if self.groups < 2:
            return math.inf
        spread = self.square_sum - self.mean_sum * self.mean_sum / self.groups
        return math.sqrt(max(0.0, spread) / (self.groups * (self.groups - 1)))

    @property
    def size(self) -> float:
        """Mean completions per group, the G of GRPO."""
        return self.completions / self.groups if self.groups else math.nan

    @property
    def pass_rate(self) -> float:
        """Share of completions that pass; see `pass_sum`."""
        return min(1.0, max(0.0, self.pass_sum / self.completions)) if self.completions else math.nan

    @property
    def zero_share(self) -> float:
        """Share of groups with zero spread."""
        return self.zero / self.groups if self.groups else math.nan


@dataclass(slots=True)
class Rewards:
    """The window, the streak, and the lowest and highest reward of the run."""

    MOVED_BY: ClassVar[frozenset[str]] = frozenset({"zero_spread"})

    totals: Totals = field(default_factory=Totals)
    last: Totals = field(default_factory=Totals)
    """The newest step."""
    streak: Streak = field(default_factory=Streak)
    declared: tuple[float, float] | None = None
    """Lowest and highest possible reward, when the task states them."""
    lowest: float = math.inf
    """Seen so far."""
    highest: float = -math.inf
    first_step: int = 0
    """Oldest step in the window."""
    outside: int = 0
    """Groups of the newest step with a reward outside of the declared range, beyond `MARGIN`."""
    furthest: float = math.nan
    """The reward that is furthest outside."""
    kinds: KindWindow = field(default_factory=KindWindow)
    """The last groups by kind."""
    _window: deque[tuple[int, Totals]] = field(default_factory=deque)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=GROUPS + SETTLED))
    """Reward of each of the last groups if it has zero spread, else NaN."""

    def update(self, batch: BatchConsumed) -> None:
        """Take in the groups of one step."""
        groups = scored_groups(batch.groups)
        self._widen(batch)
        low, high = self.span
        near = self.tolerance
        flat = [i for i, is_flat in enumerate(groups.flat) if is_flat]
        has_range = low < high
        step = Totals(
            steps=1,
            groups=len(groups.size),
            zero=len(flat),
            passed=sum([groups.high[i] >= high - near for i in flat]) if has_range else 0,
            failed=sum([groups.high[i] <= low + near for i in flat]) if has_range else 0,
            completions=sum(groups.size),
            tokens=sum(groups.tokens),
            zero_tokens=sum([groups.tokens[i] for i in flat]),
            reward_sum=sum(map(mul, groups.mean, groups.size)),
            mean_sum=sum(groups.mean),
            square_sum=sum(map(mul, groups.mean, groups.mean)),
            single=groups.single,
        )
        step.pass_sum = self._passes(batch, step)
        self._follow(groups, near, batch.step)
        self.kinds.update(groups, batch.step, self.span, step.pass_sum)
        self.last = step
        self._keep(batch.step, step)

    def restart(self) -> None:
        """Start the pooled window over. The streak stays: one same reward everywhere does not depend on the G."""
        self._window.clear()
        self.totals = Totals()
        self.kinds.restart()

    @property
    def tolerance(self) -> float:
        """Distance below which two rewards are equal."""
        low, high = self.span
        return TOLERANCE * max(high - low, 1e-3) if math.isfinite(high - low) else TOLERANCE

    @property
    def mean_level(self) -> float:
        """Mean reward of the window relative to the range, 0 at the lowest; NaN without a range."""
        low, high = self.span
        if not self.totals.completions or not high > low:
            return math.nan
        return (self.totals.reward_sum / self.totals.completions - low) / (high - low)

    def position(self) -> Position:
        """Where the streak's reward lies: at the top, at the floor, or neither.

        A reward below the declared top that nothing in the run ever exceeded is the top that can be attained.
        """
        value, near = self.streak.value, self.tolerance
        if self.declared is not None:
            if value >= self.declared[1] - near:
                return "top"
            if value <= self.declared[0] + near:
                return "floor"
        if value > self.lowest + near and value >= self.highest - near:
            return "top"
        if value <= self.lowest + near and value < self.highest - near:
            return "floor"
        return "other"

    @property
    def span(self) -> tuple[float, float]:
        """Lowest and highest reward: as declared, or else as seen."""
        return self.declared if self.declared is not None else (self.lowest, self.highest)

    def _widen(self, batch: BatchConsumed) -> None:
        if batch.reward_range is not None:
            low, high = as_float(batch.reward_range[0]), as_float(batch.reward_range[1])
            self.declared = (low, high) if math.isfinite(high - low) and low < high else None
        lows = list(filter(math.isfinite, floats(batch.groups.reward_min)))
        highs = list(filter(math.isfinite, floats(batch.groups.reward_max)))
        self.lowest = min([self.lowest, *lows])
        self.highest = max([self.highest, *highs])
        self._look_outside(batch, lows, highs)

    def _look_outside(self, batch: BatchConsumed, lows: list[float], highs: list[float]) -> None:
        self.outside = 0
        if self.declared is None or not (lows and highs):
            return
        low, high = self.declared
        margin = MARGIN * (high - low)
        least, most = low - margin, high + margin
        if min(lows) >= least and max(highs) <= most:
            return
        ends = zip(floats(batch.groups.reward_min), floats(batch.groups.reward_max), strict=True)
        self.outside = sum(-math.inf < start < least or most < end < math.inf for start, end in ends)
        self.furthest = max(*lows, *highs, key=lambda value: max(low - value, value - high))

    def _passes(self, batch: BatchConsumed, step: Totals) -> float:
        rate = as_float(batch.pass_rate)
        if math.isfinite(rate):
            return rate * step.completions
        low, high = self.span
        if not high > low:
            return 0.0
        return (step.reward_sum - low * step.completions) / (high - low)

    def _keep(self, step: int, totals: Totals) -> None:
        if totals.groups + totals.single == 0:
            return
        self._window.append((step, totals))
        self.totals.add(totals, 1)
        while self._seen - self._window[0][1].groups - self._window[0][1].single >= GROUPS:
            self.totals.add(self._window.popleft()[1], -1)
        self.first_step = self._window[0][0]

    @property
    def _seen(self) -> int:
        return self.totals.groups + self.totals.single

    def _follow(self, groups: ScoredGroups, near: float, step: int) -> None:
        """Lengthen the streak group by group, or start over at each one with spread or with another reward."""
        streak = self.streak
        for value, is_flat, size, tokens in zip(groups.high, groups.flat, groups.size, groups.tokens, strict=True):
            if not is_flat:
                self._recent.append(math.nan)
                if streak.groups:
                    streak = Streak()
                continue
            self._recent.append(value)
            if streak.groups == 0 or abs(value - streak.value) > near:
                streak = Streak(value=value, first_step=step)
            streak.groups += 1
            streak.completions += size
            streak.tokens += tokens
            if streak.groups == SETTLED:
                before = list(self._recent)[:-SETTLED]
                streak.before_groups = len(before)
                streak.before_same = sum([abs(other - value) <= near for other in before])
        self.streak = streak


def expected_share(pass_rate: float, size: float) -> float:
    """Lower bound on the share of zero-spread groups: p^G + (1 - p)^G, which difficulty spread only raises."""
    return math.pow(pass_rate, size) + math.pow(1 - pass_rate, size)


def natural_share(pass_rate: float, size: float) -> float:
    """Share of zero-spread groups when prompts differ as much as is natural: E[q^G + (1 - q)^G] over a Beta spread.

    q has mean `pass_rate` and concentration `POLARISED`; moments of the Beta distribution in closed form.
    """
    if not 0 < pass_rate < 1:
        return 1.0
    solved = unsolved = 1.0
    for i in range(max(1, math.floor(size))):
        solved *= (pass_rate * POLARISED + i) / (POLARISED + i)
        unsolved *= ((1 - pass_rate) * POLARISED + i) / (POLARISED + i)
    return solved + unsolved


def excess_limit(totals: Totals) -> float:
    """Share of zero-spread groups that a natural spread of difficulty stays below, by three standard errors."""
    natural = natural_share(totals.pass_rate, totals.size)
    return natural + 3 * math.sqrt(natural * (1 - natural) / totals.groups)
