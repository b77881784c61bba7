"""All rules together: a run that learns is left alone, and each planted fault is named before its consequences.

The series follow what the embedded demo was measured to do: pass rate from 0.45 to 0.98, entropy from 0.5 to 0.04,
updates that shrink with the schedule, weights that arrive, and waits up to two fifths of a step.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from tests.diagnostics.scenario import batch, numbered, started, step, synced, waited
from tocsin.diagnostics.engine import Engine
from tocsin.schemas.batch import BatchConsumed, Quantiles, TextStats
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, KnobChanged
from tocsin.schemas.setup import RunSetup, TemplateSetup
from tocsin.schemas.step import LogProbGap, RatioMoments, StepCompleted

ONSET = 60
HELD_OUT = 512
"""Held-out prompts."""
Rewards = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How a healthy run looks."""

    steps: int = 200
    groups: int = 16
    size: int = 8
    start: float = 0.45
    """Pass rate of the first step."""
    end: float = 0.985
    warm_up: int = 10
    decays: bool = True
    staleness: int = 1
    learner_wait: float = 0.15
    sampler_wait: float = 0.15
    spread: float = 6.0
    """Concentration of the difficulty of prompts."""


@dataclass
class Step:
    """What one step measures, before a fault touches it."""

    rewards: Rewards
    ratio: float
    entropy: float
    gap: float
    grad_norm: float
    probe: tuple[float, float]
    """Gap and movement."""
    waits: tuple[float, float]
    seconds: float = 0.12
    sync: float = 0.1
    """Share of the step in which both sides stand still for weights."""
    cut: float = 0.0
    loss: float = 0.01
    ess: float = 0.998
    held_out: float | None = None
    """Pass rate of an evaluation after the step; None without one."""


def healthy(shape: Shape, seed: int) -> Iterator[Step]:
    """The steps of a run that learns."""
    rng, evaluated = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    for t in range(shape.steps):
        pass_rate = shape.end - (shape.end - shape.start) * math.exp(-t / 25)
        solve = rng.beta(pass_rate * shape.spread, (1 - pass_rate) * shape.spread, shape.groups)
        rate = min(1.0, (t + 1) / max(1, shape.warm_up)) * (1 - t / shape.steps if shape.decays else 1.0)
        noise = float(rng.lognormal(0, 0.3))
        drift = 0.02 * noise * max(0.05, 1 - pass_rate) * (1 + shape.staleness)
        yield Step(
            rewards=(rng.random((shape.groups, shape.size)) < solve[:, None]).astype(float),
            ratio=2.5e-3 * rate * (0.3 + 0.7 * math.exp(-t / 30)) * float(rng.lognormal(0, 0.1)),
            entropy=0.03 + 0.47 * math.exp(-t / 20) + 0.02 * float(rng.random()),
            gap=drift * float(rng.lognormal(0, 0.5)),
            grad_norm=0.7 * float(rng.lognormal(0, 0.8)),
            probe=(0.0, 0.3 * rate * noise),
            waits=(shape.learner_wait * 2 * float(rng.random()), shape.sampler_wait * 2 * float(rng.random())),
            seconds=0.12 * noise,
            held_out=float(evaluated.binomial(HELD_OUT, pass_rate)) / HELD_OUT if t % 50 == 0 else None,
        )


def events(run: Iterator[Step], shape: Shape) -> Iterator[list[BaseEvent]]:
    """The events of these steps."""
    template = TemplateSetup(has=False, used=False, doubled_start=0, looked_at=64)
    yield [
        started(
            setup=RunSetup(evaluation_prompts=HELD_OUT, evaluation_every=50, template=template),
            learning_rate=3e-4,
            group_size=shape.size,
            groups_per_step=shape.groups,
            max_staleness=shape.staleness,
            max_completion_tokens=8,
        )
    ]
    for t, found in enumerate(run):
        yield [
            _batch(found, shape.staleness),
            _step(found, shape.staleness).model_copy(update={"seconds": _seconds(found)}),
            waited(*found.waits, step_s=found.seconds),
            synced(*found.probe, seconds={"write": 0.0, "load": found.sync * found.seconds, "total": found.seconds}),
            *([] if found.held_out is None else [_evaluation(t, found.held_out)]),
        ]


def _seconds(found: Step) -> dict[str, float]:
    """Parts of a step: waits for groups and for the sync before, the rest is computing."""
    wait, sync_wait = found.waits[0] * found.seconds, found.sync * found.seconds
    return {"wait": wait, "sync_wait": sync_wait, "total": found.seconds}


def _evaluation(version: int, share: float) -> EvaluationCompleted:
    error = math.sqrt(share * (1 - share) / HELD_OUT)
    return EvaluationCompleted(
        name="held-out",
        version=version,
        n=HELD_OUT,
        failed=0,
        reward_mean=share,
        reward_se=error,
        pass_rate=share,
        pass_rate_se=error,
    )


def _batch(found: Step, staleness: int) -> BatchConsumed:
    total = found.rewards.size
    hit = round(found.cut * total)
    ends = {
        "finish_reasons": {"stop": total - hit, "length": hit},
        "length": Quantiles(mean=7, p50=7, p95=8, max=8),
        "texts": TextStats(judged=0, repetitive=0, script_judged=0, other_script=0, cut_with_end=0),
    }
    made = batch(found.rewards.tolist(), staleness=(staleness, staleness, staleness), max_staleness=staleness)
    return made.model_copy(update=ends)


def _step(found: Step, staleness: int) -> StepCompleted:
    if not math.isfinite(found.loss):
        return step(outcome="nonfinite", nonfinite=["loss"], loss=found.loss)
    if not np.ptp(found.rewards, axis=1).any():
        return step(outcome="no_signal", update_ratio=None, grad_norm=None, entropy=None, ess_frac=None)
    size = found.gap
    return step(
        update_ratio=found.ratio,
        entropy=found.entropy,
        grad_norm=found.grad_norm,
        grad_clip=1.0,
        ess_frac=found.ess,
        logprob_gap=LogProbGap(k1=0, k3=size * size, abs_mean=size, abs_p95=size, abs_p99=size, abs_max=size),
        ratio=[RatioMoments(staleness=staleness, tokens=900, mean=1, mean_square=1 / found.ess, max=9, k3=size * size)],
    )


def diagnose(run: Iterator[Step], shape: Shape) -> list[Diagnostic]:
    """The diagnostics of every rule, in the order of the feed."""
    engine = Engine()
    records = [record for event in numbered(events(run, shape)) for record in engine.observe(event)]
    return [record for record in records if isinstance(record, Diagnostic)]


def alarms(found: list[Diagnostic]) -> list[str]:
    return [f"{r.code} {r.summary}" for r in found if r.kind == "fault" and r.severity != "info"]


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_learns_is_left_alone(seed: int) -> None:
    assert diagnose(healthy(Shape(), seed), Shape()) == []


@pytest.mark.parametrize(
    "shape",
    [
        Shape(groups=64, size=2),
        Shape(groups=32, size=4),
        Shape(groups=8, size=16),
        Shape(groups=2, size=4, steps=600),
        Shape(start=0.985),
        Shape(start=0.999, end=0.999, decays=False),
        Shape(start=0.05, end=0.3),
        Shape(warm_up=0, decays=False),
        Shape(warm_up=100),
        Shape(staleness=4),
        Shape(spread=1.0),
    ],
    ids=lambda shape: "-".join(f"{k}{v}" for k, v in vars(shape).items() if v != vars(Shape())[k]) or "plain",
)
@pytest.mark.parametrize("seed", range(3))
def test_an_unusual_run_that_learns_raises_no_fault(shape: Shape, seed: int) -> None:
    assert alarms(diagnose(healthy(shape, seed), shape)) == []


@pytest.mark.parametrize(
    ("shape", "codes"),
    [
        (Shape(learner_wait=0.4, sampler_wait=0.02), []),
        (Shape(learner_wait=0.02, sampler_wait=0.4), []),
        (Shape(learner_wait=0.35, sampler_wait=0.35), []),
    ],
)
def test_a_pipeline_that_is_out_of_balance_is_named_only_when_half_is_wasted(shape: Shape, codes: list[str]) -> None:
    assert [record.code for record in diagnose(healthy(shape, 0), shape)] == codes


@pytest.mark.parametrize("seed", range(3))
def test_taking_turns_at_staleness_zero_is_at_most_information(seed: int) -> None:
    shape = Shape(staleness=0, learner_wait=0.4, sampler_wait=0.45)
    assert {record.severity for record in diagnose(healthy(shape, seed), shape)} <= {"info"}


def constant_reward(found: Step, since: int) -> Step:
    """Every completion gets one half."""
    return replace(found, rewards=np.full_like(found.rewards, 0.5))


def truncated(found: Step, since: int) -> Step:
    """Completions end before their answer."""
    return replace(found, rewards=np.zeros_like(found.rewards), cut=1.0) if since >= 1 else found


def not_a_number(found: Step, since: int) -> Step:
    """Two of three losses are not a number."""
    return replace(found, loss=math.nan) if since % 3 != 2 else found


def stale_weights(found: Step, since: int) -> Step:
    """The sampler keeps its weights: the gap is what the learner moved."""
    return replace(found, probe=(0.09 * (since + 1), 0.1), gap=min(0.05, 0.01 * (since + 1)))


def slow_sampler(found: Step, since: int) -> Step:
    """Generation takes six times as long as training."""
    return replace(found, waits=(0.85, 0.0), seconds=6 * found.seconds) if since >= 1 else found


def slow_learner(found: Step, since: int) -> Step:
    """Training takes six times as long as generation."""
    return replace(found, waits=(0.0, 0.85), seconds=6 * found.seconds) if since >= 1 else found


def slow_sync(found: Step, since: int) -> Step:
    """Weights take five times as long as the rest of the step, and the learner waits for them."""
    return replace(found, waits=(0.05, 0.0), seconds=6 * found.seconds, sync=0.8)


def lr_too_high(found: Step, since: int) -> Step:
    """Two updates destroy the policy: noise without an end, no success, nothing to update from."""
    if since < 2:
        return replace(found, ratio=0.07, gap=5.0 if since else found.gap, ess=0.01 if since else found.ess)
    return replace(found, rewards=np.zeros_like(found.rewards), cut=0.9)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (constant_reward, "RWD001"),
        (truncated, "GEN001"),
        (not_a_number, "POL015"),
        (stale_weights, "OFF010"),
        (slow_sampler, "OFF016"),
        (slow_learner, "OFF017"),
        (slow_sync, "OFF012"),
        (lr_too_high, "POL014"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_planted_fault_is_named_before_its_consequences(
    fault: Callable[[Step, int], Step], code: str, seed: int
) -> None:
    shape = Shape(steps=100)
    steps = healthy(shape, seed)
    run = (found if t < ONSET else fault(found, t - ONSET) for t, found in enumerate(steps))
    found = [record for record in diagnose(run, shape) if record.severity != "info"]
    assert found[0].code == code
    assert ONSET < found[0].last.step <= ONSET + 30
    worst = "critical" if any(record.severity == "critical" for record in found) else "warning"
    # The first to become as grave as anything becomes is the cause as well.
    assert next(record.code for record in found if record.severity == worst) == code


def test_a_change_of_the_learning_rate_within_bounds_is_no_fault() -> None:
    shape = Shape(decays=False)
    made = list(events(healthy(shape, 0), shape))
    change = KnobChanged(path="learning_rate", before=3e-4, after=6e-4, actor="person:a", effective_step=ONSET)
    engine = Engine()
    found = [
        record
        for event in numbered([*made[:ONSET], [change], *made[ONSET:]])
        for record in engine.observe(event)
        if isinstance(record, Diagnostic)
    ]
    assert alarms(found) == []
