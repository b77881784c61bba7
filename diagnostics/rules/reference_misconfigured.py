"""POL007: a reference that is another model than the policy began as, or the policy itself."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

KL = "step_completed.kl_ref"


@dataclass(frozen=True, kw_only=True)
class ReferenceMisconfigured(Rule):
    """Policy and reference differ before the first update, or do not differ after twenty of them.

    ## What it means
    A fresh run begins with policy and reference as the same weights, so their divergence is zero at the first step. A
    value above it says that another model was loaded as the reference. A value of exactly zero after many updates says
    that the reference is the policy itself and moves along.

    ## Why it matters
    A wrong reference pulls the policy towards a model that nobody chose, from the first update on. A reference that
    moves along holds nothing: the penalty is always zero and the run has no anchor that it is thought to have.

    ## How it is detected
    `kl_ref` of the first update of a run, measured before it, above `first` nats: critical, and open until the run is
    started anew. Or `kl_ref` exactly 0 in `zeros` updates in a row of which each changed the weights by more than 1e-7
    of their norm: a warning, which resolves at the first other value.

    ## Known false alarms
    After a resume the policy differs from its reference by right, and its first step is not judged. A learner that does
    not move keeps a divergence of zero: POL012. Half precision leaves a few 1e-4 nats at most, because the estimator
    is of second order in the difference. Without a reference (`kl_beta` was 0 at launch) nothing is judged.

    ## What to do
    Stop, and look at which model the reference was loaded from; with an adapter the reference is the model without it.

    ## Sources
    The step-0 gate of miles (1e-8 on the same kernels); ProRL (arXiv 2505.24864) on resets of the reference;
    open-r1#239 (a loss and a divergence of zero are normal at the start, and only there).
    """

    code = "POL007"
    name = "reference-misconfigured"
    title = "The reference is a wrong model"
    kind = "fault"
    proof = "injected"
    where = "learner"
    reads = ("step_completed.kl_ref", "step_completed.update_ratio")
    trigger = StepCompleted
    timing = Timing(unit="steps", window=20, warm_up=1, persistence=1, clear_persistence=1)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the reference was loaded from another path or revision, or with other weights",
            weight=0.7,
            check="`kl_ref` is above 0 at the first step",
        ),
        Cause(
            text="policy and reference share their weights",
            weight=0.3,
            check="`kl_ref` is exactly 0 at every step",
        ),
    )

    first: float = threshold(1e-3, "Divergence before the first update that is no rounding", unit="nats")
    zeros: float = threshold(20, "Updates in a row without any divergence", low=2, unit="steps")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Judge the first step, then zeros; the same while open."""
        reference = features.reference
        if reference.is_absent:
            return not_evaluated("not_applicable", "the run has no reference model: `kl_beta` was 0 at launch")
        if reference.unmeasured >= self.timing.absent_after or not reference.seen:
            return not_evaluated("missing_input", "steps report no `kl_ref`")
        if reference.first > self.first:
            return self._another(reference.first)
        return self._itself(reference.zeros) if reference.zeros >= self.zeros else None

    def _another(self, distance: float) -> Finding:
        return Finding(
            severity="critical",
            summary=f"KL to the reference was {distance:.3g} nats before the first update, where it is 0 by definition",
            evidence=(_evidence(distance, ">", self.first, steps=1),),
            proposals=(look("load-right-reference", "stop, and load the reference that the policy starts from"),),
        )

    def _itself(self, steps: int) -> Finding:
        return Finding(
            severity="warning",
            summary=f"KL to the reference was exactly 0 in {steps} updates in a row, each of which moved the weights",
            evidence=(_evidence(0.0, "==", 0.0, steps=steps),),
            proposals=(look("separate-reference", "stop, and give the reference weights of its own"),),
            causes=tuple(reversed(self.causes)),
        )


def _evidence(observed: float, operator: str, limit: float, *, steps: int) -> Evidence:
    return Evidence(
        metric=KL,
        observed=observed,
        operator="==" if operator == "==" else ">",
        threshold=limit,
        unit="nats",
        window=steps,
        window_unit="steps",
        n=steps,
    )
