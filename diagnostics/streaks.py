"""Streaks of groups that are all alike, and whether one of them can have come about by learning."""

import math
from dataclasses import dataclass
from typing import Final

WILSON_Z: Final = 2.0
SHRINK: Final = 4.0
"""Learning is granted to cut the share of groups with another outcome to a quarter within one streak."""
CLEARLY_BELOW: Final = 0.1
"""Share of groups with another outcome that must surely have been there before. With fewer, a learner that becomes
perfect and stays so for long enough would look just as improbable."""
CHANCE: Final = 1e-6
"""Probability below which a streak is no longer taken for luck."""


@dataclass(slots=True)
class Streak:
    """The newest groups without a gap that are alike."""

    value: float = math.nan
    """What they have in common, where it is a number."""
    groups: int = 0
    completions: int = 0
    tokens: int = 0
    first_step: int = 0
    before_groups: int = 0
    """Groups looked at before the streak."""
    before_same: int = 0
    """Those of them that were like the streak."""


def is_sudden(streak: Streak, shrink: float = SHRINK) -> bool:
    """Whether learning cannot have made the streak.

    Takes a lower confidence bound of the share of groups that ended otherwise before, grants that learning divided it
    by `shrink`, and asks how likely the streak is then.
    """
    n = streak.before_groups
    if n < 64:
        return False
    other = 1 - streak.before_same / n
    z2 = WILSON_Z**2
    spread = WILSON_Z * math.sqrt(other * (1 - other) / n + z2 / (4 * n * n))
    lower = max(0.0, (other + z2 / (2 * n) - spread) / (1 + z2 / n))
    return lower >= CLEARLY_BELOW and streak.groups * -math.log1p(-lower / shrink) >= -math.log(CHANCE)
