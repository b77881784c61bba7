"""Steps of a run with two reward functions: `exact`, which decides what a pass is, and `style`, which does not.

And the held-out score, which the rules about them ask for.
"""

from typing import Any

from tests.diagnostics.scenario import batch, started, step
from tocsin.schemas.batch import ComponentStats
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, RunStarted
from tocsin.schemas.setup import RewardSetup, RunSetup

EXACT = RewardSetup(label="exact", weight=1.0, low=0.0, high=1.0, passes=True)
STYLE = RewardSetup(label="style", weight=1.0, low=0.0, high=1.0, passes=False)


def launched(*rewards: RewardSetup) -> list[BaseEvent]:
    """The first event; the two functions unless others are given."""
    event: RunStarted = started(setup=RunSetup(rewards=list(rewards or (EXACT, STYLE))))
    return [event]


def stats(low: float, high: float, std: float | None = None, *, n: int = 128) -> ComponentStats:
    return ComponentStats(n=n, min=low, max=high, std_within=std)


def taught(
    *,
    pass_rate: float = 0.5,
    style: float = 0.5,
    exact_std: float = 0.4,
    style_std: float = 0.1,
    **fields: Any,
) -> list[BaseEvent]:
    """One step: pass rate, mean of `style`, and the spread of both within groups."""
    groups = [[1.0, 0.0] * 4] * 16
    made = {
        "pass_rate": pass_rate,
        "components": {"exact": pass_rate, "style": style},
        "component_stats": {"exact": stats(0, 1, exact_std), "style": stats(0, 1, style_std)},
        "passed": [4] * 16,
        "reward_range": (0.0, 2.0),
    }
    event = batch(groups, **{**made, **fields})
    return [event.model_copy(update={"reward_mean": pass_rate + style}), step()]


def path(n: int, *, exact: tuple[float, float], style: tuple[float, float], **fields: Any) -> list[list[BaseEvent]]:
    """`n` steps in which both means go from the first to the second value; `fields` are those of `taught`."""

    def at(ends: tuple[float, float], t: int) -> float:
        return ends[0] + (ends[1] - ends[0]) * t / n

    return [taught(pass_rate=at(exact, t), style=at(style, t), **fields) for t in range(n)]


def evaluated(rate: float) -> EvaluationCompleted:
    """The held-out score of 512 completions."""
    return EvaluationCompleted(
        name="held-out", version=0, n=512, failed=0, reward_mean=rate, reward_se=0.01, pass_rate=rate, pass_rate_se=0.01
    )
