"""One threshold on one metric, as an alert of a dashboard is set: a short mean, a limit, no persistence."""

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, Literal

from tocsin.trainer.bench.baselines.base import AlarmSeverity

Test = Literal["above", "below", "not_finite"]
Scale = Literal["one", "start", "usual", "best"]
"""What the limit is a multiple of. `one`: it is absolute. `start`: the median of the first 20 values. `usual`: the
median of the 50 values before those in the mean, from 20 on. `best`: the highest mean so far."""

BASELINE: Final = 20
"""Values that make a baseline; the warm-up of rlwatch's detectors, too."""
USUAL: Final = 50


@dataclass(frozen=True, slots=True)
class Limit:
    """`Limit("truncated", "completions/clipped_ratio", "above", 0.15, ...)`. Read by `thresholds`."""

    name: str
    metric: str
    """Name in a `Reading`."""
    test: Test
    limit: float
    """Compared with the mean of the last `mean_of` values; without meaning for `not_finite`."""
    codes: frozenset[str]
    """Failure modes that somebody who reads the alarm would look for."""
    source: str
    """Where the number comes from."""
    scale: Scale = "one"
    mean_of: int = 5
    severity: AlarmSeverity = "warning"


class Gauge:
    """One limit over the values of a run, oldest first."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._recent: deque[float] = deque(maxlen=limit.mean_of)
        self._start: list[float] = []
        self._usual: deque[float] = deque(maxlen=USUAL)
        self._best = -math.inf

    def crossed(self, value: float) -> bool:
        """Whether the limit is crossed now that this value is known. A mean takes finite values only."""
        if self.limit.test == "not_finite":
            return not math.isfinite(value)
        if not math.isfinite(value):
            return False
        if len(self._start) < BASELINE:
            self._start.append(value)
        if len(self._recent) == self.limit.mean_of:
            self._usual.append(self._recent[0])
        self._recent.append(value)
        if len(self._recent) < self.limit.mean_of:
            return False
        mean = fmean(self._recent)
        scale = self._scale()
        self._best = max(self._best, mean)
        if scale is None:
            return False
        limit = self.limit.limit * scale
        return mean > limit if self.limit.test == "above" else mean < limit

    def _scale(self) -> float | None:
        """None while there is nothing positive to compare with."""
        match self.limit.scale:
            case "one":
                return 1.0
            case "best":
                return self._best if self._best > 0 else None
            case "start":
                values: list[float] = self._start
            case "usual":
                values = list(self._usual)
        middle = median(values) if len(values) >= BASELINE else 0.0
        return middle if middle > 0 else None
