"""SYS007: the accelerator idles while one processor core is busy all the time."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.host import Host, accelerators
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.resources import ResourcesSampled

LIMITING: Final = {"learner": "the learner", "rollout": "the rollout process"}
"""Components that are single threads in the way of everything else."""


@dataclass(frozen=True, kw_only=True)
class CpuBound(Rule):
    """The accelerator has next to nothing to do, and a single process is busy on its processor core all the time.

    ## What it means
    What feeds the accelerator cannot keep up: tokenizing, collating, scoring in the same process, launching many small
    kernels.

    ## Why it matters
    The most expensive part of the machine idles for the cheapest one.

    ## How it is detected
    In more than half of the last 50 samples, the accelerator was busy for less than `busy` of the time while the
    learner or the rollout process used more than `core` of a processor core since the sample before. Not evaluated
    without an accelerator, where the processor is meant to do the work, nor without the driver's activity counter.
    Info. It resolves when that is so in fewer than `clear` of the samples.

    ## Known false alarms
    A learner that polls while it waits for the accelerator looks busy. The driver's counter covers one second at most,
    so with steps of minutes the samples catch single moments.

    ## What to do
    Profile the process that is named (py-spy). Larger micro-batches launch fewer kernels, more reward workers take
    scoring elsewhere, and thread counts above the cores that are there make everything slower.

    ## Sources
    Amazon SageMaker Debugger's rule CPUBottleneck (processor above 90 %, accelerator below 10 %, half of the time).
    """

    code = "SYS007"
    name = "cpu-bound"
    title = "The processor limits the accelerator"
    kind = "efficiency"
    proof = "scenario"
    where = "host"
    reads = (
        "run_started.devices",
        "resources_sampled.devices",
        "resources_sampled.cpu_s",
        "resources_sampled.wall_s",
        "run_started.setup",
    )
    trigger = ResourcesSampled
    timing = Timing(unit="samples", window=Host.SAMPLES, warm_up=Host.SAMPLES, persistence=2, clear_persistence=5)
    rising = (("clear", "most"),)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(
            text="the learner prepares its batches in the same thread that launches kernels",
            weight=0.5,
            check="the learner is named, and its profile shows Python and collating",
        ),
        Cause(
            text="the rollout process does work that belongs into reward workers or samplers",
            weight=0.3,
            check="the rollout process is named, and its profile shows scoring or decoding",
        ),
        Cause(
            text="more threads than processors",
            weight=0.2,
            check="`resources_sampled.cpu_s` of all components comes near `wall_s` times `setup.processors`",
        ),
    )

    busy: float = threshold(0.1, "Activity of the accelerator below which it idles", high=1, unit="share of time")
    core: float = threshold(0.9, "Use of one core above which a process is busy", high=1, unit="share of a core")
    most: float = threshold(0.5, "Share of the samples above which it fires", high=1, unit="share of samples")
    clear: float = threshold(0.3, "Share of the samples below which it resolves", high=1, unit="share of samples")

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Count the samples in which both hold."""
        if features.settings.has_accelerator is False:
            return not_evaluated("not_applicable", "no accelerator")
        window = features.host.window
        if not window or not any(device.busy_frac is not None for device in accelerators(window[-1])):
            return not_evaluated("missing_input", "no sample says how busy the accelerator is")
        if len(window) < self.timing.warm_up:
            return not_evaluated("warm_up", f"fewer than {self.timing.warm_up} samples were seen")
        limited = {name: sum(self._limits(sample, name) for sample in window) for name in LIMITING}
        name = max(limited, key=lambda component: limited[component])
        share = limited[name] / len(window)
        return self._finding(features, name, share) if share > (self.clear if is_open else self.most) else None

    def _limits(self, sample: ResourcesSampled, component: str) -> bool:
        """Whether the accelerator idled in this sample while `component` was busy."""
        active = [device.busy_frac for device in accelerators(sample) if device.busy_frac is not None]
        if not active or max(active) >= self.busy or not sample.wall_s:
            return False
        return sample.cpu_s.get(component, 0.0) > self.core * sample.wall_s

    def _finding(self, features: Features, component: str, share: float) -> Finding:
        setup = features.settings.setup
        of = "" if setup.processors is None else f", on a machine with {setup.processors} processors"
        n = len(features.host.window)
        return Finding(
            severity="info",
            summary=(
                f"In {share:.0%} of {n} samples the accelerator was busy below {self.busy:.0%} of the time while "
                f"{LIMITING[component]} filled a core{of}"
            ),
            evidence=(
                Evidence(
                    metric="samples with resources_sampled.devices.busy_frac low and cpu_s / wall_s of a process high",
                    observed=share,
                    operator=">",
                    threshold=self.most if share > self.most else self.clear,
                    unit="share of samples",
                    window=n,
                    window_unit="samples",
                    n=n,
                ),
            ),
            proposals=ranked(look("profile-process", f"profile {LIMITING[component]} with py-spy")),
        )
