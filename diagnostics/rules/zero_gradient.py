"""POL012: no gradient, or no change, where rewards ask for one."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

NORM, CHANGE = "step_completed.grad_norm", "step_completed.update_ratio"


@dataclass(frozen=True, kw_only=True)
class ZeroGradient(Rule):
    """The gradient is exactly zero, or no parameter changes, although rewards within groups differ.

    ## What it means
    Groups with reward spread have advantages, and advantages have a gradient. A norm of exactly zero says that none of
    it arrives at a parameter that trains: frozen weights, an adapter that is not attached, a graph that was cut.

    ## Why it matters
    The run generates, scores and reports as if it trained. Everything spent from here on is lost.

    ## How it is detected
    `grad_norm` exactly 0 in `gradients` updates in a row whose batches had a group with reward spread; or
    `update_ratio` exactly 0 in `changes` updates in a row at a learning rate above zero. Critical. It resolves at
    the first value that is not zero. Steps that update nothing because all groups lack spread are not counted.

    ## Known false alarms
    Without reward spread the gradient is zero by right: RWD001. The first step of a warm-up may have a rate of zero,
    which is left out. A penalty or a bonus gives a gradient of its own, so that a reward signal that is lost behind it
    is not seen here. The optimizer goes on for a while by its moments when gradients end, hence the two tests.

    ## What to do
    Count the parameters that train and look for those without a gradient: the adapter's target modules, frozen
    embeddings, gradient checkpointing without inputs that need gradients, a reduction over ranks that drops them.

    ## Sources
    ms-swift#5890 (gradient and divergence of zero on several nodes while rewards differed), MemGen#33, trl#3857,
    trl#2872; measured on 25 healthy runs in the project's catalogue (five in a row: 1; three in a row: 11).
    """

    code = "POL012"
    name = "zero-gradient"
    title = "Gradient zero although rewards differ"
    kind = "fault"
    proof = "injected"
    where = "learner"
    reads = (
        "step_completed.grad_norm",
        "step_completed.update_ratio",
        "step_completed.learning_rate",
        "batch_consumed.groups",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=5, warm_up=1, persistence=1, clear_persistence=1)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the parameters that should train are frozen or not attached",
            weight=0.6,
            check="no parameter of the model has `requires_grad`, or the optimizer holds others",
        ),
        Cause(
            text="the graph between loss and parameters is cut",
            weight=0.4,
            check="the loss has no `grad_fn` that leads to a parameter",
        ),
    )

    gradients: float = threshold(5, "Updates in a row without a gradient", low=2, unit="steps")
    changes: float = threshold(10, "Updates in a row without any change", low=2, unit="steps")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Count zeros; the same while open."""
        movement = features.movement
        if not movement.seen:
            return not_evaluated("missing_input", "steps report neither `grad_norm` nor `update_ratio`")
        if movement.zero_gradients >= self.gradients:
            return _finding(NORM, movement.zero_gradients, "The gradient", features)
        if movement.zero_changes >= self.changes:
            return _finding(CHANGE, movement.zero_changes, "The change of the parameters", features)
        return None


def _finding(metric: str, steps: int, what: str, features: Features) -> Finding:
    totals = features.rewards.last
    spread = f"; {totals.groups - totals.zero} of {totals.groups} groups of the last batch had reward spread"
    return Finding(
        severity="critical",
        summary=f"{what} was exactly 0 in {steps} updates in a row{spread if totals.groups else ''}",
        evidence=(
            Evidence(
                metric=metric,
                observed=0.0,
                operator="==",
                threshold=0.0,
                window=steps,
                window_unit="steps",
                n=steps,
            ),
        ),
        proposals=(look("count-trainable", "stop, and count the parameters that train and those with a gradient"),),
    )
