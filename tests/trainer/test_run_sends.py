"""A real run that goes wrong, with a collector and a webhook that listen, and with both of them dead."""

import json
import math
from pathlib import Path

import pytest

from tests.receivers import Server, attributes, closed_port, collections, log_records, serving, spans
from tests.trainer.runs import Recording, start, write_config
from tests.trainer.tiny import TinyPolicy, tiny_config
from tocsin.schemas.alerts import AlertConfig
from tocsin.schemas.config import FaultConfig, RunConfig
from tocsin.schemas.step import StepCompleted

pytestmark = pytest.mark.training

STEPS, ONSET = 16, 6


def failing(policy: TinyPolicy, url: str) -> RunConfig:
    fault = FaultConfig.model_validate({"name": "nan", "onset_step": ONSET})
    alert = AlertConfig(kind="webhook", url=url, retry_budget_s=1.0)
    return tiny_config(policy, steps=STEPS, fault=fault, alerts=[alert])


def run(config: RunConfig, folder: Path) -> tuple[Recording, str]:
    """What the run recorded, which must complete, and its standard error."""
    with start("train", write_config(config, folder / "run.toml"), runs_dir=folder / "runs") as going:
        assert going.wait() == 0, going.stderr
        return going.recording(), going.stderr


def told(server: Server) -> list[tuple[str, str]]:
    bodies = [json.loads(request.body) for request in server.requests]
    return [(body["reason"], body["code"]) for body in bodies]


def test_a_run_tells_a_collector_of_its_steps_and_a_webhook_of_its_warnings(
    tiny_policy: TinyPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with serving() as collector, serving() as hook:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        recording, _ = run(failing(tiny_policy, hook.url), tmp_path)
    assert ("fired", "POL015") in told(hook)
    assert len(set(told(hook))) == len(told(hook))
    found = spans(collector)
    steps = [span for span in found if span.name == "tocsin.step"]
    assert [attributes(span)["tocsin.step.number"] for span in steps] == list(range(1, STEPS + 1))
    assert {span.name for span in found} >= {"tocsin.generate", "tocsin.score", "tocsin.train", "tocsin.sync"}
    skipped = [event.step for event in recording.of(StepCompleted) if event.outcome == "nonfinite"]
    assert skipped
    assert [attributes(span)["tocsin.step.number"] for span in steps if span.status.code == 2] == skipped
    named = [record for record in log_records(collector) if record.event_name == "tocsin.diagnostic"]
    assert "POL015" in {attributes(record)["tocsin.diagnostic.code"] for record in named}
    losses = [point.as_double for metrics in collections(collector) for point in metrics.get("tocsin.loss", ())]
    assert losses
    assert all(math.isfinite(loss) for loss in losses)


def test_a_run_whose_collector_and_webhook_are_dead_completes_and_says_so_in_a_line_each(
    tiny_policy: TinyPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    dead = f"http://127.0.0.1:{closed_port()}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", dead)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    recording, printed = run(failing(tiny_policy, dead), tmp_path)
    assert [event.step for event in recording.of(StepCompleted)] == list(range(1, STEPS + 1))
    lines = printed.splitlines()
    assert len([line for line in lines if "telemetry:" in line]) == 1
    assert len([line for line in lines if "alerts:" in line and "cannot connect" in line]) == 1
    assert len([line for line in lines if "alerts:" in line and "did not reach" in line]) == 1
    assert "Traceback" not in printed
