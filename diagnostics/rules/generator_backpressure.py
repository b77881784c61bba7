"""OFF017: the sampler stands still for free slots more than half of the time."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.proposals import look, move, ranked, time_share
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.diagnostics.waits import Waits
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause
from tocsin.schemas.events import QueueSampled

SHARE = "queue_sampled.sampler_wait_s / step_s"


@dataclass(frozen=True, kw_only=True)
class GeneratorBackpressure(Rule):
    """The sampler waits for free slots most of the time: the run is bound by training.

    ## What it means
    Every slot that the staleness bound allows is filled, and the learner empties them more slowly than the sampler
    could fill them. Faster generation would change nothing; faster training would.

    ## Why it matters
    The sampler's device is paid for and idle. Waiting to keep data fresh is intended, and nothing is learned worse by
    it, so this is a matter of cost.

    ## How it is detected
    Sum of `sampler_wait_s` over sum of `step_s`, over the last 30 steps that updated the weights and over the last ten
    of them, each without its longest wait. The first eight steps are start-up. It fires when both shares stay at
    `fire` or above for five steps and the learner waits less than a quarter as long: a warning. When both wait, slots
    are short, not speed, and OFF016 or nobody speaks. Not evaluated at `max_staleness` 0, where the sampler must wait
    for the learner. It resolves below `clear`.

    ## Known false alarms
    A wait is reported when it ends, so single steps show more or less than their own. Where both sides share one
    processor, the time that the sampler gives up is used by the learner.

    ## What to do
    Look where the step goes: larger micro-batches where several are run per step (kept also where that is not enough:
    fewer passes are faster all the same), a faster attention kernel, less gradient checkpointing. With nothing left
    there, give devices of the sampler to the learner at the next start, or use the idle time for larger groups. A
    lower `max_staleness` gives fresher data at hardly any cost while the sampler idles.

    ## Sources
    verl's performance tuning guide and fully asynchronous trainer (`rollouter/idle_ratio`); TRL's
    `rollout/backpressure_s`; prime-rl's `time/wait_for_policy`; verl#7601.
    """

    code = "OFF017"
    name = "generator-backpressure"
    title = "Sampler waits for slots"
    kind = "efficiency"
    proof = "injected"
    where = "sampler"
    reads = (
        "queue_sampled.sampler_wait_s",
        "queue_sampled.learner_wait_s",
        "queue_sampled.step_s",
        "step_completed.seconds",
        "step_completed.microbatches",
    )
    trigger = QueueSampled
    timing = Timing(unit="steps", window=Waits.STEPS, warm_up=Waits.STEPS, persistence=5, clear_persistence=10)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the learner computes more slowly than the sampler generates",
            weight=0.7,
            check="`seconds.forward_backward` + `seconds.optimizer` fill the step",
        ),
        Cause(
            text="the learner spends its time outside computing",
            weight=0.2,
            check="the parts of `step_completed.seconds` add up to far less than `total`, or `sync_wait` is large",
        ),
        Cause(
            text="the step is cut into many small micro-batches", weight=0.1, check="`microbatches.num` is above one"
        ),
    )

    fire: float = threshold(0.5, "Share of time from which it fires", high=1, unit="share of time")
    clear: float = threshold(0.4, "Share of time below which it resolves", high=1, unit="share of time")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the sampler's shares with the limit."""
        waits = features.waits
        if features.settings.knob("max_staleness") == 0:
            return not_evaluated("not_applicable", "at max_staleness 0 the sampler has to wait for the learner")
        if len(waits.window) < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} steps with an update were seen")
        learner, sampler = waits.shares(Waits.STEPS)
        _, newest = waits.shares(10)
        held = sampler if is_open else min(sampler, newest)
        # A NaN is no share: it neither fires nor holds.
        holds = held >= (self.clear if is_open else self.fire) and learner < held / 4
        return self._finding(features, learner, sampler) if holds else None

    def _finding(self, features: Features, learner: float, sampler: float) -> Finding:
        window = features.waits.window
        computed = sum(entry.computed for entry in window) / sum(entry.total for entry in window)
        return Finding(
            severity="warning",
            summary=(
                f"The sampler waited {sampler:.0%} of the time over {len(window)} steps, the learner {learner:.0%}; "
                f"the learner computed {computed:.0%}"
            ),
            evidence=(
                time_share(SHARE, sampler, self.fire if sampler >= self.fire else self.clear, len(window)),
                time_share("queue_sampled.learner_wait_s / step_s", learner, sampler / 4, len(window)),
            ),
            proposals=self._answers(features, computed),
        )

    def _answers(self, features: Features, computed: float) -> tuple[Proposal, ...]:
        settings, waits = features.settings, features.waits
        verify = Verify(metric=SHARE, operator="<", threshold=self.clear, within=60, unit="steps")
        budget = settings.knob("microbatch_tokens")
        larger = None
        if budget is not None and waits.microbatches > 1:
            needed = budget * 2 ** math.ceil(math.log2(waits.microbatches))
            moved = move(settings, "microbatch_tokens", min(needed, settings.failed_budget / 2), verify)
            # Kept where it is not enough: fewer passes are faster all the same.
            larger = replace(moved, on_failure="keep") if moved and moved.verb.startswith("raise") else None
        profile = look("profile-learner", f"profile the learner: computing takes {computed:.0%} of the step")
        shift = look("move-devices", "give devices of the sampler to the learner at the next start")
        return ranked(larger, *((profile, shift) if computed < 0.5 else (shift, profile)))
