"""SYS008: the run makes far fewer tokens a second than it did under the same configuration."""

from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.pipeline import PARTS, Pace, Throughput
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted

RATE = "step_completed.tokens / seconds.total"
LONGER = 1.2
"""Times as long as at the best pace that a step must take: shorter completions alone are no slower run."""


@dataclass(frozen=True, kw_only=True)
class ThroughputRegression(Rule):
    """The run makes far fewer tokens a second than its own best under the same configuration.

    ## What it means
    Steps take longer than they did, and the finding says which part of a step grew.

    ## Why it matters
    The run will take longer than planned by that factor. Nothing is learned worse by it, so this is a matter of cost.

    ## How it is detected
    Tokens consumed over the seconds of a step: the median over 20 steps that updated the weights, looked at every five
    of them, falls below `fire` of the best such median since the configuration changed, while a step takes at least
    1.2 times as long as then. Steps around an evaluation, a checkpoint or a pause are left out. Info, because a machine
    that is shared with other work slows down to a third with nothing wrong; a warning only below `wasted` for 100
    steps, when weight syncs are what grew and fewer of them are allowed. It resolves above `clear`.

    ## Known false alarms
    Other work on the same machine: all parts grow together. A best pace from a quiet moment remains the measure until
    the configuration changes.

    ## What to do
    Follow the part that grew. Waiting: OFF016, GEN015 and SYS005 say for what. Weight syncs: OFF012, or fewer of them.
    Forward and backward: the machine, or more padding (SYS009). Everything: other processes on the machine.

    ## Sources
    TRL's `perf` metrics by wall clock and by forward-backward. The half is judgement: a third was measured on healthy
    runs on a shared machine, which is why it informs and does not warn.
    """

    code = "SYS008"
    name = "throughput-regression"
    title = "Fewer tokens per second than before"
    kind = "efficiency"
    proof = "injected"
    where = "trainer"
    reads = ("step_completed.tokens", "step_completed.seconds", "step_completed.outcome")
    trigger = StepCompleted
    timing = Timing(
        unit="steps", window=Throughput.STEPS, warm_up=2 * Throughput.STEPS, persistence=10, clear_persistence=10
    )
    rising = (("wasted", "fire", "clear"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            code="OFF016",
            text="the learner waits for groups for longer",
            weight=0.4,
            check="`seconds.wait` is the part that grew",
        ),
        Cause(
            text="the learner computes more slowly: other work on its device, or a throttled one",
            weight=0.3,
            check="`seconds.forward_backward` or `seconds.optimizer` grew at the same number of tokens",
        ),
        Cause(
            code="OFF012",
            text="weight syncs take longer",
            weight=0.15,
            check="`seconds.sync_wait` is the part that grew",
        ),
        Cause(
            code="SYS009",
            text="more of the forward pass is padding",
            weight=0.1,
            check="`microbatches.padded_frac` rose",
        ),
        Cause(
            code="SYS015",
            text="the accelerator is throttled",
            weight=0.05,
            check="`resources_sampled.devices.throttled` is not empty",
        ),
    )

    fire: float = threshold(0.5, "Share of the best pace below which it fires", high=1, unit="ratio")
    clear: float = threshold(0.7, "Share of the best pace above which it resolves", high=1, unit="ratio")
    wasted: float = threshold(0.4, "Share of the best pace below which it may be a warning", high=1, unit="ratio")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the pace with the best one."""
        pace = features.throughput
        now, best = pace.now, pace.best
        if now is None or best is None:
            return not_evaluated("warm_up", f"fewer than {Throughput.STEPS} steps with an update were seen")
        share = pace.shares[-1]
        if not share < (self.clear if is_open else self.fire) or now.step_s < LONGER * best.step_s:
            return None
        return self._finding(features, now, best, share)

    def _finding(self, features: Features, now: Pace, best: Pace, share: float) -> Finding:
        before, after = best.parts, now.parts
        grown = max(PARTS, key=lambda part: after[part] - before[part])
        fewer = self._fewer_syncs(features) if grown == "sync_wait" else None
        shares = features.throughput.shares
        is_long = len(shares) == Throughput.LONG and max(shares) < self.wasted
        return Finding(
            severity="warning" if is_long and fewer is not None else "info",
            summary=(
                f"{now.rate:.3g} tokens/s over {Throughput.STEPS} steps, {share:.0%} of the best {best.rate:.3g}; what "
                f"grew most is {PARTS[grown]}, from {before[grown]:.2g} to {after[grown]:.2g} s a step"
            ),
            evidence=(
                Evidence(
                    metric=RATE,
                    observed=now.rate,
                    operator="<",
                    threshold=(self.fire if share < self.fire else self.clear) * best.rate,
                    unit="tokens/s",
                    window=Throughput.STEPS,
                    window_unit="steps",
                    n=Throughput.STEPS,
                    baseline=best.rate,
                ),
            ),
            proposals=ranked(fewer, _advice(grown)),
            causes=self._ranked_causes(grown),
        )

    def _ranked_causes(self, grown: str) -> tuple[Cause, ...] | None:
        """The causes that show in the part that grew first."""
        named = [cause for cause in self.causes if f"seconds.{grown}`" in cause.check]
        rest = [cause for cause in self.causes if cause not in named]
        return (*named, *rest) if named else None

    def _fewer_syncs(self, features: Features) -> Proposal | None:
        settings = features.settings
        every = settings.knob("weight_sync_every")
        verify = Verify(
            metric="step_completed.seconds.sync_wait / step_completed.seconds.total",
            operator="<",
            threshold=0.1,
            within=40,
            unit="steps",
        )
        return None if every is None else move(settings, "weight_sync_every", every + 1, verify)


def _advice(grown: str) -> Proposal:
    if grown == "wait":
        return look("look-at-generation", "see OFF016, GEN015 and SYS005 for what the learner waits for")
    if grown == "sync_wait":
        return look("look-at-syncs", "see OFF012 for the part of a weight sync that takes the time")
    return look("look-at-machine", "look at what else runs on this machine, and at clocks and temperature")
