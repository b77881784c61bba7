"""From `OTEL_*` variables to what is exported, each time in a process of its own: providers are global."""

import os
import subprocess
import sys
import threading

import pytest

from tests.receivers import Server, closed_port, collections, log_records, serving, spans
from tocsin.diagnostics.otel.environment import exporters

SCRIPT = """
import sys, time
from tests.diagnostics.run_samples import diagnostic
from tests.schemas.examples import EVENT_EXAMPLES
from tocsin.diagnostics.otel.environment import start_export
export = start_export("run-a", lambda line: sys.stdout.write(f"said: {line}\\n"))
sdk = "opentelemetry.sdk" in sys.modules
print("exports" if export else "silent", "with" if sdk else "without", "sdk")
began = time.monotonic()
for _ in range(int(sys.argv[1])):
    for event in EVENT_EXAMPLES:
        export and export.observe(event)
    export and export.record(diagnostic())
sys.stdout.write(f"took {time.monotonic() - began}\\n")
if export:
    time.sleep(float(sys.argv[2]))
    export.close()
"""


def run(script: str = SCRIPT, *, rounds: int = 1, wait_s: float = 0.0, **variables: str) -> list[str]:
    """What the script prints, standard error included, without other OTEL_* variables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(rounds), str(wait_s)],
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()


def lines(printed: list[str]) -> list[str]:
    """All but the time."""
    return [line for line in printed if not line.startswith("took")]


def resource(server: Server) -> str:
    return server.requests[0].body.decode("latin-1")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_nothing_is_exported_and_the_sdk_not_even_imported_unless_asked(variables: dict[str, str]):
    assert lines(run(**variables)) == ["silent without sdk"]


def test_an_endpoint_is_enough_to_export_all_signals():
    with serving() as server:
        assert lines(run(OTEL_EXPORTER_OTLP_ENDPOINT=server.url)) == ["exports with sdk"]
    assert "tocsin.step" in {span.name for span in spans(server)}
    assert [record.event_name for record in log_records(server)] == ["tocsin.diagnostic"]
    assert collections(server)[-1]["tocsin.reward.mean"]
    assert "service.name" in resource(server)
    assert "run-a" in resource(server)


def test_the_variables_of_the_standard_choose_signals_headers_and_names():
    with serving() as server:
        run(
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{server.url}/v1/traces",
            OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20abc",
            OTEL_SERVICE_NAME="night-run",
        )
    assert {request.path for request in server.requests} == {"/v1/traces"}
    assert server.requests[0].headers["authorization"] == "Bearer abc"
    assert "night-run" in resource(server)


def test_a_signal_is_exported_where_an_exporter_or_an_endpoint_says_so():
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert exporters(endpoint) == {"TRACES": "otlp", "METRICS": "otlp", "LOGS": "otlp"}
    assert exporters(endpoint | {"OTEL_LOGS_EXPORTER": "none"}) == {"TRACES": "otlp", "METRICS": "otlp"}
    assert exporters({"OTEL_METRICS_EXPORTER": "console"}) == {"METRICS": "console"}


def test_a_dead_collector_costs_one_line():
    address = f"http://127.0.0.1:{closed_port()}"
    settings = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1", "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BLRP_SCHEDULE_DELAY": "50"}
    printed = lines(run(rounds=300, wait_s=2.5, OTEL_EXPORTER_OTLP_ENDPOINT=address, **settings))
    assert printed[0] == "exports with sdk"
    assert [line.startswith("said: telemetry: ") for line in printed[1:]] == [True], printed


@pytest.mark.parametrize("status", [400, 503])
def test_a_collector_that_refuses_costs_one_line(status: int):
    with serving(*[status] * 100) as server:
        settings = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1", "OTEL_BSP_SCHEDULE_DELAY": "50"}
        printed = lines(run(rounds=30, wait_s=2.0, OTEL_EXPORTER_OTLP_ENDPOINT=server.url, **settings))
        assert server.requests
    assert [line.startswith("said: telemetry: ") for line in printed[1:]] == [True], printed


def test_a_collector_that_never_answers_holds_up_neither_the_events_nor_the_end():
    release = threading.Event()
    with serving(hold=release) as server:
        # The SDK by itself would wait for half a minute per signal, which is longer than `run` waits.
        printed = run(rounds=300, OTEL_EXPORTER_OTLP_ENDPOINT=server.url, OTEL_EXPORTER_OTLP_TIMEOUT="60")
        assert server.requests
        assert not release.is_set()
    assert [line for line in lines(printed) if "telemetry" in line] == [
        "said: telemetry: the collector did not take everything within 5 s of the end; "
        "the run is not affected, more of this is not shown"
    ]


def test_a_missing_sdk_is_said_in_one_line_with_the_remedy():
    hidden = "import sys; sys.modules['opentelemetry.sdk'] = None\n" + SCRIPT
    printed = lines(run(hidden, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9"))
    assert len(printed) == 2
    assert "pip install 'tocsin[otel]'" in printed[0]
    assert printed[1].startswith("silent")


def test_an_exporter_that_is_not_installed_is_said_in_one_line():
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    printed = lines(run(**settings))
    assert len(printed) == 2
    assert printed[0].startswith("said: no telemetry: ")
    assert "otlp_proto_grpc" in printed[0]


def test_providers_of_the_application_are_used_and_left_open():
    own = (
        "from opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor\n"
        "mine = TracerProvider()\nmine.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))\n"
        "trace.set_tracer_provider(mine)\n"
    )
    text = "\n".join(run(own + SCRIPT + "\nmine.get_tracer('x').start_span('after the end').end()\n"))
    assert '"name": "tocsin.step"' in text
    assert '"name": "after the end"' in text
