"""POL001: the policy became deterministic before it became good."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rewards import Totals, excess_limit
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

ENTROPY = "step_completed.entropy"


@dataclass(frozen=True, kw_only=True)
class EntropyCollapse(Rule):
    """Entropy fell to a fraction of its beginning, reward spread went with it, and the pass rate is not at its ceiling.

    ## What it means
    The policy answers each prompt in one way only, right or wrong. Completions of a group are then alike, their rewards
    too, and there is nothing left to compare.

    ## Why it matters
    GRPO learns from differences within a group. A policy without entropy cannot find what it does not already do, so
    prompts that it fails stay failed.

    ## How it is detected
    Three signs together, over ten steps. Mean entropy per trained token is below `fire` of its own beginning (median of
    five steps after the first five). The share of groups without reward spread exceeds, by three standard errors, what
    a natural spread of difficulty explains at this pass rate. The pass rate is below `ceiling`: entropy falls by nine
    tenths in any run that succeeds, and that is what success looks like. A warning, critical below `critical`; it
    resolves above `clear`, or when one of the other signs goes. No absolute entropy is judged: it depends on
    the model. The fault that proves this rule is not planted yet, so it is shown as info at most.

    ## Known false alarms
    Most of the fall happens early in good runs too, so entropy alone is never a finding. Entropy is taken over trained
    tokens: when groups without spread are skipped, only the others are in it, and a
    step that trains none leaves the level as it was. A filter such as top-p hides part of it.
    A change of temperature or of the bonus moves it; its beginning is then measured anew.

    ## What to do
    Raise `clip_high` up to 0.28, which lets unlikely tokens gain; add a small entropy bonus; lower the learning rate.
    Raising the temperature brings spread back for as long as it is raised. Prompts that the policy already solves add
    to the fall: leave them out.

    ## Sources
    DAPO (arXiv 2503.14476); entropy mechanism (2505.22617); Skywork-OR1 (2505.22312); ProRL (2505.24864); measured on
    77 labelled runs in the project's catalogue (entropy below half of its beginning: 13 of 25 healthy runs).
    """

    code = "POL001"
    name = "entropy-collapse"
    title = "Entropy collapse"
    kind = "fault"
    proof = "scenario"
    where = "learner"
    reads = ("step_completed.entropy", "batch_consumed.groups", "batch_consumed.pass_rate")
    trigger = StepCompleted
    timing = Timing(unit="steps", window=10, warm_up=20, persistence=10, clear_persistence=5)
    rising = (("critical", "fire", "clear"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="POL014",
            text="the learning rate is too high",
            weight=0.4,
            check="`update_ratio` rose before the entropy fell",
        ),
        Cause(
            code="RWD003",
            text="most prompts are solved and teach nothing but certainty",
            weight=0.3,
            check="all-pass groups dominate",
        ),
        Cause(
            code="POL003",
            text="the upper clip keeps unlikely tokens down",
            weight=0.3,
            check="`clip_high_frac` is far above `clip_low_frac`",
        ),
    )

    fire: float = threshold(0.2, "Share of the initial entropy that fires", high=1, unit="share of the beginning")
    critical: float = threshold(0.1, "Share that is critical", high=1, unit="share of the beginning")
    clear: float = threshold(0.3, "Share from which it resolves", high=1, unit="share of the beginning")
    ceiling: float = threshold(0.9, "Pass rate from which it is not judged", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Ask for all three signs."""
        entropy, totals = features.entropy, features.rewards.totals
        if entropy.unmeasured >= self.timing.absent_after:
            return not_evaluated("missing_input", "steps that train tokens report no `entropy`")
        if math.isnan(entropy.initial) or math.isnan(entropy.level) or features.settings.step < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} steps with an entropy were seen")
        if totals.groups < 64:
            return not_evaluated("warm_up", "fewer than 64 groups with two completions were seen")
        if entropy.initial <= 0 or totals.pass_rate >= self.ceiling:
            return None
        share, limit = entropy.level / entropy.initial, excess_limit(totals)
        has_lost_spread = totals.zero_share >= limit
        is_low = share < (self.clear if is_open else self.fire)
        return self._finding(features, totals, share, limit) if is_low and has_lost_spread else None

    def _finding(self, features: Features, totals: Totals, share: float, limit: float) -> Finding:
        entropy = features.entropy
        return Finding(
            severity="critical" if share < self.critical else "warning",
            summary=(
                f"Entropy is {entropy.level:.3g} nats, {share:.0%} of its beginning; {totals.zero} of {totals.groups} "
                f"groups have no spread at pass rate {totals.pass_rate:.2f}"
            ),
            evidence=(
                Evidence(
                    metric=ENTROPY,
                    observed=entropy.level,
                    operator="<",
                    threshold=(self.fire if share < self.fire else self.clear) * entropy.initial,
                    unit="nats",
                    window=len(entropy.recent),
                    window_unit="steps",
                    n=len(entropy.recent),
                    baseline=entropy.initial,
                ),
                Evidence(
                    metric="batch_consumed.groups.zero_spread",
                    observed=totals.zero_share,
                    operator=">=",
                    threshold=limit,
                    unit="share of groups",
                    window=totals.groups,
                    window_unit="groups",
                    n=totals.groups,
                ),
            ),
            proposals=self._answers(features),
        )

    def _answers(self, features: Features) -> tuple[Proposal, ...]:
        settings, target = features.settings, self.clear * features.entropy.initial
        verify = Verify(metric=ENTROPY, operator=">=", threshold=target, within=100, unit="steps")
        high, rate = settings.knob("clip_high"), settings.knob("learning_rate")
        return ranked(
            None if high is None or high >= 0.28 else move(settings, "clip_high", 0.28, verify),
            None if rate is None else move(settings, "learning_rate", rate / 2, verify),
            look("compare-completions", "compare completions of one group: are they copies of each other"),
        )
