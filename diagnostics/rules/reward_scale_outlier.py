"""RWD012: a reward lies outside of what is possible, or far away from all others."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.prompt_stats import Extremes
from tocsin.diagnostics.proposals import look, measured, ranked
from tocsin.diagnostics.rewards import MARGIN, Rewards
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause

SEVERAL: Final = 3
"""Steps of the last ten with a reward far away from all others."""


@dataclass(frozen=True, kw_only=True)
class RewardScaleOutlier(Rule):
    """Rewards are out of scale: beyond the declared range, or many deviations away from the others.

    ## What it means
    A reward function returned a number that it cannot mean: a count instead of a share, a sentinel, an overflow.

    ## Why it matters
    The largest reward of a group takes the whole advantage: the one completion is reinforced and all others of its
    group are pushed away, however good they are. Means and baselines that hold it are useless for long.

    ## How it is detected
    Smallest and largest reward of each group. Where the task declares a range: one of them lies outside by more than a
    hundredth of it, which is critical at once. Without a declared range: distance from the median of the extremes of
    256 completions, in units of their median absolute deviation, above `distance` in three of ten steps; never judged
    while that deviation is zero, as it is with rewards of a few fixed values. Rewards that are not finite are not
    trained on and count as failures (GEN011). It resolves after 50 steps without such a reward.

    ## Known false alarms
    A declared range that is wrong. Without a declared range, honest rewards with a heavy tail.

    ## What to do
    Clip the value inside the reward function, or mend what it computes. Declare the range of every function, so that
    the first such value is found.

    ## Sources
    NeMo-RL#4158 and #4161 (a remainder in the spread that made a loss of -26); TRL's mask of unscorable rewards; robust
    distances after Iglewicz and Hoaglin (1993).
    """

    code = "RWD012"
    name = "reward-scale-outlier"
    title = "Rewards outside of what is possible"
    kind = "fault"
    proof = "injected"
    where = "rewards"
    reads = (
        "batch_consumed.groups.reward_min",
        "batch_consumed.groups.reward_max",
        "batch_consumed.reward_range",
    )
    trigger = BatchConsumed
    timing = Timing(
        unit="completions",
        window=Extremes.COMPLETIONS,
        warm_up=Extremes.COMPLETIONS,
        persistence=1,
        clear_persistence=50,
    )
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="a reward function returns a value of another scale for some completions",
            weight=0.7,
            check="call it with the completion of the largest reward",
        ),
        Cause(text="the declared range is wrong", weight=0.2, check="which values can the function return at all"),
        Cause(
            code="GEN011",
            text="a failing verifier answers with a sentinel",
            weight=0.1,
            check="it is always the same number",
        ),
    )

    distance: float = threshold(20, "Distance that counts where no range is declared", unit="deviations")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """The declared range where there is one, distances where there is none."""
        rewards = features.rewards
        if rewards.declared is not None:
            return self._outside(rewards) if rewards.outside else None
        extremes = features.extremes
        if not extremes.distances:
            detail = f"no declared range, and no spread among {Extremes.COMPLETIONS} completions to measure against"
            return not_evaluated("warm_up", detail)
        far = sum(distance > self.distance for distance in extremes.distances)
        is_far = extremes.distances[-1] > self.distance
        return self._far(extremes, far) if is_far and (is_open or far >= SEVERAL) else None

    def _outside(self, rewards: Rewards) -> Finding:
        assert rewards.declared is not None, "asked only where a range is declared"
        low, high = rewards.declared
        margin = MARGIN * (high - low)
        is_above = rewards.furthest > high
        return Finding(
            severity="critical",
            summary=(
                f"{rewards.outside} of {rewards.last.groups} groups of the last step have a reward outside of "
                f"{low:g} to {high:g}, the furthest is {rewards.furthest:.4g}"
            ),
            evidence=(
                measured(
                    "batch_consumed.groups.reward_max" if is_above else "batch_consumed.groups.reward_min",
                    rewards.furthest,
                    ">" if is_above else "<",
                    high + margin if is_above else low - margin,
                    unit="reward",
                    over=(max(1, rewards.last.groups), "groups"),
                ),
            ),
            proposals=_answers(),
        )

    def _far(self, extremes: Extremes, far: int) -> Finding:
        return Finding(
            severity="warning",
            summary=(
                f"A reward of {extremes.furthest:.4g} lies {extremes.distances[-1]:.3g} deviations from the median "
                f"{extremes.centre:.4g}; {far} of {len(extremes.distances)} steps had such a reward"
            ),
            evidence=(
                measured(
                    "distance of the furthest reward from the median",
                    extremes.distances[-1],
                    ">",
                    self.distance,
                    unit="deviations",
                    over=(Extremes.COMPLETIONS, "completions"),
                ),
            ),
            proposals=_answers(),
        )


def _answers() -> tuple[Proposal, ...]:
    return ranked(look("clip-reward", "clip the value inside the reward function, or mend what it computes"))
