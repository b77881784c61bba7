"""RWD011: a reward function that does not decide what a pass is makes most of the advantages."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.components import Components, Trend
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.prompt_stats import GROUPS
from tocsin.diagnostics.proposals import look, measured, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.side_rewards import no_side_reward
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Severity


@dataclass(frozen=True, kw_only=True)
class RewardComponentDominance(Rule):
    """Side rewards make most of the variance within groups, the policy follows them and the pass rate does not rise.

    ## What it means
    Advantages are differences of the total reward within a group. A side reward with the largest spread decides them,
    whatever its mean: the policy is trained on it.

    ## Why it matters
    The policy learns what the side reward counts. The total goes up and the task does not.

    ## How it is detected
    Three together. The weighted variance within groups of the functions that do not decide what a pass is has at least
    `fire` of the whole, pooled over at least 64 groups. The policy follows them: between the two halves of the last 50
    steps the mean reward, or the weighted sum of the side rewards, rose by more than `moved` of the reward's range, the
    declared one or else the one seen; or the pass rate fell by three standard errors and the side rewards made up for
    at least half of what that cost. The pass rate did not rise between them by two. Critical from `critical`. Not
    judged in the first 50 steps, and not where the pass rate is at least `solved`: what is solved has no spread, and
    something else then has the largest. It resolves below `clear`, or when the pass rate rises.

    ## Known false alarms
    Dominance alone is no exploitation, which is why the other two are asked for. A function that decides what a pass is
    and stops working leaves the side rewards all of the variance: the mean reward falls then, and this is silent.
    Functions that move together have a share that says little. Form is learned first in many runs.

    ## What to do
    Halve the weight of the side reward, or let it count only where a completion passes. Normalise the functions one by
    one before they are added.

    ## Sources
    The project's catalogue has this as info and as a warning; with `proxy-reward` of the benchmark the pass rate went
    from 0.9 to 0.02 within 18 steps, so the gravest form is critical here. GDPO (arXiv 2601.05242); rewardspy's 0.75
    and 0.9, and public traces on which they were false alarms without the second and third condition; open-r1#255
    (accuracy from 0.16 to 0.06 while format rose from 0.48 to 0.86).
    """

    code = "RWD011"
    name = "reward-component-dominance"
    title = "A side reward decides the advantages"
    kind = "fault"
    proof = "injected"
    where = "rewards"
    reads = (
        "batch_consumed.component_stats",
        "batch_consumed.reward_mean",
        "batch_consumed.pass_rate",
        "run_started.setup",
    )
    trigger = BatchConsumed
    timing = Timing(unit="groups", window=GROUPS, warm_up=GROUPS, persistence=5, clear_persistence=10)
    rising = (("clear", "fire", "critical"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(text="the weight of a side reward is too large", weight=0.6, check="weights times spread, by function"),
        Cause(
            text="the policy has found out how to satisfy the side reward",
            weight=0.3,
            check="read completions with the highest side reward",
        ),
        Cause(
            code="RWD002",
            text="nothing passes, so that nothing else differs",
            weight=0.1,
            check="the share of failed groups",
        ),
    )

    fire: float = threshold(0.75, "Share of the variance that fires", high=1, unit="share of variance")
    clear: float = threshold(0.6, "Share of the variance below which it resolves", high=1, unit="share of variance")
    critical: float = threshold(0.95, "Share of the variance that is critical", high=1, unit="share of variance")
    moved: float = threshold(
        0.05, "Change of the mean reward that counts as moving", high=1, unit="share of the reward's range"
    )
    solved: float = threshold(0.9, "Pass rate from which it is not judged", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the variances, then ask where reward and pass rate went."""
        components = features.components
        missing = no_side_reward(components)
        if missing is not None:
            return missing
        trend = components.trend
        if trend is None:
            return not_evaluated("warm_up", f"fewer than {Components.TREND} steps with a pass rate were seen")
        share = sum(components.share(label) for label in components.side)
        # Without any variance the share is NaN, which passes no comparison.
        if not share >= (self.clear if is_open else self.fire):
            return None
        if trend.passes.by > 2 * trend.error or trend.passes.now >= self.solved:
            return None
        low, high = features.rewards.span
        side = sum(components.functions[label].weight * trend.means[label].by for label in _scored(components, trend))
        moved = max(trend.reward.by, side) / (high - low) if high > low else 0.0
        is_traded = trend.passes.by < -3 * trend.error and side > 0 and side >= (side - trend.reward.by) / 2
        if not (is_open or is_traded or moved > self.moved):
            return None
        return self._finding(components, trend, share, moved)

    def _finding(self, components: Components, trend: Trend, share: float, moved: float) -> Finding:
        largest = max(components.side, key=components.share)
        severity: Severity = "critical" if share >= self.critical else "warning"
        return Finding(
            severity=severity,
            summary=(
                f"Side rewards make {share:.0%} of the variance within groups, {largest[:30]} most of it; the reward "
                f"moved by {trend.reward.by:+.3g}, the pass rate by {trend.passes.by:+.3f}"
            ),
            evidence=(
                measured(
                    "weighted variance within groups of side rewards",
                    share,
                    ">=",
                    self.fire if share >= self.fire else self.clear,
                    unit="share of variance",
                    over=(components.groups, "groups"),
                ),
                measured(
                    "change of batch_consumed.reward_mean or of its side rewards",
                    moved,
                    ">" if moved > self.moved else "<=",
                    self.moved,
                    unit="share of the reward's range",
                    over=(Components.TREND, "steps"),
                ),
                measured(
                    "change of batch_consumed.pass_rate",
                    trend.passes.by,
                    "<=",
                    2 * trend.error,
                    unit="share of completions",
                    over=(trend.groups, "groups"),
                ),
            ),
            proposals=ranked(look("halve-side-weight", f"halve the weight of {largest[:40]}, or gate it on a pass")),
        )


def _scored(components: Components, trend: Trend) -> list[str]:
    """Side rewards that scored in both halves."""
    return [label for label in components.side if label in trend.means]
