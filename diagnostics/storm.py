"""A bound on how much the feed may shout: so many new findings in so many steps, the others wait and are counted."""

from collections import deque
from typing import Final

MAX_FIRING: Final = 8
"""New findings that may be reported within `STEPS`. What another finding explains does not count."""
STEPS: Final = 100
"""Optimizer steps."""


class Storm:
    """How much room is left."""

    def __init__(self) -> None:
        self._fired: deque[int] = deque(maxlen=MAX_FIRING)

    def has_room(self, step: int) -> bool:
        """Whether one more finding may be reported at `step`. Steps done over after a resume count from there."""
        return len(self._fired) < MAX_FIRING or not 0 <= step - self._fired[0] < STEPS

    def spend(self, step: int) -> None:
        """Count one finding that was reported."""
        self._fired.append(step)
