"""Second witnesses that several rules ask for: a reward that fell, and single numbers of the last step."""

from typing import Final, Literal

from tocsin.diagnostics.outcome import Outcome
from tocsin.schemas.diagnosis import Evidence

LOST: Final = 0.8
"""Share of the best reward below which it counts as falling."""
HALVED: Final = 0.5
"""Share below which a fall makes a finding critical."""


def reward_witness(outcome: Outcome, share: float = LOST) -> Evidence | None:
    """The reward of the last few steps, if it lies below `share` of the best window by more than chance."""
    newest = outcome.fast()
    if not outcome.fell_below(share, newest):
        return None
    return Evidence(
        metric="batch_consumed.reward_mean / best window",
        observed=outcome.share_of_best(newest),
        operator="<",
        threshold=share,
        unit="share of the best",
        window=newest.steps,
        window_unit="steps",
        n=newest.groups,
        baseline=1.0,
    )


def last_step(
    metric: str, observed: float, operator: Literal["<", "<=", ">", ">="], limit: float, unit: str
) -> Evidence:
    """One number of the newest step beside its limit."""
    return Evidence(
        metric=metric,
        observed=observed,
        operator=operator,
        threshold=limit,
        unit=unit,
        window=1,
        window_unit="steps",
        n=1,
    )
