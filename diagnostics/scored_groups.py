"""The columns of a batch as plain numbers, without the groups that say nothing about reward spread."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tocsin.schemas.base import NonFinite, Number, as_float
from tocsin.schemas.batch import GroupColumns


class ScoredGroups(NamedTuple):
    """Columns over the groups with at least two rewards and with numbers for them; see `GroupColumns`."""

    size: Sequence[int]
    mean: Sequence[float]
    std: Sequence[float]
    low: Sequence[float]
    """Smallest reward."""
    high: Sequence[float]
    """Largest reward."""
    flat: Sequence[bool]
    """Zero spread."""
    tokens: Sequence[int]
    truncated: Sequence[int]
    prompt: Sequence[str]
    passed: Sequence[int] | None
    distinct: Sequence[int] | None
    single: int
    """Groups left out because fewer than two of their completions have a reward."""
    lost: int
    """Completions that could not be scored, those of the groups left out included."""


def scored_groups(groups: GroupColumns) -> ScoredGroups:
    """The groups of one step."""
    mean, low, high = floats(groups.reward_mean), floats(groups.reward_min), floats(groups.reward_max)
    found = ScoredGroups(
        size=groups.size,
        mean=mean,
        std=floats(groups.reward_std),
        low=low,
        high=high,
        flat=groups.zero_spread,
        tokens=groups.tokens,
        truncated=groups.truncated,
        prompt=groups.prompt_id,
        passed=groups.passed,
        distinct=groups.distinct,
        single=sum([size < 2 for size in groups.size]),
        lost=sum(groups.num_failed),
    )
    # Finite where both sums are: what is not finite stays so in a sum.
    if found.single == 0 and math.isfinite(sum(mean)) and math.isfinite(sum(high)):
        return found
    kept = [i for i, size in enumerate(groups.size) if size >= 2 and math.isfinite(mean[i]) and math.isfinite(high[i])]
    columns: dict[str, Any] = {
        name: [column[i] for i in kept] for name, column in found._asdict().items() if isinstance(column, Sequence)
    }
    return found._replace(**columns)


def floats(column: Sequence[Number]) -> Sequence[float]:
    """Measured numbers as floats, non-finite ones included; the column itself where all are plain."""
    return [as_float(value) for value in column] if NonFinite in set(map(type, column)) else column  # type: ignore[return-value]
