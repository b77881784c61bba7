"""POL003: too many tokens leave the trust region."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import fresher, look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.updates import StepClips
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

MEASURED_STEPS: Final = 5
OTHER_CLIPS: Final = ("cispo", "gspo")
"""Objectives whose clip is not the token-level one; the limits here do not hold for them."""


@dataclass(frozen=True, kw_only=True)
class ClipFractionHigh(Rule):
    """A large share of tokens is clipped and gets no gradient.

    ## What it means
    The importance ratio of a clipped token has left the trust region on the side where its gradient is cut. In
    asynchronous training the ratio compares learner and sampler, so clipping measures how far the two have drifted
    apart: by stale weights, by a numeric mismatch, or by updates that are too large.

    ## Why it matters
    Clipped tokens teach nothing, and they are the ones on which the policy has moved most. The rest of the batch is
    a biased selection.

    ## How it is detected
    Share of trained tokens clipped at either end, `clip_low_frac` + `clip_high_frac`, averaged over the trained
    tokens of the last 10 steps, at least five of which measured it and which hold at least `min_tokens` tokens. Only
    for objectives with a token-level clip: `gspo` clips about a hundred times more tokens by design and `cispo`
    clips weights. The fault that proves this rule is not planted yet, so it is shown as info at most.

    ## Known false alarms
    A clip fraction above zero in the very first steps is a mismatch of sampler and learner, not learning that went
    too far. A value of zero is normal with one update per batch on-policy, and a low one proves nothing.

    ## What to do
    Compare the ratio moments per staleness bucket: if the bucket of staleness 0 is wide, look for a numeric
    mismatch; if only the stale ones are, lower `max_staleness`; if all widen over time, lower `learning_rate`. When
    the upper side dominates by far, `clip_high` up to 0.28 is common.

    ## Sources
    PPO (arXiv 1707.06347); DAPO (2503.14476); GSPO (2507.18071); M2PO (2510.01161); verl#1051, verl#791, trl#3120.
    """

    code = "POL003"
    name = "clip-fraction-high"
    title = "Clip fraction too high"
    kind = "fault"
    proof = "scenario"
    where = "learner"
    reads = (
        "step_completed.clip_low_frac",
        "step_completed.clip_high_frac",
        "step_completed.tokens_trained",
        "run_started.loss_variant",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=10, warm_up=MEASURED_STEPS, persistence=5, clear_persistence=5)
    rising = (("clear", "fire", "critical"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="POL014",
            text="the learning rate is too high",
            weight=0.4,
            check="`update_ratio` rose together with the clip fraction",
        ),
        Cause(
            code="OFF001",
            text="samples are too old",
            weight=0.35,
            check="ratio moments widen with the staleness bucket",
        ),
        Cause(
            code="OFF004",
            text="sampler and learner disagree on the same weights",
            weight=0.25,
            check="the gap is there in the bucket of staleness 0, or in `weights_synced.probe_gap`",
        ),
    )

    fire: float = threshold(0.10, "Clip fraction that fires", high=1, unit="share of trained tokens")
    critical: float = threshold(0.30, "Clip fraction that is critical", high=1, unit="share of trained tokens")
    clear: float = threshold(0.07, "Clip fraction below which it resolves", high=1, unit="share of trained tokens")
    min_tokens: float = threshold(1000, "Trained tokens that a verdict needs", unit="tokens")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the pooled clip fraction with the limits."""
        if features.settings.loss_variant in OTHER_CLIPS:
            return not_evaluated("not_applicable", "the objective has no token-level clip")
        window = features.clips.window
        if len(window) < MEASURED_STEPS:
            return not_evaluated("warm_up", f"fewer than {MEASURED_STEPS} steps were seen")
        measured = [step for step in window if math.isfinite(step.low + step.high) and step.tokens > 0]
        if len(measured) < MEASURED_STEPS:
            silent = any(step.expected and math.isnan(step.low + step.high) for step in window)
            detail = "steps report no `clip_low_frac` and `clip_high_frac`"
            return not_evaluated("missing_input", detail) if silent else None
        tokens = sum(step.tokens for step in measured)
        if tokens < self.min_tokens:
            return None
        low = sum(step.low * step.tokens for step in measured) / tokens
        high = sum(step.high * step.tokens for step in measured) / tokens
        limit = self.clear if is_open else self.fire
        return self._finding(features.settings, measured, (low, high), limit) if low + high > limit else None

    def _finding(
        self, settings: Settings, measured: list[StepClips], sides: tuple[float, float], limit: float
    ) -> Finding:
        total = sum(sides)
        return Finding(
            severity="critical" if total > self.critical else "warning",
            summary=(
                f"{total:.1%} of trained tokens were clipped over steps {measured[0].step}-{measured[-1].step} "
                f"({sides[0]:.1%} low, {sides[1]:.1%} high)"
            ),
            evidence=(
                Evidence(
                    metric="step_completed.clip_low_frac + step_completed.clip_high_frac",
                    observed=total,
                    operator=">",
                    threshold=limit,
                    unit="share of trained tokens",
                    window=len(measured),
                    window_unit="steps",
                    n=len(measured),
                ),
            ),
            proposals=_answers(settings, self.clear),
        )


def _answers(settings: Settings, target: float) -> tuple[Proposal, ...]:
    verify = Verify(
        metric="step_completed.clip_low_frac + step_completed.clip_high_frac",
        operator="<",
        threshold=target,
        within=50,
        unit="steps",
    )
    rate = settings.knob("learning_rate")
    return ranked(
        None if rate is None else move(settings, "learning_rate", rate / 2, verify),
        fresher(settings, verify),
        look("compare-ratio-buckets", "compare the ratio moments of staleness 0 with those of the older buckets"),
    )
