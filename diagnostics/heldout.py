"""What the run is worth on prompts that it does not train on, beside what training says."""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Feature
from tocsin.diagnostics.outcome import Outcome
from tocsin.schemas.base import as_float
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, RunResumed


@dataclass(frozen=True, slots=True)
class Result:
    """One evaluation, and the training reward around it."""

    step: int
    """Of the weights that were evaluated."""
    score: float
    """Pass rate; the mean reward where nothing decides what a pass is."""
    error: float
    """Standard error of `score`."""
    n: int
    is_pass_rate: bool
    reward: float
    """Mean training reward of the newest window."""
    reward_error: float

    def distance(self, other: "Result") -> tuple[float, float]:
        """Score minus the other's, and its standard error. Scores without any spread get the other's error."""
        mine, its = max(self.error, other.error), other.error or self.error
        return self.score - other.score, math.hypot(mine, its)

    def reward_rise(self, other: "Result") -> tuple[float, float]:
        """Training reward minus that at the other evaluation, and its standard error."""
        return self.reward - other.reward, math.hypot(self.reward_error, other.reward_error)


class HeldOut(Feature):
    """The last evaluations of one set of prompts, the first that was evaluated, and the best. No knob restarts them."""

    takes = (EvaluationCompleted, RunResumed)
    KEPT: ClassVar[int] = 16

    def __init__(self, outcome: Outcome) -> None:
        self.results: deque[Result] = deque(maxlen=self.KEPT)
        self.best: Result | None = None
        self.name: str | None = None
        """Of the set; evaluations of other sets are not looked at. Never part of a text: it comes from elsewhere."""
        self._outcome = outcome

    def update(self, event: BaseEvent) -> None:
        """Take in an evaluation; after a resume, those of steps that are done over count no more."""
        if isinstance(event, RunResumed):
            kept = [result for result in self.results if result.step <= event.checkpoint_step]
            self.results = deque(kept, maxlen=self.KEPT)
            if self.best is not None and self.best.step > event.checkpoint_step:
                self.best = max(kept, key=lambda result: result.score, default=None)
        elif isinstance(event, EvaluationCompleted) and self.name in (None, event.name):
            self.name = event.name
            self._take(event)

    def _take(self, event: EvaluationCompleted) -> None:
        is_pass_rate = event.pass_rate is not None
        score, error = as_float(event.reward_mean), as_float(event.reward_se)
        if is_pass_rate:
            score, error = as_float(event.pass_rate), as_float(event.pass_rate_se)
        if not (math.isfinite(score) and math.isfinite(error)):
            return
        recent = self._outcome.recent
        result = Result(
            step=event.version,
            score=score,
            error=error,
            n=event.n,
            is_pass_rate=is_pass_rate,
            reward=recent.mean,
            reward_error=recent.error,
        )
        self.results.append(result)
        if self.best is None or score > self.best.score:
            self.best = result

    @property
    def newest(self) -> Result | None:
        """None before the first evaluation."""
        return self.results[-1] if self.results else None

    def before(self, step: int) -> Result | None:
        """The last evaluation not after `step`; None without one among those kept."""
        return next((result for result in reversed(self.results) if result.step <= step), None)

    def has_risen_since(self, step: int, sigmas: float) -> bool:
        """Whether the newest score exceeds the one at `step` by so many standard errors."""
        old, new = self.before(step), self.newest
        if old is None or new is None:
            return False
        rise, error = new.distance(old)
        return rise > sigmas * error

    @property
    def has_just_risen(self) -> bool:
        """Whether the newest score exceeds the one before by two standard errors."""
        if len(self.results) < 2:
            return False
        rise, error = self.results[-1].distance(self.results[-2])
        return rise > 2 * error

    def has_fallen(self, sigmas: float) -> bool:
        """Whether the newest score lies below the best by so many standard errors."""
        if self.best is None or self.newest is None:
            return False
        rise, error = self.newest.distance(self.best)
        return -rise > sigmas * error

    def restart(self) -> None:
        """What was evaluated stays true: nothing to forget."""
