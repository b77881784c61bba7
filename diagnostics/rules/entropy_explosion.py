"""POL002: entropy at a multiple of its beginning."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.witnesses import HALVED, reward_witness
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, Severity
from tocsin.schemas.step import StepCompleted

ENTROPY = "step_completed.entropy"


@dataclass(frozen=True, kw_only=True)
class EntropyExplosion(Rule):
    """Entropy grew to a multiple of its beginning, and the reward falls or the policy turns to noise.

    ## What it means
    The policy spreads its mass over more and more tokens. Training makes entropy fall; a policy whose entropy is
    several times that of its start has forgotten what it knew, or is paid for variety more than for being right.

    ## Why it matters
    Completions turn to noise, no longer end, and earn nothing; what the optimizer then learns from them is noise too.
    Past three times the beginning together with a lost reward, no run in the catalogue came back by itself.

    ## How it is detected
    Mean entropy per trained token over five steps against the median of steps six to ten, and above `floor` nats.
    From `fire` times on it is information, and a warning when the reward also fell below 0.8 of its best by three
    standard errors; critical from `critical` times on with a reward below half of its best. A warning from `alone`
    times on whatever the reward does, unless an entropy bonus is on, which somebody chose. It resolves below `clear`
    times. The beginning is that of the run: neither another bonus nor another learning rate moves it, only another
    temperature does.

    ## Known false alarms
    A bonus that is wanted raises entropy slowly and stays information while the reward holds. Where the beginning is
    close to zero a multiple means little, hence the floor. A mix of prompts that becomes harder raises it as well.

    ## What to do
    Set `entropy_coef` back to its launch value if it was raised; else halve `learning_rate`. If it began at a weight
    sync, look at the sync first. A policy that has dissolved needs an older checkpoint.

    ## Sources
    Defeating the training-inference mismatch (arXiv 2510.26788); VCPO (2602.17616); rllm#116, Search-R1#162,
    verl#2738; an entropy bonus of 1.0 planted in the embedded run (2.3 times when it fired, 6.4 at the end); measured
    on 77 labelled runs in the project's catalogue (three times the beginning with a lost reward: 5 of 8 collapses, 0 of
    25 healthy runs; five times alone: the same).
    """

    code = "POL002"
    name = "entropy-explosion"
    title = "Entropy multiplies and the policy dissolves"
    kind = "fault"
    proof = "injected"
    where = "learner"
    reads = ("step_completed.entropy", "batch_consumed.groups")
    trigger = StepCompleted
    timing = Timing(unit="steps", window=5, warm_up=10, persistence=3, clear_persistence=10)
    rising = (("clear", "fire", "critical", "alone"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="POL014",
            text="the learning rate is too high",
            weight=0.4,
            check="`update_ratio` rose before the entropy did",
        ),
        Cause(text="the entropy bonus is too strong", weight=0.2, check="`entropy_coef` was above 0 before the rise"),
        Cause(
            code="OFF010",
            text="weights do not arrive at the sampler",
            weight=0.2,
            check="the rise began at a sync whose probe does not agree",
        ),
        Cause(
            code="OFF004",
            text="sampler and learner compute differently",
            weight=0.2,
            check="the probe gap stays the same however far the learner moves",
        ),
    )

    fire: float = threshold(2, "Multiple of the beginning that fires", low=1, unit="times the beginning")
    critical: float = threshold(3, "Multiple that is critical with a lost reward", low=1, unit="times the beginning")
    alone: float = threshold(5, "Multiple that is a warning by itself", low=1, unit="times the beginning")
    clear: float = threshold(1.5, "Multiple below which it resolves", low=1, unit="times the beginning")
    floor: float = threshold(0.3, "Entropy at or below which it is not judged", unit="nats")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the level with the beginning."""
        entropy = features.entropy_rise
        if entropy.unmeasured >= self.timing.absent_after:
            return not_evaluated("missing_input", "steps that train tokens report no `entropy`")
        if math.isnan(entropy.initial):
            return not_evaluated("warm_up", "fewer than 10 steps with an entropy were seen")
        if not entropy.multiple >= (self.clear if is_open else self.fire) or entropy.level <= self.floor:
            return None
        return self._finding(features, entropy.multiple, entropy.level)

    def _finding(self, features: Features, multiple: float, level: float) -> Finding:
        reward = reward_witness(features.outcome)
        has_bonus = (features.settings.knob("entropy_coef") or 0) > 0
        share = features.outcome.share_of_best(features.outcome.fast())
        fell = "" if reward is None else f"; the reward fell to {share:.0%} of its best"
        limit = max(value for value in (self.clear, self.fire, self.critical, self.alone) if value <= multiple)
        return Finding(
            severity=self._severity(features, multiple, has_bonus=has_bonus),
            summary=f"Entropy is {level:.3g} nats, {multiple:.1f} times its beginning{fell}",
            evidence=(
                Evidence(
                    metric=ENTROPY,
                    observed=level,
                    operator=">=",
                    threshold=limit * features.entropy_rise.initial,
                    unit="nats",
                    window=self.timing.window,
                    window_unit="steps",
                    n=self.timing.window,
                    baseline=features.entropy_rise.initial,
                ),
                *(() if reward is None else (reward,)),
            ),
            proposals=self._answers(features.settings, features.entropy_rise.initial),
            causes=_bonus_first(self.causes) if has_bonus else None,
        )

    def _severity(self, features: Features, multiple: float, *, has_bonus: bool) -> Severity:
        if multiple >= self.critical and features.outcome.fell_below(HALVED, features.outcome.fast()):
            return "critical"
        has_fallen = multiple >= self.fire and reward_witness(features.outcome) is not None
        return "warning" if has_fallen or (multiple >= self.alone and not has_bonus) else "info"

    def _answers(self, settings: Settings, initial: float) -> tuple[Proposal, ...]:
        verify = Verify(metric=ENTROPY, operator="<", threshold=self.clear * initial, within=50, unit="steps")
        bonus, rate = settings.knob("entropy_coef") or 0.0, settings.knob("learning_rate")
        launched = settings.launched.get("entropy_coef", bonus)
        less = min(launched, bonus) if bonus > launched else bonus / 2
        return ranked(
            move(settings, "entropy_coef", less, verify) if bonus > 0 else None,
            None if rate is None else move(settings, "learning_rate", rate / 2, verify),
            look("resume-from-checkpoint", "stop, and resume from a checkpoint older than the rise"),
        )


def _bonus_first(causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """The causes with the bonus, which has no code, in front."""
    raised = [cause.model_copy(update={"weight": 0.6}) if cause.code is None else cause for cause in causes]
    return tuple(sorted(raised, key=lambda cause: -cause.weight))
