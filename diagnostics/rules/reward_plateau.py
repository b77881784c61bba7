"""RWD015: half of the plan is done, and a quarter of it changed nothing."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.plateau import Comparison
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence


@dataclass(frozen=True, kw_only=True)
class RewardPlateau(Rule):
    """Over a quarter of the planned steps neither the training reward nor the held-out score rose.

    ## What it means
    The run goes on and learns nothing that its reward can see. Either nothing reaches the weights, or what reaches
    them does not help, or there is nothing left to learn from these prompts.

    ## Why it matters
    The second half of a run costs as much as the first. Nothing else may be wrong to the eye.

    ## How it is detected
    Not before half of the planned steps. Mean reward of the newest quarter of the plan, at least 50 steps, minus that
    of the quarter before: no more than `sigmas` standard errors, corrected for autocorrelation, while a rise of
    `visible` of the reward's range could have been seen. The held-out score has not risen since by as many errors
    either, where there is one. It resolves at a rise of `clear`. Not judged from a pass rate of `ceiling` on. Compared
    every ten steps. Always info: shorter tests fired on half of the healthy runs.

    ## Known false alarms
    Runs of the same configuration differ by seed. Rewards can rise late, when the last prompts are understood.

    ## What to do
    Look at what else is open: no gradient, updates too small, groups without spread, weights that do not arrive, no
    entropy. If nothing is, the prompts may be used up: harder ones, or stop here.

    ## Sources
    Measured on 77 labelled runs in the project's catalogue (a plateau test of prior art fired on 13 of 25 healthy
    runs); LoRA Without Regret on rates that are too low.
    """

    code = "RWD015"
    name = "reward-plateau"
    title = "The reward stands still"
    kind = "fault"
    proof = "scenario"
    where = "learner"
    reads = ("run_started.num_steps", "batch_consumed.groups", "evaluation_completed.pass_rate")
    trigger = BatchConsumed
    timing = Timing(unit="steps", window=50, warm_up=100, persistence=1, clear_persistence=10)
    rising = (("sigmas", "clear"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="RWD001",
            text="groups have no reward spread",
            weight=0.2,
            check="`batch_consumed.groups.zero_spread` holds for most of them",
        ),
        Cause(code="POL012", text="no gradient arrives", weight=0.2, check="`step_completed.grad_norm` is 0"),
        Cause(
            code="POL013",
            text="the learning rate is too low",
            weight=0.2,
            check="`update_ratio` is tiny and `weights_synced.probe_moved` as well",
        ),
        Cause(
            code="OFF010",
            text="the sampler does not have the learner's weights",
            weight=0.1,
            check="`weights_synced.probe_gap` is above its tolerance",
        ),
        Cause(
            code="POL001",
            text="the policy no longer explores",
            weight=0.1,
            check="`step_completed.entropy` is far below its beginning",
        ),
        Cause(
            code="RWD010",
            text="a reward function answers the same to everything",
            weight=0.1,
            check="the component's smallest and largest value are equal",
        ),
        Cause(text="the prompts have nothing more to teach", weight=0.1, check="nothing else is open"),
    )

    sigmas: float = threshold(1, "Rise up to which the reward stands still", unit="standard errors")
    clear: float = threshold(2, "Rise above which it resolves", unit="standard errors")
    visible: float = threshold(0.05, "Rise that must have been visible", high=1, unit="share of the reward's range")
    ceiling: float = threshold(0.9, "Pass rate from which it is not judged", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare two quarters of the plan, which the feature does every ten steps."""
        found = features.plateau.newest
        if found is None:
            return not_evaluated("warm_up", "half of the planned steps and two quarters of at least 50 are needed")
        low, high = features.rewards.span
        sigmas = self.clear if is_open else self.sigmas
        could_be_seen = 2 * found.error <= self.visible * (high - low)
        if not (could_be_seen and found.rise <= sigmas * found.error):
            return None
        if features.outcome.recent.pass_rate >= self.ceiling:
            return None
        if features.held_out.has_risen_since(found.middle_step, sigmas):
            return None
        return self._finding(found, sigmas)

    def _finding(self, found: Comparison, sigmas: float) -> Finding:
        return Finding(
            severity="info",
            summary=(
                f"Mean reward {found.mean:.3g} over the last {found.steps} steps, {found.rise:+.2g} against the "
                f"{found.steps} before (standard error {found.error:.2g})"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.reward_mean, newest quarter minus the one before",
                    observed=found.rise,
                    operator="<=",
                    threshold=sigmas * found.error,
                    unit="reward",
                    window=2 * found.steps,
                    window_unit="steps",
                    n=2 * found.steps,
                    baseline=0.0,
                ),
            ),
            proposals=ranked(
                look("look-what-is-open", "look at what else is open: gradient, updates, spread, weights, entropy"),
                look("stop-or-harder-prompts", "stop here, or go on with harder prompts"),
            ),
        )
