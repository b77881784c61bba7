"""Rates with their confidence intervals, clustered by fault: runs of one kind of fault are no independent witnesses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

RESAMPLES: Final = 2000
LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its interval."""

    hits: float
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """NaN when there was nothing to count."""
        return self.hits / self.n if self.n else math.nan

    def __str__(self) -> str:
        """`0.96 [0.90, 1.00] (n 120)`."""
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}] (n {self.n})" if self.n else "nothing to count"


def clustered_rate(hits: Sequence[bool], clusters: Sequence[str]) -> Rate:
    """The share of `hits`; its interval by resampling whole clusters (percentile bootstrap).

    When all hits are alike the bootstrap has no spread, and the bound is that of as many observations as there are
    clusters: 1 - 0.05^(1/k), which is about 3/k.
    """
    n = len(hits)
    if not n:
        return Rate(0, 0, math.nan, math.nan)
    names = sorted(set(clusters))
    sums = np.array(
        [[sum(h for h, c in zip(hits, clusters, strict=True) if c == name), clusters.count(name)] for name in names]
    )
    total = float(sums[:, 0].sum())
    bound = 1 - (1 - LEVEL) ** (1 / len(names))
    if total in (0, n):
        return Rate(total, n, 0.0 if total == 0 else 1 - bound, bound if total == 0 else 1.0)
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(len(names), size=(RESAMPLES, len(names)))].sum(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Rate(total, n, float(low), float(high))


def upper_bound(events: int, n: float) -> float:
    """Upper end of the 95 % interval (one-sided) of a Poisson rate per unit, of which `n` were looked at.

    Zero events in 30 units still allow 0.1 a unit: the rule of three.
    """
    if not n:
        return math.nan
    low, high = 0.0, 10.0 + 5.0 * events
    for _ in range(60):
        middle = (low + high) / 2
        term, below = math.exp(-middle), 0.0
        for k in range(events + 1):
            below += term
            term *= middle / (k + 1)
        low, high = (middle, high) if below > 1 - LEVEL else (low, middle)
    return high / n
