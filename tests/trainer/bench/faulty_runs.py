"""Runs of made-up events that learn slowly, with one fault from `ONSET` on; each fault is named by who sees it."""

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np

from tests.diagnostics.scenario import batch, memory, numbered, started, step, waited
from tocsin.schemas.batch import Quantiles
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, EvaluationCompleted, RolloutFailed
from tocsin.schemas.step import LogProbGap, RatioMoments

ONSET = 80
STEPS = 160

Fault = Callable[[int], tuple[dict[str, Any], dict[str, Any], list[BaseEvent]]]
"""By steps finished: fields of the batch, fields of the step, further events."""


def gap(k3: float, abs_mean: float = 0.01) -> LogProbGap:
    return LogProbGap(k1=0.0, k3=k3, abs_mean=abs_mean, abs_p95=0.05, abs_p99=0.1, abs_max=1.0)


def stale(k3: float = 1e-3) -> list[RatioMoments]:
    return [RatioMoments(staleness=1, tokens=900, mean=1.0, mean_square=1.0, max=1.2, k3=k3)]


@cache
def run(fault: Fault | None = None, *, steps: int = STEPS) -> list[BaseEvent]:
    """A run whose pass rate rises from 0.4 to 0.6 with noise, with `fault` from the onset on."""
    rng = np.random.default_rng(0)

    def one(now: int) -> Iterable[BaseEvent]:
        rewards = (rng.random((16, 8)) < 0.4 + 0.2 * now / steps).astype(float)
        consumed: dict[str, Any] = {"rewards": rewards}
        completed: dict[str, Any] = {
            "entropy": 1.5 + 0.05 * rng.standard_normal(),
            "grad_norm": 0.5 + 0.05 * rng.standard_normal(),
            "logprob_gap": gap(1e-3 * (1 + 0.05 * rng.standard_normal())),
            "ratio": stale(),
        }
        further: list[BaseEvent] = [waited(0.1, 0.2)]
        if fault is not None and now >= ONSET:
            more_batch, more_step, more = fault(now)
            consumed, completed, further = {**consumed, **more_batch}, {**completed, **more_step}, [*further, *more]
        return [*further, batch(**consumed), step(**completed)]

    return numbered([[started(), *one(0)], *(one(now) for now in range(1, steps))])


def of_batch(**fields: Any) -> Fault:
    return lambda now: (fields, {}, [])


def of_step(**fields: Any) -> Fault:
    return lambda now: ({}, fields, [])


def beside(*events: BaseEvent) -> Fault:
    return lambda now: ({}, {}, list(events))


FAULTS: dict[str, Fault] = {
    "reward-drop": of_batch(rewards=[[0.0] * 7 + [1.0]] * 16),
    "reward-variance": of_batch(rewards=[[0.0] * 7 + [20.0]] * 16),
    "zero-spread": of_batch(rewards=[[0.0] * 8] * 6 + [[1.0] * 8] * 8 + [[0.0, 1.0] * 4] * 2),
    "no-signal": of_batch(rewards=[[0.5] * 8] * 16),
    "failed-rollouts": beside(
        RolloutFailed(cause="reward_error", prompt_id="0-0", completions=32, whole_group=True, error="E")
    ),
    "held-out-gap": beside(
        EvaluationCompleted(name="held-out", version=0, n=512, failed=0, reward_mean=0.2, reward_se=0.01)
    ),
    "not-finite-loss": of_step(loss=math.nan, outcome="nonfinite", nonfinite=["loss"]),
    "not-finite-gradient": of_step(grad_norm=math.inf, outcome="nonfinite", nonfinite=["grad_norm"]),
    "entropy-low": of_step(entropy=0.1),
    "entropy-high": of_step(entropy=4.0),
    "reference-kl": of_step(kl_ref=0.8),
    "policy-kl": of_step(logprob_gap=gap(0.05)),
    "clipped-tokens": of_step(clip_low_frac=0.15, clip_high_frac=0.15),
    "gradient-spike": of_step(grad_norm=9.0),
    "gradient-vanished": of_step(grad_norm=0.0),
    "truncated": of_batch(truncated=[4] * 16),
    "length-growth": of_batch(length=Quantiles(mean=30, p50=30, p95=30, max=30)),
    "length-drop": of_batch(length=Quantiles(mean=2, p50=2, p95=2, max=2)),
    "log-prob-gap": of_step(logprob_gap=gap(1e-3, abs_mean=0.2)),
    "effective-samples": of_step(ess_frac=0.1),
    "staleness": of_batch(staleness=(6, 8, 9)),
    "learner-idle": beside(waited(0.95, 0.0), waited(0.95, 0.0)),
    "sampler-idle": beside(waited(0.0, 0.95), waited(0.0, 0.95)),
    "sync-share": of_step(seconds={"total": 0.1, "sync_wait": 0.06}),
    "slow-steps": of_step(seconds={"total": 0.5}),
    "no-progress": beside(ClockTicked(idle_s=400.0)),
    "device-memory": beside(memory(0.99)),
    "host-memory": beside(memory(0.5).model_copy(update={"host_memory_frac": 0.95})),
    "disk": beside(memory(0.5).model_copy(update={"disk_free_bytes": 5, "disk_total_bytes": 100})),
}
"""By the threshold that sees it."""
