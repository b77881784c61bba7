"""rlwatch 0.5.1 (PyPI, MIT): seven detectors that see one step after the other.

It runs as in a training loop, through `RLWatch.log_step`, as it ships: default thresholds, its own cooldown of 100
steps between two alerts of one kind. Its configuration is built here and not loaded, because its loader reads
`./rlwatch.yaml` and environment variables, and with them addresses to send alerts to. Its data base goes to a
temporary folder.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas.event import BaseEvent
from tocsin.trainer.bench.baselines.base import Alarm
from tocsin.trainer.bench.baselines.readings import logged, readings
from tocsin.trainer.bench.baselines.rival import imported, quiet

ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "entropy": ("entropy",),
    # Its integrations read a KL to the reference, or that of the update where there is no reference.
    "kl_divergence": ("kl", "actor/ppo_kl"),
    "reward_mean": ("reward",),
    "reward_std": ("reward_std",),
    "advantage_std": ("advantages_std",),
    "loss": ("loss",),
    "learning_rate": ("learning_rate",),
    "clip_fraction": ("clip_ratio/region_mean",),
    "grad_norm": ("grad_norm",),
}
"""By argument of `log_step`, the metrics that stand for it, the better one first.

Single rewards, which it would take too, are left out: none of its integrations passes them, and its test for two peaks
fires on every reward that is 0 or 1.
"""

CODES: Final[dict[str, frozenset[str]]] = {
    # Below 1 nat for 50 steps.
    "entropy_collapse": frozenset({"POL001"}),
    # Three standard deviations above the last 100 steps. Its advice is the learning rate and the KL penalty; of a KL
    # to the sampler it is also what a sampler with other weights or other numerics does.
    "kl_explosion": frozenset({"POL006", "POL008", "POL014", "OFF004", "OFF010"}),
    # Reward variance three times that of the start; its advice is to look for exploits and to cap rewards.
    "reward_hacking": frozenset({"GEN010", "RWD004", "RWD012"}),
    # Advantages three times as wide as usual, "problematic reward scaling".
    "advantage_variance": frozenset({"RWD012", "RWD013"}),
    "loss_nan": frozenset({"POL015"}),
    # Its advice is clipping and the learning rate.
    "gradient_norm_spike": frozenset({"POL010", "POL014", "POL015"}),
    # 50 steps in one direction: upwards it suspects hacking, downwards "policy degradation".
    "reward_mean_drift": frozenset({"GEN010", "POL009"}),
}
"""What the name of a detector means at best: every failure mode that its texts name, not only its title."""


@dataclass(frozen=True, slots=True)
class RlWatch:
    """rlwatch with its defaults over the metrics of a run. Raises `NotInstalled` without the package."""

    name: str = "rlwatch"

    def alarms(self, events: Sequence[BaseEvent]) -> list[Alarm]:
        """Every alert that it would have sent, its cooldown and its limit of 50 a run in force."""
        package = imported("rlwatch", "rlwatch")
        settings = imported("rlwatch.config", "rlwatch")
        with tempfile.TemporaryDirectory() as folder, quiet("rlwatch"):
            storage = settings.StorageConfig(log_dir=folder)
            monitor = package.RLWatch(settings.RLWatchConfig(run_id="run", framework="manual", storage=storage))
            monitor.start()
            try:
                return [
                    Alarm(alert.step, alert.detector, alert.severity, CODES[alert.detector])
                    for reading in readings(events)
                    if (arguments := _arguments(logged(reading)))
                    for alert in monitor.log_step(reading.step, **arguments)
                ]
            finally:
                monitor.stop()


def _arguments(values: dict[str, float]) -> dict[str, Any]:
    return {
        argument: next(values[name] for name in names if name in values)
        for argument, names in ARGUMENTS.items()
        if any(name in values for name in names)
    }
