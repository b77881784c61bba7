"""Thresholds on metrics, as people set them today: the first crossing is the alarm, once per threshold."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from tocsin.schemas.event import BaseEvent
from tocsin.trainer.bench.baselines.base import Alarm
from tocsin.trainer.bench.baselines.limit_table import LIMITS
from tocsin.trainer.bench.baselines.limits import Gauge, Limit
from tocsin.trainer.bench.baselines.readings import OURS, Reading, readings

HIGHEST_SHARE: Final = 0.95
"""A reward at this share of the highest possible one has nowhere to go, so its standing still is no alarm."""


class _Progress:
    """Two metrics that take more than one reading: steps without a better reward, and the held-out gap."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=10)
        self._best = (0, float("-inf"))

    def values(self, reading: Reading) -> dict[str, float]:
        """What is known with this reading; the reward is its mean over ten steps."""
        values: dict[str, float] = {}
        if "reward" in reading.values:
            self._recent.append(reading.values["reward"])
        if len(self._recent) < 10:
            return values
        mean = fmean(self._recent)
        if "reward" in reading.values:
            if mean > self._best[1]:
                self._best = (reading.step, mean)
            highest = reading.values.get(f"{OURS}reward_highest")
            if highest is None or mean < HIGHEST_SHARE * highest:
                values["steps_since_best"] = reading.step - self._best[0]
        if "eval_reward" in reading.values:
            values["held_out_gap"] = mean - reading.values["eval_reward"]
        return values


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Every limit once, at its first crossing."""

    limits: tuple[Limit, ...] = LIMITS
    name: str = "thresholds"

    def alarms(self, events: Sequence[BaseEvent]) -> list[Alarm]:
        """At most one alarm per limit, in the order in which they are crossed."""
        waiting = [Gauge(limit) for limit in self.limits]
        progress = _Progress()
        alarms: list[Alarm] = []
        for reading in readings(events):
            values = reading.values | progress.values(reading)
            crossed = [g for g in waiting if g.limit.metric in values and g.crossed(values[g.limit.metric])]
            alarms += [Alarm(reading.step, g.limit.name, g.limit.severity, g.limit.codes) for g in crossed]
            waiting = [gauge for gauge in waiting if gauge not in crossed]
        return alarms
