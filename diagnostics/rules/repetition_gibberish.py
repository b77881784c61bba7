"""GEN005: completions repeat themselves."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.outcome import COMPLETIONS, PooledShare
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence, Severity

METRIC = "batch_consumed.texts.repetitive / texts.judged"

TOO_SHORT: Final = not_evaluated("not_applicable", "no completion has been long enough to be judged (64 tokens)")


@dataclass(frozen=True, kw_only=True)
class RepetitionGibberish(Rule):
    """More completions than before repeat themselves, or whatever the policy writes.

    ## What it means
    A policy that has lost its way falls into loops: the same words over and over until the limit. A completion counts
    when more than half of the 4-grams among its last 512 tokens repeat an earlier one.

    ## Why it matters
    A loop earns nothing, costs the most tokens of all and runs into the limit. It is often the first thing to be seen
    of a policy that breaks.

    ## How it is detected
    Share of repetitive completions among those of 64 tokens or more, over at least 256 of them. It is a warning when
    it lies more than `fire` and three standard errors above the lowest earlier window, critical above `critical`.
    Before there is an earlier window, and whenever the rise is smaller, a share above `from_start` is info. It
    resolves within `clear` of the lowest window.

    ## Known false alarms
    Code, tables and enumerations repeat themselves rightly; that is why the rise counts and not the level. Other
    prompts may ask for such texts. Shorter completions are not judged.

    ## What to do
    Read a few. Look what came first: rising entropy, a weight sync that did not arrive, non-finite numbers. Lower the
    learning rate, or resume from a checkpoint older than the rise.

    ## Sources
    Repetition checks of slime and miles (compression of the last 10,000 characters; shorter texts never trigger them,
    so 4-grams here); TRL's repetition penalty; ms-swift#3930, #5130, Search-R1#162.
    """

    code = "GEN005"
    name = "repetition-gibberish"
    title = "Completions repeat themselves"
    kind = "fault"
    proof = "scenario"
    where = "sampler"
    reads = ("batch_consumed.texts.judged", "batch_consumed.texts.repetitive")
    trigger = BatchConsumed
    timing = Timing(unit="completions", window=COMPLETIONS, warm_up=COMPLETIONS, persistence=2, clear_persistence=10)
    rising = (("clear", "fire", "critical"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(code="POL002", text="the policy dissolves", weight=0.3, check="`step_completed.entropy` rose before"),
        Cause(
            code="GEN002",
            text="the sampler does not see the end of answers",
            weight=0.2,
            check="cut completions contain an end token, and the repetition comes after it",
        ),
        Cause(
            code="OFF010",
            text="the sampler does not have the learner's weights",
            weight=0.2,
            check="it began at a sync whose probe does not agree",
        ),
        Cause(
            code="POL015",
            text="the model has non-finite values",
            weight=0.1,
            check="`step_completed.nonfinite` names something",
        ),
        Cause(text="the prompts ask for repetitive texts", weight=0.2, check="repetitive completions pass"),
    )

    fire: float = threshold(0.05, "Rise above the lowest window that warns", high=1, unit="share of long completions")
    critical: float = threshold(0.2, "Rise that is critical", high=1, unit="share of long completions")
    clear: float = threshold(0.03, "Rise at which it resolves", high=1, unit="share of long completions")
    from_start: float = threshold(0.5, "Share that is info by itself", high=1, unit="share of long completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the share with the lowest before."""
        if not features.texts.is_measured:
            return not_evaluated("missing_input", "batches do not say what is in their completions")
        if not features.texts.has_long:
            return TOO_SHORT
        window = features.texts.repetitive
        if math.isnan(window.share):
            return not_evaluated("warm_up", "fewer than 256 completions of 64 tokens or more were seen")
        limit = self.clear if is_open else max(self.fire, 3 * window.error)
        if window.share - window.lowest > limit or window.share > self.from_start:
            return self._finding(features, window)
        return None

    def _severity(self, window: PooledShare) -> Severity:
        rise = window.share - window.lowest
        if not rise > max(self.fire, 3 * window.error):
            return "info"
        return "critical" if rise > self.critical else "warning"

    def _finding(self, features: Features, window: PooledShare) -> Finding:
        lowest = None if math.isnan(window.lowest) else window.lowest
        before = "" if lowest is None else f", {lowest:.0%} at best before"
        return Finding(
            severity=self._severity(window),
            summary=(
                f"{window.share:.0%} of {window.n} completions of 64 tokens or more since step {window.first_step} "
                f"repeat themselves{before}"
            ),
            evidence=(
                Evidence(
                    metric=METRIC,
                    observed=window.share,
                    operator=">",
                    threshold=self.from_start if lowest is None else min(window.share, lowest + self.clear),
                    unit="share of long completions",
                    window=window.n,
                    window_unit="completions",
                    n=window.n,
                    baseline=lowest,
                ),
            ),
            proposals=self._answers(features, lowest),
        )

    def _answers(self, features: Features, lowest: float | None) -> tuple[Proposal, ...]:
        read = look("read-repetitive-completions", "read repetitive completions, and look what changed before")
        back = look("resume-from-checkpoint", "stop, and resume from a checkpoint older than the rise")
        rate = features.settings.knob("learning_rate")
        if rate is None or lowest is None:
            return ranked(read, back)
        verify = Verify(metric=METRIC, operator="<", threshold=lowest + self.clear, within=50, unit="steps")
        return ranked(read, move(features.settings, "learning_rate", rate / 2, verify), back)
