"""Whether the training reward still rises: the newest quarter of the planned steps against the quarter before."""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.estimates import mean_and_error
from tocsin.diagnostics.feature import Feature, Settings
from tocsin.diagnostics.rewards import Rewards
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunResumed


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two quarters in a row."""

    rise: float
    """Mean reward of the newer one minus that of the older one."""
    error: float
    """Standard error of `rise`, corrected for autocorrelation."""
    mean: float
    """Of the newer one."""
    middle_step: int
    """First step of the newer one."""
    steps: int
    """Of each."""


class Plateau(Feature):
    """The newest comparison, once half of the plan is done.

    A quarter is kept as 25 means of equally many steps, so that neither memory nor cost grows with the plan.
    """

    takes = (BatchConsumed, RunResumed)
    MEANS: ClassVar[int] = 25
    LEAST_STEPS: ClassVar[int] = 50
    """Steps that a quarter has at least."""
    EVERY: ClassVar[int] = 10
    """Steps between two comparisons."""

    def __init__(self, settings: Settings, rewards: Rewards) -> None:
        self.newest: Comparison | None = None
        self._settings, self._rewards = settings, rewards
        self._means: deque[tuple[int, float]] = deque(maxlen=2 * self.MEANS)
        """First step and mean reward."""
        self._pending: list[float] = []
        self._compared_at = 0

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch; after a resume, steps are done over."""
        if isinstance(event, RunResumed):
            self.restart()
        reward = self._rewards.last.mean
        if not isinstance(event, BatchConsumed) or not math.isfinite(reward):
            return
        self._pending.append(reward)
        num = max(self.LEAST_STEPS, self._settings.planned_steps // 4) // self.MEANS
        if len(self._pending) < num:
            return
        self._means.append((event.step + 1 - num, math.fsum(self._pending) / num))
        self._pending.clear()
        is_half_done = event.step + 1 >= self._settings.planned_steps / 2
        if len(self._means) == 2 * self.MEANS and is_half_done and event.step - self._compared_at >= self.EVERY:
            self._compared_at = event.step
            self.newest = self._compare(num)

    def restart(self) -> None:
        """Start over; the engine asks for it after no knob, because the reward has no baseline that a knob moves."""
        self._means.clear()
        self._pending.clear()
        self.newest = None
        self._compared_at = 0

    def _compare(self, num: int) -> Comparison:
        means = list(self._means)
        older, newer = means[: self.MEANS], means[self.MEANS :]
        before, before_error = mean_and_error([mean for _, mean in older])
        now, error = mean_and_error([mean for _, mean in newer])
        return Comparison(
            rise=now - before,
            error=math.hypot(before_error, error),
            mean=now,
            middle_step=newer[0][0],
            steps=num * self.MEANS,
        )
