"""A rule of your own: answers are shorter than you say that they may be."""

from dataclasses import dataclass

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, measured
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause


@dataclass(frozen=True, kw_only=True)
class ShortAnswers(Rule):
    """Completions are shorter on average than the least that is declared.

    ## What it means
    The policy says less than whoever reads its answers can use, whatever the reward thinks of it.

    ## How it is detected
    Mean length over at least 256 completions below `fire`; resolved above `clear`. GEN004 compares with the beginning
    of the run; only you know what is too short for your readers, so say it:

        [diagnostics.thresholds.XEX001]
        fire = 80
        clear = 100

    ## Known false alarms
    Easier prompts may need less than the bound.

    ## What to do
    Read a few completions. Reward an answer only when it says what is needed.

    ## Sources
    `tocsin demo --fault truncated` cuts the seven tokens of an answer to four, and this rule names it: that is why it
    may say `injected`, and warn.
    """

    code, name, title = "XEX001", "x-short-answers", "Answers are shorter than they may be"
    kind, proof, where = "fault", "injected", "sampler"
    reads, trigger, rising = ("batch_consumed.length",), BatchConsumed, (("fire", "clear"),)
    timing = Timing(unit="completions", window=256, warm_up=256, persistence=3, clear_persistence=3)
    causes = (Cause(text="the reward pays for brevity", weight=0.5, check="reward rises while length falls"),)

    fire: float = threshold(5, "Mean length below which it fires", unit="tokens")
    clear: float = threshold(6, "Mean length above which it resolves", unit="tokens")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        mean, over, bound = features.lengths.mean, features.lengths.n, self.clear if is_open else self.fire
        if over < 256:
            return not_evaluated("warm_up", "fewer than 256 completions have passed")
        if mean >= bound:
            return None
        summary = f"Completions have {mean:.1f} tokens on average, {self.fire:g} are declared as the least"
        evidence = measured(self.reads[0], mean, "<", bound, unit="tokens", over=(over, "completions"))
        advice = look("read-short-answers", "read a few completions")
        return Finding(severity="warning", summary=summary, evidence=(evidence,), proposals=(advice,))
