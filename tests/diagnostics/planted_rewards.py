"""Faults of the reward, planted into the events of healthy steps, and other units for all rewards of a run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests.diagnostics.planted import Plant, with_rewards
from tocsin.schemas.base import Number, as_float
from tocsin.schemas.batch import BatchConsumed, ComponentStats
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, RunStarted
from tocsin.schemas.setup import RewardSetup

SIDE: Final = "ascending"
"""The side reward of the recording that has one."""


def _groups(event: BatchConsumed, fields: dict[str, Any], **columns: Any) -> BatchConsumed:
    return event.model_copy(update={"groups": event.groups.model_copy(update=columns), **fields})


def collapse(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """One completion in eight passes, in every group."""
    if not isinstance(event, BatchConsumed):
        return [event]
    low, span = _range(event)
    groups, n = event.groups, len(event.groups.size)
    columns = {
        "reward_mean": [low + span / 8] * n,
        "reward_std": [0.33 * span] * n,
        "reward_min": [low] * n,
        "reward_max": [low + span] * n,
        "zero_spread": [False] * n,
        "passed": [max(1, size // 8) for size in groups.size],
    }
    return [_groups(event, {"reward_mean": low + span / 8, "pass_rate": 0.125}, **columns)]


def tiny_spread(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """A judge that is not deterministic: groups differ in the third digit."""
    if not isinstance(event, BatchConsumed):
        return [event]
    low, span = _range(event)
    n, middle = len(event.groups.size), low + span / 2
    columns = {"reward_std": [0.002 * span] * n, "reward_max": [middle + 0.005 * span] * n, "zero_spread": [False] * n}
    return [_groups(with_rewards(event, 0.5), {}, **columns)]


def outlier(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """One completion of a step gets thirty times what is possible."""
    if not isinstance(event, BatchConsumed):
        return [event]
    low, span = _range(event)
    top = list(event.groups.reward_max)
    top[0] = low + 30 * span
    spread = [False, *event.groups.zero_spread[1:]]
    return [_groups(event, {}, reward_max=top, zero_spread=spread)]


def gamed(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """The side reward rises and decides the advantages; the task is unlearned."""
    if not isinstance(event, BatchConsumed):
        return [event]
    exact = event.component_stats["exact"].model_copy(update={"std_within": 0.05})
    side = event.component_stats[SIDE].model_copy(update={"std_within": 0.5})
    passes, style = max(0.05, 0.6 - 0.005 * since), min(1.0, 0.2 + 0.016 * since)
    fields = {
        "component_stats": {"exact": exact, SIDE: side},
        "components": {"exact": passes, SIDE: style},
        "pass_rate": passes,
        "reward_mean": 0.6 + 0.0035 * since,
    }
    return [_groups(event, fields)]


def dead_function(event: BaseEvent, since: int) -> Iterable[BaseEvent]:
    """The side reward gives its lowest value to every completion."""
    if not isinstance(event, BatchConsumed):
        return [event]
    dead = ComponentStats(n=event.component_stats[SIDE].n, min=0.0, max=0.0, std_within=0.0)
    fields = {
        "component_stats": {**event.component_stats, SIDE: dead},
        "components": {**event.components, SIDE: 0.0},
    }
    return [_groups(event, fields)]


REWARD_FAULTS: Final[dict[str, tuple[Plant, str]]] = {
    "collapse": (collapse, "POL009"),
    "tiny-spread": (tiny_spread, "RWD013"),
    "outlier": (outlier, "RWD012"),
}
"""By name: the fault, and the rule that must be among those that name it."""
SIDE_FAULTS: Final[dict[str, tuple[Plant, str]]] = {
    "gamed": (gamed, "RWD011"),
    "dead-function": (dead_function, "RWD010"),
}
"""The same, of runs with a side reward."""


def continuous(event: BaseEvent) -> BaseEvent:
    """Rewards between the ends of the range, no two groups alike: an occasion to look for distances."""
    if not isinstance(event, BatchConsumed):
        return event
    shares = [(7 * index % 101) / 101 for index in event.groups.group_index]
    columns = {
        "reward_min": [0.1 + 0.2 * share for share in shares],
        "reward_mean": [0.4 + 0.2 * share for share in shares],
        "reward_max": [0.7 + 0.2 * share for share in shares],
        "reward_std": [0.2] * len(shares),
        "zero_spread": [False] * len(shares),
    }
    return _groups(event, {"reward_mean": 0.4 + 0.2 * sum(shares) / len(shares)}, **columns)


def undeclared(event: BaseEvent) -> BaseEvent:
    """The event of a run that states no range, and therefore not what a pass is."""
    if isinstance(event, RunStarted) and event.setup is not None:
        functions = [item.model_copy(update={"low": None, "high": None}) for item in event.setup.rewards]
        return event.model_copy(update={"setup": event.setup.model_copy(update={"rewards": functions})})
    if isinstance(event, BatchConsumed):
        return _groups(event, {"reward_range": None, "pass_rate": None}, passed=None)
    if isinstance(event, EvaluationCompleted):
        return event.model_copy(update={"pass_rate": None, "pass_rate_se": None})
    return event


@dataclass(frozen=True)
class Units:
    """Other units for rewards: `factor` times the value plus `shift`, in what each function answers.

    With `by_weight`, functions answer as before and their weights are `factor` times as large.
    """

    factor: float = 1.0
    shift: float = 0.0
    by_weight: bool = False

    def of(self, event: BaseEvent, functions: list[RewardSetup]) -> BaseEvent:
        """The event in these units, in a run with these functions."""
        if isinstance(event, RunStarted) and event.setup is not None:
            own = [self._function(item) for item in event.setup.rewards]
            return event.model_copy(update={"setup": event.setup.model_copy(update={"rewards": own})})
        whole = self.shift * sum(function.weight for function in functions)
        if isinstance(event, EvaluationCompleted):
            moved = {"reward_mean": self._value(event.reward_mean, whole), "reward_se": self._value(event.reward_se)}
            return event.model_copy(update=moved)
        return self._batch(event, whole) if isinstance(event, BatchConsumed) else event

    def _function(self, item: RewardSetup) -> RewardSetup:
        if self.by_weight:
            return item.model_copy(update={"weight": self.factor * item.weight})
        ends = {name: getattr(item, name) for name in ("low", "high")}
        moved = {name: None if end is None else self._value(end, self.shift) for name, end in ends.items()}
        return item.model_copy(update=moved)

    def _batch(self, event: BatchConsumed, whole: float) -> BatchConsumed:
        groups = event.groups
        columns: dict[str, Any] = {
            name: [self._value(value, whole) for value in getattr(groups, name)]
            for name in ("reward_mean", "reward_min", "reward_max")
        }
        columns["reward_std"] = [self._value(value) for value in groups.reward_std]
        fields: dict[str, Any] = {"reward_mean": self._value(event.reward_mean, whole)}
        if event.reward_range is not None:
            fields["reward_range"] = tuple(self._value(end, whole) for end in event.reward_range)
        if not self.by_weight:
            fields["components"] = {name: self._value(mean, self.shift) for name, mean in event.components.items()}
            fields["component_stats"] = {name: self._stats(item) for name, item in event.component_stats.items()}
        return _groups(event, fields, **columns)

    def _stats(self, item: ComponentStats) -> ComponentStats:
        ends = {"min": self._value(item.min, self.shift), "max": self._value(item.max, self.shift)}
        within = None if item.std_within is None else self._value(item.std_within)
        return item.model_copy(update={**ends, "std_within": within})

    def _value(self, value: Number, shift: float = 0.0) -> float:
        return self.factor * as_float(value) + shift


def _range(event: BatchConsumed) -> tuple[float, float]:
    """Lowest reward, and how far the highest lies above it."""
    low, high = (0.0, 1.0) if event.reward_range is None else map(as_float, event.reward_range)
    return low, high - low
