"""RWD014: the loss favours long wrong answers."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.lengths import BIASED, LengthsByPass
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence

OTHER_VARIANT: Final = not_evaluated(
    "not_applicable", "only the loss variant `grpo` divides by a completion's own length"
)


@dataclass(frozen=True, kw_only=True)
class NormalisationBias(Rule):
    """Wrong answers grow longer than right ones to the same prompts, under a loss that makes length cheap for them.

    ## What it means
    The variant `grpo` divides the loss of each completion by its own length. The longer a wrong answer is, the less
    each of its tokens is pushed down; the shorter a right one is, the more each is pushed up. So length drifts apart.

    ## Why it matters
    Tokens are spent on wrong answers, and the growth looks like reasoning.

    ## How it is detected
    Mean length of failing over that of passing completions, within groups that have both, over at least 64 groups with
    reward spread: above `fire`, and `growth` times what it was over the first 50 steps. Only for the variant `grpo`.
    Info: advice about the objective.

    ## Known false alarms
    Wrong answers are longer anyway, on hard prompts most of all. That is why lengths are compared within groups, and
    with the beginning of the run.

    ## What to do
    Choose `loss.variant` `dapo` or `dr_grpo` at the next start: both weigh all tokens of a step alike.

    ## Sources
    Dr. GRPO (arXiv 2503.20783); DAPO's token-level loss (2503.14476); FSPO (2509.09177), LUSPO (2602.05261). No source
    gives a number; the thresholds are a judgement.
    """

    code = "RWD014"
    name = "normalisation-bias"
    title = "The normalisation favours long wrong answers"
    kind = "lint"
    proof = "lint"
    where = "learner"
    reads = (
        "run_started.loss_variant",
        "batch_consumed.length_failed",
        "batch_consumed.length_passed",
        "batch_consumed.groups",
    )
    trigger = BatchConsumed
    timing = Timing(unit="groups", window=64, warm_up=128, persistence=10, clear_persistence=10)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the loss of a completion is divided by its own length",
            weight=0.7,
            check="the variant is `grpo`, and failing completions grow while passing ones do not",
        ),
        Cause(
            text="prompts that are left unsolved are the ones with long answers",
            weight=0.3,
            check="the ratio rose together with the pass rate",
        ),
    )

    fire: float = threshold(1.5, "Failing over passing length that fires", low=1, unit="ratio of lengths")
    clear: float = threshold(1.3, "Ratio below which it resolves", low=1, unit="ratio of lengths")
    growth: float = threshold(1.3, "Growth of the ratio since the first steps that fires", low=1, unit="times")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare lengths within groups, now and at first."""
        if features.settings.loss_variant != BIASED:
            return OTHER_VARIANT
        lengths = features.lengths_by_pass
        if math.isnan(lengths.ratio):
            if not lengths.is_measured:
                return not_evaluated("missing_input", "no group had passing and failing completions to compare")
            return not_evaluated("warm_up", "fewer than 50 steps and 64 groups more with both kinds were seen")
        if is_open:
            return self._finding(lengths) if lengths.ratio > self.clear else None
        has_grown = lengths.ratio > self.growth * lengths.first_ratio
        return self._finding(lengths) if lengths.ratio > self.fire and has_grown else None

    def _finding(self, lengths: LengthsByPass) -> Finding:
        ratio = lengths.ratio
        return Finding(
            severity="info",
            summary=(
                f"Failing completions are {ratio:.2f} times as long as passing ones of the same prompts, "
                f"{lengths.first_ratio:.2f} times at first"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.length_failed / length_passed",
                    observed=ratio,
                    operator=">",
                    threshold=self.fire if ratio > self.fire else self.clear,
                    unit="ratio of lengths",
                    window=lengths.groups,
                    window_unit="groups",
                    n=lengths.groups,
                    baseline=lengths.first_ratio,
                ),
            ),
            proposals=ranked(look("change-variant", 'start again with loss.variant = "dapo"')),
        )
