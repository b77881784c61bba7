"""Several reward functions side by side: which of them live, which make the advantages, and where each is heading.

With one reward function nothing is kept: the total is that function.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from tocsin.diagnostics.feature import Feature
from tocsin.diagnostics.prompt_stats import GROUPS
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed, ComponentStats
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunResumed, RunStarted
from tocsin.schemas.setup import RewardSetup

SAME: Final = 1e-9
"""Values of a reward function closer than this, relative to their size, are one value."""


@dataclass(slots=True)
class Constant:
    """How long a reward function has given one and the same value."""

    value: float = math.nan
    steps: int = 0
    completions: int = 0
    has_varied: bool = False
    """Whether it ever gave another value."""
    lowest: float = math.inf
    """Seen in the run."""
    highest: float = -math.inf

    def follow(self, low: float, high: float, completions: int) -> None:
        """Take in the extremes of one step."""
        self.lowest, self.highest = min(self.lowest, low), max(self.highest, high)
        is_flat = high - low <= SAME * max(1.0, abs(high))
        if is_flat and self.steps and abs(high - self.value) <= SAME * max(1.0, abs(high)):
            self.steps += 1
            self.completions += completions
            return
        self.has_varied = self.has_varied or not is_flat or self.steps > 0
        self.value, self.steps, self.completions = (high, 1, completions) if is_flat else (math.nan, 0, 0)


class Moved(NamedTuple):
    """A mean in the older and in the newer half of the trend."""

    before: float
    now: float

    @property
    def by(self) -> float:
        """How far it rose."""
        return self.now - self.before


@dataclass(frozen=True, slots=True)
class Trend:
    """Where rewards went over the last `Components.TREND` steps: two halves, side by side."""

    groups: int
    """Of both halves together."""
    reward: Moved
    passes: Moved
    error: float
    """Standard error of the change of the pass rate, each group counted as one observation."""
    means: dict[str, Moved]
    """By reward function; those that scored in both halves."""


class _Step(NamedTuple):
    groups: int
    reward: float
    pass_rate: float
    means: dict[str, float]


class Components(Feature):
    """The reward functions of a run that has several."""

    takes = (RunStarted, RunResumed, BatchConsumed)
    TREND: ClassVar[int] = 50
    EVERY: ClassVar[int] = 5
    """Steps between two trends."""

    def __init__(self) -> None:
        self.functions: dict[str, RewardSetup] = {}
        """As stated at launch; empty when the run did not state them."""
        self.constants: dict[str, Constant] = {}
        self.variance: dict[str, float] = {}
        """By function, weighted variance within groups, summed over the groups of the window; their share is what
        each contributes to the advantages, as far as functions do not move together."""
        self.groups = 0
        """Groups in that window."""
        self.trend: Trend | None = None
        """None until there are enough steps with a pass rate."""
        self.peak = math.nan
        """Highest pass rate of a half so far; NaN until there was a trend."""
        self.trough = math.nan
        """Lowest one since the peak."""
        self._window: deque[tuple[int, dict[str, float]]] = deque()
        self._steps: deque[_Step] = deque(maxlen=self.TREND)
        self._age = 0

    def update(self, event: BaseEvent) -> None:
        """Follow the launch, or take in a consumed batch."""
        if isinstance(event, RunStarted | RunResumed):
            functions = [] if event.setup is None else event.setup.rewards
            self.functions = {function.label: function for function in functions}
        elif isinstance(event, BatchConsumed) and len(self.functions) > 1:
            self._follow(event.component_stats)
            self._weigh(len(event.groups.size), event.component_stats)
            self._note(event)

    def restart(self) -> None:
        """No knob moves what a reward function answers: nothing to forget."""

    @property
    def side(self) -> list[str]:
        """Functions that do not decide what a pass is, beside others that do; none where there are no others."""
        found = [label for label, function in self.functions.items() if not function.passes]
        return found if len(found) < len(self.functions) else []

    def share(self, label: str) -> float:
        """Part of the variance within groups that a function makes; NaN without variance."""
        total = sum(self.variance.values())
        return self.variance.get(label, 0.0) / total if total > 0 else math.nan

    def reach(self, label: str) -> float:
        """Distance between the lowest and the highest value of a function, as declared, or else as seen."""
        function, seen = self.functions[label], self.constants.get(label, Constant())
        if function.low is not None and function.high is not None:
            return function.high - function.low
        return seen.highest - seen.lowest

    def _follow(self, stats: dict[str, ComponentStats]) -> None:
        for label, found in stats.items():
            low, high = as_float(found.min), as_float(found.max)
            if math.isfinite(high - low):
                self.constants.setdefault(label, Constant()).follow(low, high, found.n)

    def _weigh(self, groups: int, stats: dict[str, ComponentStats]) -> None:
        weighted = {}
        for label, function in self.functions.items():
            found = stats.get(label)
            size = math.nan if found is None else function.weight * as_float(found.std_within)
            if math.isfinite(size):
                weighted[label] = groups * size * size
        self._window.append((groups, weighted))
        self.groups += groups
        while self.groups - self._window[0][0] >= GROUPS:
            self.groups -= self._window.popleft()[0]
        # Summed anew: differences of floats would leave a remainder where there is no variance any more.
        self.variance = {label: sum([part.get(label, 0.0) for _, part in self._window]) for label in self.functions}

    def _note(self, event: BatchConsumed) -> None:
        reward, passes = as_float(event.reward_mean), as_float(event.pass_rate)
        if not (math.isfinite(reward) and math.isfinite(passes)):
            return
        means = {label: as_float(mean) for label, mean in event.components.items()}
        self._steps.append(_Step(len(event.groups.size), reward, passes, means))
        self._age += 1
        if len(self._steps) == self.TREND and self._age >= self.EVERY:
            self._age = 0
            self._compare()

    def _compare(self) -> None:
        steps = list(self._steps)
        older, newer = steps[: self.TREND // 2], steps[self.TREND // 2 :]
        passes = Moved(_mean([step.pass_rate for step in older]), _mean([step.pass_rate for step in newer]))
        n = (sum(step.groups for step in older), sum(step.groups for step in newer))
        errors = [math.sqrt(p * (1 - p) / groups) for p, groups in zip(passes, n, strict=True)]
        means = {}
        for label in self.functions:
            parts = [[step.means.get(label, math.nan) for step in half] for half in (older, newer)]
            moved = Moved(_mean(parts[0]), _mean(parts[1]))
            if math.isfinite(moved.by):
                means[label] = moved
        reward = Moved(_mean([step.reward for step in older]), _mean([step.reward for step in newer]))
        self.trend = Trend(groups=sum(n), reward=reward, passes=passes, error=math.hypot(*errors), means=means)
        if not passes.now < self.peak:
            self.peak = self.trough = passes.now
        self.trough = min(self.trough, passes.now)


class Parsing(Feature):
    """Completions, not cut off, in which a verifier found no answer: the newest window and the one before it."""

    takes = (BatchConsumed,)
    COMPLETIONS: ClassVar[int] = 256

    def __init__(self) -> None:
        self.completions = 0
        """Judged completions of the window."""
        self.unparsed: dict[str, int] = {}
        """Those without an answer, by verifier; empty when no verifier looks for one."""
        self.before: dict[str, float] = {}
        """Share of the window before, which does not overlap the newest one; empty until there was one."""
        self.is_told = False
        """Whether the newest step looked at the texts of its completions."""
        self._window: deque[tuple[int, dict[str, int]]] = deque()
        self._earlier: deque[tuple[int, dict[str, int]]] = deque()

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch."""
        if not isinstance(event, BatchConsumed):
            return
        self.is_told = event.texts is not None
        if event.texts is None or not event.texts.unparsed:
            return
        judged = sum(event.finish_reasons.values()) - event.finish_reasons.get("length", 0)
        self._window.append((judged, event.texts.unparsed))
        self.completions += judged
        while self.completions - self._window[0][0] >= self.COMPLETIONS:
            old = self._window.popleft()
            self.completions -= old[0]
            self._retire(old)
        self.unparsed = _summed([part for _, part in self._window])

    def restart(self) -> None:
        """What a verifier can read is no matter of knobs: nothing to forget."""

    @property
    def worst(self) -> str:
        """The verifier that finds the fewest answers."""
        return max(self.unparsed, key=lambda label: self.unparsed[label])

    def share(self, label: str) -> float:
        """Share of completions without an answer; NaN until the window is full."""
        return self.unparsed[label] / self.completions if self.completions >= self.COMPLETIONS else math.nan

    def _retire(self, old: tuple[int, dict[str, int]]) -> None:
        self._earlier.append(old)
        n = sum([completions for completions, _ in self._earlier])
        while n - self._earlier[0][0] >= self.COMPLETIONS:
            n -= self._earlier.popleft()[0]
        if n >= self.COMPLETIONS:
            summed = _summed([part for _, part in self._earlier])
            self.before = {label: num / n for label, num in summed.items()}


def _summed(parts: list[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for label, num in part.items():
            found[label] = found.get(label, 0) + num
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
