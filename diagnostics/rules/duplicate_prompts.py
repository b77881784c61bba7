"""RWD007: prompts come back more often than the size of the data demands."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.prompt_stats import Repeats
from tocsin.diagnostics.proposals import look, measured, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence

TWICE: Final = 3
"""Steps of the last twenty in which one row came twice; one or two are the boundary of an epoch."""


@dataclass(frozen=True, kw_only=True)
class DuplicatePrompts(Rule):
    """Prompts repeat: the same text in several rows, one row twice in a step, or very many epochs.

    ## What it means
    The data have fewer prompts than rows, or the order of the prompts is broken, or the run has gone over the same data
    again and again.

    ## Why it matters
    Repetition narrows what is learned and is paid like new data. A prompt that counts four times weighs four times.

    ## How it is detected
    Any of three. *Copies in the data*: among 512 groups, more than `fire` of the different contents stand in more than
    one row. *Order*: in at least three of twenty steps one row came twice, though the data have more than four times as
    many rows as a step has groups. *Epochs*: more than `epochs` passes over the data while the last evaluation is not
    above the one before. A prompt is known by row number and content hash. Advice about the data, so info.

    ## Known false alarms
    Weighting prompts by writing them several times is done on purpose. Small data sets need many epochs. Rows that
    differ only in their answer have the same content where the hash does not cover the answer.

    ## What to do
    Remove double rows, or add data. Where one row comes twice in a step, look at what orders the prompts.

    ## Sources
    d1#19 (groups with the wrong repetition); TRL's AsyncGRPO starts the order of the data over at a resume.
    """

    code = "RWD007"
    name = "duplicate-prompts"
    title = "Prompts repeat more often than the data demands"
    kind = "lint"
    proof = "lint"
    where = "data"
    reads = ("batch_consumed.groups.prompt_id", "batch_consumed.groups.group_index", "run_started.setup")
    trigger = BatchConsumed
    timing = Timing(unit="groups", window=Repeats.GROUPS, warm_up=Repeats.GROUPS, persistence=3, clear_persistence=20)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(text="rows of the data are copies of each other", weight=0.6, check="count contents in the data file"),
        Cause(
            code="SYS014",
            text="a resume started the order of the prompts over",
            weight=0.2,
            check="it began at `run_resumed`",
        ),
        Cause(
            text="the data are few for this many steps", weight=0.2, check="rows times epochs is the groups consumed"
        ),
    )

    fire: float = threshold(0.05, "Share of contents in more than one row", high=1, unit="share of contents")
    epochs: float = threshold(10, "Passes over the data above which the held-out score is asked", unit="epochs")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Copies first, then the order, then the number of epochs."""
        repeats, rows = features.repeats, features.settings.setup.train_prompts
        if repeats.contents == 0:
            return not_evaluated("warm_up", f"fewer than {Repeats.GROUPS} groups were seen")
        if repeats.doubled > self.fire * repeats.contents:
            return self._copies(repeats)
        groups = features.settings.knob("groups_per_step")
        if not rows or groups is None:
            return None
        twice = sum(repeats.twice)
        if twice >= TWICE and rows > 4 * groups:
            return self._order(twice, len(repeats.twice), rows)
        passes = repeats.consumed / rows
        if passes > self.epochs and len(features.held_out.results) >= 2 and not features.held_out.has_just_risen:
            return self._passes(passes, rows, repeats.consumed)
        return None

    def _copies(self, repeats: Repeats) -> Finding:
        share = repeats.doubled / repeats.contents
        return _found(
            f"{repeats.doubled} of {repeats.contents} different prompts stand in more than one row, "
            f"{repeats.example[:40]} for instance",
            measured(
                "contents in several rows",
                share,
                ">",
                self.fire,
                unit="share of contents",
                over=(Repeats.GROUPS, "groups"),
            ),
            "remove-double-rows",
            "remove double rows from the training data",
        )

    def _order(self, twice: int, steps: int, rows: int) -> Finding:
        return _found(
            f"One row came twice within a step in {twice} of {steps} steps, out of {rows} rows",
            measured("steps with a row twice", float(twice), ">=", TWICE, unit="steps", over=(steps, "steps")),
            "look-at-prompt-order",
            "look at what orders the prompts",
        )

    def _passes(self, passes: float, rows: int, consumed: int) -> Finding:
        return _found(
            f"The run is in epoch {math.floor(passes) + 1} over {rows} prompts, and the held-out score stands still",
            measured("epochs", passes, ">", self.epochs, unit="epochs", over=(consumed, "groups")),
            "add-prompts",
            "add prompts, or finish the run",
        )


def _found(summary: str, evidence: Evidence, verb: str, title: str) -> Finding:
    return Finding(severity="info", summary=summary, evidence=(evidence,), proposals=ranked(look(verb, title)))
