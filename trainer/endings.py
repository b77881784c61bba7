"""How an attempt ends, and what ends it before its last step: `run` turns each exception into an outcome."""

from dataclasses import dataclass
from typing import Literal

from tocsin.diagnostics.monitor import MonitorCost


@dataclass(slots=True)
class Ending:
    """How an attempt ended."""

    outcome: Literal["completed", "interrupted", "failed"] = "failed"
    error: str | None = None
    cost: MonitorCost | None = None


class RolloutError(RuntimeError):
    """The rollout side cannot go on."""


class RolloutInputError(ValueError):
    """The user's reward function or data is at fault; the message says what to mend."""


class Interrupted(Exception):
    """The run was asked to stop while it waited."""


class TooManyNonFinite(RuntimeError):
    """Updates were skipped too often in a row; the last good weights are in the checkpoint."""


class SidesDisagree(RuntimeError):
    """Learner and sampler compute different log-probs on the first weights; nothing was trained yet."""
