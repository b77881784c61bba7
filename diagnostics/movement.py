"""Whether updates move the policy at all and in which direction, and how its entropy stands against the beginning."""

import math
from collections import deque
from typing import ClassVar

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, RunResumed, RunStarted
from tocsin.schemas.generation import WeightsSynced
from tocsin.schemas.step import StepCompleted


class Movement(Feature):
    """Updates in a row without any gradient or change, and the size of the last fifty at the full learning rate.

    A step without an update changes nothing here; neither does one whose groups have no spread, because nothing asks
    for a gradient there.
    """

    takes = (RunStarted, RunResumed, KnobChanged, BatchConsumed, StepCompleted, WeightsSynced)
    moved_by = frozenset({"update_ratio"})
    FULL: ClassVar[int] = 50
    FULL_RATE: ClassVar[float] = 0.5
    """Share of the knob `learning_rate` from which warm-up and decay leave the rate in force as good as full."""

    def __init__(self) -> None:
        self.zero_gradients = 0
        """Updates in a row whose gradient was exactly zero although rewards differed."""
        self.zero_changes = 0
        """Updates in a row that changed no parameter although the learning rate was above zero."""
        self.full: deque[tuple[float, float]] = deque(maxlen=self.FULL)
        """Relative size of each update at the full rate, and the learner's movement on the probe before it, summed
        since the run began."""
        self.moved = 0.0
        """That sum now, in nats."""
        self.seen = 0
        """Updates that reported a gradient norm or a size."""
        self.is_probed = False
        """Whether any sync stated the learner's movement."""
        self._rate = math.nan
        self._has_spread = True

    def update(self, event: BaseEvent) -> None:
        """Take in a step, a sync, or what makes a rate full."""
        if isinstance(event, StepCompleted):
            if event.outcome == "updated":
                self._take(event)
        elif isinstance(event, BatchConsumed):
            self._has_spread = not all(event.groups.zero_spread)
        elif isinstance(event, WeightsSynced):
            moved = as_float(event.probe_moved)
            if math.isfinite(moved):
                self.moved += moved
                self.is_probed = True
        elif isinstance(event, RunStarted | RunResumed):
            self._rate = event.knobs.get("learning_rate", math.nan)
        elif isinstance(event, KnobChanged) and event.path == "learning_rate":
            self._rate = event.after

    def restart(self) -> None:
        """Start the sizes over. That nothing moves at all does not depend on any knob."""
        self.full.clear()

    @property
    def moved_in_window(self) -> float:
        """Nats that the learner moved on the probe, in sum over the syncs of the last fifty updates."""
        return self.moved - self.full[0][1] if self.full else 0.0

    def _take(self, event: StepCompleted) -> None:
        rate = as_float(event.learning_rate)
        self.seen += event.grad_norm is not None or event.update_ratio is not None
        if event.grad_norm is not None and self._has_spread:
            self.zero_gradients = self.zero_gradients + 1 if as_float(event.grad_norm) == 0 else 0
        if event.update_ratio is None:
            return
        ratio = as_float(event.update_ratio)
        if rate > 0:
            self.zero_changes = self.zero_changes + 1 if ratio == 0 else 0
        if not rate < self.FULL_RATE * self._rate:
            self.full.append((ratio, self.moved))
        elif self.full:
            self.full.clear()


class Clipping(Feature):
    """Gradient norms over the norm at which they are clipped, for the last fifty updates."""

    takes = (StepCompleted,)
    moved_by = frozenset({"grad_norm"})
    UPDATES: ClassVar[int] = 50

    def __init__(self) -> None:
        self.window: deque[float] = deque(maxlen=self.UPDATES)
        self.clipped = 0
        """How many of the window exceed one."""
        self.seen = 0

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step."""
        if not isinstance(event, StepCompleted) or event.grad_norm is None or event.grad_clip is None:
            return
        norm, clip = as_float(event.grad_norm), as_float(event.grad_clip)
        if not (math.isfinite(norm) and clip > 0):
            return
        self.seen += 1
        if len(self.window) == self.UPDATES:
            self.clipped -= self.window[0] > 1
        self.window.append(norm / clip)
        self.clipped += norm > clip

    @property
    def share(self) -> float:
        """Share of the updates in the window that were clipped; NaN until it is full."""
        return self.clipped / self.UPDATES if len(self.window) == self.UPDATES else math.nan

    def restart(self) -> None:
        """Start over: other batches have other norms."""
        self.window.clear()
        self.clipped = 0


class EntropyRise(Feature):
    """Entropy against the run's beginning, which only another temperature moves.

    A change of the entropy bonus or of the learning rate does not start it over: whether the new value is right is the
    question.
    """

    takes = (KnobChanged, StepCompleted)
    SKIPPED: ClassVar[int] = 5
    """Measured steps left out at the beginning."""
    BASELINE: ClassVar[int] = 5
    RECENT: ClassVar[int] = 5

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=self.RECENT)
        self.initial = math.nan
        """Median of the first steps after the skipped ones; NaN until then."""
        self.unmeasured = 0
        """Steps in a row that trained tokens and reported no value."""
        self._first: list[float] = []
        self._sum = 0.0

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step, or start over with another temperature."""
        if isinstance(event, KnobChanged):
            if event.path == "temperature":
                self.restart()
            return
        if not isinstance(event, StepCompleted) or event.tokens_trained == 0:
            return
        value = as_float(event.entropy)
        if not math.isfinite(value):
            self.unmeasured += 1
            return
        self.unmeasured = 0
        self._sum += value - (self.recent[0] if len(self.recent) == self.RECENT else 0.0)
        self.recent.append(value)
        if len(self._first) < self.SKIPPED + self.BASELINE:
            self._first.append(value)
            if len(self._first) == self.SKIPPED + self.BASELINE:
                self.initial = median(self._first[self.SKIPPED :])

    @property
    def multiple(self) -> float:
        """Mean of the last five steps over the beginning; NaN while either is unknown or the beginning is zero."""
        return self.level / self.initial if self.initial > 0 else math.nan

    @property
    def level(self) -> float:
        """Mean of the last five measured steps, in nats; NaN with fewer."""
        return self._sum / self.RECENT if len(self.recent) == self.RECENT else math.nan

    def restart(self) -> None:
        """Start over: another temperature has another level."""
        self.recent.clear()
        self._first.clear()
        self._sum = 0.0
        self.initial = math.nan


class AdamEps(Feature):
    """The last two readings of how much of Adam's denominator is its epsilon."""

    takes = (StepCompleted,)
    moved_by = frozenset({"grad_norm"})
    READINGS: ClassVar[int] = 2
    OVERDUE: ClassVar[int] = 100
    """Updates without a reading after which none is to be expected; they come every fifty updates."""

    def __init__(self) -> None:
        self.readings: deque[float] = deque(maxlen=self.READINGS)
        """Shares of the coordinates that were looked at."""
        self.waited = 0
        """Updates since the last reading."""

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step."""
        if not isinstance(event, StepCompleted) or event.outcome != "updated":
            return
        if event.adam_eps_frac is None:
            self.waited += 1
        else:
            self.waited = 0
            self.readings.append(event.adam_eps_frac)

    def restart(self) -> None:
        """Start over: gradients of another size stand otherwise to epsilon."""
        self.readings.clear()


class Alignment(Feature):
    """Cosine of neighbouring gradients: that of the first twenty, and a moving mean of about twenty since."""

    takes = (StepCompleted,)
    moved_by = frozenset({"staleness"})
    FIRST: ClassVar[int] = 20

    def __init__(self) -> None:
        self.first = math.nan
        """Mean of the first twenty; NaN until then."""
        self.level = math.nan
        """Exponential moving mean, begun at the first twenty."""
        self.unmeasured = 0
        """Updates in a row without a value; the first of an attempt has none."""
        self._early: list[float] = []

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step."""
        if not isinstance(event, StepCompleted) or event.outcome != "updated":
            return
        value = as_float(event.grad_cosine)
        if not math.isfinite(value):
            self.unmeasured += 1
            return
        self.unmeasured = 0
        if len(self._early) < self.FIRST:
            self._early.append(value)
            if len(self._early) == self.FIRST:
                self.first = self.level = math.fsum(self._early) / self.FIRST
        else:
            self.level += (value - self.level) * 2 / (self.FIRST + 1)

    def restart(self) -> None:
        """Forget the level and keep the beginning, which is the measure of it."""
        self.level = self.first
