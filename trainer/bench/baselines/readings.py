"""Events to the metrics that trainers log, one reading per log call, for detectors that know metrics only.

What TRL or verl logs has the name that TRL gives it, or verl's where TRL has none: detectors find their way by these
names. What neither of them logs begins with `OURS`, so that it can be kept from a detector that guesses by name.
A metric that was not measured is absent; one that was not finite is a NaN or an infinity, as a trainer would log it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tocsin.schemas.base import Number, as_float
from tocsin.schemas.batch import BatchConsumed, GroupColumns
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, EvaluationCompleted, QueueSampled, RolloutFailed, RunStarted
from tocsin.schemas.resources import DeviceMemory, ResourcesSampled
from tocsin.schemas.step import StepCompleted

OURS: Final = "tocsin/"
"""Prefix of metrics that neither TRL nor verl logs."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One log call: `Reading(12, {"reward": 0.5, "grad_norm": 0.9})`. Made by `readings`, read by detectors."""

    step: int
    """Optimizer steps finished when the values were known."""
    values: dict[str, float]


@dataclass(slots=True)
class _Reader:
    """What the reading of a step needs to know from the events before it."""

    scales: bool = True
    """Advantages are divided by the standard deviation of their group, as is the default of TRL."""
    batch: dict[str, float] = field(default_factory=dict)
    """Of the batch that the next step trains on."""
    scored: int = 0
    failed: int = 0

    def take(self, event: BaseEvent) -> dict[str, float] | None:
        """The values that are logged once this event is known; None when nothing is."""
        match event:
            case RunStarted():
                self.scales = _scales(event)
            case BatchConsumed():
                self.scored = sum(event.groups.size)
                self.batch = _batch_values(event, self.scales)
            case RolloutFailed():
                self.failed += event.completions
            case StepCompleted():
                return self._step_values(event)
            case EvaluationCompleted():
                return {"eval_reward": as_float(event.reward_mean)}
            case QueueSampled():
                return _queue_values(event)
            case ResourcesSampled():
                return _resource_values(event)
            case ClockTicked() if not event.paused:
                return {f"{OURS}idle_s": event.idle_s}
        return None

    def _step_values(self, event: StepCompleted) -> dict[str, float]:
        values = {**self.batch, **_update_values(event)}
        if self.scored + self.failed:
            values[f"{OURS}failed_frac"] = self.failed / (self.scored + self.failed)
        self.batch, self.scored, self.failed = {}, 0, 0
        return values


def readings(events: Sequence[BaseEvent]) -> Iterator[Reading]:
    """What a trainer would have logged of this run, in order: steps, evaluations, waits, resources, idle time."""
    reader = _Reader()
    for event in events:
        values = reader.take(event)
        if values:
            yield Reading(event.step, values)


def logged(reading: Reading) -> dict[str, float]:
    """The values of a reading that TRL or verl would have logged."""
    return {name: value for name, value in reading.values.items() if not name.startswith(OURS)}


def _scales(event: RunStarted) -> bool:
    if event.setup is not None and event.setup.scale_advantages is not None:
        return event.setup.scale_advantages
    return event.loss_variant != "dr_grpo"


def _batch_values(event: BatchConsumed, scales: bool) -> dict[str, float]:
    groups = event.groups
    scored = sum(groups.size)
    values = {
        "completions/mean_length": as_float(event.length.mean),
        "completions/max_length": as_float(event.length.max),
        f"{OURS}staleness_p95": as_float(event.staleness.p95),
        **{f"rewards/{label}/mean": as_float(mean) for label, mean in event.components.items()},
    }
    if scored:
        values |= {
            "reward": as_float(event.reward_mean),
            "frac_reward_zero_std": sum(groups.zero_spread) / len(groups.zero_spread),
            "completions/clipped_ratio": sum(groups.truncated) / scored,
            **_spread_values(groups, scales),
        }
    if event.reward_range is not None:
        values[f"{OURS}reward_highest"] = as_float(event.reward_range[1])
    return values


def _spread_values(groups: GroupColumns, scales: bool) -> dict[str, float]:
    """Standard deviations over all completions of the step (ddof 0), out of those within the groups."""
    scored = np.array(groups.size) > 0
    n = np.array(groups.size, dtype=float)[scored]
    mean, std = _column(groups.reward_mean)[scored], _column(groups.reward_std)[scored]
    with np.errstate(invalid="ignore"):  # a reward that was not finite makes a NaN, which is what is logged
        overall = np.average(mean, weights=n)
        variance = np.average(std**2 + (mean - overall) ** 2, weights=n)
        # The advantages of a group have mean 0 and, scaled, variance 1 but for the epsilon of the division.
        advantage = np.where(np.array(groups.zero_spread)[scored], 0.0, 1.0 if scales else std**2)
        return {
            "reward_std": float(np.sqrt(variance)),
            "advantages_std": float(np.sqrt(np.average(advantage, weights=n))),
            "reward_min": float(_column(groups.reward_min)[scored].min()),
            "reward_max": float(_column(groups.reward_max)[scored].max()),
        }


def _column(numbers: Sequence[Number]) -> np.ndarray:
    return np.array([as_float(number) for number in numbers])


def _update_values(event: StepCompleted) -> dict[str, float]:
    """Of the update. KL to the reference, and to the sampler where it is a KL between policies.

    Without staleness the latter is the numeric mismatch of two implementations of one policy, which verl logs as 0.
    """
    values = _measured(
        {
            "learning_rate": event.learning_rate,
            "loss": event.loss,
            "grad_norm": event.grad_norm,
            "entropy": event.entropy,
            "kl": event.kl_ref,
            "clip_ratio/low_mean": event.clip_low_frac,
            "clip_ratio/high_mean": event.clip_high_frac,
            f"{OURS}ess_frac": event.ess_frac,
        }
    )
    values |= {name: math.nan for name in ("loss", "grad_norm") if name in event.nonfinite and name not in values}
    if "clip_ratio/low_mean" in values and "clip_ratio/high_mean" in values:
        values["clip_ratio/region_mean"] = values["clip_ratio/low_mean"] + values["clip_ratio/high_mean"]
    if event.logprob_gap is not None:
        values["sampling/sampling_logp_difference/mean"] = as_float(event.logprob_gap.abs_mean)
        if any(bucket.staleness > 0 for bucket in event.ratio):
            values["actor/ppo_kl"] = as_float(event.logprob_gap.k3)
    return values | _time_values(event)


def _measured(numbers: Mapping[str, Number | None]) -> dict[str, float]:
    return {name: as_float(number) for name, number in numbers.items() if number is not None}


def _time_values(event: StepCompleted) -> dict[str, float]:
    total = event.seconds.get("total", 0.0)
    if total <= 0:
        return {}
    return {
        "step_time": total,
        "perf/throughput": event.tokens / total,
        f"{OURS}sync_wait_frac": event.seconds.get("sync_wait", 0.0) / total,
    }


def _queue_values(event: QueueSampled) -> dict[str, float]:
    if event.step_s <= 0:
        return {}
    return {
        f"{OURS}learner_wait_frac": event.learner_wait_s / event.step_s,
        f"{OURS}sampler_wait_frac": event.sampler_wait_s / event.step_s,
    }


def _resource_values(event: ResourcesSampled) -> dict[str, float]:
    values = {f"{OURS}host_memory_frac": event.host_memory_frac}
    if event.devices:
        values[f"{OURS}device_memory_frac"] = max(_peak_frac(device) for device in event.devices)
    if event.disk_total_bytes:
        values[f"{OURS}disk_used_frac"] = 1 - event.disk_free_bytes / event.disk_total_bytes
    return values


def _peak_frac(device: DeviceMemory) -> float:
    peaks = [phase.reserved_bytes for phase in device.phases.values()]
    return max([device.baseline_bytes, *peaks]) / device.total_bytes if device.total_bytes else 0.0
