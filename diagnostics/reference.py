"""How far the policy is from the reference model, in runs that loaded one."""

import math
from collections import deque
from typing import ClassVar, Final

from tocsin.diagnostics.feature import Feature
from tocsin.schemas.base import as_float
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunResumed, RunStarted
from tocsin.schemas.step import StepCompleted

FAINT: Final = 1e-7
"""Relative size of an update below which float32 log-probs may well stay what they were."""


class Reference(Feature):
    """`kl_ref` of the first update, of the last three steps, and of the twenty before them."""

    takes = (RunStarted, RunResumed, StepCompleted)
    moved_by = frozenset({"kl_ref"})
    RECENT: ClassVar[int] = 3
    BEFORE: ClassVar[int] = 20

    def __init__(self) -> None:
        self.is_absent = True
        """The run was launched without a reference, or did not say."""
        self.first = math.nan
        """Measured before any update of the run, in nats; NaN when that was not seen."""
        self.recent: deque[float] = deque(maxlen=self.RECENT)
        self.before: deque[float] = deque(maxlen=self.BEFORE)
        self.zeros = 0
        """Updates in a row of which each moved the weights and found no distance at all."""
        self.far = 0
        """Steps in a row above two nats."""
        self.unmeasured = 0
        """Steps in a row that trained tokens and reported no value."""
        self.seen = 0
        """Steps that reported one."""
        self._is_fresh = False
        """Whether policy and reference are still the same weights."""

    FAR: ClassVar[float] = 2.0

    def update(self, event: BaseEvent) -> None:
        """Take in a finished step, or the start of an attempt."""
        if isinstance(event, RunStarted):
            self.is_absent = not event.knobs.get("kl_beta", 0)
            self._is_fresh = True
        elif isinstance(event, RunResumed):
            # A policy that was trained differs from its reference, and another reference may have been loaded.
            self._is_fresh, self.first = False, math.nan
        elif isinstance(event, StepCompleted) and event.tokens_trained:
            if event.kl_ref is None:
                self.unmeasured += 1
            else:
                self._take(event, as_float(event.kl_ref))
            self._is_fresh = self._is_fresh and event.outcome != "updated"

    def restart(self) -> None:
        """Start over: another weight of the penalty leads to another distance."""
        self.recent.clear()
        self.before.clear()

    def _take(self, event: StepCompleted, value: float) -> None:
        self.unmeasured, self.is_absent = 0, False
        if not math.isfinite(value):
            return
        self.seen += 1
        if self._is_fresh:
            self.first = value
        if len(self.recent) == self.RECENT:
            self.before.append(self.recent[0])
        self.recent.append(value)
        self.far = self.far + 1 if value > self.FAR else 0
        if event.outcome == "updated" and as_float(event.update_ratio) > FAINT:
            self.zeros = self.zeros + 1 if value == 0 else 0
