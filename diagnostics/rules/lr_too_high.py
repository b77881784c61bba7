"""POL014: updates became larger than the run has tolerated, and it shows."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.updates import StepUpdate, Updates
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, Severity
from tocsin.schemas.step import StepCompleted

RATIO = "step_completed.update_ratio"


@dataclass(frozen=True, kw_only=True)
class LrTooHigh(Rule):
    """Updates are far larger than those the run has tolerated, and the policy breaks away or the reward falls.

    ## What it means
    The relative size of an update, the norm of the change over the norm of the parameters, says what the learning
    rate does to this model. It has grown to a multiple of what the run has trained well with, and an effect shows:
    sampler and learner drift apart within a step or two, or the reward falls.

    ## Why it matters
    A policy that moves too far in one step leaves the region in which its data mean anything. With a rate a hundred
    times too high two updates destroy a model, and no later rate brings it back: only an older checkpoint does.

    ## How it is detected
    Two witnesses together. *Mechanism*: two of the last three measured updates are at least `factor` times the
    largest that the run tolerated (highest median of ten updates in a row; larger outliers never enter it), or one is
    at least `jump` times that; before ten updates were seen, both must exceed `absolute`. *Effect*: in the newest of
    these updates the mean absolute log-prob gap is at least `gap`, or the effective sample size is below `ess`, or
    the clip fraction is at least `clip`; or the reward fell below 0.8 of its best by three standard errors. Critical
    when the reward fell below half of its best, or the effect is extreme (a gap above 0.5 nats, or an effective sample
    size below a tenth). The learning rate itself is never judged: it means nothing across models. Steps without an
    update change nothing, so that a destroyed run keeps its cause. It resolves when the last three updates are
    below `clear`, unless the knob `learning_rate` still has the value at which they were too large while the reward is
    below 0.8 of its best: a destroyed policy makes small updates too, and they prove nothing.

    ## Known false alarms
    Warm-up makes updates grow; the tolerated size grows with them as long as an update is less than 2.5 times those
    of the ten before. Size alone is no finding, and neither is drift alone, which has other causes. A schedule that
    restarts its rate returns to a size that was tolerated before.

    ## What to do
    Lower `learning_rate`, by half at a time, towards what the updates call for; the finding computes it. If the reward
    has collapsed, stop and resume from a checkpoint taken before the onset. Start with warm-up. With older data the
    tolerable rate is lower.

    ## Sources
    Staleness and learning rate (arXiv 2607.01083); VCPO (2602.17616); AReaL#1634 (a rate that diverged in float32 was
    hidden by bfloat16 rounding); ms-swift#3136.
    """

    code = "POL014"
    name = "lr-too-high"
    title = "Learning rate too high"
    kind = "fault"
    proof = "injected"
    where = "learner"
    reads = (
        "step_completed.update_ratio",
        "step_completed.logprob_gap.abs_mean",
        "step_completed.ess_frac",
        "step_completed.clip_low_frac",
        "step_completed.clip_high_frac",
        "batch_consumed.groups",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=3, warm_up=2, persistence=2, clear_persistence=5)
    rising = (("clear", "factor", "jump"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the learning rate was set or scheduled too high",
            weight=0.8,
            check="`step_completed.learning_rate` rose with `update_ratio`, or warm-up is missing",
        ),
        Cause(
            code="POL010",
            text="single gradients are enormous and the optimizer follows them",
            weight=0.2,
            check="`grad_norm` rose while the learning rate did not",
        ),
    )

    factor: float = threshold(2.5, "Updates this many times the tolerated size count", low=1, unit="times")
    jump: float = threshold(10, "A single update this many times the tolerated size counts", low=1, unit="times")
    clear: float = threshold(2, "Multiple below which it resolves", low=1, unit="times")
    absolute: float = threshold(0.03, "Relative update that counts without a baseline", high=1, unit="share of norm")
    gap: float = threshold(0.1, "Mean absolute log-prob gap that is an effect", unit="nats")
    ess: float = threshold(0.5, "Effective sample size that is an effect", high=1, unit="share")
    clip: float = threshold(0.1, "Clip fraction that is an effect", high=1, unit="share of trained tokens")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Look for the mechanism, then for an effect."""
        updates = features.updates
        if updates.unmeasured >= self.timing.absent_after or (updates.unmeasured and not updates.recent):
            return not_evaluated("missing_input", "steps report no `update_ratio`")
        if len(updates.recent) < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} updates were measured")
        if is_open:
            if max(update.ratio for update in updates.recent) >= self.clear * self._tolerated(updates):
                return self._finding(features)
            return self._aftermath(features) if self._is_unanswered(features) else None
        return self._finding(features) if self._is_too_large(updates) and self._has_effect(features) else None

    def _tolerated(self, updates: Updates) -> float:
        """The size that counts as one; without a baseline the absolute guard over the factor."""
        return self.absolute / self.factor if math.isnan(updates.tolerated) else updates.tolerated

    def _is_too_large(self, updates: Updates) -> bool:
        sizes = sorted((update.ratio for update in updates.recent), reverse=True)
        tolerated = self._tolerated(updates)
        return sizes[1] >= self.factor * tolerated or sizes[0] >= self.jump * tolerated

    def _has_effect(self, features: Features) -> bool:
        outcome = features.outcome
        return bool(self._drift(features.updates.recent[-1])) or outcome.fell_below(0.8, outcome.fast())

    def _is_unanswered(self, features: Features) -> bool:
        """Whether updates are small only because there is little left to learn from, at the rate that did it."""
        outcome = features.outcome
        return features.updates.is_rate_unchanged and outcome.fell_below(0.8, outcome.recent)

    def _drift(self, update: StepUpdate) -> tuple[Evidence, ...]:
        """What shows in the newest update that the policy breaks away."""
        found = []
        if update.gap >= self.gap:
            found.append(_last("step_completed.logprob_gap.abs_mean", update.gap, self.gap, "nats"))
        if update.ess < self.ess:
            found.append(_last("step_completed.ess_frac", update.ess, self.ess, "share"))
        if update.clip >= self.clip:
            metric = "step_completed.clip_low_frac + step_completed.clip_high_frac"
            found.append(_last(metric, update.clip, self.clip, "share of trained tokens"))
        return tuple(found)

    def _severity(self, features: Features) -> Severity:
        last, outcome = features.updates.recent[-1], features.outcome
        is_extreme = last.gap >= 0.5 or last.ess < 0.1
        return "critical" if is_extreme or outcome.fell_below(0.5, outcome.fast()) else "warning"

    def _finding(self, features: Features) -> Finding:
        updates, outcome = features.updates, features.outcome
        largest = max(update.ratio for update in updates.recent)
        tolerated = self._tolerated(updates)
        evidence = [
            Evidence(
                metric=RATIO,
                observed=largest,
                operator=">=",
                threshold=self.clear * tolerated,
                unit="share of the parameters' norm",
                window=len(updates.recent),
                window_unit="steps",
                n=len(updates.recent),
                baseline=None if math.isnan(updates.tolerated) else updates.tolerated,
            ),
            *self._drift(updates.recent[-1]),
        ]
        newest = outcome.fast()
        fell = outcome.fell_below(0.8, newest)
        if fell:
            evidence.append(_reward(outcome.share_of_best(newest), newest.steps, newest.groups))
        reward = f" and the reward fell to {outcome.share_of_best(newest):.0%} of its best" if fell else ""
        drift = f", log-probs moved {updates.recent[-1].gap:.2g} nats" if updates.recent[-1].gap >= self.gap else ""
        return Finding(
            severity=self._severity(features),
            summary=f"Updates are {largest / tolerated:.1f} times as large as this run tolerated{drift}{reward}",
            evidence=tuple(evidence),
            proposals=self._answers(features.settings, largest / tolerated, tolerated),
        )

    def _aftermath(self, features: Features) -> Finding:
        """Updates are small again and nothing else is: neither was the rate lowered nor did the reward come back."""
        updates, outcome = features.updates, features.outcome
        share = outcome.share_of_best(outcome.recent)
        return Finding(
            severity="critical" if outcome.fell_below(0.5, outcome.recent) else "warning",
            summary=(
                f"The learning rate that made updates {updates.excess:.1f} times as large as tolerated is still set, "
                f"and the reward is {share:.0%} of its best"
            ),
            evidence=(_reward(share, outcome.recent.steps, outcome.recent.groups),),
            proposals=self._answers(features.settings, updates.excess, self._tolerated(updates)),
        )

    def _answers(self, settings: Settings, excess: float, tolerated: float) -> tuple[Proposal, ...]:
        back = look("resume-from-checkpoint", "stop, and resume from a checkpoint older than the first large update")
        rate = settings.knob("learning_rate")
        verify = Verify(metric=RATIO, operator="<", threshold=self.clear * tolerated, within=20, unit="steps")
        return ranked(None if rate is None else move(settings, "learning_rate", rate / max(excess, 2), verify), back)


def _last(metric: str, observed: float, limit: float, unit: str) -> Evidence:
    return Evidence(
        metric=metric,
        observed=observed,
        operator=">=" if observed >= limit else "<",
        threshold=limit,
        unit=unit,
        window=1,
        window_unit="steps",
        n=1,
    )


def _reward(share: float, steps: int, groups: int) -> Evidence:
    return Evidence(
        metric="batch_consumed.reward_mean / best window",
        observed=share,
        operator="<",
        threshold=0.8,
        unit="share of the best",
        window=steps,
        window_unit="steps",
        n=groups,
        baseline=1.0,
    )
