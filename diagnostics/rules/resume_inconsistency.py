"""SYS014: what goes on after a resume is not the run that stopped."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.estimates import location_and_scale, median
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.resumption import Resumed, Resumption
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

LEAST_BEFORE = 10
"""Updates before a resume that those after it can be compared with."""


@dataclass(frozen=True, kw_only=True)
class ResumeInconsistency(Rule):
    """After a resume the updates, the learning rate or the weights of the sampler are not those of the run before.

    ## What it means
    A part of the state was not restored: the optimizer's moments, the place in the schedule, or the weights that the
    sampler is given.

    ## Why it matters
    Without its moments Adam takes several times larger steps than before, right after a resume. A schedule that begins
    again does the same for longer. Old weights in the sampler make every sample wrong.

    ## How it is detected
    Once after each resume. The size of an update relative to the learning rate: the largest of the first three lies
    above, or their median below, the median of the 20 before by more than `errors` of their spread (median absolute
    deviation) and by more than a factor of `factor`: a warning. Moments that were kept make sizes smooth. The learning
    rate of the first step differs by more than `rate` from what the schedule asks for: a warning. The first weights
    that the sampler acknowledges are not those of the checkpoint: critical. Gradient norms are not compared; they vary
    as much from batch to batch. It resolves after `lasting` steps: the optimizer is as good as before by then, and
    whoever looks seldom has seen it.

    ## Known false alarms
    A resume from a checkpoint long before the last step compares with updates of a later phase. A first batch with
    hardly any group with spread makes a small update, and one whose gradient is ten times the usual, a large one.

    ## What to do
    Resume from an earlier checkpoint whose optimizer state is there (`tocsin train --resume RUN --from STEP`), and look
    at what the checkpoint folder holds.

    ## Sources
    AReaL and TRL (what is restored at a resume). Kingma and Ba (arXiv 1412.6980) for the size of Adam's first steps.
    Measured on the embedded task: without its moments 2.8 to 4.8 times the size before, with them 0.9 to 1.0 times, in
    the first three updates; on a task of the benchmark 4.0, 2.7 and 2.1 times, one after the other.
    """

    code = "SYS014"
    name = "resume-inconsistency"
    title = "A resumed run is not the run that stopped"
    kind = "fault"
    proof = "injected"
    where = "trainer"
    reads = (
        "run_resumed.checkpoint_step",
        "run_resumed.knobs",
        "run_resumed.setup",
        "step_completed.update_ratio",
        "step_completed.learning_rate",
        "weights_synced.version",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=3, warm_up=1, persistence=1, clear_persistence=1)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the optimizer's state was not restored",
            weight=0.6,
            check="`update_ratio` jumps at the resume and falls back within tens of steps",
        ),
        Cause(
            text="the schedule or a knob was not restored",
            weight=0.25,
            check="`learning_rate` differs from the schedule, without a `knob_changed`",
        ),
        Cause(
            text="weights of another step were sent or loaded",
            weight=0.15,
            check="`weights_synced.version` is not `run_resumed.checkpoint_step`",
        ),
    )

    errors: float = threshold(5.0, "Spreads by which updates must differ", low=1)
    factor: float = threshold(2.5, "Factor by which updates must differ", low=1.1)
    rate: float = threshold(0.01, "Relative difference of the learning rate that counts", high=1)
    lasting: float = threshold(100, "Steps after a resume for which a finding holds", low=1, unit="optimizer steps")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Weights first, then the learning rate, then the sizes of updates."""
        resumed = features.resumption.resumed
        if resumed is None:
            return not_evaluated("not_applicable", "the run was not resumed")
        if resumed.steps > self.lasting:
            return None
        return self._weights(resumed) or self._rate(resumed) or self._updates(resumed)

    def _weights(self, resumed: Resumed) -> Finding | None:
        sent, expected = resumed.version, resumed.checkpoint_step
        if sent is None or sent == expected:
            return None
        evidence = _evidence("weights_synced.version", (float(sent), "!=", float(expected)), 1, None)
        return Finding(
            severity="critical",
            summary=f"The sampler began with weights {sent} after a resume from step {expected}",
            evidence=(evidence,),
            proposals=_ANSWERS,
            causes=(self.causes[2], self.causes[0], self.causes[1]),
        )

    def _rate(self, resumed: Resumed) -> Finding | None:
        now, asked = resumed.rate, resumed.scheduled
        # A NaN on either side passes no comparison: an unknown schedule is not judged.
        if not abs(now - asked) > self.rate * abs(asked):
            return None
        evidence = _evidence("step_completed.learning_rate", (now, "!=", asked), 1, asked)
        return Finding(
            severity="warning",
            summary=f"The learning rate is {now:.3g} after the resume where the schedule asks for {asked:.3g}",
            evidence=(evidence,),
            proposals=_ANSWERS,
            causes=(self.causes[1], self.causes[0], self.causes[2]),
        )

    def _updates(self, resumed: Resumed) -> Finding | None:
        if len(resumed.after) < Resumption.AFTER or len(resumed.before) < LEAST_BEFORE:
            return None
        centre, scale = location_and_scale(resumed.before)
        largest, middle = max(resumed.after), median(resumed.after)
        is_larger = largest > self.factor * centre
        now, limit = (largest, self.factor * centre) if is_larger else (middle, centre / self.factor)
        is_far = is_larger or middle < limit
        # A NaN among them passes no comparison.
        if not (is_far and abs(now - centre) > self.errors * scale and math.isfinite(centre)):
            return None
        times = now / centre if centre > 0 else math.inf
        metric = "step_completed.update_ratio / learning_rate"
        evidence = _evidence(metric, (now, ">" if is_larger else "<", limit), len(resumed.after), centre)
        return Finding(
            severity="warning",
            summary=(
                f"The first {len(resumed.after)} updates after the resume are {'up to ' * is_larger}{times:.2g} times "
                "the size of before"
            ),
            evidence=(evidence,),
            proposals=_ANSWERS,
        )


_ANSWERS = ranked(
    look("resume-earlier", "resume from an earlier checkpoint with `tocsin train --resume RUN --from STEP`"),
    look("look-at-checkpoint", "look at what the checkpoint holds: optimizer state, step, knobs"),
)


def _evidence(metric: str, compared: tuple[float, str, float], n: int, baseline: float | None) -> Evidence:
    observed, operator, limit = compared
    return Evidence.model_validate(
        {
            "metric": metric,
            "observed": observed,
            "operator": operator,
            "threshold": limit,
            "window": n,
            "window_unit": "steps",
            "n": n,
            "baseline": baseline,
        }
    )
