"""GEN006: completions are written in another script than their prompts."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.outcome import COMPLETIONS, PooledShare
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence

NO_LETTERS: Final = not_evaluated(
    "not_applicable", "no prompt and completion have had 20 letters of one script to compare"
)


@dataclass(frozen=True, kw_only=True)
class LanguageDrift(Rule):
    """More completions than before are written in another script than their prompt.

    ## What it means
    The policy answers in another language than it was asked in, or mixes several. Only a change of the script is seen:
    Cyrillic for Latin, Chinese for Latin; not French for English.

    ## Why it matters
    Nobody who reads the answers asked for it. It also tells that the policy moved far from what it was trained to
    write, which is seldom visible in the reward.

    ## How it is detected
    Of completions that have, as their prompt has, at least 20 letters of one script: the share with another main
    script, over at least 256 of them. It counts when the share lies more than `fire` and three standard errors above
    the lowest earlier window, or above `level` by itself; it resolves when neither holds by `clear`. Info, because
    mixing may come with real gains.

    ## Known false alarms
    Translation, transliteration and quotations change the script rightly; a task of translation lies above `level`
    from the start. Formulas and code in Latin letters to prompts in another script count as drift.

    ## What to do
    Read a few. Add a small reward for the language of the prompt, or hold the policy to its reference with `kl_beta`.

    ## Sources
    DeepSeek-R1 (arXiv 2501.12948) and Magistral (2506.10910) reward language consistency; open-r1#96, #683, verl#1051.
    """

    code = "GEN006"
    name = "language-drift"
    title = "Completions change the language"
    kind = "fault"
    proof = "scenario"
    where = "sampler"
    reads = ("batch_consumed.texts.script_judged", "batch_consumed.texts.other_script")
    trigger = BatchConsumed
    timing = Timing(unit="completions", window=COMPLETIONS, warm_up=COMPLETIONS, persistence=20, clear_persistence=20)
    rising = (("clear", "fire", "level"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the reward is blind to the language, and another one earns as much",
            weight=0.5,
            check="the reward holds while the share rises",
        ),
        Cause(code="POL002", text="the policy dissolves", weight=0.3, check="`step_completed.entropy` rose before"),
        Cause(
            code="POL006",
            text="the policy runs away from its reference",
            weight=0.2,
            check="`step_completed.kl_ref` rose before",
        ),
    )

    fire: float = threshold(0.1, "Rise above the lowest window that fires", high=1, unit="share of completions")
    clear: float = threshold(0.05, "Rise at which it resolves", high=1, unit="share of completions")
    level: float = threshold(0.3, "Share that fires by itself", high=1, unit="share of completions")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the share with the lowest before."""
        if not features.texts.is_measured:
            return not_evaluated("missing_input", "batches do not say what is in their completions")
        if not features.texts.has_letters:
            return NO_LETTERS
        window = features.texts.other_script
        if math.isnan(window.share):
            return not_evaluated("warm_up", "fewer than 256 completions with letters enough were seen")
        rise = window.share - window.lowest
        if rise > (self.clear if is_open else max(self.fire, 3 * window.error)):
            return self._finding(window)
        slack = self.fire - self.clear if is_open else 0.0
        return self._finding(window) if window.share > self.level - slack else None

    def _finding(self, window: PooledShare) -> Finding:
        lowest = None if math.isnan(window.lowest) else window.lowest
        before = "" if lowest is None else f", {lowest:.0%} at best before"
        return Finding(
            severity="info",
            summary=(
                f"{window.share:.0%} of {window.n} completions since step {window.first_step} are in another script "
                f"than their prompt{before}"
            ),
            evidence=(
                Evidence(
                    metric="batch_consumed.texts.other_script / texts.script_judged",
                    observed=window.share,
                    operator=">",
                    threshold=min(window.share, self.level if lowest is None else lowest + self.clear),
                    unit="share of completions",
                    window=window.n,
                    window_unit="completions",
                    n=window.n,
                    baseline=lowest,
                ),
            ),
            proposals=ranked(
                look("read-other-script", "read completions in another script than their prompt"),
                look("reward-language", "reward the language of the prompt, or hold the policy with kl_beta"),
            ),
        )
