"""GEN012: a verifier finds no answer in many completions."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.components import Parsing
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, measured, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Severity

OPENING: Final = 20
"""Steps in which a model may still learn how an answer has to look."""
UNTOLD: Final = not_evaluated("missing_input", "batches do not state what verifiers could read")
NO_SEARCH: Final = not_evaluated("not_applicable", "no verifier looks for an answer within the text")


@dataclass(frozen=True, kw_only=True)
class ParseFailures(Rule):
    """Completions hold no answer that the verifier can read, so right and wrong are not told apart.

    ## What it means
    The verifier looks for a number, a formula or a pattern and finds none. Either the model answers in another form
    than it was asked for, or the pattern is wrong.

    ## Why it matters
    A right answer in the wrong form earns what a wrong one earns. The reward then teaches the form alone, or nothing.

    ## How it is detected
    Among at least 256 completions that were not cut off, the share in which one verifier found no answer is above
    `fire`; for the first 20 steps above `nearly_all`, which is critical there. Not judged while the share is falling
    from one window to the next by two standard errors. It resolves at or below `clear`.

    ## Known false alarms
    A base model starts without the form and learns it. A task in which "no answer" is right.

    ## What to do
    Read three completions with what the verifier found. Ask for the form in the prompt, widen the pattern, or reward
    the form a little.

    ## Sources
    open-r1#235 and #420, in which right answers in an unread form earned nothing.
    """

    code = "GEN012"
    name = "parse-failures"
    title = "Answers cannot be read out of completions"
    kind = "fault"
    proof = "injected"
    where = "rewards"
    reads = ("batch_consumed.texts", "batch_consumed.finish_reasons")
    trigger = BatchConsumed
    timing = Timing(
        unit="completions",
        window=Parsing.COMPLETIONS,
        warm_up=Parsing.COMPLETIONS,
        persistence=3,
        clear_persistence=5,
    )
    rising = (("clear", "fire", "nearly_all"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the model answers in another form than the verifier reads",
            weight=0.5,
            check="read completions without an answer",
        ),
        Cause(text="the pattern is wrong", weight=0.2, check="try it on a completion that holds the answer"),
        Cause(
            code="GEN008",
            text="the model is asked in a format that it does not know",
            weight=0.2,
            check="it is so from the first step on",
        ),
        Cause(
            code="GEN001",
            text="completions end before the answer",
            weight=0.1,
            check="the share of cut completions, which are left out here",
        ),
    )

    fire: float = threshold(0.2, "Share without an answer that fires", high=1, unit="share of completions")
    clear: float = threshold(0.1, "Share at which it resolves", high=1, unit="share of completions")
    nearly_all: float = threshold(0.8, "Share that fires in the first steps", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the share of the worst verifier."""
        parsing = features.parsing
        if not parsing.is_told:
            return UNTOLD
        if not parsing.unparsed:
            return NO_SEARCH
        share = parsing.share(parsing.worst)
        if math.isnan(share):
            return not_evaluated("warm_up", f"fewer than {Parsing.COMPLETIONS} completions that were not cut were seen")
        if share <= (self.clear if is_open else self.fire):
            return None
        is_opening = features.settings.step < OPENING
        if not is_open and ((is_opening and share <= self.nearly_all) or _is_falling(parsing, share)):
            return None
        severity: Severity = "critical" if share > self.nearly_all and is_opening else "warning"
        return self._finding(parsing, share, severity)

    def _finding(self, parsing: Parsing, share: float, severity: Severity) -> Finding:
        return Finding(
            severity=severity,
            summary=(
                f"{parsing.worst[:40]} found no answer in {parsing.unparsed[parsing.worst]} of {parsing.completions} "
                f"completions that were not cut off"
            ),
            evidence=(
                measured(
                    f"batch_consumed.texts.unparsed.{parsing.worst}",
                    share,
                    ">",
                    self.fire if share > self.fire else self.clear,
                    unit="share of completions",
                    over=(parsing.completions, "completions"),
                ),
            ),
            proposals=ranked(look("read-unparsed", "read three completions in which the verifier found no answer")),
        )


def _is_falling(parsing: Parsing, share: float) -> bool:
    before = parsing.before.get(parsing.worst, math.nan)
    error = math.sqrt((before * (1 - before) + share * (1 - share)) / Parsing.COMPLETIONS)
    return before - share > 2 * error
