"""The sham arm: actions that change nothing, on healthy noise, judged by the same verdicts as real ones.

A metric is taken where it stands high by chance, which is where a warning would be; "lower it" is then acted on by
doing nothing. Whatever is called a success is a false one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tocsin.diagnostics.readings import metric
from tocsin.diagnostics.trials import Change, Offer, Past, Trial
from tocsin.schemas.actions import Action, Verify
from tocsin.schemas.base import as_float
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunEnded
from tocsin.schemas.step import StepCompleted

METRICS: Final = (
    "step_completed.update_ratio",
    "step_completed.grad_norm",
    "step_completed.clip_low_frac + step_completed.clip_high_frac",
    "step_completed.logprob_gap.abs_mean",
    "step_completed.microbatches.padded_frac",
    "batch_consumed.length.mean",
    "batch_consumed.reward_mean",
)
"""Metrics that actions are verified by, of which a run of any configuration has most."""
WARM_UP: Final = 20
"""Steps at the start of a run in which everything moves."""
MEAN_OF: Final = 5
"""Readings whose mean is compared, as a rule with persistence would."""
HIGH, CLEAR = 0.9, 0.6
"""Quantiles of the metric over the run: where the sham warning is raised, and what the action must bring it below."""
WITHIN: Final = 30
"""Steps that a sham action has, as most real ones."""
APART: Final = 40
"""Steps between two sham actions on one metric."""


@dataclass(frozen=True, slots=True)
class Sham:
    """One action that was none."""

    metric: str
    step: int
    outcome: str


def shams(events: Sequence[BaseEvent]) -> Iterator[Sham]:
    """Every sham action on a healthy run, with its verdict."""
    for path in METRICS:
        for step, threshold, is_upside_down in _occasions(events, path):
            yield Sham(path, step, _verdict(events, path, step, threshold, ">" if is_upside_down else "<"))


def _occasions(events: Sequence[BaseEvent], path: str) -> Iterator[tuple[int, float, bool]]:
    """Steps at which the metric stands out, with the threshold to come back past; rewards stand out when low."""
    wanted = metric(path)
    is_upside_down = path.endswith("reward_mean")
    readings = [(e.step, as_float(wanted.read(e))) for e in events if isinstance(e, wanted.event)]
    known = [(step, value) for step, value in readings if step > WARM_UP and np.isfinite(value)]
    if len(known) < 2 * WITHIN:
        return
    values = np.array([value for _, value in known]) * (-1 if is_upside_down else 1)
    if np.ptp(values) == 0:
        return
    smooth = np.convolve(values, np.ones(MEAN_OF) / MEAN_OF, mode="valid")
    high, clear = np.quantile(smooth, [HIGH, CLEAR])
    last = -APART
    for position, value in enumerate(smooth):
        step = known[position + MEAN_OF - 1][0]
        if value >= high and step - last >= APART and step + WITHIN <= known[-1][0]:
            last = step
            yield step, float(-clear if is_upside_down else clear), is_upside_down


def _verdict(events: Sequence[BaseEvent], path: str, step: int, threshold: float, operator: str) -> str:
    verify = Verify.model_validate(
        {"metric": path, "operator": operator, "threshold": threshold, "within": WITHIN, "unit": "steps"}
    )
    action = Action(id="sham/sham#1/nothing", title="change nothing", applicability="review", risk="low", verify=verify)
    offer = Offer(action=action, diagnostic_id="sham/sham#1", kind="fault", since_step=max(0, step - MEAN_OF))
    change = Change(
        action_id=action.id,
        diagnostic_id=offer.diagnostic_id,
        path="learning_rate",
        before=0.0,
        after=0.0,
        actor="sham",
        request_id=None,
        idempotency_key=None,
    )
    past, trial = Past(), None
    for event in events:
        if trial is None:
            past.add(event)
            if isinstance(event, StepCompleted) and event.step >= step:
                trial = Trial(change, offer, verify, generation=0, past=past)
            continue
        verdict = None if isinstance(event, RunEnded) else trial.take(event, past)
        past.add(event)
        if verdict is not None:
            return verdict.state
    return "inconclusive" if trial is None else trial.end("the run ended").state
