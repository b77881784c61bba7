"""GEN014: rows of the training data are left out because their prompts are too long."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, measured, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Severity
from tocsin.schemas.events import RunStarted

TOO_LONG = "prompt_too_long"


@dataclass(frozen=True, kw_only=True)
class PromptTruncated(Rule):
    """Part of the training rows is never trained on, because prompt and completion would not fit the model.

    ## What it means
    A prompt is never cut; one that leaves no room for `max_completion_tokens` within the length of the model is
    refused when the data are read.

    ## Why it matters
    The longest prompts are usually the hardest, so what is left is another task than the one that was meant.

    ## How it is detected
    Once, when the run starts: refused rows with cause `prompt_too_long` over all rows that could be read. Above `fire`
    a warning, above `critical` critical. Rows that could not be read (`bad_row`) are not counted. It stays open as long
    as the run.

    ## Known false alarms
    Data that were meant to be filtered by length.

    ## What to do
    Raise `model.max_length`, or lower `max_completion_tokens` before the next start: it is the room kept free for a
    completion. Or shorten the prompts.

    ## Sources
    verl stops with an error instead of cutting (`data.truncation`); TRL counts rows dropped as oversize.
    """

    code = "GEN014"
    name = "prompt-truncated"
    title = "Prompts dropped because they are too long"
    kind = "fault"
    proof = "injected"
    where = "data"
    reads = ("run_started.setup",)
    trigger = RunStarted
    # Nothing later says anything new: the answer of the start stays.
    timing = Timing(unit="samples", window=1, warm_up=0, persistence=1, clear_persistence=1, silent_after=2**31)
    rising = (("fire", "critical"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the length of the model is too small for the data",
            weight=0.6,
            check="the lengths of the refused prompts beside `model.max_length`",
        ),
        Cause(
            text="more room is kept free for completions than they need",
            weight=0.4,
            check="`batch_consumed.length.max` beside `max_completion_tokens`",
        ),
    )

    fire: float = threshold(0.01, "Share of refused rows that fires", high=1, unit="share of rows")
    critical: float = threshold(0.1, "Share of refused rows that is critical", high=1, unit="share of rows")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the refused rows with all that could be read."""
        setup = features.settings.setup
        if setup.train_prompts is None:
            return not_evaluated("missing_input", "the run does not state how many rows its data have")
        refused = setup.refused_prompts.get(TOO_LONG, 0)
        rows = setup.train_prompts + refused
        return self._finding(features, refused, rows) if refused > self.fire * rows else None

    def _finding(self, features: Features, refused: int, rows: int) -> Finding:
        share = refused / rows
        severity: Severity = "critical" if share > self.critical else "warning"
        return Finding(
            severity=severity,
            summary=f"{refused} of {rows} training rows are left out because their prompts are too long",
            evidence=(
                measured(
                    f"run_started.setup.refused_prompts.{TOO_LONG}",
                    share,
                    ">",
                    self.critical if severity == "critical" else self.fire,
                    unit="share of rows",
                    over=(rows, "samples"),
                ),
            ),
            proposals=_answers(features),
        )


def _answers(features: Features) -> tuple[Proposal, ...]:
    limit = features.settings.knob("max_completion_tokens")
    room = (
        None if limit is None else look("leave-more-room", f"lower max_completion_tokens, now {limit}, and start again")
    )
    return ranked(look("raise-max-length", "raise model.max_length and start again"), room)
