"""POL010: gradient norms far above those of the last fifty steps."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.estimates import location_and_scale, median
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.updates import Gradients
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, Severity
from tocsin.schemas.step import StepCompleted

NORM = "step_completed.grad_norm"


@dataclass(frozen=True, kw_only=True)
class GradSpike(Rule):
    """Several gradients in a row of steps are many times as large as usual.

    ## What it means
    The norm of the gradient before clipping left its own range repeatedly within a few steps. Something in the batches
    weighs far more than everything else: an extreme importance ratio, an advantage without bounds, broken data.

    ## Why it matters
    Clipping bounds the step and not its direction: a clipped outlier still decides where the step goes, and the
    moments of Adam remember it. Spikes may precede divergence; most do not.

    ## How it is detected
    At least two of the last five norms exceed `factor` times the median of up to fifty before them, lie `sigmas`
    robust standard deviations above it, and exceed the norm at which gradients are clipped (when the run states it),
    because a smaller one changes nothing. Steps without a gradient are left out; ten norms are needed before the
    five. Alone it is info. It is a warning when an effect shows as well: an effective sample size below one half, a
    k3 gap above 0.01, or a reward below 0.8 of its best by three standard errors; critical below half of its best.
    The fault that proves this rule is not planted yet, so it is shown as info at most.

    ## Known false alarms
    Single spikes say nothing: one above ten times the median occurred in most healthy runs that log every step. The
    first steps after a change of batch size have another level, so the baseline restarts there.

    ## What to do
    Look at the batch behind the spike: rewards, advantages, importance ratios. Keep `grad_clip` at its usual level or
    halve it; lower the learning rate when spikes recur.

    ## Sources
    Measured on 77 labelled runs in the project's catalogue (twice in five steps above ten times the median: 1 of 9
    collapses, 1 of 68 healthy); VCPO (arXiv 2602.17616); prime-rl's documentation; verl#1581, NeMo-RL#4161.
    """

    code = "POL010"
    name = "grad-spike"
    title = "Gradient-norm spikes"
    kind = "fault"
    proof = "scenario"
    where = "learner"
    reads = (
        "step_completed.grad_norm",
        "step_completed.grad_clip",
        "step_completed.ess_frac",
        "step_completed.logprob_gap.k3",
        "batch_consumed.groups",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=5, warm_up=15, persistence=1, clear_persistence=5)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="RWD012",
            text="a reward outlier made an enormous advantage",
            weight=0.35,
            check="a reward in the batch lies far outside the others",
        ),
        Cause(
            code="OFF004",
            text="sampler and learner disagree, so that ratios have heavy tails",
            weight=0.35,
            check="`ess_frac` is low and `ratio.max` is large in the same steps",
        ),
        Cause(
            code="POL014",
            text="the learning rate is too high",
            weight=0.3,
            check="`update_ratio` rose before the norm did",
        ),
    )

    factor: float = threshold(10, "Multiple of the median that counts as a spike", low=1, unit="times")
    sigmas: float = threshold(6, "Robust standard deviations that a spike must exceed", unit="standard deviations")
    spikes: float = threshold(2, "Spikes among the last five norms", low=1, high=5, unit="steps")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Count spikes; the same while open."""
        gradients = features.gradients
        if gradients.unmeasured >= self.timing.absent_after or (gradients.unmeasured and not gradients.recent):
            return not_evaluated("missing_input", "steps report no `grad_norm`")
        if len(gradients.before) < self.timing.warm_up - self.timing.window:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} gradient norms were seen")
        usual = median(gradients.before)
        if max(norm for _, norm in gradients.recent) <= self.factor * usual:
            return None
        limit = self._limit(gradients, usual)
        spikes = [(step, norm) for step, norm in gradients.recent if norm > limit]
        return self._finding(features, spikes, usual, limit) if len(spikes) >= self.spikes else None

    def _limit(self, gradients: Gradients, usual: float) -> float:
        """The norm above which a norm is a spike."""
        _, scale = location_and_scale(gradients.before)
        guard = gradients.clip if math.isfinite(gradients.clip) else 0.0
        return max(self.factor * usual, usual + self.sigmas * scale, guard)

    def _finding(self, features: Features, spikes: list[tuple[int, float]], usual: float, limit: float) -> Finding:
        largest = max(norm for _, norm in spikes)
        effects = _effects(features)
        severity: Severity = "warning" if effects else "info"
        if features.outcome.fell_below(0.5, features.outcome.fast()):
            severity = "critical"
        return Finding(
            severity=severity,
            summary=(
                f"{len(spikes)} of the last 5 gradient norms exceeded {limit:.3g} (largest {largest:.3g}, "
                f"usually {usual:.3g})"
            ),
            evidence=(
                Evidence(
                    metric=NORM,
                    observed=largest,
                    operator=">",
                    threshold=limit,
                    window=5,
                    window_unit="steps",
                    n=len(features.gradients.before),
                    baseline=usual,
                ),
                *effects,
            ),
            proposals=self._answers(features, limit),
        )

    def _answers(self, features: Features, limit: float) -> tuple[Proposal, ...]:
        settings = features.settings
        verify = Verify(metric=NORM, operator="<", threshold=limit, within=30, unit="steps")
        inspect = look("inspect-batch", "inspect rewards, advantages and importance ratios of the steps with a spike")
        clip, rate = settings.knob("grad_clip"), settings.knob("learning_rate")
        return ranked(
            inspect,
            None if rate is None else move(settings, "learning_rate", rate / 2, verify),
            None if clip is None else move(settings, "grad_clip", clip / 2, verify),
        )


def _effects(features: Features) -> tuple[Evidence, ...]:
    """What shows that the spikes did something."""
    found, last, outcome = [], features.numerics.last, features.outcome
    if last is not None and last.ess_frac < 0.5:
        found.append(_effect("step_completed.ess_frac", last.ess_frac, 0.5))
    if last is not None and last.k3 > 0.01:
        found.append(_effect("step_completed.logprob_gap.k3", last.k3, 0.01))
    newest = outcome.fast()
    if outcome.fell_below(0.8, newest):
        found.append(_effect("batch_consumed.reward_mean / best window", outcome.share_of_best(newest), 0.8))
    return tuple(found)


def _effect(metric: str, observed: float, limit: float) -> Evidence:
    return Evidence(
        metric=metric,
        observed=observed,
        operator="<" if observed < limit else ">",
        threshold=limit,
        window=1,
        window_unit="steps",
        n=1,
    )
