"""POL006: the distance to the reference multiplies."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.reference import Reference
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.witnesses import HALVED, reward_witness
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, Severity
from tocsin.schemas.step import StepCompleted

KL = "step_completed.kl_ref"
LARGEST_BETA = 0.05
"""Weight of the penalty above which it dominates the reward in most published runs."""


@dataclass(frozen=True, kw_only=True)
class RefKlRunaway(Rule):
    """The policy leaves the reference much faster than before, and the reward pays for it.

    ## What it means
    The divergence between policy and reference, taken per token on the policy's own samples, is several times what it
    was over the last twenty steps. Training is meant to lead away from the reference, at a pace that the penalty
    allows; this is another pace.

    ## Why it matters
    What the reference knew and no reward asks for, such as language and format, is lost first. A run that left its
    reference and lost its reward rarely comes back by itself.

    ## How it is detected
    Each of the last three values of `kl_ref` is above `factor` times the median of the twenty before them, and above
    `floor` nats. Alone that is information, because growth is the point of training. A warning when the reward also
    fell below 0.8 of its best by three standard errors, or when `kl_ref` has been above two nats for `far` steps;
    critical when the reward fell below half of its best. It resolves when the last three values are below `clear` times
    the median before them and the reward is no longer below 0.8 of its best: a distance that stays where it is stands
    for no health while the reward is gone. The fault that proves this rule is not planted yet, so it is shown as info
    at most.

    ## Known false alarms
    The estimator is heavy-tailed, so that one token can carry a step; three in a row are asked for. The first steps
    start from zero and grow by large factors, hence the floor. Without a reference (`kl_beta` was 0 at launch) nothing
    is judged.

    ## What to do
    Halve `learning_rate`. Double `kl_beta` while it is small. If the reward is gone, resume from a checkpoint older
    than the rise.

    ## Sources
    ProRL (arXiv 2505.24864); Schulman's note on approximating KL divergence; open-r1#257, tinker-cookbook#822,
    verl#1051; measured on 31 healthy runs in the project's catalogue (five times the median, three of three: 2 of
    them, hence the second witness; one step above 0.5: 8 of them).
    """

    code = "POL006"
    name = "ref-kl-runaway"
    title = "The policy runs away from the reference"
    kind = "fault"
    proof = "scenario"
    where = "learner"
    reads = ("step_completed.kl_ref", "batch_consumed.groups")
    trigger = StepCompleted
    timing = Timing(unit="steps", window=3, warm_up=23, persistence=1, clear_persistence=5)
    rising = (("clear", "factor"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="POL014",
            text="the learning rate is too high",
            weight=0.6,
            check="`update_ratio` rose before `kl_ref` did",
        ),
        Cause(
            code="POL007",
            text="the reference is a wrong model",
            weight=0.2,
            check="`kl_ref` was above 0 at the first step already",
        ),
        Cause(
            code="OFF004",
            text="sampler and learner compute differently, so that updates are biased",
            weight=0.2,
            check="`weights_synced.probe_gap` is above its tolerance",
        ),
    )

    factor: float = threshold(5, "Multiple of the median before", low=1, unit="times")
    clear: float = threshold(2, "Multiple below which it resolves", low=1, unit="times")
    floor: float = threshold(0.05, "Distance that each of the three must exceed", unit="nats")
    far: float = threshold(10, "Steps above two nats that count by themselves", low=1, unit="steps")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the last three values with those before."""
        reference = features.reference
        if reference.is_absent:
            return not_evaluated("not_applicable", "the run has no reference model: `kl_beta` was 0 at launch")
        if reference.unmeasured >= self.timing.absent_after or not reference.recent:
            return not_evaluated("missing_input", "steps report no `kl_ref`")
        if len(reference.before) < Reference.BEFORE:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} steps with `kl_ref` were seen")
        least = min(reference.recent)
        is_far = reference.far >= self.far
        if least <= self.floor and not is_open:
            return None
        usual = median(reference.before)
        is_rising = least > (self.clear if is_open else self.factor) * usual and least > self.floor
        if not (is_rising or is_far or (is_open and reward_witness(features.outcome))):
            return None
        return self._finding(features, usual, is_far=is_far)

    def _finding(self, features: Features, usual: float, *, is_far: bool) -> Finding:
        reference, outcome = features.reference, features.outcome
        reward, newest = reward_witness(outcome), reference.recent[-1]
        severity: Severity = "warning" if reward is not None or is_far else "info"
        if outcome.fell_below(HALVED, outcome.fast()):
            severity = "critical"
        fell = "" if reward is None else f"; the reward fell to {outcome.share_of_best(outcome.fast()):.0%} of its best"
        limit = max(self.floor, self.factor * usual)
        return Finding(
            severity=severity,
            summary=f"KL to the reference is {newest:.3g} nats, against {usual:.3g} in the 20 steps before{fell}",
            evidence=(
                Evidence(
                    metric=KL,
                    observed=newest,
                    operator=">" if newest > limit else "<=",
                    threshold=limit,
                    unit="nats",
                    window=len(reference.recent),
                    window_unit="steps",
                    n=len(reference.recent),
                    baseline=usual,
                ),
                *(() if reward is None else (reward,)),
            ),
            proposals=self._answers(features.settings, usual),
        )

    def _answers(self, settings: Settings, usual: float) -> tuple[Proposal, ...]:
        target = max(self.floor, self.clear * usual)
        verify = Verify(metric=KL, operator="<", threshold=target, within=50, unit="steps")
        rate, beta = settings.knob("learning_rate"), settings.knob("kl_beta") or 0.0
        return ranked(
            None if rate is None else move(settings, "learning_rate", rate / 2, verify),
            move(settings, "kl_beta", min(2 * beta, LARGEST_BETA), verify) if 0 < beta < LARGEST_BETA else None,
            look("resume-from-checkpoint", "stop, and resume from a checkpoint older than the rise"),
        )
