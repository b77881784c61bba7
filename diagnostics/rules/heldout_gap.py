"""GEN010: the training reward rises and the held-out score does not."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.heldout import HeldOut, Result
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, Severity
from tocsin.schemas.events import EvaluationCompleted

LEAST_N = 128
"""Completions that an evaluation has at least to be judged."""
FLAT = 4
"""Evaluations over which a held-out score that stands still is information."""


@dataclass(frozen=True, kw_only=True)
class HeldoutGap(Rule):
    """What is trained for grows, and what is wanted does not: the reward is being gamed, or the prompts are known.

    ## What it means
    Held-out prompts are scored by what a pass is, training by the whole reward. When the two part, the policy has
    found something that pays and is not the task: a part of the reward, a hole in the verifier, or the training
    prompts themselves.

    ## Why it matters
    The curve that everybody looks at goes up while the model gets worse. Such an onset is sudden, and every later
    checkpoint is worse than the one before.

    ## How it is detected
    Each evaluation of at least 128 completions is compared with the best so far. It is critical when the held-out
    score fell by more than `fall` standard errors while the mean training reward, over the windows of at least 256
    completions around the two, rose by more than `rise`. The bar for a fall is high because the best of several noisy
    scores is biased upward. When training rose by as much over four evaluations and the held-out score did not rise at
    all, it is info, below a score of `ceiling`. It resolves when the held-out score is back within `back` standard
    errors of the best.

    ## Known false alarms
    Few held-out prompts make noise of some points; the standard error knows. When training and held-out score fall
    together it is POL009 or the policy, not this. Training prompts that become easier by their order raise the reward.

    ## What to do
    Read completions with the highest training reward. Mend the reward, and go back to the checkpoint of the best
    evaluation; do not promote later ones. Where a reference is loaded, a higher `kl_beta` slows what follows.

    ## Sources
    Reward over-optimisation (arXiv 2210.10760); training-time hacking (2511.18397); rllm#143, verl#7004.
    """

    code = "GEN010"
    name = "heldout-gap"
    title = "Training reward rises, held-out score does not"
    kind = "fault"
    proof = "injected"
    where = "trainer"
    reads = (
        "evaluation_completed.pass_rate",
        "evaluation_completed.pass_rate_se",
        "evaluation_completed.reward_mean",
        "evaluation_completed.reward_se",
        "batch_consumed.groups",
    )
    trigger = EvaluationCompleted
    timing = Timing(
        unit="evaluations",
        window=2,
        warm_up=1,
        persistence=1,
        clear_persistence=1,
        silent_after=10_000,
        reminder_every=20,
        reopen_within=2,
    )
    rising = (("back", "fall"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="RWD011",
            text="a side reward decides the advantages",
            weight=0.3,
            check="a component that decides no pass rose, the deciding one did not",
        ),
        Cause(
            code="GEN009",
            text="form is rewarded instead of content",
            weight=0.2,
            check="the mean of a component about form rose while the pass rate fell",
        ),
        Cause(
            code="RWD004",
            text="groups that nobody solved teach side rewards",
            weight=0.1,
            check="groups with reward spread and without a pass",
        ),
        Cause(
            code="RWD007",
            text="the same prompts were trained on many times",
            weight=0.1,
            check="`batch_consumed.groups.prompt_id` repeats over many epochs",
        ),
        Cause(
            code="POL006",
            text="the policy ran away from its reference",
            weight=0.1,
            check="`step_completed.kl_ref` rose before",
        ),
        Cause(
            text="the verifier accepts what it should not",
            weight=0.2,
            check="completions with the highest reward are no answers when a person reads them",
        ),
    )

    fall: float = threshold(3, "Fall of the held-out score that counts", unit="standard errors")
    rise: float = threshold(3, "Rise of the training reward that counts", unit="standard errors")
    back: float = threshold(1, "Distance from the best at which it resolves", unit="standard errors")
    ceiling: float = threshold(0.9, "Held-out pass rate from which standing still is no news", high=1, unit="share")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the newest evaluation with the best, then with the one of some time ago."""
        held_out = features.held_out
        newest, best = held_out.newest, held_out.best
        if newest is None or best is None or newest.n < LEAST_N:
            return not_evaluated("missing_input", f"evaluations have fewer than {LEAST_N} completions")
        if self._has_parted(newest, best):
            return self._finding(features.settings, newest, best, "critical")
        if is_open and not self._is_back(newest, best):
            return self._finding(features.settings, newest, best, "info")
        earlier = self._stands_still(held_out, newest)
        return None if earlier is None else self._finding(features.settings, newest, earlier, "info")

    def _has_parted(self, newest: Result, best: Result) -> bool:
        rise, error = newest.distance(best)
        reward, reward_error = newest.reward_rise(best)
        return -rise > self.fall * error and reward > self.rise * reward_error

    def _is_back(self, newest: Result, best: Result) -> bool:
        rise, error = newest.distance(best)
        return -rise <= self.back * error

    def _stands_still(self, held_out: HeldOut, newest: Result) -> Result | None:
        """The evaluation since which training rose and the held-out score did not; None without one."""
        if len(held_out.results) <= FLAT or (newest.is_pass_rate and newest.score >= self.ceiling):
            return None
        earlier = held_out.results[-1 - FLAT]
        rise, _ = newest.distance(earlier)
        reward, reward_error = newest.reward_rise(earlier)
        return earlier if rise <= 0 and reward > self.rise * reward_error else None

    def _finding(self, settings: Settings, newest: Result, then: Result, severity: Severity) -> Finding:
        _, error = newest.distance(then)
        what = "pass rate" if newest.is_pass_rate else "reward"
        return Finding(
            severity=severity,
            summary=(
                f"Held-out {what} went from {then.score:.3g} at step {then.step} to {newest.score:.3g}, the training "
                f"reward from {then.reward:.3g} to {newest.reward:.3g}"
            ),
            evidence=(
                Evidence(
                    metric=f"evaluation_completed.{'pass_rate' if newest.is_pass_rate else 'reward_mean'}",
                    observed=newest.score,
                    operator="<=",
                    threshold=max(newest.score, then.score - self.back * error),
                    unit="share of completions" if newest.is_pass_rate else "reward",
                    window=newest.n,
                    window_unit="completions",
                    n=newest.n,
                    baseline=then.score,
                ),
                Evidence(
                    metric="batch_consumed.reward_mean",
                    observed=newest.reward,
                    operator=">=",
                    threshold=min(newest.reward, then.reward),
                    unit="reward",
                    window=2,
                    window_unit="evaluations",
                    n=2,
                    baseline=then.reward,
                ),
            ),
            proposals=self._answers(settings, newest, then),
        )

    def _answers(self, settings: Settings, newest: Result, best: Result) -> tuple[Proposal, ...]:
        back = look(
            "resume-from-best-checkpoint", f"stop, mend the reward, and resume from a checkpoint of step {best.step}"
        )
        read = look("read-best-paid", "read the completions with the highest training reward")
        beta = settings.knob("kl_beta") or 0.0
        metric = f"evaluation_completed.{'pass_rate' if newest.is_pass_rate else 'reward_mean'}"
        verify = Verify(metric=metric, operator=">=", threshold=best.score, within=200, unit="steps")
        return ranked(back, read, move(settings, "kl_beta", 2 * beta, verify) if beta > 0 else None)
