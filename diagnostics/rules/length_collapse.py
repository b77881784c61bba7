"""GEN004: completions shrink to next to nothing, and the reward goes with them."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.lengths import Lengths, PassLevel
from tocsin.diagnostics.outcome import COMPLETIONS
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence, Severity


@dataclass(frozen=True, kw_only=True)
class LengthCollapse(Rule):
    """Completions are a fraction of their first length, and less is passed than before they shrank.

    ## What it means
    The policy found that saying less costs less: a penalty on length outweighs the reward for an answer, or ending at
    once avoids something worse than failing.

    ## Why it matters
    A policy that ends at once explores nothing, so nothing can teach it to answer again. It seldom comes back without
    an older checkpoint.

    ## How it is detected
    Mean length over at least 256 completions, in multiples of the median of the run's first five such windows. Below
    `fire` alone it is info: brevity that was learned. It is a warning when the pass rate also fell below 0.7 of what it
    was while completions had about their first length, by three standard errors, or the held-out score fell by as
    much below its best. Critical when on top of that the length is below `critical`, or more than `empty` of the
    completions hold nothing but an end token. Not judged while at least half of the completions are cut at the
    limit, which is what makes them short then (GEN001). It resolves above `clear`.

    ## Known false alarms
    A reward that asks for brevity, and gets it, shows at info. Other prompts may need shorter answers.

    ## What to do
    Read a few completions. Take the penalty on length away, or make it apply to right answers only. Stop, and resume
    from a checkpoint older than the fall.

    ## Sources
    Measured on 77 labelled runs in the project's catalogue, where it is rare (1 of 8 collapses, 2 of 25 healthy runs
    by length alone); one of them fell from 110 tokens to 4.
    """

    code = "GEN004"
    name = "length-collapse"
    title = "Completions shrink to next to nothing"
    kind = "fault"
    proof = "injected"
    where = "sampler"
    reads = (
        "batch_consumed.length",
        "batch_consumed.length_histogram",
        "batch_consumed.groups",
        "batch_consumed.pass_rate",
        "batch_consumed.finish_reasons",
        "evaluation_completed.pass_rate",
    )
    trigger = BatchConsumed
    timing = Timing(
        unit="completions", window=COMPLETIONS, warm_up=5 * COMPLETIONS, persistence=5, clear_persistence=10
    )
    rising = (("critical", "fire", "clear"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="RWD011",
            text="a part of the reward falls with the length",
            weight=0.5,
            check="the component's mean rose while `batch_consumed.length` fell",
        ),
        Cause(
            code="POL014",
            text="updates were too large and the policy ends at once",
            weight=0.2,
            check="`update_ratio` rose before",
        ),
        Cause(
            code="OFF010",
            text="the sampler does not have the learner's weights",
            weight=0.2,
            check="the fall began at a sync whose probe does not agree",
        ),
        Cause(
            code="GEN008",
            text="prompts begin or end in a way that the model does not know",
            weight=0.1,
            check="it was so from the beginning of the attempt",
        ),
    )

    fire: float = threshold(0.5, "Multiple of the first length that fires", high=1, unit="times the first length")
    critical: float = threshold(0.25, "Multiple that is critical with a loss", high=1, unit="times the first length")
    clear: float = threshold(0.7, "Multiple above which it resolves", high=1, unit="times the first length")
    empty: float = threshold(0.1, "Empty share that is critical with a loss", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the length with the beginning, unless the limit is what makes it short."""
        lengths = features.lengths
        if lengths.usual is None:
            return not_evaluated("warm_up", "fewer than five windows of 256 completions have passed")
        if not lengths.ratio <= (self.clear if is_open else self.fire) or features.truncation.share >= 0.5:
            return None
        return self._finding(features, lengths, lengths.fast_pass_level(), lengths.usual)

    def _severity(self, features: Features, now: PassLevel, before: PassLevel) -> Severity:
        lengths = features.lengths
        if not (now.fell_below(0.7, before) or features.held_out.has_fallen(3)):
            return "info"
        is_next_to_nothing = lengths.ratio <= self.critical or lengths.empty_share > self.empty
        return "critical" if is_next_to_nothing else "warning"

    def _finding(self, features: Features, lengths: Lengths, now: PassLevel, before: PassLevel) -> Finding:
        ratio = lengths.ratio
        return Finding(
            severity=self._severity(features, now, before),
            summary=(
                f"Completions shrank to {ratio:.2f} of their first length, {lengths.mean:.1f} tokens; the pass rate "
                f"is {now.rate:.2f} and was {before.rate:.2f} before"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.length.mean / first windows",
                    observed=ratio,
                    operator="<=",
                    threshold=self.fire if ratio <= self.fire else self.clear,
                    unit="times the first length",
                    window=lengths.n,
                    window_unit="completions",
                    n=lengths.n,
                    baseline=1.0,
                ),
                Evidence(
                    metric="batch_consumed.pass_rate",
                    observed=now.rate,
                    operator="<",
                    threshold=before.rate,
                    unit="share of completions",
                    window=now.groups,
                    window_unit="groups",
                    n=now.groups,
                    baseline=before.rate,
                ),
            ),
            proposals=ranked(
                look("read-short-completions", "read short completions, and look for a reward that falls with length"),
                look("resume-from-checkpoint", f"stop, and resume from a checkpoint of step {before.step} or before"),
            ),
        )
