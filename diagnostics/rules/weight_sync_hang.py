"""OFF011: new weights are on their way to the sampler and do not arrive."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.syncs import OpenSync
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.events import ClockTicked


@dataclass(frozen=True, kw_only=True)
class WeightSyncHang(Rule):
    """A weight sync began long ago and neither ends nor fails.

    ## What it means
    The learner sent weights, and for far longer than this run's syncs take nobody has answered. A sync that hangs
    says nothing, so the clock is all there is to go by.

    ## Why it matters
    The sampler generates nothing meanwhile, and soon the learner has nothing to train on: the whole run stands still
    at full cost. Time limits end it late (30 minutes in TRL, 20 in prime-rl), and until then it looks busy.

    ## How it is detected
    At every clock tick: the time since `weight_sync_started` without `weights_synced` of that version, on the
    monotonic clock of the events, exceeds the larger of `floor` and `factor` times the median of this run's last 32
    syncs. The learner reads answers between its steps and the sampler takes weights between its batches, so twice the
    longest recent step without its waits, the longest recent batch and the last checkpoint are added; a batch that
    ends meanwhile starts the clock anew. The first sync of an attempt, and one during which the sampler was started
    again, gets `first`: it includes set-up. A pause that somebody asked for does not count, an ended attempt neither.
    Critical from the start, with no warning before, because nothing else can be going on. It resolves when the sync
    ends or a new attempt begins.

    ## Known false alarms
    A first checkpoint that takes longer than `floor`, since nothing said before how long it takes. Full syncs of very
    large models take minutes from the first one on; raise `floor` then.

    ## What to do
    Dump the stacks of learner and sampler (py-spy) to see who waits for whom, then restart the sampler; a local one
    that does not answer within `sampler.timeout_s` is restarted by itself. If it comes back: network settings, ports
    and GPUs that two processes claim, numbers of ranks that differ, memory of the sampler, the node itself.

    ## Sources
    Time limits of TRL, prime-rl and open-instruct (1800 s, 1200 s, 120 s); trl#6797, trl#6913, trl#2923, trl#3157,
    trl#3676; verl#3895 (a hang at no utilisation). Five times the median and the minute are judgement.
    """

    code = "OFF011"
    name = "weight-sync-hang"
    title = "Weight sync hangs"
    kind = "fault"
    proof = "injected"
    where = "sampler"
    reads = (
        "weight_sync_started.version",
        "weights_synced.version",
        "sampler_sampled.seconds",
        "step_completed.seconds",
        "checkpoint_saved.seconds",
        "component_heartbeat.state",
    )
    trigger = ClockTicked
    timing = Timing(unit="seconds", window=60, warm_up=0, persistence=1, clear_persistence=1, silent_after=5000)
    rising = (("floor", "first"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the two sides wait for each other: ports, ranks or versions that do not match",
            weight=0.4,
            check="the stacks of both sides end in a send or a receive",
        ),
        Cause(
            text="the sampler's process hangs or is out of memory",
            weight=0.3,
            check="its stack or its log ends outside of the transfer",
        ),
        Cause(
            code="SYS015",
            text="a device, a link or the node is faulty",
            weight=0.2,
            check="the kernel log or the device's error counters show it",
        ),
        Cause(text="the disk or shared memory is full", weight=0.1, check="`resources_sampled.disk_free_bytes`"),
    )

    floor: float = threshold(60, "Seconds that every sync may take", low=1, unit="seconds")
    factor: float = threshold(5, "Times the median of this run's syncs that a sync may take", low=1)
    first: float = threshold(600, "Seconds that a sync with set-up may take", low=1, unit="seconds")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the age of the sync under way with what it may take."""
        sync = features.open_sync
        if not sync.starts_seen:
            if sync.ends_seen:
                return not_evaluated("missing_input", "weights are synced without a `weight_sync_started` event")
            return not_evaluated("warm_up", "no weight sync was started yet")
        if sync.version is None:
            return None
        limit = self.limit(sync)
        if is_open:
            # What holds was found before; a sampler that is started again meanwhile does not end it.
            return self._finding(sync, sync.version, limit) if sync.age_s > self.floor else None
        hangs = sync.waited_s > limit and not sync.is_paused
        return self._finding(sync, sync.version, limit) if hangs else None

    def limit(self, sync: OpenSync) -> float:
        """Seconds that the sync under way may take."""
        usual = self.factor * sync.usual_s
        most = self.first if sync.is_starting else max(self.floor, 0.0 if math.isnan(usual) else usual)
        return most + 2 * sync.busy_s

    def _finding(self, sync: OpenSync, version: int, limit: float) -> Finding:
        usual, age = sync.usual_s, sync.age_s
        known = "" if math.isnan(usual) else f"; this run's syncs take {usual:.2g} s"
        return Finding(
            severity="critical",
            summary=f"The sync of weights {version} has not ended after {age:.0f} s{known}",
            evidence=(
                Evidence(
                    metric="seconds from weight_sync_started to weights_synced",
                    observed=age,
                    operator=">",
                    threshold=limit if age > limit else self.floor,
                    unit="seconds",
                    window=round(age),
                    window_unit="seconds",
                    n=1,
                    baseline=None if math.isnan(usual) else usual,
                ),
            ),
            proposals=ranked(
                look("dump-stacks", "dump the stacks of learner and sampler with py-spy, then restart the sampler"),
                look("check-transfer", "check network settings, ports, numbers of ranks and free memory on both sides"),
            ),
        )
