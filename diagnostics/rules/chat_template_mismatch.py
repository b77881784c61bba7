"""GEN008: prompts begin in a way that the model does not know."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.outcome import COMPLETIONS, Outcome
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.setup import TemplateSetup


@dataclass(frozen=True, kw_only=True)
class ChatTemplateMismatch(Rule):
    """Prompts begin with a doubled start token, or a chat model is asked without its template and never passes.

    ## What it means
    A model knows prompts in one form. A template that writes the start token, followed by a tokenizer that writes it
    again, gives it two; a chat model that gets bare text continues the text instead of answering it.

    ## Why it matters
    The model looks worse than it is, and the run spends its first hours on undoing it. A policy that has learned with
    the wrong form needs it ever after.

    ## How it is detected
    From the launch: at least one of the first prompts begins with two start tokens; or the tokenizer has a chat
    template that is not used while the pass rate over at least 256 completions is below `fire` and never was above it.
    Learner and sampler get the same token ids, so a gap of log-probs, the usual sign elsewhere, cannot appear. Info.
    It resolves when the prompts are mended in a later attempt, or at a pass rate of `clear`.

    ## Known false alarms
    Base models often come with the template of their chat variant: without it they are asked rightly, and a low pass
    rate is only hard. A start token that a prompt holds as text may be meant.

    ## What to do
    Set `data.chat_template`, or give prompts that are rendered already and let the tokenizer add no start token. Read
    one prompt as the model gets it.

    ## Sources
    miles' and slime's advice on large gaps at the first step (template or tokenizer); ms-swift#5130, open-r1#235.
    """

    code = "GEN008"
    name = "chat-template-mismatch"
    title = "Wrong chat template or doubled start token"
    kind = "lint"
    proof = "lint"
    where = "trainer"
    reads = ("run_started.setup", "run_resumed.setup", "batch_consumed.pass_rate", "batch_consumed.groups")
    trigger = BatchConsumed
    timing = Timing(unit="completions", window=COMPLETIONS, warm_up=0, persistence=1, clear_persistence=5)
    rising = (("fire", "clear"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="template and tokenizer both write the start token",
            weight=0.5,
            check="a prompt as token ids begins with the same id twice",
        ),
        Cause(
            text="the model was trained on chats and gets bare text",
            weight=0.5,
            check="the model's card speaks of instructions or chat, and completions continue the prompt",
        ),
    )

    fire: float = threshold(0.05, "Pass rate below which an unused template counts", high=1, unit="share")
    clear: float = threshold(0.1, "Pass rate from which it counts no more", high=1, unit="share")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Look at the launch, then at what is passed."""
        template = features.settings.setup.template
        if template is None:
            return not_evaluated("missing_input", "the run does not say how its prompts begin")
        if template.doubled_start:
            return self._doubled(template)
        if template.has and not template.used:
            return self._unused(features.outcome, self.clear if is_open else self.fire)
        return None

    def _doubled(self, template: TemplateSetup) -> Finding:
        once = look("write-start-once", "let either the template or the tokenizer write the start token, not both")
        return self._finding(
            f"{template.doubled_start} of the first {template.looked_at} prompts begin with two start tokens",
            Evidence(
                metric="run_started.setup.template.doubled_start",
                observed=template.doubled_start,
                operator=">",
                threshold=0,
                unit="prompts",
                window=template.looked_at,
                window_unit="samples",
                n=template.looked_at,
                baseline=0,
            ),
            once,
        )

    def _unused(self, outcome: Outcome, limit: float) -> Finding | None:
        recent, best = outcome.recent, outcome.best
        was_better = best is not None and best.pass_rate >= limit
        if recent.completions < COMPLETIONS or not recent.pass_rate < limit or was_better:
            return None
        render = look("use-chat-template", "set data.chat_template and start again, unless this is a base model")
        return self._finding(
            f"The tokenizer's chat template is not used, and {recent.pass_rate:.1%} of {recent.completions} "
            f"completions pass",
            Evidence(
                metric="batch_consumed.pass_rate",
                observed=recent.pass_rate,
                operator="<",
                threshold=limit,
                unit="share of completions",
                window=recent.completions,
                window_unit="completions",
                n=recent.groups,
            ),
            render,
        )

    def _finding(self, summary: str, evidence: Evidence, answer: Proposal) -> Finding:
        read = look("read-prompt", "read one prompt as the model gets it")
        return Finding(severity="info", summary=summary, evidence=(evidence,), proposals=ranked(answer, read))
