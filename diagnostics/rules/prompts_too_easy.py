"""RWD003: nearly all groups pass as a whole, and the held-out score no longer rises."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.prompt_stats import GROUPS, Kinds
from tocsin.diagnostics.proposals import look, measured, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause
from tocsin.schemas.events import EvaluationCompleted


@dataclass(frozen=True, kw_only=True)
class PromptsTooEasy(Rule):
    """Nearly every group is solved by all of its completions, and nothing is gained any more.

    ## What it means
    The run has little left to learn from these prompts. That may be the goal, reached.

    ## Why it matters
    A group in which all completions pass carries no advantage. Its tokens are generated, scored and thrown away.

    ## How it is detected
    At two evaluations in a row: of the last groups, at least 64, the share in which every completion passes is at least
    `fire`, and the evaluation is not above the one before by two standard errors. Without evaluation the rule cannot
    tell success from waste and is not evaluated. The claim is arithmetic, and at the end of every successful run it is
    true: it never goes above info. It resolves below `clear`.

    ## Known false alarms
    Reaching the goal is no fault; the finding says only that going on costs and gives little. Prompts that are solved
    now may be forgotten later.

    ## What to do
    Finish the run, or go on with harder prompts. Dropping prompts that were solved in two visits keeps the rest useful.

    ## Sources
    Prompts dropped for good at a pass rate of 0.9 in ScaleRL (arXiv 2510.13786); difficulty pools of prime-rl; prompts
    filtered as solved in open-instruct.
    """

    code = "RWD003"
    name = "prompts-too-easy"
    title = "Most groups pass as a whole"
    kind = "efficiency"
    proof = "scenario"
    where = "trainer"
    reads = ("batch_consumed.groups", "evaluation_completed.pass_rate", "evaluation_completed.pass_rate_se")
    trigger = EvaluationCompleted
    timing = Timing(unit="evaluations", window=2, warm_up=2, persistence=2, clear_persistence=1, silent_after=5000)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(text="the goal is reached", weight=0.6, check="the held-out score is where it should be"),
        Cause(text="the prompts are easier than the task", weight=0.3, check="the held-out score is below the target"),
        Cause(
            code="RWD001",
            text="the reward function passes everything",
            weight=0.1,
            check="score a wrong answer by hand",
        ),
    )

    fire: float = threshold(0.8, "Share of solved groups that fires", high=1, unit="share of groups")
    clear: float = threshold(0.7, "Share of solved groups below which it resolves", high=1, unit="share of groups")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the share of solved groups, then ask the held-out prompts."""
        held_out = features.held_out
        kinds = features.rewards.kinds.sums
        if len(held_out.results) < 2 or kinds.groups < GROUPS:
            return not_evaluated("warm_up", f"fewer than two evaluations or {GROUPS} groups were seen")
        if kinds.solved < (self.clear if is_open else self.fire) * kinds.groups or held_out.has_just_risen:
            return None
        return self._finding(features, kinds)

    def _finding(self, features: Features, kinds: Kinds) -> Finding:
        before, newest = features.held_out.results[-2], features.held_out.results[-1]
        _, error = newest.distance(before)
        return Finding(
            severity="info",
            summary=(
                f"Little is left to learn here: {kinds.solved} of {kinds.groups} groups pass as a whole, and the "
                f"held-out score is {newest.score:.3f} after {before.score:.3f}"
            ),
            evidence=(
                measured(
                    "solved groups",
                    kinds.solved / kinds.groups,
                    ">=",
                    self.fire if kinds.solved >= self.fire * kinds.groups else self.clear,
                    unit="share of groups",
                    over=(kinds.groups, "groups"),
                ),
                measured(
                    "evaluation_completed.pass_rate",
                    newest.score,
                    "<=",
                    before.score + 2 * error,
                    unit="share of completions",
                    over=(2, "evaluations"),
                ),
            ),
            proposals=ranked(look("finish-or-change-data", "finish the run, or go on with harder prompts")),
        )
