"""SYS002: the accelerator's memory is nearly full, or ran out."""

import math
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.feature import Settings
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.memory import GIB, PEAK, MemorySample, bytes_per_token, phase_name, steepest
from tocsin.diagnostics.proposals import look, move, ranked
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.actions import Verify
from tocsin.schemas.diagnosis import Cause, Evidence, Severity
from tocsin.schemas.step import StepCompleted


@dataclass(frozen=True, kw_only=True)
class VramNearOom(Rule):
    """The accelerator's memory peaks close to its size, or a step ran out of it and was retried.

    ## What it means
    Some phase of the step leaves hardly any memory free. A batch with longer sequences than so far will not fit.

    ## Why it matters
    An out-of-memory error in the middle of a step costs at least that step. With several ranks it stops the run, and
    an allocator at its limit spends time on freeing and asking again.

    ## How it is detected
    Peak bytes over all phases and the last ten samples, divided by the memory of the fullest device, above `fire`
    twice in a row: a warning, if that much is *allocated*; what the allocator only keeps reserved is a cache and makes
    it info. Critical above `critical` allocated. Or a step reported `oom_retries` within the last `retry_quiet` steps:
    a warning, because the learner halved its budget and went on; critical when it happened in two steps. It resolves
    below `clear` and that long after the last retry.

    ## Known false alarms
    A sampler that reserves nine tenths of its device by design is not the learner: only devices that the learner
    reports are judged. The first samples hold the peaks of compilation and warm-up.

    ## What to do
    Lower `microbatch_tokens`: it changes memory and speed, never the gradient. The finding computes the budget from
    the measured peaks. If memory peaks outside forward and backward, the budget does not help: look at the phase that
    is named. Otherwise gradient checkpointing, a chunked loss or shorter completions.

    ## Sources
    Memory guides of TRL and AReaL; statistics of the caching allocator (PyTorch); Search-R1#112, trl#2927,
    NeMo-RL#2619.
    """

    code = "SYS002"
    name = "vram-near-oom"
    title = "Accelerator memory nearly full"
    kind = "fault"
    proof = "injected-simulated"
    where = "learner"
    reads = (
        "run_started.devices",
        "resources_sampled.devices",
        "resources_sampled.microbatches",
        "step_completed.oom_retries",
    )
    trigger = StepCompleted
    timing = Timing(unit="samples", window=10, warm_up=2, persistence=2, clear_persistence=5)
    rising = (("target", "clear", "fire", "critical"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the micro-batch token budget is too large for the device",
            weight=0.6,
            check="the peak is in `forward_backward` and `max_tokens` is close to `token_budget`",
        ),
        Cause(
            code="GEN003",
            text="completions grow longer",
            weight=0.25,
            check="`batch_consumed.length.max` and the peak grow together",
        ),
        Cause(
            code="SYS003",
            text="the memory is fragmented",
            weight=0.15,
            check="reserved bytes are far above allocated bytes",
        ),
    )

    fire: float = threshold(0.92, "Peak share of memory above which it fires", high=1, unit="share of memory")
    critical: float = threshold(0.97, "Allocated share that is critical", high=1, unit="share of memory")
    clear: float = threshold(0.88, "Peak share of memory below which it resolves", high=1, unit="share of memory")
    target: float = threshold(0.85, "Peak share of memory that a proposal aims at", high=1, unit="share of memory")
    retry_quiet: float = threshold(20, "Steps for which an out-of-memory retry counts", low=2, unit="optimizer steps")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Retries first, then the highest peak of the window."""
        memory, settings = features.memory, features.settings
        retries = sum(settings.step - step < self.retry_quiet for step in settings.oom_steps)
        window = list(memory.window)
        if not retries:
            if memory.saw_only_hosts or settings.has_accelerator is False:
                return not_evaluated("not_applicable", "no accelerator")
            if window and settings.step - window[-1].step > self.timing.silent_after:
                return not_evaluated("missing_input", "no memory sample arrived in the last 50 steps")
            if len(window) < self.timing.warm_up:
                return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} memory samples were seen")
        if not window:
            return None
        fullest = max(window, key=lambda sample: sample.share)
        if not retries and fullest.share <= (self.clear if is_open else self.fire):
            return None
        return self._finding(settings, window, fullest, retries)

    def _severity(self, fullest: MemorySample, retries: int) -> Severity:
        allocated = fullest.allocated_bytes / fullest.device.total_bytes
        if retries > 1 or allocated > self.critical:
            return "critical"
        return "warning" if retries or allocated > self.fire else "info"

    def _finding(self, settings: Settings, window: list[MemorySample], fullest: MemorySample, retries: int) -> Finding:
        total = fullest.device.total_bytes
        again = f"{retries} of the last {self.retry_quiet:g} steps ran out of memory; " if retries else ""
        evidence = [
            Evidence(
                metric=PEAK,
                observed=fullest.share,
                operator=">" if fullest.share > self.clear else "<=",
                threshold=self.fire if fullest.share > self.fire else self.clear,
                unit="share of memory",
                window=len(window),
                window_unit="samples",
                n=len(window),
            )
        ]
        if retries:
            evidence.append(
                Evidence(
                    metric="step_completed.oom_retries",
                    observed=float(retries),
                    operator=">",
                    threshold=0.0,
                    unit="steps",
                    window=int(self.retry_quiet),
                    window_unit="steps",
                    n=int(self.retry_quiet),
                    baseline=0.0,
                )
            )
        return Finding(
            severity=self._severity(fullest, retries),
            summary=(
                f"{again}VRAM peaks at {fullest.share:.0%} of {total / GIB:.3g} GiB during "
                f"{phase_name(fullest.peak_phase)} over {len(window)} samples"
            ),
            evidence=tuple(evidence),
            proposals=self._answers(settings, window, fullest),
        )

    def _answers(self, settings: Settings, window: list[MemorySample], fullest: MemorySample) -> tuple[Proposal, ...]:
        phase = look("look-at-phase", f"look at memory in phase {phase_name(fullest.peak_phase)}: the budget is not it")
        checkpointing = look("save-activations", "use gradient checkpointing or a chunked loss at the next start")
        if fullest.peak_phase != "forward_backward":
            return ranked(phase, checkpointing)
        return ranked(self._smaller(settings, window), checkpointing)

    def _smaller(self, settings: Settings, window: list[MemorySample]) -> Proposal | None:
        """The largest power of two whose computed peak stays within the target; half when nothing can be computed."""
        budget = settings.knob("microbatch_tokens")
        if budget is None:
            return None
        wanted = budget / 2
        work = steepest(window)
        if work is not None and work.microbatches is not None and bytes_per_token(work) > 0:
            room = (self.target * work.device.total_bytes - work.device.baseline_bytes) / bytes_per_token(work)
            # A budget that the largest micro-batch never filled would change nothing: it has to fall below that.
            largest = min(room, work.microbatches.max_tokens - 1)
            wanted = 2.0 ** math.floor(math.log2(max(1.0, largest)))
        verify = Verify(metric=PEAK, operator="<", threshold=self.clear, within=20, unit="steps")
        return None if wanted >= budget else move(settings, "microbatch_tokens", wanted, verify)
