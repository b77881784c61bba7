"""RWD004: groups without a single right answer have reward spread, and it decides what is learned."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.prompt_stats import GROUPS, KindWindow
from tocsin.diagnostics.proposals import look, measured, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.side_rewards import BOOTSTRAP, no_side_reward
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause


@dataclass(frozen=True, kw_only=True)
class ProxyOnlyVariance(Rule):
    """Most groups that teach anything have no completion that passes: side rewards alone make their advantages.

    ## What it means
    Beside the function that decides what a pass is there are others, for form, length or style. In a group where
    nothing passes they are all that differs, so the best-looking wrong answer is reinforced.

    ## Why it matters
    The policy is steered by what was meant as a help. The reward rises and the task is not learned, or is unlearned.

    ## How it is detected
    Over at least 64 groups, at least eight of them with reward spread: the share of groups with spread in which no
    completion passes is at least `fire`, for ten steps. Critical when the last evaluation lies below the best one by
    two standard errors. Not judged in the first 50 steps, in which form is often learned before content. It resolves
    below `clear`.

    ## Known false alarms
    Form first, content later is a plan that can work for longer than 50 steps; look whether the pass rate rises.

    ## What to do
    Let side rewards count only where a completion passes, or halve their weight. Where the prompts are too hard
    (RWD002), mend that first.

    ## Sources
    GDPO (arXiv 2601.05242) on normalising reward functions one by one; open-instruct's note on additive format
    rewards; a public diagnosis of a collapsed run in which 78 of 108 groups were all wrong and still had gradients.
    """

    code = "RWD004"
    name = "proxy-only-variance"
    title = "Groups without a right answer still teach"
    kind = "fault"
    proof = "injected"
    where = "trainer"
    reads = (
        "batch_consumed.groups.passed",
        "batch_consumed.groups.zero_spread",
        "run_started.setup",
        "evaluation_completed.pass_rate",
    )
    trigger = BatchConsumed
    timing = Timing(unit="groups", window=GROUPS, warm_up=GROUPS, persistence=10, clear_persistence=10)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="RWD011",
            text="a side reward outweighs the one that decides",
            weight=0.4,
            check="its share of the variance within groups is above three quarters",
        ),
        Cause(
            code="RWD002",
            text="the prompts are too hard, so that only side rewards differ",
            weight=0.4,
            check="most groups fail, and the side rewards are small",
        ),
        Cause(text="the form is still being learned", weight=0.2, check="the pass rate rises"),
    )

    fire: float = threshold(0.5, "Share of groups with spread without a pass", high=1, unit="share of groups")
    clear: float = threshold(0.4, "Share below which it resolves", high=1, unit="share of groups")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the failed groups that teach with all that teach."""
        missing = no_side_reward(features.components)
        if missing is not None:
            return missing
        window = features.rewards.kinds
        if not window.states_passes:
            return not_evaluated("missing_input", "batches do not count passes by group")
        kinds = window.sums
        if features.settings.step < BOOTSTRAP or kinds.groups < GROUPS:
            return not_evaluated("warm_up", f"fewer than {BOOTSTRAP} steps or {GROUPS} groups were seen")
        if kinds.spread < 8 or kinds.unsolved < (self.clear if is_open else self.fire) * kinds.spread:
            return None
        return self._finding(features, window)

    def _finding(self, features: Features, window: KindWindow) -> Finding:
        kinds, held_out = window.sums, features.held_out
        share = kinds.unsolved / kinds.spread
        side = ", ".join(features.components.side)
        newest, best, fell = held_out.newest, held_out.best, held_out.has_fallen(2)
        evidence = [
            measured(
                "groups with spread and without a pass",
                share,
                ">=",
                self.fire if share >= self.fire else self.clear,
                unit="share of groups with spread",
                over=(kinds.spread, "groups"),
            ),
            measured(
                "tokens of these groups",
                float(kinds.unsolved_tokens),
                ">",
                0.0,
                unit="tokens",
                over=(kinds.groups, "groups"),
            ),
        ]
        if newest is not None and best is not None:
            evidence.append(
                measured(
                    "evaluation_completed.pass_rate",
                    newest.score,
                    "<" if fell else "<=",
                    best.score,
                    unit="share of completions",
                    over=(1, "evaluations"),
                )
            )
        return Finding(
            severity="critical" if fell else "warning",
            summary=(
                f"{kinds.unsolved} of {kinds.spread} groups with reward spread since step {window.first_step} have no "
                f"completion that passes"
            ),
            evidence=tuple(evidence),
            proposals=ranked(
                look("gate-side-rewards", f"let {side[:60]} count only where a completion passes, or halve the weight")
            ),
        )
