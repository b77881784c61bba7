"""POL015: a number that must be finite was not."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.knob_patch import patch
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

NAMES: Final = ("loss", "grad_norm", "update_ratio", "learner_logprob", "sampler_logprob", "parameters")
"""What a step may report; a name of a newer writer counts and is not repeated in texts."""


@dataclass(frozen=True, kw_only=True)
class NanInf(Rule):
    """The loss, a gradient, a log-prob or the parameters were not finite.

    ## What it means
    A NaN or an infinity turned up where training needs a number. The trainer skips the update, so the weights stay
    as they were, but the step is lost, and once the parameters hold a NaN nothing after it is worth anything.

    ## Why it matters
    One such update spreads into every weight. Runs that went on produced gibberish, a clip fraction of one and the
    lowest reward for everything.

    ## How it is detected
    One step is enough: `step_completed.nonfinite` names something, or `loss`, `grad_norm` or `update_ratio` is there
    and not finite. A value that is absent was not measured and is never taken for a NaN. Critical, except when only
    log-probs that came from the sampler are affected while the learner's own numbers are finite: a warning. It
    resolves after ten clean steps.

    ## Known false alarms
    None known. Rewards that are not numbers are refused before they reach the loss and are counted as failed
    rollouts, not here. The NaN comes without precursor in most reports, so an earlier warning is not to be expected.

    ## What to do
    Look at the gradient norms and at rewards and advantages of the steps before. Lower `learning_rate` when the
    norm grew first. Otherwise suspect precision (bfloat16 or float16 in the head), an attention kernel, or a row of
    padding without any valid token. The run stops by itself after several skipped updates in a row.

    ## Sources
    miles (never skip a NaN silently); verl#721, verl#2626, Agent-R1#30, open-r1#704, ms-swift#3136.
    """

    code = "POL015"
    name = "nan-inf"
    title = "NaN or infinity in training"
    kind = "fault"
    proof = "injected"
    where = "learner"
    reads = (
        "step_completed.nonfinite",
        "step_completed.loss",
        "step_completed.grad_norm",
        "step_completed.update_ratio",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=1, warm_up=0, persistence=1, clear_persistence=10, absent_after=1)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="POL010",
            text="the gradient grew without bound",
            weight=0.4,
            check="`grad_norm` rose over the steps before",
        ),
        Cause(
            code="POL014",
            text="the learning rate is too high",
            weight=0.25,
            check="`update_ratio` was far above that of the first steps",
        ),
        Cause(
            code="RWD012",
            text="a reward outlier made an enormous advantage",
            weight=0.15,
            check="a reward in the batch lies far outside the others",
        ),
        Cause(
            text="a kernel or a low precision overflowed",
            weight=0.2,
            check="the same batch in float32 with eager attention is finite",
        ),
    )

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Whether the last step had anything non-finite; the same while open."""
        last = features.numerics.last
        if last is None:
            return not_evaluated("warm_up", "no optimizer step was completed yet")
        if not last.nonfinite:
            return None
        names = [name for name in last.nonfinite if name in NAMES]
        listed = ", ".join(f"`{name}`" for name in names) or "a value of the step"
        from_sampler = names == ["sampler_logprob"]
        return Finding(
            severity="warning" if from_sampler else "critical",
            summary=f"Not finite at step {features.settings.step}: {listed}",
            evidence=(
                Evidence(
                    metric="step_completed.nonfinite",
                    observed=float(len(last.nonfinite)),
                    operator=">",
                    threshold=0.0,
                    unit="kinds of numbers",
                    window=1,
                    window_unit="steps",
                    n=1,
                    baseline=0.0,
                ),
            ),
            proposals=_answers(features.settings, from_sampler=from_sampler),
        )


def _answers(settings: Settings, *, from_sampler: bool) -> tuple[Proposal, ...]:
    look = Proposal(
        verb="inspect-batch",
        title="inspect rewards, advantages and gradient norms of the steps before the first NaN",
        applicability="advisory",
        preferred=from_sampler,
        on_failure="keep",
    )
    rate = settings.knob("learning_rate")
    change = None if rate is None or from_sampler else patch(settings, "learning_rate", rate * 0.5)
    if change is None:
        return (look,)
    lower = Proposal(
        verb="lower-learning-rate",
        title=f"lower learning_rate {change.expect:g} to {change.to:g}",
        applicability="review",
        risk="low",
        preferred=True,
        patches=(change,),
        verify=Verify(metric="step_completed.nonfinite", operator="<=", threshold=0, within=20, unit="steps"),
        cooldown_steps=20,
    )
    return (lower, look)
