"""RWD001: groups whose completions all got the same reward, beyond what the pass rate explains."""

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.knob_patch import patch
from tocsin.diagnostics.rewards import SETTLED, Position, Rewards, Totals, excess_limit, expected_share
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.streaks import is_sudden
from tocsin.schemas.actions import Verify
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence, Severity

ONE_VALUE: Final = "the reward function returns one value for everything"
AMBIGUOUS: Final[dict[Position, dict[str, float]]] = {
    "top": {ONE_VALUE: 0.5, "RWD003": 0.4},
    "floor": {ONE_VALUE: 0.5, "RWD002": 0.4},
    "other": {ONE_VALUE: 0.9},
}
"""Weights of the causes of a constant reward by where it lies: either end is where honest rewards can be, too."""
CUT: Final = 0.3
"""Share of truncated completions in failed groups that puts the length limit in front."""
COPIED: Final = 0.9
"""Share of groups of copies that puts the sampler in front."""
LOST: Final = 0.01
"""Share of completions that could not be scored which makes the verifier a suspect."""


@dataclass(frozen=True, kw_only=True)
class ZeroStdGroups(Rule):
    """Groups have no reward spread, far beyond what the pass rate and the spread of difficulty explain.

    ## What it means
    GRPO learns from differences of reward within a group of completions of one prompt. Where all completions get
    the same reward, every advantage is zero and the group teaches nothing. Two forms are told apart: a *constant*
    reward, where whole stretches of groups got one and the same value, and an *excess*, where some groups still
    differ but far fewer than they should at this pass rate.

    ## Why it matters
    The useful share is 1 - z, so a share z of 0.75 makes every learning step four times as expensive, and at 1 the
    run only burns tokens. The share of collapsed groups early in a run predicts its final score.

    ## How it is detected
    Share z of groups with max - min within the tolerance, pooled over at least 128 groups of whole steps and taken
    before any filtering. Groups with fewer than two scored completions are left out.

    *Constant*: at least `constant_groups` groups in a row with one same reward. Below the top of the range there is
    nothing to learn from in any reading, so it fires, as critical. At the top it may be a learner that has arrived.
    There the streak must be impossible as learning: with the share of groups that ended otherwise in the 128 groups
    before (lower confidence bound), cut to a quarter for what may have been learned, its probability must be below
    one in a million, and that share must surely have been a tenth or more. Without a past to compare with it stays
    at info.

    *Excess*: z must reach `fire` and exceed, by three standard errors, the share expected when difficulty is as
    polarised as a Beta distribution of concentration 0.5 at the pooled pass rate. The bound p^G + (1 - p)^G alone is
    not enough, because z is convex in p: any spread of difficulty lifts z above it. The pass rate is that of the
    highest reward, so the limit holds for partial credit too. Never judged when the pass rate reaches `ceiling` or
    when half of the groups pass as a whole, because a run at its ceiling has z near 1 and nothing wrong.

    *Floor*: z at least `floor_share`, groups of at least four, and a mean reward within `floor_level` of the lowest.

    Causes are ranked by what the groups are: all-pass, all-fail or neither, cut off, copies, or not to be scored.

    It clears when z falls below `clear`, or when the run is at its ceiling without a streak.

    ## Known false alarms
    A switch to prompts that are all solved at once looks exactly like a reward function that went to its maximum: a
    warning. A run that starts on a solved task shows at info. A hard task before the first success shows as floor: no
    signal is no signal, but patience may be the answer. A constant reward at the top that sets in when over 85 % of
    groups already passed cannot be told from success and stays silent; look at the held-out score.

    ## What to do
    Constant: read what the reward function returns for a good and for a bad completion. Excess: look at the shares
    of all-pass and all-fail groups; raise `group_size` while it is small, and drop prompts that are always or never
    solved. Skipping such groups saves compute and does not repair the signal.

    ## Sources
    Dynamic sampling in DAPO (arXiv 2503.14476); early collapse and final score over 245 configurations (arXiv
    2605.21125); prompts dropped at pass rate 0.9 in ScaleRL (arXiv 2510.13786); prime-rl's stop after consecutive
    batches without signal; trl#3857 on standard deviations that mean something else.
    """

    code = "RWD001"
    name = "zero-std-groups"
    title = "Groups without reward spread"
    kind = "fault"
    proof = "injected"
    where = "trainer"
    reads = (
        "batch_consumed.groups",
        "batch_consumed.pass_rate",
        "batch_consumed.reward_range",
    )
    trigger = BatchConsumed
    timing = Timing(unit="groups", window=128, warm_up=64, persistence=3, clear_persistence=5)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(text=ONE_VALUE, weight=0.5, check="score a right and a wrong answer by hand and compare"),
        Cause(
            code="RWD002",
            text="prompts are too hard",
            weight=0.2,
            check="all-fail groups dominate and some prompts were never solved",
        ),
        Cause(
            code="RWD003",
            text="prompts are too easy",
            weight=0.1,
            check="all-pass groups dominate and the held-out score is high",
        ),
        Cause(
            code="GEN001",
            text="completions are cut off before the answer",
            weight=0.1,
            check="finish reason `length` dominates",
        ),
        Cause(
            code="RWD006",
            text="completions of a group are copies of each other",
            weight=0.1,
            check="token sequences repeat within groups; entropy is near zero",
        ),
        Cause(
            code="GEN011",
            text="the verifier fails for part of the completions",
            weight=0.05,
            check="`batch_consumed.groups.num_failed` is above zero",
        ),
        Cause(code="RWD005", text="groups are too small", weight=0.05, check="group size below 8"),
    )

    fire: float = threshold(0.75, "Share of zero-spread groups that counts as excess", high=1, unit="share of groups")
    clear: float = threshold(0.6, "Share below which it resolves", high=1, unit="share of groups")
    ceiling: float = threshold(0.9, "Pass rate from which an excess is not judged", high=1, unit="share of completions")
    constant_groups: float = threshold(64, "Length of a streak of one same reward", low=SETTLED, unit="groups")
    floor_share: float = threshold(0.95, "Share of zero-spread groups at the floor", high=1, unit="share of groups")
    floor_level: float = threshold(0.05, "Mean reward that counts as floor", high=1, unit="share of reward range")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Constant reward first, then floor and excess."""
        rewards = features.rewards
        streak, totals = rewards.streak, rewards.totals
        if streak.groups >= self.constant_groups:
            severity = self._constant_severity(rewards, is_open=is_open)
            return None if severity is None else self._constant(features, severity)
        if totals.groups < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} groups with two completions were seen")
        if totals.pass_rate >= self.ceiling or totals.passed >= totals.groups / 2:
            return None
        limit = self.clear if is_open else self._limit(rewards)
        return self._excess(features, limit) if totals.zero_share >= limit else None

    def _constant_severity(self, rewards: Rewards, *, is_open: bool) -> Severity | None:
        if rewards.position() != "top":
            return "critical"
        if rewards.streak.before_groups == 0:
            return "info"
        if is_sudden(rewards.streak):
            return "warning"
        return "info" if is_open else None

    def _limit(self, rewards: Rewards) -> float:
        """Share of zero-spread groups at which an excess or a floor fires; above 1 when nothing can."""
        totals = rewards.totals
        if totals.size >= 4 and rewards.mean_level <= self.floor_level:
            return self.floor_share
        return max(self.fire, excess_limit(totals))

    def _constant(self, features: Features, severity: Severity) -> Finding:
        rewards = features.rewards
        streak = rewards.streak
        before = ""
        if streak.before_groups:
            before = f"; {streak.before_same} of the {streak.before_groups} groups before did"
        return Finding(
            severity=severity,
            summary=(
                f"All {streak.groups} groups since step {streak.first_step} got reward {streak.value:.4g} "
                f"in every completion{before}"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.groups.zero_spread",
                    observed=1.0,
                    operator=">=",
                    threshold=1.0,
                    unit="share of groups with one same reward",
                    window=streak.groups,
                    window_unit="groups",
                    n=streak.groups,
                    baseline=streak.before_same / streak.before_groups if streak.before_groups else None,
                ),
                _tokens(streak.tokens, groups=streak.groups, expected=None),
            ),
            proposals=(_look_at_rewards(),),
            causes=self._ranked(features, AMBIGUOUS[rewards.position()]),
        )

    def _excess(self, features: Features, limit: float) -> Finding:
        rewards = features.rewards
        totals = rewards.totals
        expected = expected_share(totals.pass_rate, totals.size)
        shares = f"{totals.passed} all-pass, {totals.failed} all-fail"
        return Finding(
            severity="warning",
            summary=(
                f"{totals.zero} of {totals.groups} groups had no reward spread over steps "
                f"{rewards.first_step}-{features.settings.step} (expected {expected * totals.groups:.0f} "
                f"at this pass rate; {shares})"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.groups.zero_spread",
                    observed=totals.zero_share,
                    operator=">=",
                    threshold=limit,
                    unit="share of groups",
                    window=totals.groups,
                    window_unit="groups",
                    n=totals.groups,
                    baseline=expected,
                ),
                _share("all_pass", totals.passed, totals, totals.pass_rate**totals.size),
                _share("all_fail", totals.failed, totals, (1 - totals.pass_rate) ** totals.size),
                _share("other", totals.zero - totals.passed - totals.failed, totals, 0.0),
                _tokens(totals.zero_tokens, groups=totals.groups, expected=expected * totals.tokens),
            ),
            proposals=self._answers(features),
            causes=self._ranked(
                features,
                {
                    "RWD003": totals.passed / totals.zero,
                    "RWD002": totals.failed / totals.zero,
                    ONE_VALUE: 1 - (totals.passed + totals.failed) / totals.zero,
                },
            ),
        )

    def _ranked(self, features: Features, weights: dict[str, float]) -> tuple[Cause, ...]:
        """Causes by `weights`, which name a code or a text, and by what else was seen in the last groups."""
        kinds = features.rewards.kinds.sums
        seen = dict(weights)
        if kinds.failed_cut > CUT * kinds.failed_completions:
            seen["GEN001"] = 0.6
        if kinds.told and kinds.copies >= COPIED * kinds.told:
            seen["RWD006"] = 0.6
        if kinds.lost > LOST * (kinds.completions + kinds.lost):
            seen["GEN011"] = 0.3
        found = []
        for cause in self.causes:
            weight = seen.get(cause.code or cause.text, min(cause.weight, 0.05))
            found.append(cause.model_copy(update={"weight": round(weight, 2)}))
        return tuple(sorted(found, key=lambda cause: -cause.weight))

    def _answers(self, features: Features) -> tuple[Proposal, ...]:
        """A larger group helps while it is small and prompts are solved now and then; else only a look helps."""
        look = _look_at_rewards()
        size = features.settings.knob("group_size")
        change = None if size is None or size > 8 else patch(features.settings, "group_size", 2 * size)
        if change is None or not 0.1 <= features.rewards.totals.pass_rate <= 0.9:
            return (look,)
        larger = Proposal(
            verb="raise-group-size",
            title=f"raise group_size {change.expect} to {change.to}",
            applicability="review",
            risk="medium",
            preferred=True,
            patches=(change,),
            verify=Verify(
                metric="batch_consumed.groups.zero_spread",
                operator="<",
                threshold=self.clear,
                within=4 * self.timing.window,
                unit="groups",
            ),
            cooldown_steps=50,
        )
        return (larger, replace(look, preferred=False))


def _look_at_rewards() -> Proposal:
    return Proposal(
        verb="check-reward-function",
        title="compare what the reward function returns for a good and for a bad completion",
        applicability="advisory",
        preferred=True,
        on_failure="keep",
    )


def _share(name: str, groups: int, totals: Totals, expected: float) -> Evidence:
    """A part of the zero-spread groups beside what the pass rate alone explains."""
    share = groups / totals.groups
    return Evidence(
        metric=f"{name}_share",
        observed=share,
        operator=">" if share > expected else "<=",
        threshold=expected,
        unit="share of groups",
        window=totals.groups,
        window_unit="groups",
        n=totals.groups,
        baseline=expected,
    )


def _tokens(tokens: int, *, groups: int, expected: float | None) -> Evidence:
    """What it cost: completion tokens generated for groups that carry no advantage."""
    return Evidence(
        metric="zero_spread_tokens",
        observed=float(tokens),
        operator=">",
        threshold=expected or 0.0,
        unit="tokens",
        window=groups,
        window_unit="groups",
        n=groups,
        baseline=expected,
    )
