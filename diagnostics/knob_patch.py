"""Patches: knob changes computed from the value in force and held within every bound of the registry."""

import math
from typing import Final

from pydantic import ValidationError

from tocsin.diagnostics.feature import Settings
from tocsin.schemas.actions import Patch
from tocsin.schemas.knobs import LIMITS, Knobs, KnobValue

ZERO_STEP: Final = 0.01
"""How far a number that is zero may rise in one change, as a share of its upper bound: zero has no multiples."""


def patch(settings: Settings, path: str, wanted: float) -> Patch | None:
    """The patch that moves `path` as far towards `wanted` as one change may go.

    None when the run never stated the knob's value, when it is a switch, when no room is left, or when another knob
    forbids the new value (`weight_sync_every` bounds `max_staleness` from below).
    """
    current = settings.knob(path)
    if current is None or isinstance(current, bool):
        return None
    low, high = reach(path, current, settings.launched.get(path, current))
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


def reach(path: str, current: float, launched: float) -> tuple[float, float]:
    """Lowest and highest value that one change may set.

    `step_ratio` bounds the change, `drift_ratio` the distance from the launch value. A whole number may always move
    by one. The way back is free: the launch value, and everything between it and the present one, is in reach.
    """
    limits = LIMITS[path]
    least, most = _around(current, limits.step_ratio, path)
    lowest, highest = _around(launched, limits.drift_ratio, path)
    low = max(limits.low, least, lowest)
    high = min(limits.high, most, highest)
    return min(low, current, launched), max(high, current, launched)


def _around(center: float, ratio: float, path: str) -> tuple[float, float]:
    if isinstance(center, int):
        return min(center - 1, center / ratio), max(center + 1, center * ratio)
    return center / ratio, center * ratio or ZERO_STEP * LIMITS[path].high


def _fits(settings: Settings, path: str, value: KnobValue) -> bool:
    known = {name: settings.knobs[name] for name in LIMITS if name in settings.knobs}
    try:
        Knobs.model_validate({**known, path: value})
    except ValidationError:
        return False
    return True
