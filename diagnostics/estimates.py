"""Estimates that hold for the metrics of a run, which are noisy, autocorrelated and never many.

Everything takes plain sequences of floats. A NaN in the series makes the answer NaN, which passes no comparison;
callers that know better filter first.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Final

MAD_SCALE: Final = 1.4826
"""Median absolute deviation to standard deviation, for a normal distribution."""
LARGEST_CORRELATION: Final = 0.99
ROUNDING: Final = 1e-12
"""Standard deviation over the mean below which values are one value: what is left is how floats were added."""


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, corrected for autocorrelation at lag one.

    Neighbouring steps of a run share weights and samples, so n of them say less than n independent ones: under an
    AR(1) process about n (1 - r) / (1 + r). Negative correlation earns no smaller error. The error is infinite when
    nothing can be said about it: with fewer than three values, with one that is not finite, or with so much
    correlation that they count as one. It is never below what rounding leaves of the mean.
    """
    n = len(values)
    if n == 0 or not all(map(math.isfinite, values)):
        return math.nan, math.inf
    mean = math.fsum(values) / n
    if n < 3:
        return mean, math.inf
    squares = math.fsum((value - mean) ** 2 for value in values)
    effective = effective_size(values)
    # The same correlation that shrinks n also shrinks the spread around the sample's own mean; both are undone here.
    error = math.sqrt(squares / n / (effective - 1)) if effective > 1 else math.inf
    return mean, max(error, ROUNDING * abs(mean))


def effective_size(values: Sequence[float]) -> float:
    """Number of independent values that say as much about the mean as `values` do; at most their number."""
    correlation = lag_one_correlation(values)
    return len(values) * (1 - correlation) / (1 + correlation)


def lag_one_correlation(values: Sequence[float]) -> float:
    """Correlation of neighbours in [0, 0.99], with the downward bias of short series taken out.

    It is 0 without spread beyond rounding: what rounding leaves has one sign throughout, and would look correlated.

    The bias of the usual estimate around a sample mean is about -(1 + 3 r) / n (Kendall, Biometrika 41, 1954).
    """
    n = len(values)
    if n < 3:
        return 0.0
    mean = math.fsum(values) / n
    centred = [value - mean for value in values]
    squares = math.fsum(value * value for value in centred)
    if squares <= n * (ROUNDING * mean) ** 2:
        return 0.0
    raw = math.fsum(a * b for a, b in itertools.pairwise(centred)) / squares
    return min(LARGEST_CORRELATION, max(0.0, raw + (1 + 3 * raw) / n))


def median(values: Sequence[float]) -> float:
    """The middle value; NaN for an empty sequence or one that holds a NaN."""
    if not values or any(map(math.isnan, values)):
        return math.nan
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def location_and_scale(values: Sequence[float]) -> tuple[float, float]:
    """Median, and the median absolute deviation as a standard deviation: neither moves for a few outliers."""
    centre = median(values)
    return centre, MAD_SCALE * median([abs(value - centre) for value in values])
