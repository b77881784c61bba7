"""From the standard `OTEL_*` variables to an SDK that exports. Nothing is imported or started without them.

A signal is exported when its `OTEL_<SIGNAL>_EXPORTER` names an exporter, or by default with OTLP when
`OTEL_EXPORTER_OTLP_ENDPOINT` or its own endpoint is set. Everything else (headers, protocol, sampling, batching,
intervals, resource) is read by the SDK's own configurator. An application that has set providers already, as
`opentelemetry-instrument` does, keeps them.

A collector that is down, slow or missing costs one line; the SDK's threads go on trying, and training does not wait.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import _logs, metrics, trace

from tocsin.diagnostics import render
from tocsin.diagnostics.otel.log_events import Record
from tocsin.diagnostics.otel.telemetry import Telemetry
from tocsin.diagnostics.variables import environment_variables
from tocsin.schemas.event import BaseEvent

SIGNALS: Final = ("TRACES", "METRICS", "LOGS")
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
CONFIG_FILE: Final = "OTEL_CONFIG_FILE"
CLOSE_TIMEOUT_S: Final = 5.0
"""How long the end of a run waits for what is not exported yet."""
SHOWN: Final = 200
"""Characters of an SDK's message that are shown."""

Say = Callable[[str], None]
"""Prints one line for people."""


def exporters(environment: Mapping[str, str]) -> dict[str, str]:
    """By signal, the exporters that the environment asks for; empty when it asks for none."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return {}
    found = {}
    for signal in SIGNALS:
        endpoint = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT") or environment.get(ENDPOINT)
        chosen = environment.get(f"OTEL_{signal}_EXPORTER", "").strip() or ("otlp" if endpoint else "none")
        if chosen.lower() != "none":
            found[signal] = chosen
    return found


@dataclass
class Export:
    """What exports a run. `close` it when the run is over."""

    telemetry: Telemetry
    providers: Sequence[Any] = ()
    """Those that were made here."""
    complaints: "OneLine | None" = None

    def observe(self, event: BaseEvent) -> None:
        """Take in an event that has its number."""
        self.telemetry.observe(event)

    def record(self, record: Record) -> None:
        """Take in a new record of the feed."""
        self.telemetry.record(record)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Export what is left, for `timeout_s` at most; it is said when a slow collector has not taken all by then."""
        threads = [threading.Thread(target=provider.shutdown, daemon=True) for provider in self.providers]
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.complaints is not None:
            if any(thread.is_alive() for thread in threads):
                self.complaints.say(f"the collector did not take everything within {timeout_s:g} s of the end")
            self.complaints.is_over = True


def start_export(run_id: str, say: Say) -> Export | None:
    """Exports as the environment asks; None when it asks for nothing.

    An environment that cannot be followed, the SDK not installed for instance, is said in one line: these variables
    are often set for a whole machine, and a run does not fail over them.
    """
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return Export(Telemetry())
    wanted = exporters(os.environ)
    if not wanted and not os.environ.get(CONFIG_FILE):
        return None
    logger = logging.getLogger("opentelemetry")
    complaints = OneLine(say)
    logger.handlers, logger.propagate = [complaints], False
    try:
        _configure(wanted, run_id)
    except ImportError as error:
        say(f"no telemetry: `{error.name}` is missing; install with: pip install 'tocsin[otel]'")
        return None
    except Exception as error:  # the boundary to the SDK: whatever it makes of the environment, the run goes on
        say(f"no telemetry: {_short(str(error))}; check the OTEL_* variables")
        return None
    providers = [trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider()]
    return Export(Telemetry(), providers, complaints)


def _configure(wanted: Mapping[str, str], run_id: str) -> None:
    """Have the SDK set its global providers. Raises whatever it raises."""
    from opentelemetry.sdk._configuration import _OTelSDKConfigurator  # noqa: PLC0415  the SDK takes 0.2 s

    class Configurator(_OTelSDKConfigurator):
        """The SDK's own, which asks to be derived from."""

    configurator: Any = Configurator  # untyped in the SDK
    if os.environ.get(CONFIG_FILE):
        configurator().configure()
        return
    attributes = {"service.instance.id": run_id, "tocsin.run.id": run_id}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        attributes["service.name"] = "tocsin"
    # The protocol as the specification has it and the extra installs it; the SDK alone would take gRPC.
    chosen = {PROTOCOL: os.environ.get(PROTOCOL) or "http/protobuf"}
    chosen |= {f"OTEL_{signal}_EXPORTER": wanted.get(signal, "none") for signal in SIGNALS}
    with environment_variables(chosen):
        configurator().configure(resource_attributes=attributes)


class OneLine(logging.Handler):
    """Says the first complaint of the SDK, which makes one per batch, in one line and no other."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.WARNING)
        self.is_over = False
        """Nothing is said any more: the SDK is shut down, and says so once more when the process ends."""
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self.say(record.getMessage())

    def say(self, what: str) -> None:
        """Say this unless something was said before."""
        if not self.is_over:
            self.is_over = True
            self._say(f"telemetry: {_short(what)}; the run is not affected, more of this is not shown")


def _short(text: str) -> str:
    line = render.clean(" ".join(text.split())).rstrip(".")
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}..."
