"""POL013: updates that change nothing that a probe could see."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.estimates import median
from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.movement import Movement
from tocsin.diagnostics.outcome import Outcome
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, NotEvaluated
from tocsin.schemas.step import StepCompleted

RATIO, MOVED = "step_completed.update_ratio", "weights_synced.probe_moved"


@dataclass(frozen=True, kw_only=True)
class LrTooLow(Rule):
    """Fifty updates at the full learning rate changed neither the weights nor the log-probs of the probe.

    ## What it means
    The learner has gradients and applies them, and the model stays what it was: updates are a few millionths of the
    parameters or less, and the learner's log-probs on the probe have hardly moved in sum.

    ## Why it matters
    Nothing breaks and nothing is learned. A run may go on like this to its end, with every other measure healthy.

    ## How it is detected
    Over fifty updates at no less than half of the knob `learning_rate`: the learner moved less than `moved` nats on
    the probe in sum, the median relative update is below `ratio`, the reward has not risen above its best earlier
    window by two standard errors, and fewer than `spread` of the groups lack reward spread. It resolves when the
    movement or the size doubles its limit. The learning rate itself is never judged: it means nothing across models.
    A warning: whoever pays for updates wants them to do something.

    ## Known false alarms
    Warm-up and the end of a schedule have small updates by design and are left out. Gradients of exactly zero are
    POL012. An adapter moves few of the parameters, so its relative size is small: the probe has to agree.

    ## What to do
    Double `learning_rate`, several times if need be; full training of language models takes about 1e-6, adapters ten
    times as much. If that does not help, compare Adam's epsilon with the size of the gradients (POL017).

    ## Sources
    The embedded demo at a ten-thousandth of its rate (2e-7 of the norm, 0.002 nats in fifty updates; 5e-4 and 4 nats at
    its own) and a task of the benchmark at a thousandth (1.8e-6 and 0.03 nats; 1e-3 and 7 nats at its own). Full
    training at 5e-7, the lowest rate that the project's catalogue calls usual, makes updates of about 1e-5 of the norm.
    LoRA Without Regret (ten times the rate of full training, on all layers); trl#2872; runs at a rate of 1e-7 in the
    project's catalogue.
    """

    code = "POL013"
    name = "lr-too-low"
    title = "Updates too small to change anything"
    kind = "fault"
    proof = "injected"
    where = "learner"
    reads = (
        "step_completed.update_ratio",
        "step_completed.learning_rate",
        "weights_synced.probe_moved",
        "batch_consumed.groups",
    )
    trigger = StepCompleted
    timing = Timing(unit="steps", window=50, warm_up=50, persistence=5, clear_persistence=5)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(text="the learning rate was set too low", weight=0.7, check="`update_ratio` follows `learning_rate`"),
        Cause(
            code="POL017",
            text="Adam's epsilon outweighs the gradients",
            weight=0.3,
            check="`grad_norm` per parameter is near `optimizer.eps`",
        ),
    )

    moved: float = threshold(0.05, "Movement on the probe over fifty updates, in sum", unit="nats")
    ratio: float = threshold(5e-6, "Median relative update", high=1, unit="share of the parameters' norm")
    spread: float = threshold(0.7, "Share of groups without spread from which it is not judged", high=1, unit="share")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Ask the probe first, which costs nothing."""
        movement = features.movement
        if (unanswered := self._unanswered(features)) is not None:
            return unanswered
        slack = 2 if is_open else 1
        if len(movement.full) < Movement.FULL or movement.moved_in_window >= slack * self.moved:
            return None
        if movement.zero_gradients or movement.zero_changes or features.rewards.totals.zero_share >= self.spread:
            return None
        middle = median([ratio for ratio, _ in movement.full])
        if not middle < slack * self.ratio or _rises(features.outcome):
            return None
        return self._finding(features.settings, movement.moved_in_window, middle)

    def _unanswered(self, features: Features) -> NotEvaluated | None:
        movement, updates = features.movement, features.updates
        if updates.unmeasured >= self.timing.absent_after or (updates.unmeasured and not updates.seen):
            return not_evaluated("missing_input", "steps report no `update_ratio`")
        if movement.seen < Movement.FULL:
            return not_evaluated("warm_up", f"fewer than {Movement.FULL} updates were seen")
        if not movement.is_probed:
            return not_evaluated("missing_input", "no weight sync says how far the learner moved")
        return None

    def _finding(self, settings: Settings, moved: float, middle: float) -> Finding:
        return Finding(
            severity="warning",
            summary=(
                f"{Movement.FULL} updates of {middle:.2g} of the parameters' norm moved the learner by {moved:.2g} "
                "nats in sum"
            ),
            evidence=(
                _evidence(MOVED, moved, self.moved, "nats in sum"),
                _evidence(RATIO, middle, self.ratio, "share of the parameters' norm"),
            ),
            proposals=self._answers(settings, middle),
        )

    def _answers(self, settings: Settings, middle: float) -> tuple[Proposal, ...]:
        rate = settings.knob("learning_rate")
        # One doubling need not be enough to resolve it; that updates grew with the rate shows that it is what counts.
        target = min(2 * self.ratio, 1.5 * middle)
        verify = Verify(metric=RATIO, operator=">", threshold=target, within=50, unit="steps")
        return ranked(
            None if rate is None else move(settings, "learning_rate", 2 * rate, verify),
            look("compare-epsilon", "compare Adam's epsilon with the size of single gradients"),
        )


def _evidence(metric: str, observed: float, limit: float, unit: str) -> Evidence:
    return Evidence(
        metric=metric,
        observed=observed,
        operator="<" if observed < limit else ">=",
        threshold=limit,
        unit=unit,
        window=Movement.FULL,
        window_unit="steps",
        n=Movement.FULL,
    )


def _rises(outcome: Outcome) -> bool:
    """Whether the reward of the newest window lies above that of the best earlier one by two standard errors."""
    best, recent = outcome.best, outcome.recent
    return best is not None and recent.mean - best.mean > 2 * (best.error**2 + recent.error**2) ** 0.5
