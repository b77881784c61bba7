"""GEN009: a side reward rises while the pass rate falls."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.components import Components, Trend
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, measured, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.side_rewards import no_side_reward
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause


@dataclass(frozen=True, kw_only=True)
class FormatGaming(Rule):
    """Completions look better and better by a side reward, and fewer of them are right.

    ## What it means
    The policy has traded the task for the form. RWD011 says who makes the advantages; this is what comes of it.

    ## Why it matters
    The total reward still rises, so nothing but the pass rate shows that the run goes backwards.

    ## How it is detected
    The two halves of the last 50 steps side by side: the mean of a function that does not decide what a pass is rose by
    at least `rise` of its range, declared or else seen, while the pass rate fell by more than two standard errors, each
    group counted as one observation. It resolves when the pass rate has made up half of its fall.

    ## Known false alarms
    Form first, content later: a fall of the pass rate in the first steps of a run is not seen, because the trend needs
    50. A switch to harder prompts together with a side reward that is still being learned.

    ## What to do
    Lower the weight of the side reward or let it count only where a completion passes; go back to a checkpoint from
    before the fall.

    ## Sources
    open-r1#255; Spurious Rewards (arXiv 2506.10947) on gains without a true signal.
    """

    code = "GEN009"
    name = "format-gaming"
    title = "Form is rewarded and content is not"
    kind = "fault"
    proof = "injected"
    where = "rewards"
    reads = ("batch_consumed.components", "batch_consumed.pass_rate", "run_started.setup")
    trigger = BatchConsumed
    timing = Timing(
        unit="steps", window=Components.TREND, warm_up=Components.TREND, persistence=5, clear_persistence=10
    )
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="RWD011",
            text="a side reward makes most of the advantages",
            weight=0.5,
            check="its share of the variance within groups",
        ),
        Cause(
            code="RWD004",
            text="groups without a right answer decide what is learned",
            weight=0.2,
            check="the share of groups with spread and without a pass",
        ),
        Cause(
            code="RWD010",
            text="the function that should decide always answers the same",
            weight=0.2,
            check="its smallest and its largest value",
        ),
        Cause(text="the policy forgets for another reason", weight=0.1, check="what else fired before"),
    )

    rise: float = threshold(0.2, "Rise of a side reward that fires", high=1, unit="share of its range")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the halves; while open, wait for the pass rate to come back."""
        components = features.components
        missing = no_side_reward(components)
        if missing is not None:
            return missing
        trend = components.trend
        if trend is None:
            return not_evaluated("warm_up", f"fewer than {Components.TREND} steps with a pass rate were seen")
        if is_open:
            is_back = trend.passes.now >= (components.peak + components.trough) / 2
            return None if is_back else self._finding(components, trend)
        if not trend.passes.by < -2 * trend.error:
            return None
        return self._finding(components, trend) if _risen(components, trend)[1] >= self.rise else None

    def _finding(self, components: Components, trend: Trend) -> Finding:
        label, rise = _risen(components, trend)
        return Finding(
            severity="warning",
            summary=(
                f"Over {Components.TREND} steps {label[:40]} rose by {rise:.0%} of its range and the pass rate went "
                f"from {trend.passes.before:.3f} to {trend.passes.now:.3f}"
            ),
            evidence=(
                measured(
                    f"change of batch_consumed.components.{label}",
                    rise,
                    ">=" if rise >= self.rise else "<",
                    self.rise,
                    unit="share of its range",
                    over=(Components.TREND, "steps"),
                ),
                measured(
                    "change of batch_consumed.pass_rate",
                    trend.passes.by,
                    "<" if trend.passes.by < -2 * trend.error else ">=",
                    -2 * trend.error,
                    unit="share of completions",
                    over=(trend.groups, "groups"),
                ),
            ),
            proposals=ranked(look("gate-side-reward", f"let {label[:40]} count only where a completion passes")),
        )


def _risen(components: Components, trend: Trend) -> tuple[str, float]:
    """The side reward that rose most, and by how much of its range."""
    rises = {}
    for label in components.side:
        reach = components.reach(label)
        if label in trend.means and reach > 0:
            rises[label] = trend.means[label].by / reach
    return max(rises.items(), key=lambda item: item[1]) if rises else (components.side[0], 0.0)
