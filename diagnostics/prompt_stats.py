"""What the groups of the last steps are, counted by kind, and what their prompts were.

A group is *solved* when all of its completions pass and *failed* when none does. Without a count of passes, that is
read off groups whose completions all got the highest or the lowest reward.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import add, eq, sub
from typing import ClassVar, Final, NamedTuple

from tocsin.diagnostics.estimates import location_and_scale
from tocsin.diagnostics.feature import Feature
from tocsin.diagnostics.scored_groups import ScoredGroups, floats
from tocsin.diagnostics.streaks import Streak
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.event import BaseEvent

GROUPS: Final = 64
"""Groups that a window holds at least, once there are so many; whole steps are kept."""
MEMORY: Final = 4096
"""Prompts remembered as solved at least once."""
TINY: Final = 0.01
"""Standard deviation of a group, as a share of the reward range, below which a spread counts as tiny."""


class Kinds(NamedTuple):
    """Counts of groups by kind; groups with fewer than two rewards are left out."""

    groups: int = 0
    completions: int = 0
    tokens: int = 0
    passes: float = 0.0
    """Completions that pass, as in `Totals.pass_sum`."""
    solved: int = 0
    failed: int = 0
    failed_completions: int = 0
    failed_tokens: int = 0
    failed_cut: int = 0
    """Completions of failed groups that ended at the length limit."""
    relapsed: int = 0
    """Failed groups whose prompt was solved before by at least one completion."""
    spread: int = 0
    """Groups with reward spread."""
    unsolved: int = 0
    """Those of them that failed by the count of passes: something else than a right answer made the spread."""
    unsolved_tokens: int = 0
    tiny: int = 0
    """Groups with a tiny spread."""
    tiny_tokens: int = 0
    told: int = 0
    """Groups that state how many of their completions differ."""
    told_completions: int = 0
    distinct: int = 0
    """Different token sequences within these groups."""
    copies: int = 0
    """Those of them whose completions are all the same."""
    lost: int = 0
    """Completions that could not be scored."""

    @property
    def pass_rate(self) -> float:
        """Share of completions that pass; NaN without any."""
        return self.passes / self.completions if self.completions else math.nan

    def fell_below(self, level: float) -> bool:
        """Whether the pass rate is below `level` by three standard errors, each group one observation."""
        rate = min(1.0, max(0.0, self.pass_rate))
        return level - rate > 3 * math.sqrt(max(rate * (1 - rate), level * (1 - level)) / self.groups)

    @property
    def other_pass_rate(self) -> float:
        """Share of completions that pass outside of the failed groups; NaN when there are no others."""
        others = self.completions - self.failed_completions
        return self.passes / others if others else math.nan


class KindWindow:
    """The kinds of the last groups, and the streak of groups whose completions are all copies of each other."""

    def __init__(self) -> None:
        self.sums = Kinds()
        self.first_step = 0
        self.best = math.nan
        """Highest pass rate of a full window so far; NaN until there was one."""
        self.states_passes = False
        """Whether the newest step counts passes by group."""
        self.states_distinct = False
        self.copies = Streak()
        """Whole steps in a row in which every group consists of copies."""
        self._window: deque[tuple[int, Kinds]] = deque()
        self._solved: dict[str, None] = {}
        """Prompts in the order in which they were first solved."""

    def update(self, groups: ScoredGroups, step: int, span: tuple[float, float], passes: float) -> None:
        """Take in the groups of a step; `passes` of its completions pass, `span` has the lowest and highest reward."""
        self.states_passes, self.states_distinct = groups.passed is not None, groups.distinct is not None
        if not groups.size:
            return
        kinds = self._count(groups, span, passes)
        self._follow_copies(kinds, step)
        self._window.append((step, kinds))
        self.sums = Kinds._make(map(add, self.sums, kinds))
        while self.sums.groups - self._window[0][1].groups >= GROUPS:
            self.sums = Kinds._make(map(sub, self.sums, self._window.popleft()[1]))
        self.first_step = self._window[0][0]
        if self.sums.groups >= GROUPS and not self.sums.pass_rate <= self.best:
            self.best = self.sums.pass_rate

    def restart(self) -> None:
        """Start the window over; which prompts were solved stays known."""
        self._window.clear()
        self.sums = Kinds()

    def _count(self, groups: ScoredGroups, span: tuple[float, float], passes: float) -> Kinds:
        size, flat, distinct = groups.size, groups.flat, groups.distinct
        failed, solved = self._outcomes(groups, span)
        unsolved = [i for i in failed if not flat[i]] if self.states_passes else []
        limit = TINY * (span[1] - span[0])
        tiny = [i for i, std in enumerate(groups.std) if std < limit and not flat[i]]
        completions = sum(size)
        return Kinds(
            groups=len(size),
            completions=completions,
            tokens=sum(groups.tokens),
            passes=passes,
            solved=solved,
            failed=len(failed),
            failed_completions=_total(size, failed),
            failed_tokens=_total(groups.tokens, failed),
            failed_cut=_total(groups.truncated, failed),
            relapsed=sum([groups.prompt[i] in self._solved for i in failed]),
            spread=len(flat) - sum(flat),
            unsolved=len(unsolved),
            unsolved_tokens=_total(groups.tokens, unsolved),
            tiny=len(tiny),
            tiny_tokens=_total(groups.tokens, tiny),
            told=0 if distinct is None else len(size),
            told_completions=0 if distinct is None else completions,
            distinct=0 if distinct is None else sum(distinct),
            copies=0 if distinct is None else distinct.count(1),
            lost=groups.lost,
        )

    def _outcomes(self, groups: ScoredGroups, span: tuple[float, float]) -> tuple[list[int], int]:
        """Positions of the failed groups and number of the solved ones; remembers prompts with at least one pass."""
        passed, (low, high) = groups.passed, span
        if passed is not None:
            self._remember(compress(groups.prompt, passed))
            solved = sum(map(eq, passed, groups.size))
            return ([i for i, num in enumerate(passed) if num == 0] if 0 in passed else []), solved
        if not low < high:
            return [], 0
        near = 1e-6 * (high - low)
        flat = [i for i, is_flat in enumerate(groups.flat) if is_flat]
        self._remember(compress(groups.prompt, [top >= high - near for top in groups.high]))
        failed = [i for i in flat if groups.high[i] <= low + near]
        return failed, sum([groups.high[i] >= high - near for i in flat])

    def _remember(self, solved: Iterable[str]) -> None:
        self._solved.update(dict.fromkeys(solved))
        while len(self._solved) > MEMORY:
            del self._solved[next(iter(self._solved))]

    def _follow_copies(self, kinds: Kinds, step: int) -> None:
        if kinds.told == 0:
            return
        if kinds.copies < kinds.told:
            if self.copies.groups:
                self.copies = Streak()
            return
        if self.copies.groups == 0:
            before = self.sums
            self.copies = Streak(first_step=step, before_groups=before.told, before_same=before.copies)
        self.copies.groups += kinds.told
        self.copies.completions += kinds.told_completions
        self.copies.tokens += kinds.tokens


def _total(column: Sequence[int], positions: list[int]) -> int:
    return sum([column[i] for i in positions])


class Repeats(Feature):
    """How often rows and contents come back: over the last 512 groups, and within single steps."""

    takes = (BatchConsumed,)
    GROUPS: ClassVar[int] = 512
    STEPS: ClassVar[int] = 20

    def __init__(self) -> None:
        self.contents = 0
        """Different contents among the last 512 groups that were looked at."""
        self.doubled = 0
        """Those of them that stand in more than one row."""
        self.example = ""
        """A prompt id of such a content."""
        self.twice: deque[bool] = deque(maxlen=self.STEPS)
        """Of the last steps, whether one row came twice in it."""
        self.consumed = 0
        """Groups taken from the endless sequence of groups so far."""
        self._ids: list[str] = []

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch; contents are compared once per 512 groups."""
        if not isinstance(event, BatchConsumed):
            return
        ids = event.groups.prompt_id
        self.twice.append(len(set(ids)) < len(ids))
        self.consumed = max(self.consumed, 1 + max(event.groups.group_index, default=-1))
        self._ids += ids
        if len(self._ids) >= self.GROUPS:
            self._compare()
            self._ids = []

    def restart(self) -> None:
        """Which prompts there are is no measurement: nothing to forget."""

    def _compare(self) -> None:
        seen: dict[str, str] = {}
        doubled: dict[str, str] = {}
        for prompt in self._ids:
            # `row-hash`; an id of another form is its own content.
            content = prompt.rpartition("-")[2]
            if seen.setdefault(content, prompt) != prompt:
                doubled[content] = prompt
        self.contents, self.doubled = len(seen), len(doubled)
        self.example = next(iter(doubled.values()), "")


class Extremes(Feature):
    """Rewards far away from all others, where no range is declared that would forbid them."""

    takes = (BatchConsumed,)
    COMPLETIONS: ClassVar[int] = 256
    EVERY: ClassVar[int] = 5
    """Steps between two looks at where the centre lies."""
    RECENT: ClassVar[int] = 10

    def __init__(self) -> None:
        self.centre = math.nan
        """Median of the groups' extremes; NaN until there are enough."""
        self.scale = math.nan
        """Their median absolute deviation, as a standard deviation."""
        self.furthest = math.nan
        """The extreme of the newest step that is furthest from the centre."""
        self.distances: deque[float] = deque(maxlen=self.RECENT)
        """Distance of the furthest one in units of `scale`, of the last steps; NaN while the scale is zero."""
        self._window: deque[tuple[int, list[float]]] = deque()
        self._completions = 0
        self._age = self.EVERY

    def update(self, event: BaseEvent) -> None:
        """Take in a consumed batch without a declared range."""
        if not isinstance(event, BatchConsumed) or event.reward_range is not None:
            return
        extremes = (*floats(event.groups.reward_min), *floats(event.groups.reward_max))
        values = list(filter(math.isfinite, extremes))
        if not values:
            return
        if self.scale > 0:
            self.furthest = max(values, key=lambda value: abs(value - self.centre))
            self.distances.append(abs(self.furthest - self.centre) / self.scale)
        self._keep(sum(event.groups.size), values)

    def restart(self) -> None:
        """No knob moves the scale of rewards: nothing to forget."""

    def _keep(self, completions: int, values: list[float]) -> None:
        self._window.append((completions, values))
        self._completions += completions
        while self._completions - self._window[0][0] >= self.COMPLETIONS:
            self._completions -= self._window.popleft()[0]
        self._age += 1
        if self._completions >= self.COMPLETIONS and self._age >= self.EVERY:
            self._age = 0
            self.centre, self.scale = location_and_scale([value for _, part in self._window for value in part])
