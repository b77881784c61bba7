"""The consumer of a run's events and records: spans, metrics and log events through whatever providers there are."""

from importlib.metadata import version
from typing import Final

from opentelemetry import _logs, metrics, trace

from tocsin.diagnostics.otel.gauges import Gauges
from tocsin.diagnostics.otel.log_events import LogEvents, Record
from tocsin.diagnostics.otel.spans import Spans
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.event import BaseEvent

SCOPE: Final = "tocsin"


class Telemetry:
    """Takes events and records, each once and in their order, from one thread.

    Without a configured SDK the providers are those of the API, which do nothing.
    """

    def __init__(
        self,
        tracers: trace.TracerProvider | None = None,
        meters: metrics.MeterProvider | None = None,
        loggers: _logs.LoggerProvider | None = None,
    ) -> None:
        release = version("tocsin")
        self._spans = Spans((tracers or trace.get_tracer_provider()).get_tracer(SCOPE, release))
        self._gauges = Gauges((meters or metrics.get_meter_provider()).get_meter(SCOPE, release))
        logger = (loggers or _logs.get_logger_provider()).get_logger(SCOPE, release)
        self._log_events = LogEvents(logger, self._spans.context)

    def observe(self, event: BaseEvent) -> None:
        """Take in an event that has its number."""
        self._spans.observe(event)
        self._gauges.observe(event)

    def record(self, record: Record) -> None:
        """Take in a new record of the feed."""
        self._log_events.record(record)
        if not isinstance(record, ActionRecord):
            self._gauges.record(record)
