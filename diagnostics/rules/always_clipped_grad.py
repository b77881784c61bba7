"""POL011: nearly every gradient is scaled down, and by a lot."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.movement import Clipping
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted


@dataclass(frozen=True, kw_only=True)
class AlwaysClippedGrad(Rule):
    """Nearly every gradient is scaled down to the clip, from several times its size.

    ## What it means
    The clip is meant for exceptions. Here it acts at nearly every update, so that all updates have the same norm and a
    step with much to learn counts no more than one with little.

    ## Why it matters
    AdamW divides by the size of the gradient anyway, so the harm is small: the clip no longer tells an outlier from an
    ordinary step, and would let one through that it was set to stop.

    ## How it is detected
    Over fifty updates with a gradient: more than `fire` of them exceeded the clip, and their median norm is more than
    `factor` times the clip. It resolves below `clear`. Information at most.

    ## Known false alarms
    Small clips are common and harmless: the embedded demo clips a quarter of its steps while it learns well. Norms
    grow with the number of parameters, so no norm is judged by itself.

    ## What to do
    Set `grad_clip` to about twice the median norm, or leave it and know that it is no guard any more.

    ## Sources
    Default clips of prime-rl and TRL (1.0); UnslothGRPO runs with norms of about five times the clip in the project's
    catalogue.
    """

    code = "POL011"
    name = "always-clipped-grad"
    title = "Nearly every gradient is clipped"
    kind = "efficiency"
    proof = "scenario"
    where = "learner"
    reads = ("step_completed.grad_norm", "step_completed.grad_clip")
    trigger = StepCompleted
    timing = Timing(unit="steps", window=50, warm_up=50, persistence=1, clear_persistence=10)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(text="`grad_clip` is far below the usual norm", weight=0.7, check="the norm is steady over the run"),
        Cause(
            code="RWD012",
            text="rewards out of scale make large gradients",
            weight=0.3,
            check="the norm rose with the extremes of the rewards",
        ),
    )

    fire: float = threshold(0.9, "Share of clipped updates above which it fires", high=1, unit="share of updates")
    clear: float = threshold(0.7, "Share below which it resolves", high=1, unit="share of updates")
    factor: float = threshold(5, "Median norm over the clip that makes it worth saying", low=1, unit="times")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Ask for the share first: the median is asked for only where it matters."""
        clipping = features.clipping
        if not clipping.seen:
            return not_evaluated("missing_input", "steps report no `grad_norm` or no `grad_clip`")
        if len(clipping.window) < Clipping.UPDATES:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} gradient norms were seen")
        share = clipping.share
        if share < self.clear or not (is_open or share > self.fire):
            return None
        middle = median(clipping.window)
        return self._finding(features.settings, share, middle) if is_open or middle > self.factor else None

    def _finding(self, settings: Settings, share: float, middle: float) -> Finding:
        return Finding(
            severity="info",
            summary=(
                f"{share:.0%} of {Clipping.UPDATES} gradients were clipped; the median is {middle:.1f} times the clip"
            ),
            evidence=(
                _evidence("share of step_completed.grad_norm > grad_clip", share, self.fire, "share of updates"),
                _evidence("step_completed.grad_norm / grad_clip", middle, self.factor, "times"),
            ),
            proposals=_answers(settings, middle),
        )


def _evidence(metric: str, observed: float, limit: float, unit: str) -> Evidence:
    return Evidence(
        metric=metric,
        observed=observed,
        operator=">" if observed > limit else "<=",
        threshold=limit,
        unit=unit,
        window=Clipping.UPDATES,
        window_unit="steps",
        n=Clipping.UPDATES,
    )


def _answers(settings: Settings, middle: float) -> tuple[Proposal, ...]:
    clip = settings.knob("grad_clip")
    verify = Verify(
        metric="step_completed.grad_norm / grad_clip", operator="<", threshold=1.0, within=100, unit="steps"
    )
    return ranked(
        None if clip is None else move(settings, "grad_clip", 2 * middle * clip, verify),
        look("inspect-norms", "look at how the norm went before it left the clip behind"),
    )
