"""Time as records carry it, and meters for what the diagnostics themselves cost."""

import threading
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import quantiles
from typing import Final

SAMPLES: Final = 4096
"""Newest durations a meter keeps for its quantiles; totals cover everything."""


def utc_text(seconds: float | None = None) -> str:
    """UTC in the fixed width of `Timestamp`, for a Unix time or for now: `2026-01-31T12:00:00.000Z`."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def unix_seconds(ts: str) -> float | None:
    """Unix time of a `Timestamp`; None for the empty one."""
    return datetime.fromisoformat(ts).timestamp() if ts else None


@dataclass(frozen=True, slots=True)
class Cost:
    """Durations in microseconds; medians and p99 over the newest `SAMPLES`, NaN before there are any."""

    num: int
    """Events measured."""
    total_s: float
    event_median_us: float
    event_p99_us: float
    step_median_us: float
    """Sum over the events that carry one step number; the unfinished step is left out."""
    step_p99_us: float


class Meter:
    """Durations per event and, summed, per step. Safe to use from several threads; memory is bounded."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._events: deque[int] = deque(maxlen=SAMPLES)
        self._steps: deque[int] = deque(maxlen=SAMPLES)
        self._num = 0
        self._total_ns = 0
        self._step = 0
        self._step_ns = 0

    def add(self, step: int, nanoseconds: int) -> None:
        """Count one duration towards `step`."""
        with self._guard:
            if step != self._step:
                self._steps.append(self._step_ns)
                self._step, self._step_ns = step, 0
            self._events.append(nanoseconds)
            self._step_ns += nanoseconds
            self._total_ns += nanoseconds
            self._num += 1

    def cost(self) -> Cost:
        """What was measured so far."""
        with self._guard:
            events, steps = list(self._events), list(self._steps)
            num, total_ns = self._num, self._total_ns
        event_median, event_p99 = _median_and_p99(events)
        step_median, step_p99 = _median_and_p99(steps)
        return Cost(num, total_ns / 1e9, event_median, event_p99, step_median, step_p99)


def _median_and_p99(nanoseconds: list[int]) -> tuple[float, float]:
    """In microseconds; a single sample is both."""
    if not nanoseconds:
        return float("nan"), float("nan")
    cuts = quantiles(nanoseconds * 2 if len(nanoseconds) == 1 else nanoseconds, n=100, method="inclusive")
    return cuts[49] / 1e3, cuts[98] / 1e3
