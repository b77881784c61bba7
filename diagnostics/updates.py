"""What an optimizer step did to the model: finite numbers, clipping, sizes of updates and gradients, entropy."""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import Number, as_float
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, RunResumed, RunStarted
from tocsin.schemas.step import StepCompleted

MODEL_FIELDS: Final = ("loss", "grad_norm", "update_ratio")
"""Fields of `StepCompleted` whose non-finite value is damage to the model."""


@dataclass(frozen=True, slots=True)
class StepNumerics:
    """What one step said about finite numbers and about drift between sampler and learner."""

    nonfinite: tuple[str, ...]
    ess_frac: float
    k3: float


class Numerics(Feature):
    """The last step."""

    takes = (StepCompleted,)

    def __init__(self) -> None:
        self.last: StepNumerics | None = None

    def update(self, event: BaseEvent) -> None:
        """Remember the newest step only."""
        if not isinstance(event, StepCompleted):
            return
        found = list(event.nonfinite)
        values: dict[str, Number | None] = {name: event.__dict__[name] for name in MODEL_FIELDS}
        # An absent value was not measured; only a value that is there can be non-finite.
        for name, value in values.items():
            if value is not None and not math.isfinite(as_float(value)) and name not in found:
                found.append(name)
        k3 = math.nan if event.logprob_gap is None else as_float(event.logprob_gap.k3)
        self.last = StepNumerics(nonfinite=tuple(found), ess_frac=as_float(event.ess_frac), k3=k3)

    def restart(self) -> None:
        """Whether numbers are finite has no baseline: nothing to forget."""


@dataclass(frozen=True, slots=True)
class StepClips:
    """Clip fractions of one step; NaN where they were not measured."""

    step: int
    low: float
    high: float
    tokens: int
    expected: bool
    """Whether the step updated the weights, so that a fraction should be there."""


class Clips(Feature):
    """Clip fractions over the last steps."""

    takes = (StepCompleted,)
    moved_by = frozenset({"clip_frac"})
    STEPS: ClassVar[int] = 10

    def __init__(self) -> None:
        self.window: deque[StepClips] = deque(maxlen=self.STEPS)

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step."""
        if isinstance(event, StepCompleted):
            self.window.append(
                StepClips(
                    step=event.step,
                    low=as_float(event.clip_low_frac),
                    high=as_float(event.clip_high_frac),
                    tokens=event.tokens_trained,
                    expected=event.outcome == "updated",
                )
            )

    def restart(self) -> None:
        """Start the window over."""
        self.window.clear()


@dataclass(frozen=True, slots=True)
class StepUpdate:
    """Size of one update and what it met with; NaN where it was not measured."""

    step: int
    ratio: float
    """Norm of the parameter change over the norm of the parameters."""
    gap: float
    """Mean absolute difference of log-probs between sampler and learner, in nats."""
    clip: float
    """Share of trained tokens clipped at either end."""
    ess: float
    """Effective sample size of the importance ratios over their number."""


class Updates(Feature):
    """Sizes of the last updates, beside the largest that the run has tolerated.

    `tolerated` is the highest median of ten updates in a row so far. An update more than `OUTLIER` times as large
    never enters, so that what is too large does not become the measure. It does not restart when the learning rate
    changes: whether the new rate is right is the question.
    """

    takes = (RunStarted, RunResumed, KnobChanged, StepCompleted)
    RECENT: ClassVar[int] = 3
    BASELINE: ClassVar[int] = 10
    OUTLIER: ClassVar[float] = 2.5

    def __init__(self) -> None:
        self.recent: deque[StepUpdate] = deque(maxlen=self.RECENT)
        """The last updates that were measured; steps without an update leave it as it is."""
        self.tolerated = math.nan
        """NaN until ten updates were seen."""
        self.seen = 0
        self.unmeasured = 0
        """Steps in a row that updated the weights and did not say by how much."""
        self.excess = math.nan
        """How many times the tolerated size the newest update above `OUTLIER` had; NaN while there was none."""
        self._rate = math.nan
        """The knob `learning_rate`; NaN while the run did not state it."""
        self._rate_at_excess = math.nan
        self._baseline: deque[float] = deque(maxlen=self.BASELINE)

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step, or follow the learning rate."""
        if isinstance(event, RunStarted | RunResumed):
            self._rate = event.knobs.get("learning_rate", math.nan)
        elif isinstance(event, KnobChanged) and event.path == "learning_rate":
            self._rate = event.after
        if not isinstance(event, StepCompleted) or event.outcome != "updated":
            return
        ratio = as_float(event.update_ratio)
        self.unmeasured = 0 if event.update_ratio is not None else self.unmeasured + 1
        if not math.isfinite(ratio):
            return
        self.seen += 1
        gap = math.nan if event.logprob_gap is None else as_float(event.logprob_gap.abs_mean)
        clip = as_float(event.clip_low_frac) + as_float(event.clip_high_frac)
        entry = StepUpdate(step=event.step, ratio=ratio, gap=gap, clip=clip, ess=as_float(event.ess_frac))
        self.recent.append(entry)
        if math.isnan(self.tolerated) or ratio <= self.OUTLIER * self.tolerated:
            self._baseline.append(ratio)
            if len(self._baseline) == self.BASELINE:
                middle = median(self._baseline)
                self.tolerated = middle if math.isnan(self.tolerated) else max(self.tolerated, middle)
        else:
            self.excess, self._rate_at_excess = ratio / self.tolerated, self._rate

    @property
    def is_rate_unchanged(self) -> bool:
        """Whether the newest update that was too large was made at the learning rate still set, or at a lower one.

        A schedule changes what is applied and not what is set.
        """
        return not math.isnan(self.excess) and not self._rate < self._rate_at_excess

    def restart(self) -> None:
        """The tolerated size outlives every change of a knob: nothing to forget."""


class Gradients(Feature):
    """Gradient norms before clipping: the last five, and up to fifty before them. Zeros are no gradients."""

    takes = (StepCompleted,)
    moved_by = frozenset({"grad_norm"})
    RECENT: ClassVar[int] = 5
    BASELINE: ClassVar[int] = 50

    def __init__(self) -> None:
        self.recent: deque[tuple[int, float]] = deque(maxlen=self.RECENT)
        """Step and norm."""
        self.before: deque[float] = deque(maxlen=self.BASELINE)
        self.clip = math.nan
        """Norm above which the last gradient was scaled down; NaN when the run does not say."""
        self.unmeasured = 0
        """Steps in a row that updated the weights and did not report a norm."""

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step."""
        if not isinstance(event, StepCompleted) or event.outcome != "updated":
            return
        norm = as_float(event.grad_norm)
        self.unmeasured = 0 if event.grad_norm is not None else self.unmeasured + 1
        if not (math.isfinite(norm) and norm > 0):
            return
        if len(self.recent) == self.RECENT:
            self.before.append(self.recent[0][1])
        self.recent.append((event.step, norm))
        self.clip = as_float(event.grad_clip)

    def restart(self) -> None:
        """Start over: other batches have other norms."""
        self.recent.clear()
        self.before.clear()


class Entropy(Feature):
    """Entropy per trained token: the level of the run's beginning, and the last ten steps that trained any."""

    takes = (StepCompleted,)
    moved_by = frozenset({"entropy"})
    SKIPPED: ClassVar[int] = 5
    """Measured steps left out at the beginning."""
    BASELINE: ClassVar[int] = 5
    RECENT: ClassVar[int] = 10

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=self.RECENT)
        self.initial = math.nan
        """Median of the first steps after the skipped ones; NaN until then."""
        self.unmeasured = 0
        """Steps in a row that trained tokens and reported no value."""
        self._first: list[float] = []

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step."""
        if not isinstance(event, StepCompleted) or event.tokens_trained == 0:
            # Entropy is taken over trained tokens: without any, no value is missing.
            return
        value = as_float(event.entropy)
        if not math.isfinite(value):
            self.unmeasured += 1
            return
        self.unmeasured = 0
        self.recent.append(value)
        if len(self._first) < self.SKIPPED + self.BASELINE:
            self._first.append(value)
            if len(self._first) == self.SKIPPED + self.BASELINE:
                self.initial = median(self._first[self.SKIPPED :])

    @property
    def level(self) -> float:
        """Mean of the last ten measured steps; NaN with fewer."""
        return sum(self.recent) / self.RECENT if len(self.recent) == self.RECENT else math.nan

    def restart(self) -> None:
        """Start over: temperature and bonus set another level."""
        self.recent.clear()
        self._first.clear()
        self.initial = math.nan
