"""Alertmanager: the real one where there is one, and what it is sent."""

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.diagnostics.alerts.test_delivery import alerting, finding
from tests.receivers import Server, closed_port, serving
from tests.schemas.examples import EVENT_EXAMPLES
from tocsin.diagnostics.alerts import alertmanager, post
from tocsin.diagnostics.clock import unix_seconds
from tocsin.schemas.events import RunEnded, RunResumed

NAMES = ("prometheus-alertmanager", "alertmanager")
"""What the binary is called, by Debian and by its makers."""

CONFIG = """
route: {receiver: hook, group_by: ["..."], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}
receivers: [{name: hook, webhook_configs: [{url: "%s", send_resolved: true}]}]
"""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(post, "LONGEST_PAUSE_S", 0.02)


class Real:
    """An Alertmanager in a process of its own, and what it notified."""

    def __init__(self, url: str, notified: Server) -> None:
        self.url = url
        self.notified = notified

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return json.load(answer)

    def firing(self) -> set[tuple[str, str]]:
        """Name and severity of what fires."""
        return {(a["labels"]["alertname"], a["labels"]["severity"]) for a in self.get("/api/v2/alerts?active=true")}

    def notices(self) -> list[tuple[str, str]]:
        """Status and name of each notification, in order."""
        bodies = [json.loads(request.body) for request in self.notified.requests]
        return [(alert["status"], alert["labels"]["alertname"]) for body in bodies for alert in body["alerts"]]


def binary() -> str | None:
    """`TOCSIN_ALERTMANAGER`, or what the path holds."""
    return os.environ.get("TOCSIN_ALERTMANAGER") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Real]:
    program = binary()
    if program is None:
        pytest.skip("no Alertmanager on the path: `apt-get install prometheus-alertmanager` brings one")
    port = closed_port()
    with serving() as hook:
        config = tmp_path / "alertmanager.yml"
        config.write_text(CONFIG % hook.url)
        command = [
            program,
            f"--config.file={config}",
            f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ]
        with (tmp_path / "log.txt").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        found = Real(f"http://127.0.0.1:{port}", hook)
        try:
            hook.until(lambda: is_ready(found.url))
            yield found
        finally:
            process.terminate()
            process.wait()


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_the_real_one_shows_what_fires_and_notifies_once_when_it_fires_and_once_when_it_resolves(real: Real):
    with alerting(real.url, kind="alertmanager") as (alerts, said):
        alerts.record(finding())
        real.notified.until(lambda: real.notices() == [("firing", "nan-inf")])
        (shown,) = real.get("/api/v2/alerts")
        alerts.record(finding())
        alerts.record(finding(state="resolved"))
        real.notified.until(lambda: ("resolved", "nan-inf") in real.notices())
        assert real.firing() == set()
    assert real.notices() == [("firing", "nan-inf"), ("resolved", "nan-inf")]
    assert said == []
    assert shown["labels"] == {
        "alertname": "nan-inf",
        "code": "POL015",
        "component": "learner",
        "job": "tocsin",
        "run_id": "run-a",
        "severity": "warning",
    }
    assert shown["annotations"]["summary"] == "The loss was not finite in 2 of 2 steps"


def test_the_real_one_keeps_what_was_open_when_the_run_ended_and_is_told_when_a_failed_run_goes_on(real: Real):
    failed = next(e for e in EVENT_EXAMPLES if isinstance(e, RunEnded)).model_copy(update={"outcome": "failed"})
    resumed = next(e for e in EVENT_EXAMPLES if isinstance(e, RunResumed))
    with alerting(real.url, kind="alertmanager") as (alerts, _):
        alerts.record(finding())
        alerts.record(finding().model_copy(update={"reason": "run_ended"}))
        alerts.observe(failed)
    assert real.firing() == {("nan-inf", "warning"), ("run-failed", "critical")}
    with alerting(real.url, kind="alertmanager") as (alerts, _):
        alerts.recall([finding()], failed)
        alerts.observe(resumed)
        alerts.record(finding(state="resolved"))
    assert real.firing() == set()


def test_the_real_one_has_one_severity_of_a_finding_that_became_graver(real: Real):
    with alerting(real.url, kind="alertmanager") as (alerts, _):
        alerts.record(finding())
        alerts.record(finding(severity="critical").model_copy(update={"reason": "escalated"}))
        real.notified.until(lambda: real.firing() == {("nan-inf", "critical")})


def posts(server: Server) -> list[dict[str, dict[str, Any]]]:
    """Alerts by name, of each POST to the documented path."""
    assert {request.path for request in server.requests} == {"/api/v2/alerts"}
    bodies = [json.loads(request.body) for request in server.requests]
    return [{alert["labels"]["alertname"]: alert for alert in body} for body in bodies]


def seconds(text: str) -> float:
    found = unix_seconds(text)
    assert found is not None
    return found


def ends(server: Server) -> list[float]:
    """Unix time at which each POST has the finding end."""
    return [seconds(post["nan-inf"]["endsAt"]) for post in posts(server)]


def test_what_fires_is_told_anew_with_a_later_end_until_it_resolves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(alertmanager, "RESEND_S", 0.05)
    with serving() as server, alerting(server.url, kind="alertmanager") as (alerts, _):
        alerts.record(finding())
        server.until(lambda: len(server.requests) >= 4)
        alerts.record(finding(state="resolved"))
        server.until(lambda: ends(server)[-1] < ends(server)[0] - 3_000)
    assert ends(server)[:4] == sorted(set(ends(server)[:4]))


def test_a_short_hold_is_told_often_enough_not_to_run_out():
    with serving() as server, alerting(server.url, kind="alertmanager", hold_s=0.4) as (alerts, _):
        alerts.record(finding())
        server.until(lambda: len(server.requests) >= 3)


def test_an_alertmanager_that_was_down_learns_the_state_and_what_resolved_meanwhile():
    port = closed_port()
    with alerting(f"http://127.0.0.1:{port}", kind="alertmanager") as (alerts, said):
        alerts.record(finding(1))
        alerts.record(finding(1, state="resolved"))
        alerts.record(finding(2, severity="critical"))
        with serving(port=port) as server:
            server.until(lambda: server.requests)
            alerts.close(10.0)
            (first, *_) = (json.loads(request.body) for request in server.requests)
    ended = {alert["labels"]["severity"]: alert["endsAt"] for alert in first}
    assert seconds(ended["critical"]) - seconds(ended["warning"]) > 3_000
    assert len(said) <= 1


def test_an_alertmanager_that_is_dead_at_the_end_is_said():
    address = f"http://127.0.0.1:{closed_port()}"
    with alerting(address, kind="alertmanager") as (alerts, said):
        alerts.record(finding())
    assert said[-1] == f"alerts: 1 message did not reach alertmanager at {address}"
