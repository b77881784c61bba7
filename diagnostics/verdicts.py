"""Whether an action worked, judged so that doing nothing does not count as a success.

Most metrics fall back after they crossed a threshold, whatever one does, so the last value proves nothing. A verdict
looks at what came after the first batch generated wholly under the new configuration, asks for a confidence bound
past the threshold, with an error that knows about autocorrelation, and looks only a few times, each time with its
share of the probability of a mistake.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import pstdev
from typing import Final, Literal

from tocsin.diagnostics.estimates import lag_one_correlation, mean_and_error
from tocsin.schemas.actions import Verify

Quantiles = tuple[tuple[float, float], ...]
Outcome = Literal["target_met", "no_effect", "harmed", "inconclusive", "confounded"]

MIN_OBSERVATIONS: Final = 8
"""Readings after the change before anything is decided."""
LOOKS: Final = 4
"""How often a trial is looked at: after each quarter of `within`."""
EARLY: Final = (
    (1, 31.821), (2, 6.965), (3, 4.541), (4, 3.747), (5, 3.365), (6, 3.143), (8, 2.896),
    (10, 2.764), (15, 2.602), (20, 2.528), (30, 2.457), (60, 2.390), (math.inf, 2.326),
)  # fmt: skip
"""Degrees of freedom and the quantile of Student's t at 0.99, for the looks before the last."""
LAST: Final = (
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (8, 2.306),
    (10, 2.228), (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.000), (math.inf, 1.960),
)  # fmt: skip
"""The same at 0.975, for the last look: about five per cent over all looks together."""
CHANCE: Final = 0.0125
"""Probability at which a failure that did not come back is taken for gone."""
STANDS_OUT: Final = 3.0
"""Standard errors by which a level must differ from earlier ones to be more than the worst of many stretches of noise:
a finding is made where a metric stands high, so that the usual two would be met by chance."""
RECENT: Final = 20
"""Readings just before the change that an outcome is compared with."""


@dataclass(frozen=True, slots=True)
class Level:
    """Mean of some readings, and how far it may be off."""

    mean: float
    reach: float
    """Half of the confidence interval; infinite when nothing can be said."""
    n: int

    @property
    def text(self) -> str:
        """`0.31 ± 0.04 (n 20)`, or why there is no interval."""
        if not self.n:
            return "nothing"
        if not math.isfinite(self.reach):
            return f"{self.mean:.3g} (n {self.n}, too few or too correlated to say)"
        return f"{self.mean:.3g} ± {self.reach:.2g} (n {self.n})"


def level(values: Sequence[float], table: Quantiles) -> Level:
    """The level of a series in the order in which it was measured."""
    mean, error = mean_and_error(values)
    if not math.isfinite(error):
        return Level(mean, math.inf, len(values))
    return Level(mean, error * quantile(freedom(values), table), len(values))


def freedom(values: Sequence[float]) -> float:
    """Independent values behind the spread of an AR(1) series, n (1 - r^2) / (1 + r^2), less one for its mean."""
    square = lag_one_correlation(values) ** 2
    return len(values) * (1 - square) / (1 + square) - 1


def quantile(freedom: float, table: Quantiles) -> float:
    """Quantile of Student's t, interpolated in 1 / `freedom`; infinite below one degree."""
    if freedom < 1:
        return math.inf
    for (low, upper), (high, lower) in itertools.pairwise(table):
        if freedom <= high:
            part = (1 / freedom - 1 / high) / (1 / low - 1 / high)
            return lower + part * (upper - lower)
    return table[-1][1]


@dataclass(slots=True)
class Series:
    """Readings of one metric before a change and under it."""

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    earlier: list[float] = field(default_factory=list)
    """Readings before those of `before`, if there are any: what the metric does when nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an action, and the numbers behind it."""

    state: Outcome
    note: str


class Judgement:
    """Decides about one action from the series of its metric and of its outcomes (reward, throughput)."""

    def __init__(self, verify: Verify, metric: Series, outcomes: dict[str, Series]) -> None:
        self._verify = verify
        self._metric = metric
        self._outcomes = outcomes
        self._looked = 0
        self._table = EARLY

    def look(self, progress: float) -> Verdict | None:
        """The verdict at this share of the time allowed, if it is time to look and there is one."""
        if len(self._metric.after) < MIN_OBSERVATIONS:
            return None
        due = min(LOOKS, int(progress * LOOKS))
        if due <= self._looked:
            return None
        self._looked = due
        return self._last() if due == LOOKS else self._decided()

    def last_look(self, why: str) -> Verdict:
        """The verdict when there will be no more readings."""
        self._table = LAST
        enough = self._looked < LOOKS and len(self._metric.after) >= MIN_OBSERVATIONS
        return (self._decided() if enough else None) or Verdict("inconclusive", f"{why}; {self._facts()}")

    def _decided(self) -> Verdict | None:
        """Harm or success that is beyond doubt; harm is looked for first."""
        for name, series in self._outcomes.items():
            fall = fallen(series)
            if fall is not None:
                return Verdict("harmed", f"{name} fell from {fall[0].text} to {fall[1].text}; {self._facts()}")
        return Verdict("target_met", self._facts()) if self._is_met() else None

    def _last(self) -> Verdict:
        self._table = LAST
        decided = self._decided()
        if decided is not None:
            return decided
        before, after = self._levels()
        if self._gap(after.mean) - after.reach > 0 and not self._has_improved(before, after):
            return Verdict("no_effect", self._facts())
        return Verdict("inconclusive", self._facts())

    def _levels(self) -> tuple[Level, Level]:
        return level(self._metric.before, self._table), level(self._metric.after, self._table)

    def _is_met(self) -> bool:
        before, after = self._levels()
        if after.reach == 0:
            return self._passes(after.mean) and self._would_have_failed()
        moved = not before.n or self._gap(after.mean) < self._gap(before.mean)
        return moved and self._gap(after.mean) + after.reach < 0 and self._is_its_doing(before, after)

    def _is_its_doing(self, before: Level, after: Level) -> bool:
        """Whether the metric would not have passed by itself: an excursion of noise ends, and a trend goes on.

        Either the metric stood out against its earlier readings when the finding was made, or it is better now than
        those readings, carried on along their slope, let expect.
        """
        earlier = self._metric.earlier
        if not before.n or len(earlier) < 2 * MIN_OBSERVATIONS:
            return True
        mean, error = mean_and_error(earlier)
        # The error is that of the mean of all earlier readings; a stretch as short as `before` varies more, though
        # never more than single readings do, however much they hang together.
        spread = min(error * math.sqrt(len(earlier) / before.n), pstdev(earlier))
        if self._gap(before.mean) - self._gap(mean) > STANDS_OUT * spread:
            return True
        ahead = len(earlier) / 2 + before.n + after.n / 2
        expected = min(self._gap(mean), self._gap(mean + slope(earlier) * ahead))
        return expected - self._gap(after.mean) > math.hypot(STANDS_OUT * error, after.reach)

    def _would_have_failed(self) -> bool:
        """A series without spread has no error to go by. Would what failed before have shown itself by now?"""
        failed = sum(not self._passes(value) for value in self._metric.before)
        rate = failed / (len(self._metric.before) + 2)
        return len(self._metric.after) * math.log1p(-rate) < math.log(CHANCE)

    def _passes(self, value: float) -> bool:
        gap = self._gap(value)
        return gap < 0 or (gap == 0 and self._verify.operator in ("<=", ">="))

    def _gap(self, value: float) -> float:
        """How far `value` lies on the wrong side of the threshold; negative on the right side."""
        gap = value - self._verify.threshold
        return gap if self._verify.operator in ("<", "<=") else -gap

    def _has_improved(self, before: Level, after: Level) -> bool:
        return self._gap(before.mean) - self._gap(after.mean) > math.hypot(before.reach, after.reach)

    def _facts(self) -> str:
        before, after = self._levels()
        target = f"{self._verify.operator} {self._verify.threshold:g}"
        return f"{self._verify.metric} {before.text} before, {after.text} after, target {target}"


def fallen(series: Series) -> tuple[Level, Level] | None:
    """The levels before and after when an outcome fell for sure, and by more than it was falling already.

    An action answers a fault that goes on, so a decline that began before it is not its doing: the level before is
    carried on along its own slope, when that points down. Only the later half under the change is compared.
    """
    recent = series.before[-RECENT:]
    after = series.after[-max(MIN_OBSERVATIONS, len(series.after) // 2) :]
    if len(recent) < MIN_OBSERVATIONS or len(after) < MIN_OBSERVATIONS:
        return None
    old, new = level(recent, EARLY), level(after, EARLY)
    ahead = len(recent) / 2 + len(series.after) - len(after) / 2
    expected = old.mean + min(0.0, slope(series.before)) * ahead
    return (old, new) if new.mean + math.hypot(old.reach, new.reach) < expected else None


def slope(values: Sequence[float]) -> float:
    """Least-squares change per reading."""
    n = len(values)
    centre, mean = (n - 1) / 2, math.fsum(values) / n
    spread = math.fsum((i - centre) ** 2 for i in range(n))
    return math.fsum((i - centre) * (value - mean) for i, value in enumerate(values)) / spread if spread else 0.0
