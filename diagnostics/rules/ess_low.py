"""OFF005: a few tokens carry all the weight of the update."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.origins import origin, table, told_apart
from tocsin.diagnostics.proposals import fresher, look, move, ranked
from tocsin.diagnostics.ratios import Bucket, Ratios
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.witnesses import last_step, reward_witness
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, Severity
from tocsin.schemas.step import StepCompleted

ESS = "step_completed.ess_frac"
SPIKE = 3.0
"""Multiple of the median gradient norm that shows that single tokens steer."""
CLIPPED = 0.05
"""Share of trained tokens at the clip that shows the same."""


@dataclass(frozen=True, kw_only=True)
class EssLow(Rule):
    """Importance ratios are so unequal that a few tokens decide the update, and it shows.

    ## What it means
    The effective sample size of the ratios says how many tokens of one policy the batch is worth. Sampler and learner
    are so far apart on some tokens that most of the batch no longer counts.

    ## Why it matters
    The gradient becomes that of a handful of tokens: noisy, large, and in a direction that the batch as a whole does
    not ask for. Clipping bounds each of them and makes the rest of the batch no heavier.

    ## How it is detected
    Ratios of five updates pooled, or of as many as have 256 tokens, before any clip: (sum r)^2 / (n sum r^2) below
    `fire`, three times in a row. Alone it is information: a low value is variance, and a high one is no proof of
    health. A warning when the mechanism shows as well: the newest gradient norm above three times the median, more than
    a twentieth of the tokens at the clip, or a reward below 0.8 of its best by three standard errors. Critical then
    below `critical`. It resolves above `clear`. The fault that proves this rule is not planted yet, so it is shown as
    info at most.

    ## Known false alarms
    Ratios of whole sequences have a low value by nature, since they multiply over tokens; those of tokens are judged
    here. A single token with an enormous ratio can hold the value down for five updates.

    ## What to do
    The evidence has the value by the age of tokens, and the causes are ranked by it. Tokens of the present weights are
    low: numerics or filters. Only old ones are low: lower `max_staleness`. All are low and grow lower: weights do not
    arrive. Until it is found, halve `learning_rate`.

    ## Sources
    Health checks of verl's rollout correction (0.5 and 0.3); VCPO (arXiv 2602.17616); verl#7495, OpenRLHF#931;
    marin#8955 (a value of 0.989 in a run that was lost).
    """

    code = "OFF005"
    name = "ess-low"
    title = "A few tokens carry all the weight"
    kind = "fault"
    proof = "scenario"
    where = "learner"
    reads = (
        "step_completed.ratio",
        "step_completed.grad_norm",
        "step_completed.clip_low_frac",
        "step_completed.clip_high_frac",
        "batch_consumed.groups",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=5, warm_up=5, persistence=3, clear_persistence=5)
    rising = (("critical", "fire", "clear"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="OFF004",
            text="sampler and learner compute differently",
            weight=0.35,
            check="tokens of the present weights are low as well, or the mean ratio is above one",
        ),
        Cause(
            code="OFF001",
            text="data are old for this learning rate",
            weight=0.35,
            check="the older the tokens the lower the value, and the probe agrees",
        ),
        Cause(
            code="OFF010",
            text="weights do not arrive",
            weight=0.2,
            check="all ages are low and grow lower; the probe gap follows the learner's movement",
        ),
        Cause(
            code="OFF006",
            text="the sampler draws from a part of the distribution only",
            weight=0.1,
            check="the mean ratio is below one",
        ),
    )

    fire: float = threshold(0.5, "Effective sample size below which it fires", high=1, unit="share")
    critical: float = threshold(0.3, "Share that is critical with its mechanism", high=1, unit="share")
    clear: float = threshold(0.7, "Share from which it resolves", high=1, unit="share")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Judge the pooled value; look for the mechanism only when it is low."""
        ratios = features.ratios
        if ratios.unmeasured >= self.timing.absent_after or (ratios.unmeasured and not ratios.window):
            return not_evaluated("missing_input", "steps report no `ratio`")
        if not ratios.was_judged:
            return not_evaluated(
                "warm_up",
                f"fewer than {Ratios.STEPS} updates, or than {Ratios.TOKENS} tokens in up to {Ratios.MOST}, were seen",
            )
        pooled = ratios.pooled
        return self._finding(features, pooled) if pooled.ess < (self.clear if is_open else self.fire) else None

    def _finding(self, features: Features, pooled: Bucket) -> Finding:
        witnesses = _witnesses(features)
        severity: Severity = "info"
        if witnesses:
            severity = "critical" if pooled.ess < self.critical else "warning"
        limit = next(value for value in (self.critical, self.fire, self.clear) if pooled.ess < value)
        return Finding(
            severity=severity,
            summary=(
                f"Ratios of {pooled.tokens} tokens have an effective sample size of {pooled.ess:.0%}, "
                f"mean {pooled.mean:.3g}, over {len(features.ratios.window)} updates"
            ),
            evidence=(
                Evidence(
                    metric=ESS,
                    observed=pooled.ess,
                    operator="<",
                    threshold=limit,
                    unit="share",
                    window=len(features.ratios.window),
                    window_unit="steps",
                    n=pooled.tokens,
                    baseline=1.0,
                ),
                *witnesses,
                *table(features),
            ),
            proposals=self._answers(features.settings),
            causes=told_apart(self.causes, origin(features)),
        )

    def _answers(self, settings: Settings) -> tuple[Proposal, ...]:
        verify = Verify(metric=ESS, operator=">=", threshold=self.clear, within=30, unit="steps")
        rate = settings.knob("learning_rate")
        return ranked(
            fresher(settings, verify),
            None if rate is None else move(settings, "learning_rate", rate / 2, verify),
            look("compare-by-age", "compare the ratios of tokens of the present weights with those of older ones"),
        )


def _witnesses(features: Features) -> tuple[Evidence, ...]:
    """What shows that a few tokens steer the update."""
    found, gradients, updates = [], features.gradients, features.updates
    if gradients.recent and gradients.before:
        norm, usual = gradients.recent[-1][1], median(gradients.before)
        if norm > SPIKE * usual:
            found.append(last_step("step_completed.grad_norm", norm, ">", SPIKE * usual, ""))
    if updates.recent and updates.recent[-1].clip > CLIPPED and math.isfinite(updates.recent[-1].clip):
        metric = "step_completed.clip_low_frac + step_completed.clip_high_frac"
        found.append(last_step(metric, updates.recent[-1].clip, ">", CLIPPED, "share of trained tokens"))
    reward = reward_witness(features.outcome)
    return tuple(found if reward is None else [*found, reward])
