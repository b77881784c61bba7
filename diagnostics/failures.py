"""Completions for which reward functions gave no reward: how many, why, and for how many prompts."""

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

from tocsin.diagnostics.feature import Feature
from tocsin.diagnostics.outcome import PooledShare
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RolloutFailed

REWARD_CAUSES: Final = {
    "reward_error": "raised an error",
    "reward_timeout": "ran out of time",
    "reward_invalid": "gave no number",
}
"""Causes that are the reward function's, in words. Rows and samplers that fail say nothing about it."""


@dataclass(frozen=True, slots=True)
class _StepFailures:
    """Completions by cause, and the prompts that they belong to."""

    step: int
    causes: Counter[str]
    prompts: frozenset[str]


class RewardFailures(Feature):
    """Share of completions without a reward, over the newest window of scored and failed ones."""

    takes = (RolloutFailed, BatchConsumed)

    def __init__(self) -> None:
        self.window = PooledShare()
        self._causes: Counter[str] = Counter()
        """Since the last batch."""
        self._prompts: set[str] = set()
        self._steps: deque[_StepFailures] = deque()
        """Only steps with failures."""

    def update(self, event: BaseEvent) -> None:
        """Count a failure, or close a step with those that were scored."""
        if isinstance(event, RolloutFailed):
            if event.cause in REWARD_CAUSES:
                self._causes[event.cause] += event.completions
                self._prompts.add(event.prompt_id)
        elif isinstance(event, BatchConsumed):
            self._close(event)

    def _close(self, event: BatchConsumed) -> None:
        failed = self._causes.total() if self._causes else 0
        n = sum(event.finish_reasons.values()) + failed
        if n == 0:
            return
        self.window.add(event.step, n, failed)
        if failed:
            self._steps.append(_StepFailures(event.step, self._causes, frozenset(self._prompts)))
            self._causes, self._prompts = Counter(), set()
        while self._steps and self._steps[0].step < self.window.first_step:
            self._steps.popleft()

    def causes(self) -> Counter[str]:
        """Failed completions of the window by cause."""
        return sum((step.causes for step in self._steps), Counter())

    def num_prompts(self) -> int:
        """Different prompts for which completions of the window failed."""
        return len(frozenset().union(*(step.prompts for step in self._steps)))

    def restart(self) -> None:
        """No knob changes whether a reward function works: nothing to forget."""
