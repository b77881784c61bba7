"""How long completions are: against the beginning of the run, and wrong answers against right ones."""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Feature, Settings
from tocsin.diagnostics.outcome import COMPLETIONS, SIGMAS, Outcome
from tocsin.diagnostics.rewards import Rewards
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed, Histogram
from tocsin.schemas.event import BaseEvent

BIASED: Final = "grpo"
"""The loss variant that divides the loss of a completion by its own length."""
EMPTY_TOKENS: Final = 1
"""A completion of so many tokens is its end token and nothing else."""


class PassLevel(NamedTuple):
    """Pass rate of the newest window of the outcome, at some step."""

    step: int
    """Newest step of the window."""
    rate: float
    groups: int

    @property
    def error(self) -> float:
        """Upper bound of the standard error: completions of one group count as one."""
        return math.sqrt(self.rate * (1 - self.rate) / self.groups) if self.groups else math.inf

    def fell_below(self, share: float, before: "PassLevel") -> bool:
        """Whether it lies below `share` of what it was `before` by three standard errors.

        A window without a single pass has no spread of its own; that of the other one says how lucky it is.
        """
        error = math.hypot(max(self.error, before.error), share * before.error)
        return share * before.rate - self.rate > SIGMAS * error


class Lengths(Feature):
    """Mean length of the newest window, that of the first windows, and the pass rate when it last was as usual."""

    takes = (BatchConsumed,)
    moved_by = frozenset({"length"})
    FIRST: ClassVar[int] = 5
    """Windows without overlap whose median counts as the usual length."""
    USUAL: ClassVar[tuple[float, float]] = (0.8, 1.25)
    """Multiples of the usual length that are no change."""

    def __init__(self, outcome: Outcome) -> None:
        self.mean = math.nan
        """Tokens per completion in the newest window; NaN until it is full."""
        self.n = 0
        """Completions in it."""
        self.first_step = 0
        """Oldest step in it."""
        self.empty_share = 0.0
        """Completions of the window with nothing but an end token."""
        self.initial = math.nan
        """Usual tokens per completion; NaN until five windows have passed."""
        self.usual: PassLevel | None = None
        """What was passed when completions last had about the usual length."""
        self._outcome = outcome
        self._steps: deque[tuple[int, int, float, int]] = deque()
        """Step, completions, tokens, empty completions."""
        self._tokens = 0.0
        self._empty = 0
        self._first: list[float] = []
        self._since_first = 0

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch."""
        if not isinstance(event, BatchConsumed):
            return
        n, mean = sum(event.finish_reasons.values()), as_float(event.length.mean)
        if n == 0 or not math.isfinite(mean):
            return
        empty = _empty(event.length_histogram)
        self._steps.append((event.step, n, mean * n, empty))
        self.n += n
        self._tokens += mean * n
        self._empty += empty
        while self.n - self._steps[0][1] >= COMPLETIONS:
            _, gone, gone_tokens, gone_empty = self._steps.popleft()
            self.n -= gone
            self._tokens -= gone_tokens
            self._empty -= gone_empty
        if self.n < COMPLETIONS:
            return
        self.first_step = self._steps[0][0]
        self.mean = self._tokens / self.n
        self.empty_share = self._empty / self.n
        if math.isnan(self.initial):
            self._begin(n)
        low, high = self.USUAL
        if low * self.initial <= self.mean <= high * self.initial:
            self.usual = self.pass_level()

    @property
    def ratio(self) -> float:
        """Newest length in multiples of the usual one; NaN while either is unknown."""
        return self.mean / self.initial if self.initial > 0 else math.nan

    def pass_level(self) -> PassLevel:
        """What is passed now."""
        recent = self._outcome.recent
        return PassLevel(self._steps[-1][0], recent.pass_rate, recent.groups)

    def fast_pass_level(self) -> PassLevel:
        """The same over the last few steps only, where a fall shows sooner."""
        newest = self._outcome.fast()
        return PassLevel(self._steps[-1][0], newest.pass_rate, newest.groups)

    def restart(self) -> None:
        """Start over: temperature and limit set another length."""
        self._steps.clear()
        self._first.clear()
        self._tokens = self.empty_share = 0.0
        self.n = self._empty = self._since_first = 0
        self.mean = self.initial = math.nan
        self.usual = None

    def _begin(self, n: int) -> None:
        """Collect the first windows, each without a step of the one before."""
        self._since_first += n
        if self._first and self._since_first < self.n:
            return
        self._first.append(self.mean)
        self._since_first = 0
        if len(self._first) == self.FIRST:
            self.initial = median(self._first)
            self.usual = self.pass_level()


def _empty(histogram: Histogram) -> int:
    """Completions with at most an end token; 0 where the edges do not tell."""
    num = 0
    for top, count in zip(histogram.edges[1:], histogram.counts, strict=False):
        if top > EMPTY_TOKENS + 1:
            break
        num += count
    return num


@dataclass(slots=True)
class _BothKinds:
    """Sums over steps of the lengths of passing and failing completions, each step counting by its groups."""

    groups: int = 0
    passed: float = 0.0
    failed: float = 0.0

    def add(self, groups: int, passed: float, failed: float) -> None:
        self.groups += groups
        self.passed += groups * passed
        self.failed += groups * failed

    @property
    def ratio(self) -> float:
        return self.failed / self.passed if self.passed > 0 else math.nan


class LengthsByPass(Feature):
    """How much longer wrong answers are than right ones to the same prompts: at first, and newly."""

    takes = (BatchConsumed,)
    moved_by = frozenset({"length"})
    GROUPS: ClassVar[int] = 64
    """Groups with reward spread that both ends hold at least."""
    STEPS: ClassVar[int] = 50
    """Steps that the first level is taken over at least."""

    def __init__(self, settings: Settings, rewards: Rewards) -> None:
        self.is_measured = False
        """Whether any step stated both lengths."""
        self._settings, self._rewards = settings, rewards
        self._first = _BothKinds()
        self._first_steps = 0
        self._steps: deque[tuple[int, float, float]] = deque()
        """Groups with spread, lengths of passing and of failing completions."""
        self._newest = _BothKinds()

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch, where the loss makes the lengths matter."""
        if not isinstance(event, BatchConsumed) or self._settings.loss_variant != BIASED:
            return
        passed, failed = as_float(event.length_passed), as_float(event.length_failed)
        if not (math.isfinite(passed) and math.isfinite(failed)):
            return
        self.is_measured = True
        groups = self._rewards.last.groups - self._rewards.last.zero
        if groups == 0:
            return
        if self._first_steps < self.STEPS or self._first.groups < self.GROUPS:
            self._first_steps += 1
            self._first.add(groups, passed, failed)
            return
        self._steps.append((groups, passed, failed))
        self._newest.add(groups, passed, failed)
        while self._newest.groups - self._steps[0][0] >= self.GROUPS:
            gone, gone_passed, gone_failed = self._steps.popleft()
            self._newest.add(-gone, gone_passed, gone_failed)

    @property
    def groups(self) -> int:
        """Groups with spread in the newest window."""
        return self._newest.groups

    @property
    def first_ratio(self) -> float:
        """Failing over passing length at first."""
        return self._first.ratio

    @property
    def ratio(self) -> float:
        """Failing over passing length in the newest window; NaN until it has enough groups."""
        return self._newest.ratio if self._newest.groups >= self.GROUPS else math.nan

    def restart(self) -> None:
        """Start over: temperature and limit set other lengths."""
        self._first, self._newest = _BothKinds(), _BothKinds()
        self._first_steps = 0
        self._steps.clear()
