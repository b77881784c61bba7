"""POL009: the reward fell far below the best that the run had reached."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.outcome import COMPLETIONS, Outcome
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rewards import Totals
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence

PASSES: Final = 0.1
"""Pass rate of the best window from which passes are witnesses beside the reward."""


@dataclass(frozen=True, kw_only=True)
class RewardCollapse(Rule):
    """The mean reward lies far below the best window of the run.

    ## What it means
    The policy had learned to earn a reward and has lost it again. Whatever the reason, the run now unlearns: every
    further step leads away from the best weights.

    ## Why it matters
    It is the outcome that all other findings fear. A collapsed policy seldom comes back by itself, and the time until
    somebody looks is lost.

    ## How it is detected
    Reward is pooled over windows of at least 256 completions and five steps. The newest one is compared with the best
    earlier one that does not overlap it, both relative to the lowest reward of the range, declared or seen. It counts
    when the newest is below `warn` of the best and the distance exceeds three standard errors, taken between groups:
    a warning, critical below `critical`. *Fast*: the last three steps with at least 120 completions, when a mechanism
    is there as well: 90 % of groups without spread at a reward below a tenth of the range, or `cut` of completions
    truncated. It must hold for five steps, so that its cause is named first. It does not fire where side rewards alone
    brought the sum down: where the pass rate, at least a tenth in the best window, is still `clear` of what it was
    there. It resolves above `clear` of the best.

    ## Known false alarms
    The best of noisy single steps is biased upward; that is why windows count completions. A switch to harder
    prompts, another mix of data or a verifier that is down are real falls: look which. Without a declared range and
    with one extremely low reward, everything looks high, and the rule is silent rather than wrong.

    ## What to do
    Look which finding came first; it is the likely cause. Pause the run, take a checkpoint older than the onset, mend
    the cause and resume from there. Lowering the learning rate limits further damage and repairs nothing.

    ## Sources
    Measured on 77 labelled runs in the project's catalogue (9 of 9 collapses, 1 false alarm in 68 at 0.4 of the best,
    4 at 0.5); collapse under asynchrony (arXiv 2602.17616); precision and collapse (2510.26788); prime-rl#964,
    open-r1#255, verl#1581.
    """

    code = "POL009"
    name = "reward-collapse"
    title = "Reward collapse"
    kind = "fault"
    proof = "injected"
    where = "learner"
    reads = ("batch_consumed.groups", "batch_consumed.reward_range", "batch_consumed.finish_reasons")
    trigger = BatchConsumed
    timing = Timing(unit="completions", window=COMPLETIONS, warm_up=2 * COMPLETIONS, persistence=5, clear_persistence=5)
    rising = (("critical", "warn", "clear"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="POL014",
            text="updates are too large",
            weight=0.25,
            check="`update_ratio` rose before the reward fell",
        ),
        Cause(
            code="GEN001",
            text="completions are cut off before their answer",
            weight=0.2,
            check="finish reason `length` rose together with the fall",
        ),
        Cause(
            code="RWD001",
            text="the reward function returns one value for everything",
            weight=0.2,
            check="all groups have the same reward and the held-out score is unchanged",
        ),
        Cause(
            code="OFF010",
            text="the sampler does not get the weights",
            weight=0.15,
            check="`weights_synced.probe_gap` is above its tolerance",
        ),
        Cause(
            code="OFF004",
            text="sampler and learner compute differently",
            weight=0.1,
            check="the log-prob gap at staleness 0 rose before",
        ),
        Cause(text="the prompts became harder", weight=0.1, check="the fall is a step and other metrics are calm"),
    )

    warn: float = threshold(0.5, "Share of the best reward below which it fires", high=1, unit="share of the best")
    critical: float = threshold(0.4, "Share of the best below which it is critical", high=1, unit="share of the best")
    clear: float = threshold(0.7, "Share of the best from which it resolves", high=1, unit="share of the best")
    cut: float = threshold(0.3, "Truncated share that makes the fast window count", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """The pooled window first, then the fast one with a mechanism."""
        outcome = features.outcome
        if not outcome.is_known:
            return not_evaluated("warm_up", "no earlier window of 256 completions and five steps to compare with")
        if is_open:
            is_over = outcome.share_of_best(outcome.recent) >= self.clear
            return None if is_over else self._finding(features.settings, outcome, outcome.recent)
        newest = outcome.recent
        if not outcome.fell_below(self.warn, newest):
            newest = outcome.fast()
            if not (outcome.fell_below(self.warn, newest) and self._has_mechanism(features, newest)):
                return None
        return None if self._still_passes(features, newest) else self._finding(features.settings, outcome, newest)

    def _still_passes(self, features: Features, newest: Totals) -> bool:
        """Whether side rewards alone brought the sum down. Too few passes at best cannot tell."""
        best = features.outcome.best
        if not features.components.side or best is None or not best.pass_rate >= PASSES:
            return False
        return newest.pass_rate >= self.clear * best.pass_rate

    def _has_mechanism(self, features: Features, newest: Totals) -> bool:
        if newest.completions < Outcome.FAST_COMPLETIONS:
            return False
        is_flat = newest.zero_share >= 0.9 and features.outcome.level(newest) < 0.1
        return is_flat or features.truncation.share >= self.cut

    def _finding(self, settings: Settings, outcome: Outcome, newest: Totals) -> Finding:
        assert outcome.best is not None, "checked by `is_known`"
        share = outcome.share_of_best(newest)
        return Finding(
            severity="critical" if outcome.fell_below(self.critical, newest) else "warning",
            summary=(
                f"Mean reward {newest.mean:.3g} over {newest.completions} completions is {share:.0%} of the best, "
                f"{outcome.best.mean:.3g} until step {outcome.best_step}"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.reward_mean / best window",
                    observed=share,
                    operator="<",
                    threshold=self.warn if share < self.warn else self.clear,
                    unit="share of the best",
                    window=newest.completions,
                    window_unit="completions",
                    n=newest.groups,
                    baseline=1.0,
                ),
                Evidence(
                    metric="batch_consumed.reward_mean",
                    observed=newest.mean,
                    operator="<",
                    threshold=outcome.best.mean,
                    unit="reward",
                    window=newest.completions,
                    window_unit="completions",
                    n=newest.groups,
                    baseline=outcome.best.mean,
                ),
            ),
            proposals=_answers(settings, outcome.best_step, outcome.best.mean * self.clear),
        )


def _answers(settings: Settings, best_step: int, target: float) -> tuple[Proposal, ...]:
    back = look("resume-from-checkpoint", f"stop, and resume from a checkpoint of step {best_step} or a little before")
    rate = settings.knob("learning_rate")
    verify = Verify(metric="batch_consumed.reward_mean", operator=">=", threshold=target, within=100, unit="steps")
    slower = None if rate is None else move(settings, "learning_rate", rate / 2, verify, risk="medium")
    return ranked(back, slower)
