"""RWD013: the spread of many groups is tiny, and dividing by it makes full-size advantages of noise."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.prompt_stats import GROUPS, TINY, KindWindow
from tocsin.diagnostics.proposals import look, measured, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause


@dataclass(frozen=True, kw_only=True)
class TinyStdAdvantage(Rule):
    """Many groups differ by next to nothing, and the normalisation blows the difference up to full size.

    ## What it means
    Advantages are divided by the standard deviation of their group. Rewards that differ in the third digit then weigh
    as much as right and wrong. Such differences are noise: floats that do not add up, a judge that is not
    deterministic, a length penalty nobody can see.

    ## Why it matters
    Groups that all pass or all fail should teach nothing. With noise they push the policy in random directions at full
    strength, and they hide from RWD001, because their spread is not zero.

    ## How it is detected
    Among the groups with reward spread, over at least 64 groups: the share whose standard deviation is below a
    hundredth of the reward range is at least `fire`. The range is the declared one, or else the one seen. Only where
    advantages are divided by the standard deviation. The size of an advantage itself proves nothing: it is at most
    sqrt(G - 1) by construction. It resolves below `clear`.

    ## Known false alarms
    A continuous reward whose useful differences are that small in a wide declared range: declare the range that occurs.

    ## What to do
    Round the reward, or raise `loss.zero_spread_tolerance` to ten times the noise at the next start. Without scaling
    of the advantages the question does not arise.

    ## Sources
    Dr. GRPO (arXiv 2503.20783); Lite PPO (2508.08221); NeMo-RL#1518 and #4158; the bound on standardised values by
    Samuelson (1968).
    """

    code = "RWD013"
    name = "tiny-std-advantage"
    title = "Full-size advantages made of a tiny spread"
    kind = "fault"
    proof = "injected"
    where = "trainer"
    reads = ("batch_consumed.groups.reward_std", "batch_consumed.reward_range", "run_started.setup")
    trigger = BatchConsumed
    timing = Timing(unit="groups", window=GROUPS, warm_up=GROUPS, persistence=3, clear_persistence=10)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the reward carries noise, from floats or from a judge",
            weight=0.6,
            check="score one completion twice and compare all digits",
        ),
        Cause(text="a side reward is very small", weight=0.3, check="the spread of each function within groups"),
        Cause(
            code="RWD012",
            text="one reward out of scale widened the range that was seen",
            weight=0.1,
            check="the extremes of the groups",
        ),
    )

    fire: float = threshold(0.25, "Share of groups with a tiny spread that fires", high=1, unit="share of groups")
    clear: float = threshold(0.1, "Share below which it resolves", high=1, unit="share of groups")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the groups with a tiny spread with all that have one."""
        setup = features.settings.setup
        if setup.scale_advantages is False:
            return not_evaluated("not_applicable", "advantages are not divided by the standard deviation")
        if setup.scale_advantages is None:
            return not_evaluated("missing_input", "the run does not state whether advantages are scaled")
        window = features.rewards.kinds
        kinds = window.sums
        if kinds.groups < GROUPS:
            return not_evaluated("warm_up", f"fewer than {GROUPS} groups with two completions were seen")
        if kinds.spread < 8 or kinds.tiny < (self.clear if is_open else self.fire) * kinds.spread:
            return None
        return self._finding(window, setup.zero_spread_tolerance)

    def _finding(self, window: KindWindow, tolerance: float | None) -> Finding:
        kinds = window.sums
        share = kinds.tiny / kinds.spread
        now = "" if tolerance is None else f", now {tolerance:g}"
        return Finding(
            severity="warning",
            summary=(
                f"{kinds.tiny} of {kinds.spread} groups with reward spread since step {window.first_step} have a "
                f"standard deviation below {TINY:.0%} of the range"
            ),
            evidence=(
                measured(
                    "batch_consumed.groups.reward_std",
                    share,
                    ">=",
                    self.fire if share >= self.fire else self.clear,
                    unit="share of groups with spread",
                    over=(kinds.spread, "groups"),
                ),
                measured(
                    "tokens of these groups",
                    float(kinds.tiny_tokens),
                    ">",
                    0.0,
                    unit="tokens",
                    over=(kinds.groups, "groups"),
                ),
            ),
            proposals=ranked(
                look(
                    "raise-tolerance",
                    f"raise loss.zero_spread_tolerance to ten times the noise{now}, at the next start",
                ),
                look("round-reward", "round the reward to the digits that mean something"),
            ),
        )
