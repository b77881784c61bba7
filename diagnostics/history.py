"""What a run adds up to while it goes on: `History` collects it for the display and for the summary at the end.

Everything is of one attempt. Memory is bounded: by windows, and by the number of rules, causes and evaluations.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from tocsin.diagnostics import render
from tocsin.diagnostics.feed import Record
from tocsin.diagnostics.lifecycle import graver
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import SEVERITIES, Coverage, Diagnostic, Severity
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    EvaluationCompleted,
    QueueSampled,
    RolloutFailed,
    RunEnded,
    RunResumed,
)
from tocsin.schemas.generation import SamplerSampled
from tocsin.schemas.step import StepCompleted

RECENT: Final = 20
"""Steps over which speed, waits and the two ends of the learning curve are averaged."""
SMOOTHED: Final = 5
"""Steps over which reward, pass rate and zero spread are averaged for the display."""
TIMED_STEPS: Final = 4096
"""Newest steps whose lengths are kept for the median."""
CURVE_POINTS: Final = 120
ABSENT: Final = "–"  # noqa: RUF001 - a dash, so that nothing reads as a minus sign


class Curve:
    """A series in bounded memory: when it is full, neighbours are averaged two by two. NaN stays visible."""

    def __init__(self) -> None:
        self.first: list[float] = []
        """At most `RECENT` values."""
        self.last: deque[float] = deque(maxlen=RECENT)
        self.points: list[float] = []
        """Fewer than `CURVE_POINTS` means, each over equally many values."""
        self._per_point = 1
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        """Append one value."""
        if len(self.first) < RECENT:
            self.first.append(value)
        self.last.append(value)
        self._pending.append(value)
        if len(self._pending) == self._per_point:
            self.points.append(fmean(self._pending))
            self._pending.clear()
        if len(self.points) == CURVE_POINTS:
            self.points = [fmean(pair) for pair in zip(self.points[::2], self.points[1::2], strict=True)]
            self._per_point *= 2

    def recent(self) -> float | None:
        """Mean of the newest `SMOOTHED` values; None before there are any."""
        return fmean(list(self.last)[-SMOOTHED:]) if self.last else None


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule said about one place in all its episodes."""

    latest: Diagnostic
    first_step: int
    severity: Severity
    """The gravest of all episodes."""

    @property
    def is_open(self) -> bool:
        """Whether it fires, or fired when its data went missing."""
        return self.latest.state in ("firing", "no_data")


class History:
    """Numbers of one attempt. Threads that write are kept apart; who reads several numbers holds `guard`."""

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.guard = threading.RLock()
        self.clock, self.began = clock, clock()
        self.steps, self.step, self.resumed_at = steps, 0, 0
        self.error: str | None = None
        """What ended a failed attempt. Untrusted."""
        self.rewards, self.pass_rates = Curve(), Curve()
        self.evaluations: dict[str, tuple[EvaluationCompleted, EvaluationCompleted]] = {}
        """By name: the first and the newest."""
        self.tokens = self.tokens_trained = 0
        """Completion tokens generated for training, and those that went through the forward pass."""
        self.train_s = 0.0
        """Sum of the lengths of all steps."""
        self.step_s: deque[float] = deque(maxlen=TIMED_STEPS)
        self.outcomes = Counter[str]()
        """Attempts at a step by outcome."""
        self.refused, self.failed = Counter[str](), Counter[str]()
        """Rows refused, and completions failed, by cause."""
        self.findings: dict[str, Finding] = {}
        """By fingerprint."""
        self.coverage: Coverage | None = None
        self.staleness: tuple[float, int] | None = None
        """Mean over the completions of the newest batch, and the bound, in optimizer steps."""
        self.entropy: float | None = None
        """Of the newest step that trained a token, in nats."""
        self._marks: deque[tuple[float, int]] = deque(maxlen=RECENT + 1)
        self._waits: deque[tuple[float, float, float]] = deque(maxlen=RECENT)
        self._zero_spread: deque[tuple[int, int]] = deque(maxlen=SMOOTHED)

    def observe(self, event: BaseEvent) -> None:
        """Take in an event, stamped or not."""
        with self.guard:
            match event:
                case StepCompleted():
                    self._step_completed(event)
                case BatchConsumed():
                    self._batch_consumed(event)
                case QueueSampled():
                    self._waits.append((event.learner_wait_s, event.sampler_wait_s, event.step_s))
                case SamplerSampled(purpose="train"):
                    self.tokens += event.tokens
                case EvaluationCompleted():
                    first, _ = self.evaluations.get(event.name, (event, event))
                    self.evaluations[event.name] = (first, event)
                case RolloutFailed(group_index=None):
                    self.refused[event.cause] += 1
                case RolloutFailed():
                    self.failed[event.cause] += event.completions
                case RunResumed():
                    self.step = self.resumed_at = event.checkpoint_step
                case RunEnded():
                    self.error = event.error

    def _step_completed(self, event: StepCompleted) -> None:
        self.step = max(self.step + 1, event.step)  # an event that nobody stamped yet carries step 0
        self.outcomes[event.outcome] += 1
        self.tokens_trained += event.tokens_trained
        if event.entropy is not None:
            self.entropy = as_float(event.entropy)
        if (seconds := event.seconds.get("total")) is not None:
            self.train_s += seconds
            self.step_s.append(seconds)
        self._marks.append((self.clock(), self.tokens))

    def _batch_consumed(self, event: BatchConsumed) -> None:
        self.rewards.add(as_float(event.reward_mean))
        if event.pass_rate is not None:
            self.pass_rates.add(as_float(event.pass_rate))
        self._zero_spread.append((sum(event.groups.zero_spread), len(event.groups.zero_spread)))
        self.staleness = (as_float(event.staleness.mean), event.max_staleness)

    def record(self, record: Record) -> None:
        """Take in a record of the feed."""
        with self.guard:
            if isinstance(record, Coverage):
                self.coverage = record
            elif isinstance(record, Diagnostic):
                old = self.findings.get(record.fingerprint)
                first = old.first_step if old else render.onset(record)
                severity = graver(old.severity, record.severity) if old else record.severity
                self.findings[record.fingerprint] = Finding(record, first, severity)

    def pace_s(self) -> float | None:
        """Mean time from step to step over the newest `RECENT` steps, evaluations and checkpoints included."""
        num = len(self._marks) - 1
        return (self._marks[-1][0] - self._marks[0][0]) / num if num > 0 else None

    def since_step_s(self) -> float:
        """Seconds since the newest step, or since the start."""
        return self.clock() - (self._marks[-1][0] if self._marks else self.began)

    def tokens_per_s(self) -> float | None:
        """Completion tokens generated for training per second over the newest `RECENT` steps."""
        span = self._marks[-1][0] - self._marks[0][0] if self._marks else 0.0
        return (self._marks[-1][1] - self._marks[0][1]) / span if span > 0 else None

    def wait_shares(self) -> tuple[float, float] | None:
        """Shares of the newest `RECENT` steps that the learner and the sampler stood still."""
        total = sum(step for _, _, step in self._waits)
        if total <= 0:
            return None
        return sum(wait for wait, _, _ in self._waits) / total, sum(wait for _, wait, _ in self._waits) / total

    def zero_spread(self) -> float | None:
        """Share of the groups of the newest `SMOOTHED` batches whose rewards were all equal."""
        groups = sum(num for _, num in self._zero_spread)
        return sum(flat for flat, _ in self._zero_spread) / groups if groups else None

    def found(self) -> list[Finding]:
        """All findings: open before resolved, roots before what they explain, grave before mild, early before late."""
        return sorted(
            self.findings.values(),
            key=lambda f: (not f.is_open, f.latest.suppressed, -SEVERITIES.index(f.severity), f.first_step),
        )
