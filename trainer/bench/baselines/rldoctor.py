"""rl-doctor 0.2.0 (`rldoctor` on PyPI, Apache-2.0): nine checks of the whole history so far.

It runs as its own live monitor runs in a training loop: one record per log call, a diagnosis of everything logged so
far every few records, and a finding is said when it is new or worse. That makes the step of an alarm honest; its
report of a finished run has none. Everything but the interval is as it ships, its warm-up of 60 records included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunStarted
from tocsin.trainer.bench.baselines.base import Alarm, AlarmSeverity
from tocsin.trainer.bench.baselines.readings import logged, readings
from tocsin.trainer.bench.baselines.rival import imported, quiet

CODES: Final[dict[str, frozenset[str]]] = {
    # Groups without spread; its texts tell too easy, too hard and a broken grader apart.
    "advantage_collapse": frozenset({"RWD001", "RWD002", "RWD003", "RWD006", "RWD010", "GEN011"}),
    # "Rollouts within a group are near-identical" is what it concludes.
    "entropy_collapse": frozenset({"POL001", "RWD006"}),
    # Training reward up, held-out score not: also what a rewarded proxy or a rewarded format does.
    "reward_hacking": frozenset({"GEN010", "GEN009", "RWD004"}),
    # One name for two things: answers that are cut off, and answers that grow because length is rewarded.
    "length_pathology": frozenset({"GEN001", "GEN002", "GEN003"}),
    # Its advice names the learning rate and stale rollouts as causes.
    "clip_saturation": frozenset({"POL003", "POL014", "OFF001"}),
    # KL too large; or never above 1e-4, for which it names a wrong reference and a policy that cannot move.
    "kl_drift": frozenset({"POL006", "POL007", "POL008", "POL013", "POL014"}),
    # One name for not finite, exactly zero (with groups without spread as the cause), vanished, and spikes.
    "gradient_pathology": frozenset({"POL010", "POL012", "POL015", "RWD001"}),
    # A component that is constant, or one that owns the variance.
    "reward_composition": frozenset({"RWD010", "RWD011"}),
    # Flat, or declining since a best checkpoint long ago.
    "plateau": frozenset({"RWD015", "POL009", "POL013"}),
}
"""What the name of a check means at best: every failure mode that its texts name, not only its title."""


@dataclass(frozen=True, slots=True)
class RlDoctor:
    """rl-doctor's live monitor over the metrics of a run. Raises `NotInstalled` without the package."""

    check_every: int = 10
    """Records between two diagnoses. It ships with 25, which on short runs is a delay of its own."""
    name: str = "rl-doctor"

    def alarms(self, events: Sequence[BaseEvent]) -> list[Alarm]:
        """Each check's first finding, and another one if it got worse.

        Raises `RuntimeError` when the monitor broke down, which it would hide: silence must not pass for health.
        """
        live = imported("rl_doctor.live", "rldoctor")
        alarms: list[Alarm] = []
        records = 0
        with quiet("rl-doctor"):
            monitor = live.LiveMonitor(_config(events), check_every=self.check_every, on_finding=lambda _: None)
            for reading in readings(events):
                values = logged(reading)
                if not values:
                    continue
                records += 1
                alarms += [_alarm(finding, reading.step) for finding in monitor.log(values, step=reading.step)]
        due = records - records % self.check_every
        if due >= monitor.min_steps and (monitor.latest is None or monitor.latest.run.n_steps != due):
            raise RuntimeError(f"rl-doctor failed inside at record {due} or before; it hides why")
        return alarms


def _alarm(finding: Any, step: int) -> Alarm:
    severity: AlarmSeverity = "critical" if finding.severity.name == "CRITICAL" else "warning"
    return Alarm(step, finding.detector, severity, CODES[finding.detector])


def _config(events: Sequence[BaseEvent]) -> dict[str, Any]:
    """What its callback for TRL reads from the trainer's arguments, and the planned steps, which spare it a verdict
    on a run that has just begun.
    """
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    if started is None:
        return {"algorithm": "grpo"}
    knobs = started.knobs
    return {
        "algorithm": "grpo",
        "max_steps": started.num_steps,
        "num_generations": knobs.get("group_size"),
        "learning_rate": knobs.get("learning_rate"),
        "beta": knobs.get("kl_beta"),
        "epsilon": knobs.get("clip_low"),
        "epsilon_high": knobs.get("clip_high"),
        "max_completion_length": knobs.get("max_completion_tokens"),
        "entropy_coef": knobs.get("entropy_coef"),
    }
