"""Metrics by their path: how a verdict reads out of events what an action's `verify` names.

A path is `event_type.field`, deeper with more dots; `a + b` adds and `a / b` divides, the second part with or without
the event's name. Columns become means, lists of names become counts. What is computed otherwise stands in `DERIVED`.
"""

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Union, get_args, get_origin

from tocsin.diagnostics.features import ACCELERATORS
from tocsin.diagnostics.memory import PEAK
from tocsin.schemas.base import Model, NonFinite, as_float
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EVENT_TYPES
from tocsin.schemas.resources import ResourcesSampled
from tocsin.schemas.step import StepCompleted

Read = Callable[[BaseEvent], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per event of one type. NaN when the event did not measure it, infinity when it was not finite."""

    path: str
    event: type[BaseEvent]
    read: Read


@cache
def metric(path: str) -> Metric:
    """The metric with this path. Raises `ValueError` for a path that names no number of an event."""
    if path in DERIVED:
        return DERIVED[path]
    kind = path.split(".", maxsplit=1)[0]
    if kind not in EVENT_TYPES:
        known = ", ".join(sorted(EVENT_TYPES))
        raise ValueError(f"metric must begin with the type of an event, got `{path}`; the types are: {known}")
    event = EVENT_TYPES[kind]
    terms = [[_fields(event, kind, part) for part in term.split(" / ")] for term in path.split(" + ")]
    return Metric(path, event, lambda seen: sum(_quotient(seen, term) for term in terms))


def _fields(event: type[BaseEvent], kind: str, part: str) -> tuple[str, ...]:
    names = tuple(part.removeprefix(f"{kind}.").split("."))
    annotation: Any = event
    for name in names:
        annotation = _field(annotation, name)
        if annotation is None:
            raise ValueError(f"metric must name a field of `{kind}`, got `{part}`: there is no `{name}`")
    return names


def _field(annotation: Any, name: str) -> Any:
    """Type of the field `name` in a type that may be optional, annotated or a mapping; None when there is none."""
    if get_origin(annotation) is Annotated:
        return _field(get_args(annotation)[0], name)
    if get_origin(annotation) in (Union, types.UnionType):
        found = (_field(part, name) for part in get_args(annotation))
        return next((part for part in found if part is not None), None)
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    if isinstance(annotation, type) and issubclass(annotation, Model) and name in annotation.model_fields:
        return annotation.model_fields[name].annotation
    return None


def _quotient(event: BaseEvent, parts: list[tuple[str, ...]]) -> float:
    found = _value(event, parts[0])
    for names in parts[1:]:
        below = _value(event, names)
        found = found / below if below else math.nan
    return found


def _value(event: BaseEvent, names: Sequence[str]) -> float:
    found: Any = event
    for name in names:
        if found is None:
            return math.nan
        found = found.get(name) if isinstance(found, Mapping) else found.__dict__[name]
    return _number(found)


def _number(found: Any) -> float:
    if found is None:
        return math.nan
    if isinstance(found, NonFinite):
        return math.inf
    if isinstance(found, int | float):
        return float(found)
    assert isinstance(found, Sequence), "a metric is a number or a column"
    if not found:
        return 0.0
    return float(len(found)) if isinstance(found[0], str) else sum(map(_number, found)) / len(found)


def _peak(event: BaseEvent) -> float:
    """Largest share of its memory that any accelerator had in use."""
    assert isinstance(event, ResourcesSampled), "the metric belongs to this event"
    shares = [
        max(peak.reserved_bytes, peak.allocated_bytes) / device.total_bytes
        for device in event.devices
        if device.kind in ACCELERATORS and device.total_bytes
        for peak in device.phases.values()
    ]
    return max(shares, default=math.nan)


def throughput(event: BaseEvent) -> float:
    """Completion tokens per second of a step."""
    assert isinstance(event, StepCompleted), "throughput is that of a step"
    seconds = as_float(event.seconds.get("total"))
    return event.tokens / seconds if seconds > 0 else math.nan


DERIVED: Final[dict[str, Metric]] = {
    item.path: item
    for item in (
        Metric(PEAK, ResourcesSampled, _peak),
        Metric("step_completed.tokens / seconds.total", StepCompleted, throughput),
    )
}
"""Metrics that are no plain fields."""
