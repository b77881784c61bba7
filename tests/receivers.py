"""Real servers on this machine for what is sent over HTTP, and what a real OTLP exporter sent them."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE_S = 60.0
"""For anything that is waited for; many times what it takes."""


@dataclass(frozen=True)
class Request:
    """One POST."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """What a server got, and how it answers: `answers` first, one status each, then 200."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    answers: list[int | str | None] = field(default_factory=list)
    """A status, an address to redirect to, or None to cut the connection."""
    hold: threading.Event | None = None
    """Until it is set, no request is answered."""

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until `condition` holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s; got {self.requests}"
            time.sleep(0.01)


@contextlib.contextmanager
def serving(*answers: int | str | None, hold: threading.Event | None = None, port: int = 0) -> Iterator[Server]:
    """A server on a free port, or on `port`."""
    state = Server(answers=list(answers), hold=hold)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.requests.append(Request(self.path, dict(self.headers), body))
            if state.hold is not None:
                state.hold.wait(PATIENCE_S)
            answer = state.answers.pop(0) if state.answers else 200
            if answer is None:
                self.close_connection = True
                return
            with contextlib.suppress(OSError):  # whoever asked may have gone
                self.send_response(307 if isinstance(answer, str) else answer)
                if isinstance(answer, str):
                    self.send_header("Location", answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        if state.hold is not None:
            state.hold.set()
        server.shutdown()
        server.server_close()


def closed_port() -> int:
    """A port of this machine on which nobody listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return server.server_port


def spans(server: Server) -> list[Any]:
    """Every span that arrived, decoded."""
    found = [ExportTraceServiceRequest.FromString(r.body) for r in server.requests if r.path == "/v1/traces"]
    return [span for message in found for part in message.resource_spans for s in part.scope_spans for span in s.spans]


def log_records(server: Server) -> list[Any]:
    """Every log record that arrived, decoded."""
    found = [ExportLogsServiceRequest.FromString(r.body) for r in server.requests if r.path == "/v1/logs"]
    return [item for message in found for p in message.resource_logs for s in p.scope_logs for item in s.log_records]


def collections(server: Server) -> list[dict[str, list[Any]]]:
    """Every collection of metrics that arrived, oldest first: data points by name."""
    found = [ExportMetricsServiceRequest.FromString(r.body) for r in server.requests if r.path == "/v1/metrics"]
    return [
        {
            metric.name: list((metric.gauge if metric.HasField("gauge") else metric.sum).data_points)
            for part in message.resource_metrics
            for scope in part.scope_metrics
            for metric in scope.metrics
        }
        for message in found
    ]


def attributes(item: Any) -> dict[str, Any]:
    """Attributes of a decoded span, log record or data point."""
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in item.attributes}
