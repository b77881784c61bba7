"""Patches: knob changes computed from the value in force and held within every bound of the registry."""

import math

from pydantic import ValidationError

from tocsin.diagnostics.feature import Settings
from tocsin.schemas.actions import Patch
from tocsin.schemas.knobs import LIMITS, Knobs, KnobValue


def patch(settings: Settings, path: str, wanted: float) -> Patch | None:
    """The patch that moves `path` as far towards `wanted` as one change may go.

    None when the run never stated the knob's value, when it is a switch, when no room is left, or when another knob
    forbids the new value (`weight_sync_every` bounds `max_staleness` from below).
    """
    current = settings.knob(path)
    if current is None or isinstance(current, bool):
        return None
    low, high = reach(settings, path, current)
    value: KnobValue = min(high, max(low, wanted))
    if isinstance(current, int):
        value = math.floor(value) if value >= current else math.ceil(value)
    if value == current or not _fits(settings, path, value):
        return None
    limits = LIMITS[path]
    whole = isinstance(current, int)
    return Patch(
        path=path,
        expect=current,
        to=value,
        min=int(limits.low) if whole else limits.low,
        max=int(limits.high) if whole else limits.high,
        effective=limits.effective,
    )


def reach(settings: Settings, path: str, current: float) -> tuple[float, float]:
    """Lowest and highest value that one change may set: bounds, largest step, largest drift from the launch value."""
    limits = LIMITS[path]
    launched = float(settings.launched.get(path, current))
    low = max(limits.low, current / limits.step_ratio, launched / limits.drift_ratio)
    high = min(limits.high, current * limits.step_ratio, launched * limits.drift_ratio)
    return min(low, current), max(high, current)


def _fits(settings: Settings, path: str, value: KnobValue) -> bool:
    known = {name: settings.knobs[name] for name in LIMITS if name in settings.knobs}
    try:
        Knobs.model_validate({**known, path: value})
    except ValidationError:
        return False
    return True
