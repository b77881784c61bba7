"""The newest measured values, kept for whoever collects metrics, whenever that is.

    monitor's thread:  event --> `observe` --> values --+
    SDK's thread:      every OTEL_METRIC_EXPORT_INTERVAL `--> one callback per instrument

Instruments are observable, so a value that is no longer measured is no longer yielded: a synchronous gauge would
repeat the last healthy one for ever.
"""

import math
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from tocsin.diagnostics.otel.catalogue import COUNTERS, GAUGES, Counter, Gauge, Reading
from tocsin.schemas.base import NonFinite
from tocsin.schemas.diagnosis import SEVERITIES, Coverage, Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked

Attributes = tuple[tuple[str, str], ...]
"""Attributes of a series, in a form that can be a key."""
Series = dict[Attributes, float]

NONFINITE: Final = "tocsin.nonfinite"
DROPPED: Final = "tocsin.events.dropped"
OPEN: Final = "tocsin.diagnostics.open"
EVALUATED: Final = "tocsin.rules.evaluated"


class Gauges:
    """Values by instrument. Safe to use from several threads; memory is bounded by the number of series."""

    def __init__(self, meter: Meter) -> None:
        self._guard = threading.Lock()
        self._values: dict[str, dict[str, Series]] = {}
        """By instrument and reporting entity."""
        self._sums: dict[str, Tally[Attributes]] = {}
        self._open: dict[str, Diagnostic] = {}
        self._gauges: dict[type[BaseEvent], list[Gauge]] = {}
        for gauge in GAUGES:
            self._gauges.setdefault(gauge.source, []).append(gauge)
            meter.create_observable_gauge(gauge.name, [self._newest(gauge.name)], gauge.unit, gauge.description)
        self._counters: dict[type[BaseEvent], list[Counter]] = {}
        for counter in COUNTERS:
            self._counters.setdefault(counter.source, []).append(counter)
            meter.create_observable_counter(counter.name, [self._sum(counter.name)], counter.unit, counter.description)
        meter.create_observable_counter(NONFINITE, [self._sum(NONFINITE)], "1", "Readings that were not finite")
        meter.create_observable_gauge(
            DROPPED, [self._newest(DROPPED)], "{event}", "Events that the monitor lost in this attempt"
        )
        meter.create_observable_gauge(OPEN, [self._newest(OPEN)], "{diagnostic}", "Open and not explained by another")
        meter.create_observable_gauge(EVALUATED, [self._newest(EVALUATED)], "{rule}", "Rules that are evaluated")

    def observe(self, event: BaseEvent) -> None:
        """Take in the values of an event."""
        kind = type(event)
        with self._guard:
            for gauge in self._gauges.get(kind, ()):
                self._put(gauge.name, gauge.entity(event), gauge.read(event))
            for counter in self._counters.get(kind, ()):
                sums = self._sums.setdefault(counter.name, Tally())
                for amount, attributes in counter.read(event):
                    sums[tuple(attributes.items())] += amount
            if isinstance(event, ClockTicked):
                self._put(DROPPED, "", [(event.events_dropped, {})])

    def record(self, record: Diagnostic | Coverage) -> None:
        """Take in what is open, and how many rules are evaluated."""
        with self._guard:
            if isinstance(record, Coverage):
                self._put(EVALUATED, "", [(len(record.evaluated), {})])
                if OPEN in self._values:
                    return
            elif record.state in ("firing", "no_data"):
                self._open[record.id] = record
            else:
                self._open.pop(record.id, None)
            counts = Tally(found.severity for found in self._open.values() if not found.suppressed)
            self._put(OPEN, "", [(counts[severity], {"tocsin.severity": severity}) for severity in SEVERITIES])

    def _put(self, name: str, entity: str, readings: Iterable[Reading]) -> None:
        """Replace what `entity` said under this name; what is not finite is counted and has no value."""
        series: Series = {}
        for value, attributes in readings:
            if value is None:
                continue
            if isinstance(value, NonFinite) or not math.isfinite(value):
                self._sums.setdefault(NONFINITE, Tally())[(("tocsin.metric", name), *attributes.items())] += 1
            else:
                series[tuple(attributes.items())] = value
        self._values.setdefault(name, {})[entity] = series

    def _newest(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def collect(_: CallbackOptions) -> list[Observation]:
            with self._guard:
                reported = self._values.get(name, {}).values()
                return [Observation(value, dict(key)) for series in reported for key, value in series.items()]

        return collect

    def _sum(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def collect(_: CallbackOptions) -> list[Observation]:
            with self._guard:
                return [Observation(total, dict(key)) for key, total in self._sums.get(name, {}).items()]

        return collect
