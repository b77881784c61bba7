"""OFF019: gradients of neighbouring steps that keep pointing the same way."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.movement import Alignment
from tocsin.diagnostics.proposals import fresher, look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

COSINE = "step_completed.grad_cosine"


@dataclass(frozen=True, kw_only=True)
class GradientAlignment(Rule):
    """Gradients of neighbouring steps point the same way for long, as they do when data lag behind the policy.

    ## What it means
    Batches of fresh data have gradients that are nearly at right angles. Batches that one old policy sampled ask for
    the same change again after it was made, so that their gradients add up.

    ## Why it matters
    The policy is pushed past where the data wanted it. It shows as updates that work together, before anything that
    counts sizes sees it, and may end in spikes and a lost reward.

    ## How it is detected
    The cosine between the gradients of neighbouring updates, as a moving mean over about twenty: above `fire`, and by
    more than `rise` above the mean of the first twenty, in twenty updates in a row. It resolves below `clear`. Only in
    runs whose tokens are older than the weights. No fault was planted for it: information at most.

    ## Known false alarms
    Early training has gradients that agree, hence the comparison with the first twenty. A single prompt that is drawn
    again and again does the same. Steps without an update have no gradient and are left out.

    ## What to do
    Lower `max_staleness` by one, or halve `learning_rate`.

    ## Sources
    GAC (arXiv 2603.01501), which projects such gradients; the limits here are judgement.
    """

    code = "OFF019"
    name = "gradient-alignment"
    title = "Gradients of neighbouring steps point the same way"
    kind = "fault"
    proof = "scenario"
    where = "learner"
    reads = ("step_completed.grad_cosine", "step_completed.ratio")
    trigger = StepCompleted
    timing = Timing(unit="steps", window=20, warm_up=20, persistence=20, clear_persistence=10)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="OFF001",
            text="data are old for this learning rate",
            weight=0.7,
            check="it falls when `max_staleness` is lowered",
        ),
        Cause(
            code="RWD007",
            text="the same prompts come again and again",
            weight=0.3,
            check="`batch_consumed.groups.prompt_id` repeats within a few steps",
        ),
    )

    fire: float = threshold(0.25, "Mean cosine above which it counts", high=1, unit="cosine")
    rise: float = threshold(0.15, "Distance above the first twenty that it must also have", high=2, unit="cosine")
    clear: float = threshold(0.15, "Mean cosine below which it resolves", high=1, unit="cosine")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the level with the limit and with the beginning."""
        found = features.alignment
        if features.settings.knob("max_staleness") == 0 and not features.ratios.has_older:
            return not_evaluated("not_applicable", "no data are older than the weights: `max_staleness` is 0")
        if found.unmeasured >= self.timing.absent_after:
            return not_evaluated("missing_input", "steps report no `grad_cosine`")
        if math.isnan(found.first):
            return not_evaluated("warm_up", f"fewer than {Alignment.FIRST} cosines were seen")
        if found.level <= (self.clear if is_open else max(self.fire, found.first + self.rise)):
            return None
        return self._finding(features.settings, found) if features.ratios.has_older else None

    def _finding(self, settings: Settings, found: Alignment) -> Finding:
        limit = max(self.fire, found.first + self.rise)
        return Finding(
            severity="info",
            summary=(
                f"Gradients of neighbouring steps have a cosine of {found.level:.2f} on average, "
                f"{found.first:.2f} in the first {Alignment.FIRST}"
            ),
            evidence=(
                Evidence(
                    metric=COSINE,
                    observed=found.level,
                    operator=">" if found.level > limit else "<=",
                    threshold=limit,
                    unit="cosine",
                    window=Alignment.FIRST,
                    window_unit="steps",
                    n=Alignment.FIRST,
                    baseline=found.first,
                ),
            ),
            proposals=self._answers(settings),
        )

    def _answers(self, settings: Settings) -> tuple[Proposal, ...]:
        verify = Verify(metric=COSINE, operator="<", threshold=self.clear, within=60, unit="steps")
        rate = settings.knob("learning_rate")
        return ranked(
            fresher(settings, verify),
            None if rate is None else move(settings, "learning_rate", rate / 2, verify),
            look("look-for-repeats", "look for prompts that come again within a few steps"),
        )
