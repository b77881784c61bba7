"""GEN001: many completions end at the length limit."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.outcome import COMPLETIONS, Outcome, Truncation
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence, Severity


@dataclass(frozen=True, kw_only=True)
class TruncationHigh(Rule):
    """A large share of completions is cut off at the length limit.

    ## What it means
    Finish reason `length` means that the sampler stopped the completion, not the model. What was cut has usually not
    reached its answer and gets the reward of a wrong one, whatever it was about to say.

    ## Why it matters
    The policy learns that long answers are wrong, or learns nothing because every completion fails. Rising truncation
    together with a falling reward announced or marked every collapse in the catalogue's runs.

    ## How it is detected
    Share of finish reason `length`, pooled over at least 256 completions of whole steps; how long completions are
    plays no part. Above `fire` alone it is info: many bases start at a third and learn to stop. It is a warning when
    the share rose by `rise` and three standard errors above the lowest earlier window, or when nearly all completions
    are cut and the reward is at its floor, so that the limit leaves no room to learn. It is critical when the reward of
    the last three steps is below half of its best by three standard errors as well. It resolves below `clear`.

    Causes are ranked by what speaks for them: an end token inside of cut completions, growth to 1.5 times the first
    length, entropy at 1.5 times its beginning.

    ## Known false alarms
    A limit chosen on purpose below what the model would say, with a reward that allows for it, shows at info. A model
    that degenerates for another reason also stops to stop: look whether updates or the entropy grew first. A stop
    string that the sampler does not report as `stop` counts as a cut.

    ## What to do
    Raise `max_completion_tokens` when completions reach it. When the longest completion stays below the knob, something
    else cuts: the server's own limit or the context length. Otherwise look why the model does not end: a missing end
    token, repetition, or a reward that grows with length. Leaving cut completions out of the loss removes the pressure
    to stop.

    ## Sources
    DAPO (arXiv 2503.14476); ScaleRL (2510.13786); Skywork-OR1 (2505.22312); AReaL's advice of 5 %; trl#5759,
    ms-swift#4950; measured on 77 labelled runs in the project's catalogue.
    """

    code = "GEN001"
    name = "truncation-high"
    title = "Completions truncated"
    kind = "fault"
    proof = "injected"
    where = "sampler"
    reads = (
        "batch_consumed.finish_reasons",
        "batch_consumed.length",
        "batch_consumed.groups",
        "batch_consumed.texts.cut_with_end",
        "step_completed.entropy",
    )
    trigger = BatchConsumed
    timing = Timing(unit="completions", window=COMPLETIONS, warm_up=COMPLETIONS, persistence=2, clear_persistence=5)
    rising = (("clear", "fire", "nearly_all"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the length limit is too small for the answers",
            weight=0.5,
            check="truncation set in with a change of the limit, and completions are sound until they are cut",
        ),
        Cause(
            code="POL014",
            text="the policy broke and no longer ends its answers",
            weight=0.2,
            check="`update_ratio` and `step_completed.entropy` rose before",
        ),
        Cause(
            code="GEN003",
            text="answers grow longer and longer",
            weight=0.2,
            check="`batch_consumed.length.mean` rose over many steps before",
        ),
        Cause(
            code="GEN002",
            text="the end token is never produced or not recognised",
            weight=0.1,
            check="cut completions contain an end token",
        ),
    )

    fire: float = threshold(0.3, "Truncated share that fires", high=1, unit="share of completions")
    clear: float = threshold(0.2, "Truncated share below which it resolves", high=1, unit="share of completions")
    rise: float = threshold(0.2, "Rise above the lowest window that warns", high=1, unit="share of completions")
    nearly_all: float = threshold(0.95, "Share that warns at the floor", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the pooled share with the limit."""
        truncation = features.truncation
        share = truncation.share
        if math.isnan(share):
            return not_evaluated("warm_up", "fewer than 256 completions were seen under this length limit")
        if share <= (self.clear if is_open else self.fire):
            return None
        return self._finding(features, truncation, share)

    def _severity(self, truncation: Truncation, outcome: Outcome) -> Severity:
        newest = outcome.fast()
        if outcome.fell_below(0.5, newest):
            return "critical"
        share, lowest = truncation.share, truncation.window.lowest
        error = math.sqrt(share * (1 - share) / truncation.window.n)
        has_risen = share - lowest > max(self.rise, 3 * error)
        is_hopeless = share >= self.nearly_all and outcome.level(newest) <= 0.05
        return "warning" if has_risen or is_hopeless else "info"

    def _finding(self, features: Features, truncation: Truncation, share: float) -> Finding:
        outcome = features.outcome
        newest = outcome.fast()
        fell = outcome.fell_below(0.5, newest)
        reward = f"; the reward is {outcome.share_of_best(newest):.0%} of its best" if fell else ""
        lowest = None if math.isnan(truncation.window.lowest) else truncation.window.lowest
        before = "" if lowest is None else f", {lowest:.0%} at best before"
        return Finding(
            severity=self._severity(truncation, outcome),
            summary=(
                f"{share:.0%} of {truncation.window.n} completions since step {truncation.window.first_step} "
                f"ended at the length limit{before}{reward}"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.groups.truncated / groups.size",
                    observed=share,
                    operator=">",
                    threshold=self.fire if share > self.fire else self.clear,
                    unit="share of completions",
                    window=truncation.window.n,
                    window_unit="completions",
                    n=truncation.window.n,
                    baseline=lowest,
                ),
            ),
            proposals=self._answers(features, truncation),
            causes=self._ranked_causes(features),
        )

    def _ranked_causes(self, features: Features) -> tuple[Cause, ...]:
        """The causes, with those in front for which something speaks."""
        ended, entropy = features.texts.cut_with_end.share, features.entropy
        signs = {
            "GEN002": ended > 0.5 * features.truncation.share,
            "GEN003": features.lengths.ratio >= 1.5,
            "POL014": entropy.level >= 1.5 * entropy.initial,
        }
        weights = {code: weight for code, weight in zip(signs, (0.9, 0.8, 0.7), strict=True) if signs[code]}
        seen = [
            cause.model_copy(update={"weight": weights.get(cause.code or "", cause.weight)}) for cause in self.causes
        ]
        return tuple(sorted(seen, key=lambda cause: -cause.weight))

    def _answers(self, features: Features, truncation: Truncation) -> tuple[Proposal, ...]:
        settings = features.settings
        limit = settings.knob("max_completion_tokens")
        read = look("read-cut-completions", "read completions that were cut: sound until the cut, or noise")
        if limit is None:
            return ranked(read)
        if truncation.longest < limit:
            other = look(
                "find-other-limit", f"find what cuts at {truncation.longest:g} tokens; the knob allows {limit}"
            )
            return ranked(other, read)
        verify = Verify(
            metric="batch_consumed.groups.truncated / groups.size",
            operator="<",
            threshold=self.clear,
            within=30,
            unit="steps",
        )
        return ranked(move(settings, "max_completion_tokens", 2 * limit, verify, risk="medium"), read)
