"""Held-out results as an event."""

from collections.abc import Sequence

import numpy as np

from tocsin.schemas.events import EvaluationCompleted
from tocsin.trainer.stats import PASS_TOLERANCE


def evaluation_event(
    name: str, rewards: Sequence[float], *, version: int, failed: int, reward_range: tuple[float, float] | None
) -> EvaluationCompleted:
    """Mean reward and pass rate with standard errors; NaN when nothing could be scored.

    The standard error is that of a mean of independent draws (ddof 1): one completion per prompt.
    """
    scores = np.asarray(rewards, dtype=np.float64)
    passed = None if reward_range is None else (scores >= reward_range[1] - PASS_TOLERANCE).astype(np.float64)
    mean, error = _mean_and_error(scores)
    share, share_error = (None, None) if passed is None else _mean_and_error(passed)
    return EvaluationCompleted(
        name=name,
        version=version,
        n=len(scores),
        failed=failed,
        reward_mean=mean,
        reward_se=error,
        pass_rate=share,
        pass_rate_se=share_error,
    )


def _mean_and_error(values: np.ndarray) -> tuple[float, float]:
    if len(values) == 0:
        return float("nan"), float("nan")
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return float(values.mean()), error
