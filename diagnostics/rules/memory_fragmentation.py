"""SYS003: memory grows from step to step, or is cut into pieces that do not fit together."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.host import Growth, Host, accelerators, growth
from tocsin.diagnostics.memory import GIB
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.resources import DeviceMemory, ResourcesSampled

SAMPLES = 10
LEAST_BYTES = 16 << 20
"""Rise of a process over the window that counts; less is what interpreters do."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that grows."""

    whose: str
    metric: str
    growth: Growth
    is_device: bool


@dataclass(frozen=True, kw_only=True)
class MemoryFragmentation(Rule):
    """Memory that should stand still grows from step to step, or the allocator holds far more than is in use.

    ## What it means
    Something keeps what a step has made: tensors with their graphs in a list of metrics, results that nobody takes, a
    cache without a bound. Or the accelerator's memory is cut into pieces, none of which fits what is asked for next.

    ## Why it matters
    A leak ends in an out-of-memory error, or takes other processes of the machine with it, hours after it began.
    Fragments make a step fail that would fit.

    ## How it is detected
    A leak: over the last ten samples (about 50 steps), what is in use on the accelerator outside of any phase, or the
    resident memory of one component, rises in four of five steps from sample to sample, by more than `fire` of itself
    a step between the medians of the oldest and of the newest third; twice in a row: a warning. Critical when at that
    pace the accelerator, or the host's memory as a whole, is full before the planned end. The first two samples of an
    attempt are left out: optimizer state and caches appear then. Memory by phase is not judged, because it grows with
    the length of the completions. Fragments: the largest reserved peak of a sample exceeds `nearly_full` of the device
    and `fragments` of it was not allocated: info. It resolves below `clear`.

    ## Known false alarms
    A cache that fills up slowly. Other processes on the accelerator count as in use.

    ## What to do
    For a leak: whatever is collected over steps must be numbers, not tensors (`float(loss)`, `.detach()`); look at what
    the named process keeps, and resume from a checkpoint in the meantime. For fragments: set
    `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` at the next start, and keep shapes alike.

    ## Sources
    NeMo-RL's notes on memory; PyTorch's documentation of the caching allocator; Amazon SageMaker Debugger's rule for
    growing memory. A thousandth a step is judgement: healthy runs were measured flat to 1 MiB.
    """

    code = "SYS003"
    name = "memory-fragmentation"
    title = "Memory leaks or is cut into pieces"
    kind = "fault"
    proof = "injected"
    where = "host"
    reads = (
        "resources_sampled.host_rss_bytes",
        "resources_sampled.devices",
        "resources_sampled.host_memory_frac",
        "run_started.num_steps",
    )
    trigger = ResourcesSampled
    timing = Timing(unit="samples", window=SAMPLES, warm_up=SAMPLES, persistence=2, clear_persistence=3)
    rising = (("clear", "fire"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="tensors or results of past steps are kept",
            weight=0.7,
            check="the named component's memory rises by about the same amount every step",
        ),
        Cause(
            text="a cache has no bound, or has not reached it yet",
            weight=0.2,
            check="the rise slows down as the run goes on",
        ),
        Cause(
            text="the allocator's memory is in pieces",
            weight=0.1,
            check="reserved peaks are far above allocated peaks",
        ),
    )

    fire: float = threshold(0.001, "Rise a step, as a share, above which memory leaks", high=1, unit="share a step")
    clear: float = threshold(0.0005, "Rise a step, as a share, below which it resolves", high=1, unit="share a step")
    fragments: float = threshold(
        0.3, "Share of the reserved peak that is not allocated", high=1, unit="share of memory"
    )
    nearly_full: float = threshold(0.8, "Reserved peak over the device from which pieces matter", high=1)

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Leaks first, then pieces."""
        window = list(features.host.window)[-SAMPLES:]
        if len(window) < SAMPLES:
            return not_evaluated("warm_up", f"fewer than {SAMPLES} samples after the first steps were seen")
        limit = self.clear if is_open else self.fire
        leaks = [leak for leak in _leaks(window) if leak.growth.share_per_step > limit]
        if leaks:
            return self._leak(features.host, window, max(leaks, key=lambda leak: leak.growth.share_per_step))
        cut = [device for device in accelerators(window[-1]) if self._is_cut(device)]
        return self._pieces(cut[0]) if cut else None

    def _leak(self, host: Host, window: list[ResourcesSampled], leak: Leak) -> Finding:
        rise, now = leak.growth, window[-1]
        left = None if host.num_steps is None else max(0, host.num_steps - now.step)
        is_fatal = left is not None and _is_full_after(left, window, leak)
        ends = ", full before the planned end at this pace" if is_fatal else ""
        share = rise.share_per_step
        return Finding(
            severity="critical" if is_fatal else "warning",
            summary=(
                f"Memory of {leak.whose} rose from {rise.first / GIB:.3g} to {rise.last / GIB:.3g} GiB over "
                f"{rise.steps} steps, {share:.2%} a step{ends}"
            ),
            evidence=(
                Evidence(
                    metric=leak.metric,
                    observed=share,
                    operator=">",
                    threshold=self.fire if share > self.fire else self.clear,
                    unit="share a step",
                    window=len(window),
                    window_unit="samples",
                    n=len(window),
                    baseline=0.0,
                ),
            ),
            proposals=ranked(
                look("find-what-is-kept", "look for tensors or results that are kept from step to step"),
                look("resume-from-checkpoint", "stop and resume from a checkpoint before memory runs out"),
            ),
        )

    def _is_cut(self, device: DeviceMemory) -> bool:
        reserved, allocated = _peaks(device)
        is_full = reserved > self.nearly_full * device.total_bytes
        return is_full and reserved - allocated > self.fragments * reserved

    def _pieces(self, device: DeviceMemory) -> Finding:
        reserved, allocated = _peaks(device)
        loose = 1 - allocated / reserved
        return Finding(
            severity="info",
            summary=(
                f"The allocator holds {reserved / GIB:.3g} of {device.total_bytes / GIB:.3g} GiB at its peak, of which "
                f"{loose:.0%} was never in use at once"
            ),
            evidence=(
                Evidence(
                    metric="1 - resources_sampled.devices.phases.allocated_bytes / reserved_bytes",
                    observed=loose,
                    operator=">",
                    threshold=self.fragments,
                    unit="share of memory",
                    window=1,
                    window_unit="samples",
                    n=1,
                ),
            ),
            proposals=ranked(
                look("expand-segments", "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True at the next start")
            ),
            causes=(self.causes[2].model_copy(update={"weight": 0.8}),),
        )


def _leaks(window: list[ResourcesSampled]) -> Iterator[Leak]:
    """Every device and component whose memory rises."""
    steps = [sample.step for sample in window]
    for device in accelerators(window[-1]):
        sizes = [d.baseline_bytes for sample in window for d in sample.devices if d.device == device.device]
        rise = growth(sizes, steps) if len(sizes) == len(steps) else None
        if rise is not None:
            yield Leak(
                "the accelerator at rest",
                "rise a step of baseline_bytes in resources_sampled.devices",
                rise,
                is_device=True,
            )
    for component in window[-1].host_rss_bytes:
        sizes = [sample.host_rss_bytes.get(component, 0) for sample in window]
        if sizes[-1] - sizes[0] < LEAST_BYTES:
            continue
        rise = growth(sizes, steps)
        if rise is not None:
            whose = component if component in KNOWN else "another component"
            yield Leak(whose, "rise a step of resources_sampled.host_rss_bytes", rise, is_device=False)


KNOWN = ("learner", "rollout", "sampler", "reward_workers")


def _is_full_after(steps: int, window: list[ResourcesSampled], leak: Leak) -> bool:
    """Whether memory is full `steps` steps from now at the pace of `leak`."""
    if leak.is_device:
        room = min(d.total_bytes - d.baseline_bytes for d in accelerators(window[-1]))
        return leak.growth.per_step * steps > room
    host = growth([sample.host_memory_frac for sample in window], [sample.step for sample in window])
    return host is not None and host.per_step * steps > 1 - window[-1].host_memory_frac


def _peaks(device: DeviceMemory) -> tuple[int, int]:
    """Largest reserved and largest allocated peak over the phases."""
    peaks = device.phases.values()
    return max((p.reserved_bytes for p in peaks), default=0), max((p.allocated_bytes for p in peaks), default=0)
