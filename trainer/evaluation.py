"""Held-out results as an event."""

import numpy as np

from tocsin.schemas.events import EvaluationCompleted
from tocsin.trainer.messages import Evaluated


def evaluation_event(name: str, result: Evaluated) -> EvaluationCompleted:
    """Mean reward and pass rate with standard errors; NaN when nothing could be scored.

    The standard error is that of a mean of independent draws (ddof 1): one completion per prompt.
    """
    scores = np.asarray(result.rewards, dtype=np.float64)
    mean, error = _mean_and_error(scores)
    share, share_error = (None, None)
    if result.passed is not None:
        share, share_error = _mean_and_error(np.asarray(result.passed, dtype=np.float64))
    return EvaluationCompleted(
        name=name,
        version=result.version,
        n=len(scores),
        failed=sum(failure.completions for failure in result.failures),
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
