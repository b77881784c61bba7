"""OFF012: weight syncs take much of the run's time."""

import copy
from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.knob_patch import patch
from tocsin.diagnostics.proposals import PIPELINE_STEPS, look, move, pipeline_delay, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.syncs import SyncCost
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

IDLE: Final = "step_completed.seconds.wait / seconds.total + seconds.sync_wait / seconds.total"
RAREST_ADVISED: Final = 4
"""Steps between syncs beyond which older data costs more than the syncs do."""


@dataclass(frozen=True, kw_only=True)
class WeightSyncSlow(Rule):
    """Much of the time goes into bringing new weights to the sampler.

    ## What it means
    Between two steps that train, learner or sampler stand still for weights on their way, and the other side cannot
    make up for it. The share is what the run would save if syncs took no time.

    ## Why it matters
    Both sides are paid for and idle. Nothing is learned worse by it, so this is a matter of cost.

    ## How it is detected
    Over the intervals between the last ten syncs whose steps updated the weights: the seconds that the learner gave
    to writing, and of the seconds that the sampler stood still (load, verify, resume) as many as the learner waited
    as well, over the time of the steps. The median of the ten decides. It fires at `fire` for five steps as info, and
    from `warning`, half of the time, as a warning; it resolves below `clear`. A sync that overlaps with training and
    keeps nobody waiting counts nothing, however long it takes. The published limits (a warning at 15 % of the step)
    would fire on a healthy tiny model, where the milliseconds of one file are measured against a step of fifty:
    14 to 26 % there.

    ## Known false alarms
    Waiting for requests in flight (`pause`) looks like a slow sync and is generation: it is left out. Steps without
    signal leave nothing to share the time with and are not counted.

    ## What to do
    Sync half as often: `weight_sync_every` times two, up to 4, with `max_staleness` at one less at least. Data grow
    older by it. Where that is too old, send less: adapters only, or only what changed; in buckets, over a faster
    link, or through shared memory instead of a disk.

    ## Sources
    SparseRL-Sync (arXiv 2605.07330); checkpoint-engine; TRL's `perf/weight_sync_*_s`, apart by pause, barrier and
    transfer; marin#8955 (2096 s of 4754 s in copies of weights). That only what keeps somebody waiting counts, and the
    limits, are judgement.
    """

    code = "OFF012"
    name = "weight-sync-slow"
    title = "Weight sync takes much of the step"
    kind = "efficiency"
    proof = "injected"
    where = "sampler"
    reads = ("weights_synced.seconds", "step_completed.seconds", "step_completed.outcome")
    trigger = StepCompleted
    timing = Timing(unit="syncs", window=SyncCost.SYNCS, warm_up=SyncCost.SYNCS, persistence=5, clear_persistence=10)
    rising = (("clear", "fire", "warning"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the transfer is slow: all weights, one disk or one link",
            weight=0.5,
            check="`weights_synced.seconds.load` or `write` is the longest part, and grows with `bytes`",
        ),
        Cause(
            text="steps are so short that any sync is long beside them",
            weight=0.3,
            check="a sync takes milliseconds; larger steps would share it",
        ),
        Cause(
            text="the proof of the weights takes longer than their transfer",
            weight=0.2,
            check="`weights_synced.seconds.verify` is the longest part",
        ),
    )

    fire: float = threshold(0.4, "Share of time from which it fires", high=1, unit="share of time")
    warning: float = threshold(0.5, "Share of time from which it is a warning", high=1, unit="share of time")
    clear: float = threshold(0.3, "Share of time below which it resolves", high=1, unit="share of time")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the share of the time that syncs took with the limit."""
        cost = features.sync_cost
        if cost.lacks_parts:
            return not_evaluated("missing_input", "syncs or steps do not say where their time went")
        if len(cost.window) < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} syncs with an update were seen")
        share, limit = cost.lost_share, self.clear if is_open else self.fire
        return self._finding(features.settings, cost, share, limit) if share >= limit else None

    def _finding(self, settings: Settings, cost: SyncCost, share: float, limit: float) -> Finding:
        part, seconds = cost.longest_part
        is_grave = share >= self.warning
        idle = cost.idle_share
        return Finding(
            severity="warning" if is_grave else "info",
            summary=(
                f"Weight syncs took {share:.0%} of the time over {len(cost.window)} syncs; "
                f"the longest part is {part}, {seconds:.2g} s each"
            ),
            evidence=(
                _share(
                    "seconds lost to syncs / step_completed.seconds.total", share, self.warning if is_grave else limit
                ),
                _share(IDLE, idle, limit),
            ),
            proposals=ranked(
                _rarer(settings, self._verify(share, idle)),
                look(
                    "send-less", f"make the {part} part of a sync shorter: send less, in buckets, or over a faster link"
                ),
            ),
        )

    def _verify(self, share: float, idle: float) -> Verify:
        """Half of what arithmetic promises: with half of the syncs a share s falls to s / (2 - s)."""
        promised = share - share / (2 - share)
        return Verify(metric=IDLE, operator="<", threshold=round(idle - promised / 2, 3), within=60, unit="steps")


def _share(metric: str, observed: float, limit: float) -> Evidence:
    return Evidence(
        metric=metric,
        observed=observed,
        operator=">=" if observed >= limit else "<",
        threshold=limit,
        unit="share of time",
        window=SyncCost.SYNCS,
        window_unit="syncs",
        n=SyncCost.SYNCS,
    )


def _rarer(settings: Settings, verify: Verify) -> Proposal | None:
    """Sync half as often, and let data grow as old as that takes; None where it is rare enough."""
    every, bound = settings.knob("weight_sync_every"), settings.knob("max_staleness")
    if every is None or bound is None or every >= RAREST_ADVISED:
        return None
    wanted = min(2 * every, RAREST_ADVISED)
    if wanted <= bound + 1:
        return move(settings, "weight_sync_every", wanted, verify, risk="medium")
    older = patch(settings, "max_staleness", wanted - 1)
    if older is None or older.to is None:
        return None
    changed = copy.copy(settings)
    changed.knobs = {**settings.knobs, "max_staleness": older.to}
    rarer = patch(changed, "weight_sync_every", min(wanted, older.to + 1))
    if rarer is None or rarer.to is None:
        return None
    return Proposal(
        verb="raise-weight-sync-every",
        title=f"raise weight_sync_every {every:g} to {rarer.to:g} and max_staleness {bound:g} to {older.to:g}",
        applicability="review",
        risk="high",
        patches=(older, rarer),
        verify=verify,
        cooldown_steps=pipeline_delay(changed) + PIPELINE_STEPS,
    )
