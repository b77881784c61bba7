"""RWD002: most groups fail as a whole, and the prompts are the reason."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.outcome import Outcome
from tocsin.diagnostics.prompt_stats import GROUPS, Kinds
from tocsin.diagnostics.proposals import look, measured, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Severity

CONSTANT: Final = 64
"""Groups in a row with one same reward from which RWD001 speaks: a reward that never differs may be no reward."""
ODD: Final = 8
"""Groups in a row with one same reward that is neither the best nor the worst: failing prompts do not do that."""
CUT: Final = 0.3
"""Share of truncated completions in failed groups from which the length limit is a likely reason."""


@dataclass(frozen=True, kw_only=True)
class PromptsTooHard(Rule):
    """Most groups have not one completion that passes, while the policy still solves what it could solve.

    ## What it means
    The model cannot solve most of what it is asked. A group without a single pass has no right answer to learn from.

    ## Why it matters
    Its completions are generated for nothing, or, where other rewards differ within it, teach something that was not
    asked for. Harder prompts are worth while only as long as some completions succeed.

    ## How it is detected
    Over at least 64 groups: the share of failed groups, those without a completion that passes, is at least `fire`,
    and the pass rate at most `pass_rate`. Without a count of passes by group, a failed group is one whose completions
    all got the lowest reward. Two ways of getting there are told apart. *From the start*: at least `patience` steps
    are done and the pass rate is not above that of every earlier window of 256 completions. *Suddenly*: the pass rate
    is below 0.8 of its best by three standard errors, and outside of the failed groups the pass rate is still at
    least `whole` of its best: what could be solved is solved, so the policy is sound and the prompts have changed.
    Critical from `nearly_all` failed groups at a pass rate below 0.05. It resolves when fewer than `clear` of the
    groups fail.

    Not this finding: one same reward in every group (RWD001, the reward function may be broken); failed groups of which
    most were solved before (the policy or the verifier has changed, and not the prompts); a pass rate that is rising.

    ## Known false alarms
    A verifier that began to answer 0 for part of the data looks the same until its prompts come back. A model before
    its first successes looks the same for many steps, and patience may be the answer. A curriculum changes prompts on
    purpose.

    ## What to do
    Read the worst completions with the verdict of the verifier. Drop prompts that were never solved, mix in easier
    ones, or raise `group_size`, so that rare successes are met. Where completions are cut off, raise
    `max_completion_tokens` first.

    ## Sources
    Groups without signal in DAPO (arXiv 2503.14476) and ScaleRL (2510.13786); prompts filtered at zero in
    open-instruct; guards that stop after ten opening steps without a mixed group.
    """

    code = "RWD002"
    name = "prompts-too-hard"
    title = "Most groups fail as a whole"
    kind = "fault"
    proof = "injected"
    where = "trainer"
    reads = ("batch_consumed.groups", "batch_consumed.pass_rate", "batch_consumed.reward_range")
    trigger = BatchConsumed
    timing = Timing(unit="groups", window=GROUPS, warm_up=GROUPS, persistence=3, clear_persistence=10)
    rising = (("clear", "fire", "nearly_all"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the prompts are too hard for this model",
            weight=0.5,
            check="failed groups have prompts that were never solved, and their completions are complete and wrong",
        ),
        Cause(
            code="GEN001",
            text="completions are cut off before the answer",
            weight=0.15,
            check="completions of failed groups end at the length limit",
        ),
        Cause(
            code="GEN012",
            text="answers are there and cannot be read out",
            weight=0.15,
            check="`batch_consumed.texts.unparsed` is a large part of the completions",
        ),
        Cause(
            code="GEN011",
            text="the verifier fails",
            weight=0.1,
            check="`batch_consumed.groups.num_failed` is above zero",
        ),
        Cause(
            code="GEN008",
            text="the model is asked in a format that it does not know",
            weight=0.1,
            check="it fails from the first step on, at prompts that it solves elsewhere",
        ),
    )

    fire: float = threshold(0.5, "Share of failed groups that fires", high=1, unit="share of groups")
    clear: float = threshold(0.4, "Share of failed groups below which it resolves", high=1, unit="share of groups")
    nearly_all: float = threshold(0.9, "Share of failed groups that is critical", high=1, unit="share of groups")
    pass_rate: float = threshold(0.25, "Pass rate up to which it is judged", high=1, unit="share of completions")
    patience: float = threshold(20, "Steps before a run that never did better is judged", unit="steps")
    whole: float = threshold(
        0.5, "Part of the best pass rate that is left where groups do not fail", high=1, unit="share of the best"
    )

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the share of failed groups, then ask for the reason."""
        window = features.rewards.kinds
        kinds = window.sums
        if kinds.groups < GROUPS:
            return not_evaluated("warm_up", f"fewer than {GROUPS} groups with two completions were seen")
        if kinds.failed < (self.clear if is_open else self.fire) * kinds.groups:
            return None
        if is_open or self._is_reason(features, kinds):
            return self._finding(features, kinds, window.first_step)
        return None

    def _is_reason(self, features: Features, kinds: Kinds) -> bool:
        """Whether the prompts are what keeps groups from passing."""
        rewards = features.rewards
        is_odd = rewards.streak.groups >= ODD and rewards.position() == "other"
        if kinds.pass_rate > self.pass_rate or rewards.streak.groups >= CONSTANT or is_odd:
            return False
        if kinds.relapsed > kinds.failed / 2:
            return False
        best = features.rewards.kinds.best
        if kinds.fell_below(0.8 * best):
            return kinds.other_pass_rate >= self.whole * best
        return features.settings.step >= self.patience and not _is_rising(features.outcome)

    def _finding(self, features: Features, kinds: Kinds, first_step: int) -> Finding:
        is_grave = kinds.failed >= self.nearly_all * kinds.groups and kinds.pass_rate < 0.05
        severity: Severity = "critical" if is_grave else "warning"
        share = kinds.failed / kinds.groups
        cut = kinds.failed_cut / kinds.failed_completions
        lost = kinds.lost / (kinds.completions + kinds.lost)
        return Finding(
            severity=severity,
            summary=(
                f"{kinds.failed} of {kinds.groups} groups since step {first_step} have no completion that passes; "
                f"the others pass at {kinds.other_pass_rate:.0%}"
                if kinds.failed < kinds.groups
                else f"None of {kinds.groups} groups since step {first_step} has a completion that passes"
            ),
            evidence=(
                measured(
                    "failed groups",
                    share,
                    ">=",
                    self.fire if share >= self.fire else self.clear,
                    unit="share of groups",
                    over=(kinds.groups, "groups"),
                ),
                measured(
                    "batch_consumed.pass_rate",
                    kinds.pass_rate,
                    "<=" if kinds.pass_rate <= self.pass_rate else ">",
                    self.pass_rate,
                    unit="share of completions",
                    over=(kinds.groups, "groups"),
                ),
                measured(
                    "failed groups whose prompt was solved before",
                    float(kinds.relapsed),
                    "<=" if kinds.relapsed <= kinds.failed / 2 else ">",
                    kinds.failed / 2,
                    unit="groups",
                    over=(kinds.groups, "groups"),
                ),
                measured(
                    "truncated completions of failed groups",
                    cut,
                    ">=" if cut >= CUT else "<",
                    CUT,
                    unit="share of completions",
                    over=(kinds.failed_completions, "completions"),
                ),
                measured(
                    "tokens of failed groups",
                    float(kinds.failed_tokens),
                    ">",
                    0.0,
                    unit="tokens",
                    over=(kinds.groups, "groups"),
                ),
            ),
            proposals=self._answers(features, cut),
            causes=self._ranked({"GEN001": cut >= CUT, "GEN011": lost > 0.01, "GEN012": _is_unread(features)}),
        )

    def _ranked(self, likely: dict[str, bool]) -> tuple[Cause, ...]:
        """Causes with those that have a witness in front."""
        first = [cause.model_copy(update={"weight": 0.6}) for cause in self.causes if likely.get(cause.code or "")]
        return (*first, *(cause for cause in self.causes if not likely.get(cause.code or "")))

    def _answers(self, features: Features, cut: float) -> tuple[Proposal, ...]:
        settings = features.settings
        verify = Verify(
            metric="batch_consumed.groups.zero_spread",
            operator="<",
            threshold=self.clear,
            within=4 * self.timing.window,
            unit="groups",
        )
        size, limit = settings.knob("group_size"), settings.knob("max_completion_tokens")
        longer = None if limit is None or cut < CUT else move(settings, "max_completion_tokens", 1.5 * limit, verify)
        larger = None if size is None else move(settings, "group_size", 2 * size, verify, risk="medium")
        read = look("read-worst-completions", "read the five worst completions with the verdict of the verifier")
        return ranked(longer, read, larger)


def _is_rising(outcome: Outcome) -> bool:
    """Whether the newest window is above every earlier one."""
    return outcome.best is None or outcome.recent.pass_rate > outcome.best.pass_rate


def _is_unread(features: Features) -> bool:
    """Whether a verifier finds no answer in a large part of the completions."""
    parsing = features.parsing
    return bool(parsing.unparsed) and parsing.share(parsing.worst) > 0.2
