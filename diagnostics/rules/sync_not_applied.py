"""OFF010: the sampler acknowledges new weights and keeps its old ones."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.freshness import Streak, Syncs
from tocsin.diagnostics.origins import table
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.generation import WeightsSynced


@dataclass(frozen=True, kw_only=True)
class SyncNotApplied(Rule):
    """Weight syncs are acknowledged, but the sampler goes on with the weights it had.

    ## What it means
    At each sync, learner and sampler compute the log-probs of one probe under the weights they hold. They disagree,
    and by about as much as the learner has moved since they last agreed: the sampler did not follow.

    ## Why it matters
    Every completion comes from a policy that no longer exists, and its age grows without any counter showing it: the
    version number that comes back proves only that a message arrived. The importance ratio hides it for a while,
    then clips everything, and what is learned does not show in what is sampled.

    ## How it is detected
    Over syncs in a row whose `probe_gap` exceeds `probe_tolerance`, at least `syncs` of them: the gap is at least 0.6
    of the distance that the learner moved on the probe since the last sync that agreed, measured at the second sync
    or later, and it never exceeded that distance, as the triangle inequality demands of old weights. Critical from
    the start. The evidence has the effective sample size of the ratios by age as well: it falls at every age alike,
    while staleness would lower that of old tokens only. It resolves when a sync agrees, and never because the ratio
    falls: the learner may turn back.

    ## Known false alarms
    A numeric mismatch (other precision, kernels or parallelism) has a gap that does not grow with the learner's
    movement. It exceeds the movement or falls behind it by the second sync and is left to OFF004. Where the learner
    hardly moves, the gap stays within the tolerance and nothing is said.

    ## What to do
    Compare checksums of single tensors on both sides and look for those that were not sent: tied embeddings, adapters
    that were not merged, a name that the engine does not know. Stop and resume from a checkpoint afterwards, because
    what was sampled meanwhile belongs to old weights. Lowering the learning rate only slows the damage.

    ## Sources
    verl#7495 and verl#7496 (the pushed norm never changed), trl#5312, trl#3679, trl#6344, ms-swift#3930; the weight
    equality checks of slime and miles; checkpoint-engine.
    """

    code = "OFF010"
    name = "sync-not-applied"
    title = "Weight sync not applied"
    kind = "fault"
    proof = "injected"
    where = "sampler"
    reads = (
        "weights_synced.probe_gap",
        "weights_synced.probe_moved",
        "weights_synced.probe_tolerance",
        "weights_synced.verified",
        "step_completed.ratio",
    )
    trigger = WeightsSynced
    timing = Timing(unit="syncs", window=2, warm_up=1, persistence=1, clear_persistence=1)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the sampler reports success without loading anything",
            weight=0.5,
            check="no tensor's checksum changes between two syncs",
        ),
        Cause(
            text="part of the weights is not sent, such as tied embeddings or an adapter",
            weight=0.4,
            check="some tensors' checksums agree and others do not",
        ),
        Cause(
            code="OFF004",
            text="sampler and learner compute differently on the same weights",
            weight=0.1,
            check="the gap stays the same however far the learner moves",
        ),
    )

    syncs: float = threshold(2, "Syncs in a row that must disagree", low=2, unit="syncs")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Whether the newest syncs disagree as old weights would."""
        syncs = features.syncs
        if not syncs.seen:
            return not_evaluated("warm_up", "no weights were synced yet")
        streak = syncs.streak
        if is_open and streak.syncs:
            return self._finding(features, streak)
        if streak.syncs < self.syncs or not syncs.holds_old_weights:
            return None
        return self._finding(features, streak)

    def _finding(self, features: Features, streak: Streak) -> Finding:
        return Finding(
            severity="critical",
            summary=(
                f"Sampler and learner disagree by {streak.gap:.3g} nats since step {streak.first_step} "
                f"({streak.syncs} syncs); the learner moved {streak.moved:.3g}"
            ),
            evidence=(
                Evidence(
                    metric="weights_synced.probe_gap",
                    observed=streak.gap,
                    operator=">",
                    threshold=streak.tolerance,
                    unit="nats",
                    window=streak.syncs,
                    window_unit="syncs",
                    n=streak.syncs,
                    baseline=0.0,
                ),
                Evidence(
                    metric="probe_gap / sum of weights_synced.probe_moved",
                    observed=streak.peak_share,
                    operator=">=",
                    threshold=Syncs.OLD_WEIGHTS,
                    unit="share of the learner's movement",
                    window=streak.syncs,
                    window_unit="syncs",
                    n=streak.syncs,
                    baseline=0.0,
                ),
                *table(features)[1:],
            ),
            proposals=_answers(features.settings, streak),
        )


def _answers(settings: Settings, streak: Streak) -> tuple[Proposal, ...]:
    check = look("compare-checksums", "compare checksums of the weights on both sides, tied embeddings included")
    rate = settings.knob("learning_rate")
    verify = Verify(
        metric="weights_synced.probe_gap", operator="<=", threshold=streak.tolerance, within=20, unit="steps"
    )
    slower = None if rate is None else move(settings, "learning_rate", rate / 2, verify, risk="medium")
    return ranked(check, slower)
