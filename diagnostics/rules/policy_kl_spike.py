"""POL008: single updates that move the policy further than it may go at once."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.origins import is_noisy
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.ratios import PolicySteps
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.witnesses import reward_witness
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, NotEvaluated
from tocsin.schemas.step import StepCompleted

K3 = "k3 of step_completed.ratio"


@dataclass(frozen=True, kw_only=True)
class PolicyKlSpike(Rule):
    """The policy moves many times further in a few updates than in the others.

    ## What it means
    The divergence between the learner and the weights that sampled the youngest older tokens is what the updates
    between the two did. In some updates it is a multiple of the usual, and large by itself.

    ## Why it matters
    The data of a step describe the policy near where it was. An update that leaves that region follows an
    extrapolation; a few of them are enough to lose what was learned.

    ## How it is detected
    k3 of the youngest tokens that are older than the weights, less that of tokens of the present weights, per update
    with at least 128 such tokens. An update counts when it exceeds `fire` and `factor` times the median of up to a
    hundred updates. One in the last thirty is information; `spikes` are a warning once thirty updates say what is
    usual, and so is one, at any time, when the reward fell below 0.8 of its best by three standard errors. It resolves
    when none of thirty exceeds `clear`.

    ## Known false alarms
    k3 is heavy-tailed, hence the tokens asked for. Healthy runs of the embedded demo reach 0.02 nats, so that the usual
    limits for a step of PPO (0.02 to 0.05) are inside of what is healthy. The first updates after a warm-up of the
    learning rate go further than those before and after them, and losses without a clip (CISPO) go furthest. With
    `max_staleness` 0 no token is older than the weights, and nothing is judged. Noise in the log-probs of one side has
    a high k3 as well: it lifts the mean ratio above one, and then OFF004 is asked instead. A low value proves nothing:
    it was 6e-4 in a run that collapsed.

    ## What to do
    Look at what the updates before the spikes had in common: rate, norm, rewards. Halve `learning_rate`, or `grad_clip`
    where the norms of those updates were large.

    ## Sources
    The early stop of PPO implementations at 0.015 to 0.075; verl#1051; runs in the project's catalogue.
    """

    code = "POL008"
    name = "policy-kl-spike"
    title = "One update moves the policy too far"
    kind = "fault"
    proof = "injected"
    where = "learner"
    reads = ("step_completed.ratio", "batch_consumed.groups")
    trigger = StepCompleted
    timing = Timing(unit="steps", window=30, warm_up=1, persistence=1, clear_persistence=1)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="POL014",
            text="the learning rate is too high, now and then or always",
            weight=0.6,
            check="`update_ratio` of the update before the spike is larger than usual",
        ),
        Cause(
            code="OFF001",
            text="data became older",
            weight=0.2,
            check="the staleness of the youngest older tokens rose with the spikes",
        ),
        Cause(
            code="RWD013",
            text="full advantages were made of a tiny spread",
            weight=0.2,
            check="`reward_std` of the batch before the spike is far below the usual",
        ),
    )

    fire: float = threshold(0.1, "Divergence of one update that counts", unit="nats")
    factor: float = threshold(10, "Multiple of the median that it must also exceed", low=1, unit="times")
    spikes: float = threshold(2, "Updates among the last thirty that make it a warning", low=1, high=30, unit="steps")
    clear: float = threshold(0.05, "Divergence that no update of thirty exceeds when it resolves", unit="nats")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Look at the largest first."""
        steps = features.policy_steps
        if (unanswered := self._unanswered(features)) is not None:
            return unanswered
        if steps.largest <= (self.clear if is_open else self.fire):
            return None
        if not is_open and is_noisy(features.ratios.pooled):
            return None  # noise in the log-probs of one side is no movement
        usual = median(steps.before)
        limit = max(self.fire, self.factor * usual)
        found = sum(k3 > limit for k3, _ in steps.window)
        return self._finding(features, found, limit) if found or is_open else None

    def _unanswered(self, features: Features) -> NotEvaluated | None:
        steps = features.policy_steps
        if not steps.has_older:
            if features.settings.knob("max_staleness") == 0:
                return not_evaluated("not_applicable", "no data are older than the weights: `max_staleness` is 0")
            if features.ratios.unmeasured:
                return not_evaluated("missing_input", "steps report no `ratio`")
            return not_evaluated("warm_up", "no tokens of older weights were trained on yet")
        if steps.unmeasured >= self.timing.absent_after or (steps.unmeasured and not steps.window):
            return not_evaluated("missing_input", "`step_completed.ratio` has no `k3`")
        return None

    def _finding(self, features: Features, found: int, limit: float) -> Finding:
        steps, reward = features.policy_steps, reward_witness(features.outcome)
        has_harmed = found > 0 and reward is not None
        is_usual_known = len(steps.before) >= PolicySteps.UPDATES
        largest, tokens = max(steps.window)
        return Finding(
            severity="warning" if has_harmed or (found >= self.spikes and is_usual_known) else "info",
            summary=(
                f"{found} of the last {len(steps.window)} updates moved the policy by more than {limit:.2g} nats "
                f"(largest {largest:.3g})"
            ),
            evidence=(
                Evidence(
                    metric=K3,
                    observed=largest,
                    operator=">" if largest > limit else "<=",
                    threshold=limit,
                    unit="nats",
                    window=len(steps.window),
                    window_unit="steps",
                    n=tokens,
                    baseline=median(steps.before),
                ),
                *(() if reward is None else (reward,)),
            ),
            proposals=self._answers(features.settings),
        )

    def _answers(self, settings: Settings) -> tuple[Proposal, ...]:
        rate, clip = settings.knob("learning_rate"), settings.knob("grad_clip")
        verify = Verify(
            metric="step_completed.logprob_gap.k3", operator="<", threshold=self.clear, within=40, unit="steps"
        )
        return ranked(
            None if rate is None else move(settings, "learning_rate", rate / 2, verify),
            None if clip is None else move(settings, "grad_clip", clip / 2, verify),
            look("inspect-updates", "look at rate, gradient norm and rewards of the updates before the spikes"),
        )
