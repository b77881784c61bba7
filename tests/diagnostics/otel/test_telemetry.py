"""What a real OTLP/HTTP exporter sends for a run's events, decoded from protobuf."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.diagnostics.run_samples import action, coverage, diagnostic
from tests.receivers import Server, attributes, collections, log_records, serving, spans
from tests.schemas.examples import EVENT_EXAMPLES, RECORD_EXAMPLES
from tocsin.diagnostics.otel.catalogue import COUNTERS, GAUGES
from tocsin.diagnostics.otel.telemetry import Telemetry
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.events import (
    EVENTS,
    CheckpointSaved,
    ClockTicked,
    EvaluationCompleted,
    Interval,
    QueueSampled,
    RunEnded,
)
from tocsin.schemas.generation import EngineSampled, WeightsSynced, WeightSyncStarted
from tocsin.schemas.step import StepCompleted

NOON_NS = 1_769_860_800 * 10**9
"""Time of the examples, whose monotonic clock stands at 12.5 s."""
MS = 1_000_000


def example(kind: type[Any], **changes: Any) -> Any:
    """An event with other values, validated as a measured one is."""
    found = next(event for event in EVENT_EXAMPLES if isinstance(event, kind))
    return kind.model_validate({**found.model_dump(), **changes})


class Exporting:
    """A telemetry with the exporters of the SDK behind it."""

    def __init__(self, url: str) -> None:
        self._reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=f"{url}/v1/metrics"), export_interval_millis=math.inf
        )
        self._tracers = TracerProvider(shutdown_on_exit=False)
        self._tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{url}/v1/traces")))
        self._meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self._loggers = LoggerProvider(shutdown_on_exit=False)
        self._loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(endpoint=f"{url}/v1/logs")))
        self.telemetry = Telemetry(self._tracers, self._meters, self._loggers)

    def collect(self) -> None:
        """Export the metrics as they are now."""
        self._reader.collect()

    def flush(self) -> None:
        """Export everything else."""
        self._tracers.force_flush()
        self._loggers.force_flush()

    def close(self) -> None:
        """End the threads."""
        for provider in (self._tracers, self._meters, self._loggers):
            provider.shutdown()


@contextmanager
def exporting() -> Iterator[tuple[Server, Exporting]]:
    with serving() as server:
        export = Exporting(server.url)
        try:
            yield server, export
        finally:
            export.close()


def exported(*events: Any, records: Any = ()) -> Server:
    with exporting() as (server, export):
        for event in events:
            export.telemetry.observe(event)
        for record in records:
            export.telemetry.record(record)
        export.collect()
        export.flush()
    return server


def at(span: Any) -> tuple[int, int]:
    """Begin and end in milliseconds after the example's events."""
    return ((span.start_time_unix_nano - NOON_NS) // MS, (span.end_time_unix_nano - NOON_NS) // MS)


def test_a_step_is_one_trace_with_its_waits_its_training_its_rollouts_and_its_sync():
    seconds = {"wait": 0.1, "forward_backward": 0.2, "optimizer": 0.1, "sync_wait": 0.05, "total": 0.5}
    server = exported(
        example(WeightSyncStarted, step=3, version=3),
        example(StepCompleted, step=3, seconds=seconds),
        example(
            QueueSampled,
            step=3,
            generating=Interval(began=11.5, ended=11.75),
            scoring=Interval(began=11.7, ended=12.0),
        ),
        example(CheckpointSaved, step=3, seconds=0.25),
        example(WeightsSynced, step=4, version=3, mono=13.0, seconds={"write": 0.1, "load": 0.2, "total": 0.6}),
    )
    found = {span.name: span for span in spans(server)}
    assert {name: at(span) for name, span in found.items()} == {
        "tocsin.step": (-500, 0),
        "tocsin.wait": (-500, -400),
        "tocsin.train": (-400, -100),
        "tocsin.sync_wait": (-50, 0),
        "tocsin.generate": (-1000, -750),
        "tocsin.score": (-800, -500),
        "tocsin.checkpoint": (-250, 0),
        "tocsin.sync": (-600, -300),
    }
    step = found["tocsin.step"]
    assert step.parent_span_id == b""
    assert {span.trace_id for span in found.values()} == {step.trace_id}
    assert {span.parent_span_id for name, span in found.items() if name != "tocsin.step"} == {step.span_id}
    assert attributes(step)["tocsin.step.number"] == 3
    assert attributes(step)["tocsin.run.id"] == "sort-digits-1"


def test_every_step_is_a_trace_of_its_own():
    server = exported(example(StepCompleted, step=3), example(StepCompleted, step=4))
    assert len({span.trace_id for span in spans(server)}) == 2


def test_a_step_that_was_not_finite_and_weights_that_did_not_arrive_are_errors():
    server = exported(
        example(StepCompleted, outcome="nonfinite", nonfinite=["loss"], loss=math.nan),
        example(WeightsSynced, verified=False, probe_gap=math.nan, probe_tolerance=0.001),
    )
    found = {span.name: (span.status.code, span.status.message) for span in spans(server)}
    assert found["tocsin.step"] == (2, "not finite: loss")
    assert found["tocsin.sync"] == (2, "probe gap nan above 0.001 nats")


@pytest.mark.parametrize("later", [example(RunEnded, mono=20.0), example(WeightSyncStarted, version=4, mono=20.0)])
def test_a_sync_that_nobody_answers_is_a_span_that_failed(later: Any):
    server = exported(example(WeightSyncStarted, version=3, mono=12.5), later)
    (span,) = spans(server)
    assert (span.name, span.status.code) == ("tocsin.sync", 2)
    assert span.end_time_unix_nano - span.start_time_unix_nano == 7_500 * MS


def test_metrics_carry_the_newest_values_and_the_step_is_an_attribute_of_none():
    server = exported(*EVENT_EXAMPLES, records=[coverage(evaluated=("POL015", "RWD001")), diagnostic()])
    (metrics,) = collections(server)
    assert [point.as_double for point in metrics["tocsin.reward.mean"]] == [
        next(event.reward_mean for event in EVENT_EXAMPLES if isinstance(event, BatchConsumed))
    ]
    assert [point.as_int for point in metrics["tocsin.rules.evaluated"]] == [2]
    opened = {attributes(point)["tocsin.severity"]: point.as_int for point in metrics["tocsin.diagnostics.open"]}
    assert opened == {"info": 0, "warning": 1, "critical": 0}
    keys = {key for points in metrics.values() for point in points for key in attributes(point)}
    assert [key for key in keys if "step" in key or not key.startswith("tocsin.")] == []


def test_every_metric_of_the_catalogue_is_fed_by_some_event():
    server = exported(*EVENT_EXAMPLES, records=RECORD_EXAMPLES)
    (metrics,) = collections(server)
    assert {entry.name for entry in (*GAUGES, *COUNTERS)} - {
        name for name, points in metrics.items() if points
    } == set()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_gauge_whose_value_is_no_longer_finite_or_measured_stops_instead_of_repeating_the_last(value: float | None):
    with exporting() as (server, export):
        for entropy in (1.5, value, 2.5):
            export.telemetry.observe(example(StepCompleted, entropy=entropy))
            export.collect()
    series = [[point.as_double for point in metrics.get("tocsin.entropy", ())] for metrics in collections(server)]
    assert series == [[1.5], [], [2.5]]


def poisoned(event: Any) -> Any:
    """The event with every measured number in it replaced by NaN."""

    def poison(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: poison(item) for key, item in value.items()}
        if isinstance(value, list):
            return [poison(item) for item in value]
        return math.nan if isinstance(value, float) else value

    fields = type(event).model_fields
    changed = {}
    for name, value in event.model_dump().items():
        if any(kind in str(fields[name].annotation) for kind in ("NonFinite", "Quantiles", "LogProbGap")):
            changed[name] = poison(value)
    return type(event).model_validate({**event.model_dump(), **changed})


def test_no_nan_of_any_event_reaches_a_series_and_each_is_counted_by_metric():
    events = [poisoned(event) for event in EVENT_EXAMPLES]
    server = exported(*events, records=[diagnostic(observed=math.nan)])
    (metrics,) = collections(server)
    values = [
        point.as_double if point.HasField("as_double") else point.as_int
        for points in metrics.values()
        for point in points
    ]
    assert values
    assert all(math.isfinite(value) for value in values)
    counted = {attributes(point)["tocsin.metric"]: point.as_int for point in metrics["tocsin.nonfinite"]}
    assert {"tocsin.loss", "tocsin.reward.mean", "tocsin.staleness.mean", "tocsin.sync.probe_gap"} <= counted.keys()
    assert not counted.keys() & {name for name, points in metrics.items() if points}
    (record,) = log_records(server)
    assert attributes(record)["tocsin.evidence.0.observed"] == "nan"


def test_one_server_or_evaluation_does_not_end_the_series_of_another():
    server = exported(
        example(EngineSampled, engine="vllm-0", running=3),
        example(EngineSampled, engine="vllm-1", running=5),
        example(EvaluationCompleted, name="held-out", reward_mean=0.5),
        example(EvaluationCompleted, name="hard", reward_mean=0.25),
    )
    (metrics,) = collections(server)
    running = {
        attributes(point)["tocsin.engine"]: point.as_int
        for point in metrics["tocsin.engine.requests"]
        if attributes(point)["tocsin.state"] == "running"
    }
    assert running == {"vllm-0": 3, "vllm-1": 5}
    rewards = {attributes(p)["tocsin.evaluation"]: p.as_double for p in metrics["tocsin.evaluation.reward"]}
    assert rewards == {"held-out": 0.5, "hard": 0.25}


def test_a_reward_function_that_no_longer_scores_has_no_series_any_more():
    with exporting() as (server, export):
        for components in ({"exact": 0.5, "brevity": 0.25}, {"exact": 0.75}):
            export.telemetry.observe(example(BatchConsumed, components=components))
            export.collect()
    names = [
        [attributes(point)["tocsin.reward"] for point in metrics["tocsin.reward.component"]]
        for metrics in collections(server)
    ]
    assert names == [["exact", "brevity"], ["exact"]]


def test_a_diagnostic_is_a_log_event_in_the_trace_of_its_step():
    server = exported(example(StepCompleted, step=3), records=[*RECORD_EXAMPLES[:1], action(), coverage()])
    found = log_records(server)
    assert [record.event_name for record in found] == ["tocsin.diagnostic", "tocsin.action", "tocsin.coverage"]
    record = found[0]
    step = next(span for span in spans(server) if span.name == "tocsin.step")
    assert (record.trace_id, record.span_id) == (step.trace_id, step.span_id)
    assert (record.time_unix_nano, record.severity_number) == (NOON_NS, 13)
    assert record.body.string_value == RECORD_EXAMPLES[0].summary
    told = attributes(record)
    assert told["tocsin.diagnostic.code"] == "RWD001"
    assert told["tocsin.diagnostic.fingerprint"] == "0badcafe0badcafe"
    assert told["tocsin.evidence.0.observed"] == 0.8125
    assert told["tocsin.diagnostic.action"] == "zero-std-groups/trainer#1/raise-group-size"


@pytest.mark.parametrize(
    ("record", "severity"),
    [
        (diagnostic(severity="info"), 9),
        (diagnostic(severity="warning"), 13),
        (diagnostic(severity="critical"), 21),
        (diagnostic(severity="critical", state="resolved"), 9),
    ],
)
def test_the_severity_of_a_log_event_is_that_of_what_is_open(record: Any, severity: int):
    (found,) = log_records(exported(records=[record]))
    assert found.severity_number == severity


UNTRUSTED = "the model wrote this"


def with_foreign_text(event: Any) -> Any:
    """The event with this text in every field that people, models or data fill."""
    fields = ("error", "detail", "note", "reason", "actor", "prompt_id", "request_id", "idempotency_key")
    changes = {name: UNTRUSTED for name in fields if name in type(event).model_fields}
    if isinstance(event, BatchConsumed):
        ids = [UNTRUSTED] * len(event.groups.prompt_id)
        changes["groups"] = {**event.groups.model_dump(), "prompt_id": ids}
    return type(event).model_validate({**event.model_dump(), **changes})


def test_no_text_of_models_data_or_people_leaves_with_the_telemetry():
    assert {type(event) for event in EVENT_EXAMPLES} == set(EVENTS)
    noted = action().model_copy(update={"note": UNTRUSTED})
    server = exported(*map(with_foreign_text, EVENT_EXAMPLES), records=[noted, *RECORD_EXAMPLES])
    assert server.requests
    assert all(UNTRUSTED.encode() not in request.body for request in server.requests)


def test_without_an_sdk_nothing_happens():
    telemetry = Telemetry()
    for event in EVENT_EXAMPLES:
        telemetry.observe(event)
    telemetry.record(diagnostic())


def test_the_gauge_of_lost_events_follows_the_monitor():
    (metrics,) = collections(exported(example(ClockTicked, events_dropped=7)))
    assert [point.as_int for point in metrics["tocsin.events.dropped"]] == [7]
