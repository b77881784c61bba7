"""GEN003: completions grow, and nothing gets better with them."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.lengths import Lengths, PassLevel
from tocsin.diagnostics.outcome import COMPLETIONS
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence


@dataclass(frozen=True, kw_only=True)
class LengthGrowth(Rule):
    """Completions are a multiple of their first length, and the pass rate is no higher than before they grew.

    ## What it means
    Something rewards length, or nothing rewards an end. Growth by itself is no fault: reasoning that pays off grows
    too. Growth for which nothing is passed that was not passed before only costs.

    ## Why it matters
    Time and memory of a step follow the length, and growth ends at the limit, where answers are cut off and fail.

    ## How it is detected
    Mean length over at least 256 completions, in multiples of the median of the run's first five such windows. It
    fires from `fire` times on, unless the pass rate rose by more than one standard error since completions last had
    about their first length, or the held-out score rose by two. Without a verifier that decides what a pass is, the
    level of the reward counts. Critical when at least `cut` of the completions end at the length limit. It resolves
    below `clear` times, or when the pass rate has risen.

    ## Known false alarms
    Length alone was a false alarm on 3 of 25 healthy runs; the second condition is there for them. A run that is at
    its ceiling already cannot rise any more: growth there is waste, and this says so. Another mix of prompts may need
    longer answers.

    ## What to do
    Look for a term of the reward that grows with length, and whether wrong answers are the longer ones: a loss that
    divides by the length of each completion makes long wrong answers cheap. Penalise length above what is needed. A
    higher `max_completion_tokens` does not help.

    ## Sources
    Dr. GRPO (arXiv 2503.20783); length and reward in RLHF (2310.03716); measured on 77 labelled runs in the project's
    catalogue (twice the first length: 4 of 8 collapses, 3 of 25 healthy runs).
    """

    code = "GEN003"
    name = "length-growth"
    title = "Completions grow without getting better"
    kind = "fault"
    proof = "injected"
    where = "sampler"
    reads = (
        "batch_consumed.length",
        "batch_consumed.groups",
        "batch_consumed.pass_rate",
        "batch_consumed.finish_reasons",
        "evaluation_completed.pass_rate",
    )
    trigger = BatchConsumed
    timing = Timing(
        unit="completions", window=COMPLETIONS, warm_up=5 * COMPLETIONS, persistence=3, clear_persistence=10
    )
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="RWD011",
            text="a part of the reward grows with the length",
            weight=0.4,
            check="the component's mean rose together with `batch_consumed.length`",
        ),
        Cause(
            code="GEN002",
            text="the end of an answer is not seen by the sampler",
            weight=0.3,
            check="cut completions contain an end token",
        ),
        Cause(
            code="RWD014",
            text="the loss makes long wrong answers cheap",
            weight=0.2,
            check="`length_failed` grew faster than `length_passed`, with the variant `grpo`",
        ),
        Cause(text="the prompts changed", weight=0.1, check="the growth is a step and other metrics are calm"),
    )

    fire: float = threshold(2, "Multiple of the first length that fires", low=1, unit="times the first length")
    clear: float = threshold(1.5, "Multiple below which it resolves", low=1, unit="times the first length")
    cut: float = threshold(0.5, "Truncated share that makes it critical", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the length with the beginning, then what is passed with what was before the growth."""
        lengths = features.lengths
        if lengths.usual is None:
            return not_evaluated("warm_up", "fewer than five windows of 256 completions have passed")
        if not lengths.ratio >= (self.clear if is_open else self.fire):
            return None
        now = lengths.pass_level()
        if math.isnan(now.rate) or self._pays(features, now, lengths.usual):
            return None
        return self._finding(features, lengths, now, lengths.usual)

    def _pays(self, features: Features, now: PassLevel, before: PassLevel) -> bool:
        """Whether more is passed than before the growth, in training or held out."""
        has_risen = now.rate - before.rate > math.hypot(now.error, before.error)
        return has_risen or features.held_out.has_risen_since(before.step, 2)

    def _finding(self, features: Features, lengths: Lengths, now: PassLevel, before: PassLevel) -> Finding:
        ratio = lengths.ratio
        compare = look("compare-lengths", "compare lengths of passing and of failing completions of the same prompts")
        terms = look("find-length-term", "look for a part of the reward that grows with the length, or penalise length")
        return Finding(
            severity="critical" if features.truncation.share >= self.cut else "warning",
            summary=(
                f"Completions grew to {ratio:.1f} times their first length, {lengths.mean:.0f} tokens; the pass rate "
                f"is {now.rate:.2f} and was {before.rate:.2f} before"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.length.mean / first windows",
                    observed=ratio,
                    operator=">=",
                    threshold=self.fire if ratio >= self.fire else self.clear,
                    unit="times the first length",
                    window=lengths.n,
                    window_unit="completions",
                    n=lengths.n,
                    baseline=1.0,
                ),
                Evidence(
                    metric="batch_consumed.pass_rate",
                    observed=now.rate,
                    operator="<=",
                    threshold=before.rate + math.hypot(now.error, before.error),
                    unit="share of completions",
                    window=now.groups,
                    window_unit="groups",
                    n=now.groups,
                    baseline=before.rate,
                ),
            ),
            proposals=ranked(terms, compare),
        )
