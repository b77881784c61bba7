"""SYS001: the accelerator's memory is mostly empty while the step is cut into many micro-batches."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.knob_patch import patch
from tocsin.diagnostics.memory import GIB, PEAK, MemorySample, bytes_per_token, phase_name, steepest
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Patch, Verify
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.step import StepCompleted


@dataclass(frozen=True, kw_only=True)
class VramUnderused(Rule):
    """Most of the accelerator's memory is never used although larger micro-batches would fit.

    ## What it means
    Over ten samples, the highest peak of any phase on the fullest device stayed far below its memory, and each
    optimizer step was cut into several forward passes. Larger micro-batches would use the memory and save time.

    ## Why it matters
    Each forward and backward pass has a fixed cost, and small ones leave the device waiting. The micro-batch token
    budget changes memory and speed only: the loss is normalised over the tokens of the whole step, so the gradient
    stays what it was.

    ## How it is detected
    Peak bytes (reserved by the allocator, or allocated where larger) over all phases and the last ten samples,
    divided by the memory of the device: below `fire` it is info, below `warn` a warning, if there is a larger budget
    to propose. Quiet while one micro-batch holds the whole step, because there is no room to grow, and within 50
    steps of an out-of-memory retry. It resolves above `clear`.

    The proposal takes memory as baseline + slope x padded tokens. Baseline is what is allocated outside any phase;
    the slope comes from the peak of `forward_backward` and the largest micro-batch it ran. The new budget is the
    largest power of two whose peak stays within `target`, no larger than a whole step needs, below any budget that
    ran out of memory, and within the knob's bounds and largest step.

    ## Known false alarms
    A small model legitimately needs little; then one micro-batch usually holds the step and the rule is quiet. Memory
    is not linear in tokens for a dense attention mask when sequences get longer; more rows of the same length are.
    A device that is shared with another process is fuller than its own peaks say.

    ## What to do
    Raise `microbatch_tokens` as proposed. The learner halves it and retries the step if it does run out of memory.
    If gradient checkpointing is on and memory is left, switch it off at the next start.

    ## Sources
    verl's performance tuning guide; ConcurrencyController of prime-rl (grows below 0.6); rules BatchSize and
    LowGPUUtilization of SageMaker Debugger; ms-swift#3693, trl#2825.
    """

    code = "SYS001"
    name = "vram-underused"
    title = "Accelerator memory underused"
    kind = "efficiency"
    proof = "injected-simulated"
    where = "learner"
    reads = (
        "run_started.devices",
        "resources_sampled.devices",
        "resources_sampled.microbatches",
        "step_completed.oom_retries",
    )
    trigger = StepCompleted
    timing = Timing(unit="samples", window=10, warm_up=10, persistence=3, clear_persistence=3, reopen_within=100)
    rising = (("warn", "fire", "clear", "target"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the micro-batch token budget is small",
            weight=0.8,
            check="`microbatches.num` is above 1 and `max_tokens` is close to `token_budget`",
        ),
        Cause(
            text="the model is small for the device",
            weight=0.2,
            check="`baseline_bytes` is a few percent of the memory",
        ),
    )

    fire: float = threshold(0.6, "Peak share of memory below which it fires", high=1, unit="share of memory")
    warn: float = threshold(0.4, "Peak share of memory below which it warns", high=1, unit="share of memory")
    clear: float = threshold(0.65, "Peak share of memory from which it resolves", high=1, unit="share of memory")
    target: float = threshold(0.85, "Peak share of memory that a proposal aims at", high=1, unit="share of memory")
    oom_quiet: float = threshold(50, "Steps of silence after an out-of-memory retry", unit="optimizer steps")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Compare the highest peak of the window with the device's memory."""
        memory, settings = features.memory, features.settings
        if memory.saw_only_hosts or settings.has_accelerator is False:
            return not_evaluated("not_applicable", "no accelerator")
        window = list(memory.window)
        if window and settings.step - window[-1].step > self.timing.silent_after:
            return not_evaluated("missing_input", "no memory sample arrived in the last 50 steps")
        if len(window) < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} memory samples were seen")
        work = steepest(window)
        if work is None:
            return not_evaluated("missing_input", "samples have no `forward_backward` peak or no `microbatches`")
        fullest = max(window, key=lambda sample: sample.share)
        share = fullest.share
        has_room = all(sample.microbatches is None or sample.microbatches.num > 1 for sample in window)
        recent_oom = any(settings.step - step < self.oom_quiet for step in settings.oom_steps)
        if share >= (self.clear if is_open else self.fire) or not has_room or recent_oom:
            return None
        return self._finding(settings, window, fullest, work)

    def _finding(
        self, settings: Settings, window: list[MemorySample], fullest: MemorySample, work: MemorySample
    ) -> Finding:
        total = fullest.device.total_bytes
        share = fullest.share
        change = self._larger(settings, work)
        last = len(window)
        evidence = [_evidence(PEAK, share, "<", self.warn if share < self.warn else self.clear, last)]
        if change is not None:
            projected = _bytes_at(work, float(change.to or 0)) / work.device.total_bytes
            evidence.append(_evidence("projected_peak_frac", projected, "<=", self.target, last))
        return Finding(
            severity="warning" if share < self.warn and change is not None else "info",
            summary=(
                f"VRAM peaks at {share:.0%} of {total / GIB:.3g} GiB during {phase_name(fullest.peak_phase)} "
                f"over {last} samples, with at least {min(s.microbatches.num for s in window if s.microbatches)} "
                f"micro-batches per step"
            ),
            evidence=tuple(evidence),
            proposals=self._answers(change),
        )

    def _larger(self, settings: Settings, work: MemorySample) -> Patch | None:
        """The computed token budget as a patch; None when nothing larger fits or is needed."""
        assert work.microbatches is not None, "`steepest` picks samples with micro-batches"
        slope = bytes_per_token(work)
        room = self.target * work.device.total_bytes - work.device.baseline_bytes
        if slope <= 0 or room <= 0:
            return None
        by_memory = 2 ** math.floor(math.log2(max(1.0, room / slope)))
        whole_step = 2 ** math.ceil(math.log2(max(1, work.microbatches.num * work.microbatches.max_tokens)))
        wanted = min(by_memory, whole_step)
        while wanted >= settings.failed_budget:
            wanted //= 2
        current = settings.knob("microbatch_tokens")
        if current is None or wanted <= current:
            return None
        change = patch(settings, "microbatch_tokens", wanted)
        if change is None or change.to is None:
            return None
        rounded = 2 ** math.floor(math.log2(change.to))
        # Less than half as much again saves hardly any forward pass.
        return patch(settings, "microbatch_tokens", rounded) if rounded >= 1.5 * current else None

    def _answers(self, change: Patch | None) -> tuple[Proposal, ...]:
        if change is None:
            return ()
        raise_budget = Proposal(
            verb="raise-microbatch-tokens",
            title=f"raise microbatch_tokens {change.expect} to {change.to}",
            applicability="review",
            preferred=True,
            patches=(change,),
            verify=Verify(metric=PEAK, operator=">", threshold=self.clear, within=20, unit="steps"),
            cooldown_steps=20,
        )
        return (raise_budget,)


def _bytes_at(sample: MemorySample, tokens: float) -> float:
    return sample.device.baseline_bytes + bytes_per_token(sample) * tokens


def _evidence(metric: str, observed: float, operator: str, limit: float, samples: int) -> Evidence:
    return Evidence(
        metric=metric,
        observed=observed,
        operator="<" if operator == "<" else "<=",
        threshold=limit,
        unit="share of memory",
        window=samples,
        window_unit="samples",
        n=samples,
    )
