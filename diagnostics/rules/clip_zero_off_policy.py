"""POL005: ratios of exactly one on tokens of older weights."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look
from tocsin.diagnostics.ratios import FLAT, Ratios
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted


@dataclass(frozen=True, kw_only=True)
class ClipZeroOffPolicy(Rule):
    """Importance ratios are exactly one although tokens are older than the weights and the weights move.

    ## What it means
    A token that older weights sampled has another probability under the present ones. Ratios that are one for every
    token were not taken against the sampler's log-probs: somebody computed them anew with the weights that train.

    ## Why it matters
    The correction for old data is then no correction. The clip never acts, the effective sample size is always
    perfect, and the update follows data as if they were fresh; every measure of drift reads healthy meanwhile.

    ## How it is detected
    In `steps` updates in a row with tokens of older weights, mean ratio and mean squared ratio of all those tokens are
    within 1e-6 of one, while the learner's log-probs on the probe moved at each sync by more than `moved` times the
    probe's tolerance on average. It resolves at the first update with another ratio.

    ## Known false alarms
    A learner that does not move has ratios of one by right (POL012, POL013): the probe tells. With `max_staleness` 0
    there are no older tokens, and nothing is judged. A loss with a separate weight for the sampler may recompute on
    purpose; no variant of this trainer does.

    ## What to do
    Find where the log-probs of the batch come from, and take those that the sampler returned with its tokens.

    ## Sources
    AReaL (arXiv 2505.24298) and 2605.12070 on missing old logits; trl#3757, trl#3144, UI-R1#20.
    """

    code = "POL005"
    name = "clip-zero-off-policy"
    title = "Ratio exactly one on data of older weights"
    kind = "fault"
    proof = "injected"
    where = "learner"
    reads = ("step_completed.ratio", "weights_synced.probe_moved", "weights_synced.probe_tolerance")
    trigger = StepCompleted
    timing = Timing(unit="steps", window=20, warm_up=1, persistence=1, clear_persistence=1)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="log-probs of the batch were recomputed with the weights that train",
            weight=0.8,
            check="`logprob_gap.abs_mean` is zero as well, whatever the staleness",
        ),
        Cause(
            text="batches claim to be older than they are",
            weight=0.2,
            check="the versions in `rollouts/` differ from those of `sampler_sampled`",
        ),
    )

    steps: float = threshold(20, "Updates in a row", low=2, unit="steps")
    moved: float = threshold(10, "Movement per sync that shows a moving learner", low=1, unit="times the tolerance")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Count updates; the same while open."""
        ratios = features.ratios
        if not ratios.has_older:
            if ratios.unmeasured:
                return not_evaluated("missing_input", "steps report no `ratio`")
            if features.settings.knob("max_staleness") == 0:
                return not_evaluated("not_applicable", "no data are older than the weights: `max_staleness` is 0")
            return not_evaluated("warm_up", "no tokens of older weights were trained on yet")
        if ratios.unmeasured >= self.timing.absent_after:
            return not_evaluated("missing_input", "steps report no `ratio`")
        if ratios.flat.steps < self.steps or not ratios.flat.moved_per_sync > self.moved * ratios.tolerance:
            return None
        return self._finding(ratios)

    def _finding(self, ratios: Ratios) -> Finding:
        flat = ratios.flat
        return Finding(
            severity="warning",
            summary=(
                f"Ratios of older tokens were exactly 1 in {flat.steps} updates since step {flat.first_step}; "
                f"the learner moved {flat.moved:.3g} nats"
            ),
            evidence=(
                Evidence(
                    metric="step_completed.ratio.mean_square - 1",
                    observed=list(ratios.by_age.values())[-1].mean_square - 1,
                    operator="<=",
                    threshold=FLAT,
                    window=flat.steps,
                    window_unit="steps",
                    n=flat.steps,
                ),
                Evidence(
                    metric="weights_synced.probe_moved",
                    observed=flat.moved_per_sync,
                    operator=">",
                    threshold=self.moved * ratios.tolerance,
                    unit="nats per sync",
                    window=flat.syncs,
                    window_unit="syncs",
                    n=flat.syncs,
                    baseline=ratios.tolerance,
                ),
            ),
            proposals=(look("find-recomputed-log-probs", "find where the log-probs of a batch are computed anew"),),
        )
