"""SYS009: much of what goes through the model is padding."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.pipeline import Padding, mean
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

PADDED = "step_completed.microbatches.padded_frac"
WINDOW = Padding.RECENT
FEW_ROWS = 4
"""Completions that must have been trained on: of a handful with different lengths, much is padding by nature."""


@dataclass(frozen=True, kw_only=True)
class PaddingWaste(Rule):
    """Much of what goes through the model is padding.

    ## What it means
    Completions of different lengths share a micro-batch, and the short ones are filled up to the longest.

    ## Why it matters
    Padding costs as much time and memory as tokens and teaches nothing. The gradient is not affected.

    ## How it is detected
    Mean over the last ten steps that updated the weights of the share of forwarded tokens that are padding, above
    `fire`: info. A warning from `wasted` on, as mean over the last 50 of them. Steps with four completions or fewer are
    left alone. It resolves below `clear`.

    ## Known false alarms
    Few long completions among short ones: whatever shares their batch is filled up, and smaller batches help only so
    far.

    ## What to do
    Lower `microbatch_tokens`: rows are sorted by length, so narrower batches hold rows of about one length. It changes
    memory and speed, never the gradient; look at the step time as well, because many small passes cost time too. Where
    an accelerator runs variable-length kernels there is no padding at all.

    ## Sources
    verl's performance tuning guide; TRL balances batches by squared lengths. On a CPU packing was measured to be slower
    than padding by length. Three tenths and the half are judgement.
    """

    code = "SYS009"
    name = "padding-waste"
    title = "Much of the forward pass is padding"
    kind = "efficiency"
    proof = "injected"
    where = "learner"
    reads = ("step_completed.microbatches", "step_completed.groups_trained", "step_completed.outcome")
    trigger = StepCompleted
    timing = Timing(unit="steps", window=WINDOW, warm_up=WINDOW, persistence=5, clear_persistence=10)
    rising = (("clear", "fire", "wasted"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="micro-batches are wide, and lengths differ within them",
            weight=0.7,
            check="`microbatches.num` is small and `batch_consumed.length.max` is many times `p50`",
        ),
        Cause(
            code="GEN003",
            text="a few completions grow long",
            weight=0.3,
            check="`batch_consumed.length.max` grows and `p50` does not",
        ),
    )

    fire: float = threshold(0.3, "Share of padding above which it fires", high=1, unit="share of tokens")
    clear: float = threshold(0.2, "Share of padding below which it resolves", high=1, unit="share of tokens")
    wasted: float = threshold(0.5, "Share of padding from which it is a warning", high=1, unit="share of tokens")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the mean share with the limit."""
        padding = features.padding
        last = padding.last
        if last is None or last.microbatches is None:
            return not_evaluated("missing_input", "no step says how much of its forward passes was padding")
        share = mean(padding.recent)
        if math.isnan(share):
            return not_evaluated("warm_up", f"fewer than {WINDOW} steps with an update were seen")
        rows = last.groups_trained * (features.settings.knob("group_size") or FEW_ROWS)
        if not share > (self.clear if is_open else self.fire) or rows <= FEW_ROWS:
            return None
        return self._finding(features, share, last)

    def _finding(self, features: Features, share: float, last: StepCompleted) -> Finding:
        cut = last.microbatches
        assert cut is not None, "only steps that say how they were cut are judged"
        is_wasted = share >= self.wasted and mean(features.padding.window) >= self.wasted
        return Finding(
            severity="warning" if is_wasted else "info",
            summary=(
                f"{share:.0%} of the tokens in forward passes were padding over {WINDOW} steps, in {cut.num} "
                f"micro-batches of up to {cut.max_tokens} tokens"
            ),
            evidence=(
                Evidence(
                    metric=PADDED,
                    observed=share,
                    operator=">",
                    threshold=self.fire if share > self.fire else self.clear,
                    unit="share of tokens",
                    window=WINDOW,
                    window_unit="steps",
                    n=WINDOW,
                ),
            ),
            proposals=self._answers(features, cut.max_tokens),
        )

    def _answers(self, features: Features, largest: int) -> tuple[Proposal, ...]:
        settings = features.settings
        budget = settings.knob("microbatch_tokens")
        verify = Verify(metric=PADDED, operator="<", threshold=self.fire, within=20, unit="steps")
        # A budget that the largest micro-batch never filled would change nothing: it has to fall below that.
        narrower = None if budget is None else move(settings, "microbatch_tokens", min(budget, largest) / 2, verify)
        kernels = look("use-packing", "use variable-length kernels on an accelerator, or cut the longest completions")
        return ranked(narrower, kernels)
