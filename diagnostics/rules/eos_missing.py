"""GEN002: completions go on after their end, because the sampler does not see it."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.outcome import COMPLETIONS, PooledShare
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence, Severity


@dataclass(frozen=True, kw_only=True)
class EosMissing(Rule):
    """Completions are cut at the length limit although an end token stands inside them.

    ## What it means
    The model ended its answer, and the sampler went on: the token at which it stops is not the one that the model
    says. A chat model ends a turn with one token and a text with another; a sampler that knows only one of them does
    not see the other.

    ## Why it matters
    What follows the end is noise that costs tokens, hides the answer from the reward function and is trained on.
    Without an end that counts, no length is learned.

    ## How it is detected
    Over at least 256 completions: more than `cut` of them ended at the length limit, and more than `inside` of these
    contain a token that ends a text or a turn, the tokenizer's own or one of the usual spellings. A warning; critical
    when `nearly_all` are cut and the reward is at its floor or below half of its best. It resolves when fewer than
    `clear` of the completions are cut after an end.

    ## Known false alarms
    A model that never ends has no end token inside: that is GEN001, and so is a limit that is too small. A task in
    which a completion rightly holds several turns contains end tokens that end nothing.

    ## What to do
    Compare the end tokens of tokenizer, model and sampler: `generation_config.json` of the model may list several, and
    the sampler must stop at each of them. If padding is the end token as well, make sure that it is not masked out of
    the loss.

    ## Sources
    slime's list of frequent questions on stop tokens; AReaL's share of completions without an end; MemGen#33.
    """

    code = "GEN002"
    name = "eos-missing"
    title = "End token not seen by the sampler"
    kind = "fault"
    proof = "injected"
    where = "sampler"
    reads = ("batch_consumed.texts.cut_with_end", "batch_consumed.finish_reasons", "batch_consumed.groups")
    trigger = BatchConsumed
    timing = Timing(unit="completions", window=COMPLETIONS, warm_up=COMPLETIONS, persistence=2, clear_persistence=5)
    rising = (("clear", "cut", "nearly_all"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the sampler stops at another token than the model ends with",
            weight=0.6,
            check="it began with the run, or with a change of the sampler's settings",
        ),
        Cause(
            code="GEN008",
            text="prompts are rendered with another template than the model knows",
            weight=0.2,
            check="the end token inside belongs to another template",
        ),
        Cause(
            code="OFF010",
            text="the sampler does not get the weights",
            weight=0.2,
            check="`weights_synced.probe_gap` is above its tolerance",
        ),
    )

    cut: float = threshold(0.3, "Truncated share above which it is judged", high=1, unit="share of completions")
    inside: float = threshold(0.5, "Share of the truncated ones with an end token inside", high=1, unit="share of cut")
    clear: float = threshold(0.1, "Share cut after an end below which it resolves", high=1, unit="share of completions")
    nearly_all: float = threshold(0.95, "Truncated share that may be critical", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the completions that were cut with those among them that had ended."""
        if not features.texts.is_measured:
            return not_evaluated("missing_input", "batches do not say what is in their completions")
        ended, cut = features.texts.cut_with_end, features.truncation.share
        if math.isnan(ended.share):
            return not_evaluated("warm_up", "fewer than 256 completions were seen under this length limit")
        is_fault = ended.share > self.clear if is_open else cut > self.cut and ended.share > self.inside * cut
        return self._finding(features, ended, cut) if is_fault else None

    def _severity(self, features: Features, cut: float) -> Severity:
        outcome = features.outcome
        newest = outcome.fast()
        is_worthless = outcome.fell_below(0.5, newest) or outcome.level(newest) <= 0.05
        return "critical" if cut >= self.nearly_all and is_worthless else "warning"

    def _finding(self, features: Features, ended: PooledShare, cut: float) -> Finding:
        compare = look("compare-end-tokens", "compare the end tokens of tokenizer, model and sampler")
        read = look("read-cut-completions", "read completions that were cut: what follows the end token")
        return Finding(
            severity=self._severity(features, cut),
            summary=(
                f"{ended.share:.0%} of {ended.n} completions since step {ended.first_step} went on after an end token "
                f"until the length limit"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.texts.cut_with_end / finish_reasons",
                    observed=ended.share,
                    operator=">",
                    threshold=max(self.clear, min(ended.share, self.inside * self.cut)),
                    unit="share of completions",
                    window=ended.n,
                    window_unit="completions",
                    n=ended.n,
                    baseline=None if math.isnan(ended.lowest) else ended.lowest,
                ),
            ),
            proposals=ranked(compare, read),
        )
