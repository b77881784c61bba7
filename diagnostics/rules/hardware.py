"""SYS015: the accelerator reports memory errors, or holds its clocks down."""

from dataclasses import dataclass
from typing import ClassVar, Final

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.host import Host, accelerators
from tocsin.diagnostics.proposals import look, ranked
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, not_evaluated, threshold
from tocsin.schemas.diagnosis import Cause, Evidence
from tocsin.schemas.resources import DeviceMemory, ResourcesSampled

REASONS: Final = {
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "temperature",
    "hw_thermal_slowdown": "temperature",
    "hw_power_brake_slowdown": "power brake",
}
"""Reasons for low clocks that are no choice of the site, in words; a power cap is one."""


@dataclass(frozen=True, kw_only=True)
class Hardware(Rule):
    """The accelerator counts new memory errors, or holds its clocks down because of heat or power.

    ## What it means
    The device is damaged, or it is not cooled or fed well enough to run at its speed.

    ## Why it matters
    An uncorrected memory error ends the process that meets it, sooner or later. A throttled device makes every step
    slow, and with several of them everybody waits for it.

    ## How it is detected
    The count of uncorrected memory errors rose within the last 50 samples: at once. Or in more than `throttled` of 50
    samples the driver named a reason for low clocks other than a power cap, which is the site's choice.
    Info: no planted fault has shown it on a device yet. Not evaluated without an accelerator, nor where the driver
    tells neither. It resolves when the samples are out of the window.

    ## Known false alarms
    Clocks that are held down for a moment after a change of load. On a device that is shared or partitioned, the
    counters may be those of somebody else's work, or hidden.

    ## What to do
    For memory errors: write a checkpoint, take the node out of service and have the device tested. For heat: airflow,
    dust, neighbours; for the power brake: the supply.

    ## Sources
    NVIDIA's documentation of the management library: reasons for low clocks, and counts of memory errors since the
    driver was loaded. A tenth of the time is judgement.
    """

    code = "SYS015"
    name = "hardware"
    title = "The accelerator is faulty or throttled"
    kind = "fault"
    proof = "scenario"
    where = "host"
    reads = ("run_started.devices", "resources_sampled.devices")
    trigger = ResourcesSampled
    timing = Timing(unit="samples", window=Host.SAMPLES, warm_up=1, persistence=1, clear_persistence=5)
    causes: ClassVar[tuple[Cause, ...]] = (
        Cause(text="the device's memory is failing", weight=0.5, check="`devices.ecc_errors` rises"),
        Cause(text="the device is too hot", weight=0.3, check="`devices.throttled` names a thermal slowdown"),
        Cause(text="the power supply is too weak", weight=0.2, check="`devices.throttled` names the power brake"),
    )

    throttled: float = threshold(0.1, "Share of samples with low clocks above which it fires", high=1)

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Errors first, then clocks."""
        if features.settings.has_accelerator is False:
            return not_evaluated("not_applicable", "no accelerator")
        window = features.host.window
        known = [d for d in accelerators(window[-1]) if _tells(d)] if window else []
        if not known:
            return not_evaluated("missing_input", "no sample has the error and throttle counters of an accelerator")
        for device in known:
            errors = [d.ecc_errors for s in window for d in s.devices if d.device == device.device]
            counted = [count for count in errors if count is not None]
            if counted and counted[-1] > counted[0]:
                return self._errors(counted)
        if len(window) < self.timing.window:
            return None
        slow = [reasons for reasons in map(_reasons, window) if reasons]
        share = len(slow) / len(window)
        return self._slow(slow[-1], share, len(window)) if share > self.throttled else None

    def _errors(self, counted: list[int]) -> Finding:
        new = counted[-1] - counted[0]
        evidence = Evidence(
            metric="ecc_errors in resources_sampled.devices",
            observed=float(counted[-1]),
            operator=">",
            threshold=float(counted[0]),
            unit="errors",
            window=len(counted),
            window_unit="samples",
            n=len(counted),
            baseline=0.0,
        )
        return Finding(
            severity="critical",
            summary=f"The accelerator counted {new} new uncorrected memory errors within {len(counted)} samples",
            evidence=(evidence,),
            proposals=ranked(
                look("drain-node", "write a checkpoint, take the node out of service and test the device")
            ),
        )

    def _slow(self, reasons: list[str], share: float, n: int) -> Finding:
        evidence = Evidence(
            metric="samples with throttled in resources_sampled.devices",
            observed=share,
            operator=">",
            threshold=self.throttled,
            unit="share of samples",
            window=n,
            window_unit="samples",
            n=n,
            baseline=0.0,
        )
        return Finding(
            severity="warning",
            summary=f"Clocks of the accelerator were held down in {share:.0%} of {n} samples: {', '.join(reasons)}",
            evidence=(evidence,),
            proposals=ranked(look("look-at-cooling", "look at temperature, airflow and power of the device")),
            causes=(self.causes[1], self.causes[2], self.causes[0]),
        )


def _tells(device: DeviceMemory) -> bool:
    return device.ecc_errors is not None or device.throttled is not None


def _reasons(sample: ResourcesSampled) -> list[str]:
    """Why clocks are held down in this sample, in words, each once."""
    named = {REASONS[name] for device in accelerators(sample) for name in device.throttled or () if name in REASONS}
    return sorted(named)
