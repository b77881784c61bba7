"""POL017: gradients so small that Adam divides by its epsilon."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.movement import AdamEps
from tocsin.diagnostics.proposals import look
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted


@dataclass(frozen=True, kw_only=True)
class AdamEpsDominates(Rule):
    """For many parameters Adam's epsilon is larger than the root of the mean squared gradient beside it.

    ## What it means
    AdamW divides each parameter's step by the size of its gradients, plus epsilon. Where epsilon is the larger one, the
    step is no longer independent of that size: it shrinks with the gradient, and the learning rate means less.

    ## Why it matters
    Gradients of reinforcement learning are small, by the length of completions and by rewards that rarely differ. Part
    of the model then hardly trains, and raising the learning rate moves the rest too far.

    ## How it is detected
    Every fifty updates the learner looks at 4,096 coordinates: two readings in a row above `fire`. It resolves at the
    first reading at or below it.

    ## Known false alarms
    Coordinates that never had a gradient, such as embeddings of tokens that do not occur, are left out by the learner.
    Early readings are larger, because the mean of squares still remembers its zero beginning; it is corrected for that.

    ## What to do
    Start again with a smaller `optimizer.eps`, such as 1e-15 with float32 weights, and a `beta2` of 0.95 to 0.99.

    ## Sources
    MiniMax-M1 (arXiv 2506.13585), which saw gradients between 1e-18 and 1e-5 and went to an epsilon of 1e-15.
    """

    code = "POL017"
    name = "adam-eps-dominates"
    title = "Adam's epsilon outweighs the gradients"
    kind = "lint"
    proof = "lint"
    where = "learner"
    reads = ("step_completed.adam_eps_frac",)
    trigger = StepCompleted
    timing = Timing(unit="samples", window=2, warm_up=1, persistence=1, clear_persistence=1)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="`optimizer.eps` is too large for these gradients", weight=0.7, check="`grad_norm` is small throughout"
        ),
        Cause(
            code="RWD001",
            text="few groups have reward spread, so that little is left of the gradient",
            weight=0.3,
            check="`groups_trained` is far below `groups`",
        ),
    )

    fire: float = threshold(0.2, "Share of coordinates above which a reading counts", high=1, unit="share")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Judge the last two readings; the same while open."""
        found = features.adam_eps
        if found.waited >= AdamEps.OVERDUE:
            return not_evaluated("missing_input", "steps report no `adam_eps_frac`")
        if not found.readings:
            return not_evaluated("warm_up", "no step reported `adam_eps_frac` yet")
        if len(found.readings) < AdamEps.READINGS or min(found.readings) <= self.fire:
            return None
        return Finding(
            severity="info",
            summary=f"Adam's epsilon outweighs the gradients of {found.readings[-1]:.0%} of the coordinates looked at",
            evidence=(
                Evidence(
                    metric="step_completed.adam_eps_frac",
                    observed=found.readings[-1],
                    operator=">",
                    threshold=self.fire,
                    unit="share of coordinates",
                    window=AdamEps.READINGS,
                    window_unit="samples",
                    n=AdamEps.READINGS,
                ),
            ),
            proposals=(look("lower-epsilon", "start again with a smaller `optimizer.eps`"),),
        )
