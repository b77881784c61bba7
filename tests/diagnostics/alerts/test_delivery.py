"""Webhooks against real servers: once, in order, tried again where it helps, and never in anybody's way."""

import json
import logging
import threading
from contextlib import contextmanager
from typing import Any

import pytest

from tests.diagnostics.run_samples import diagnostic
from tests.receivers import Server, closed_port, serving
from tests.records import violations
from tests.schemas.examples import EVENT_EXAMPLES, RECORD_EXAMPLES
from tocsin.diagnostics.alerts import messages, post
from tocsin.diagnostics.alerts.delivery import Alerts
from tocsin.schemas.alerts import AlertConfig
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.events import RunEnded

SECRET = "s3cret-token"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(post, "LONGEST_PAUSE_S", 0.02)


def finding(number: int = 1, **options: Any) -> Diagnostic:
    found = diagnostic(f"nan-inf/learner#{number}", **options)
    return found.model_copy(update={"fingerprint": f"{number:016x}", "run_id": "run-a", "episode": number})


@contextmanager
def alerting(url: str, *, kind: str = "webhook", environment: dict[str, str] | None = None, **options: Any):
    """Alerts with one receiver, and what was said."""
    said: list[str] = []
    known = {"HOOK": url, **(environment or {})}
    config = AlertConfig.model_validate({"kind": kind, "url_env": "HOOK", "retry_budget_s": 30.0, **options})
    alerts = Alerts([config], known, said.append)
    try:
        yield alerts, said
    finally:
        alerts.close(10.0)


def bodies(server: Server) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in server.requests]


def test_a_webhook_gets_one_message_when_a_finding_fires_and_one_when_it_resolves():
    with serving() as server, alerting(server.url) as (alerts, said):
        for record in (finding(), finding(), finding(state="resolved"), finding(state="resolved")):
            alerts.record(record)
        server.until(lambda: len(server.requests) >= 2)
    assert [(body["status"], body["dedup_key"]) for body in bodies(server)] == [
        ("firing", "0000000000000001"),
        ("resolved", "0000000000000001"),
    ]
    assert said == []


def test_what_a_webhook_gets_is_valid_against_the_published_schema():
    failed = next(e for e in EVENT_EXAMPLES if isinstance(e, RunEnded)).model_copy(update={"outcome": "failed"})
    with serving() as server, alerting(server.url) as (alerts, _):
        for record in (RECORD_EXAMPLES[0], finding(), finding(state="resolved")):
            alerts.record(record)
        alerts.observe(failed)
    assert len(server.requests) == 4
    assert [violations(body, "alert") for body in bodies(server)] == [[]] * 4
    assert bodies(server)[0]["action"] == "zero-std-groups/trainer#1/raise-group-size"


@pytest.mark.parametrize("answer", [500, 503, 429, None])
def test_a_message_is_tried_again_after_a_failure_that_may_pass(answer: int | None):
    with serving(answer, answer) as server, alerting(server.url) as (alerts, said):
        alerts.record(finding())
        server.until(lambda: len(server.requests) == 3)
    assert len({request.body for request in server.requests}) == 1
    assert len(said) == 1


@pytest.mark.parametrize("answer", [400, 401, 404, 413])
def test_a_message_that_was_refused_is_not_tried_again(answer: int):
    with serving(answer) as server, alerting(server.url) as (alerts, said):
        alerts.record(finding(1))
        alerts.record(finding(2))
        server.until(lambda: len(server.requests) == 2)
    assert [body["id"] for body in bodies(server)] == ["nan-inf/learner#1", "nan-inf/learner#2"]
    assert f"answers {answer}" in said[0]
    assert bodies(server)[1]["dropped"] == 1


def test_a_redirect_is_not_followed():
    with serving() as elsewhere, serving(f"{elsewhere.url}/steal") as server:
        with alerting(server.url, headers={"Authorization": "TOKEN"}, environment={"TOKEN": SECRET}) as (alerts, said):
            alerts.record(finding())
            server.until(lambda: said)
        assert len(server.requests) == 1
        assert elsewhere.requests == []
    assert "redirects are not followed" in said[0]


def test_a_dead_receiver_costs_one_line_and_one_about_what_was_lost():
    address = f"http://127.0.0.1:{closed_port()}"
    with alerting(address) as (alerts, said):
        for number in range(5):
            alerts.record(finding(number))
    assert said == [
        f"alerts: webhook at {address} cannot connect; the run goes on, more of this is not shown",
        f"alerts: 5 messages did not reach webhook at {address}",
    ]


def test_a_receiver_that_comes_back_gets_what_waited_in_order():
    port = closed_port()
    with alerting(f"http://127.0.0.1:{port}") as (alerts, said):
        for number in (1, 2, 3):
            alerts.record(finding(number))
        waiting = threading.Event()
        while not said:
            waiting.wait(0.01)
        with serving(port=port) as server:
            server.until(lambda: len(server.requests) == 3)
    assert [body["id"][-1] for body in bodies(server)] == ["1", "2", "3"]
    assert len(said) == 1


def test_a_receiver_that_does_not_answer_holds_up_nobody_and_what_no_longer_fits_is_counted(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(messages, "QUEUED", 3)
    release = threading.Event()
    with serving(hold=release) as server, alerting(server.url, timeout_s=60.0) as (alerts, said):
        alerts.record(finding(1))
        server.until(lambda: server.requests)
        for number in range(2, 8):  # nobody has answered yet
            alerts.record(finding(number))
        release.set()
        server.until(lambda: len(server.requests) == 4)
    assert [body["id"][-1] for body in bodies(server)] == ["1", "5", "6", "7"]
    assert [body["dropped"] for body in bodies(server)] == [0, 3, 0, 0]
    assert said == [f"alerts: 3 messages did not reach webhook at {server.url}"]


def test_the_end_does_not_wait_for_a_receiver_that_does_not_answer():
    said: list[str] = []
    with serving(hold=threading.Event()) as server:
        alerts = Alerts([AlertConfig(kind="webhook", url=server.url, timeout_s=60.0)], {}, said.append)
        alerts.record(finding())
        server.until(lambda: server.requests)
        alerts.close(0.1)
    assert said == [f"alerts: 1 message did not reach webhook at {server.url}"]


def test_slack_gets_a_line_of_text_in_which_nothing_is_a_mention_or_a_link():
    odd = finding().model_copy(update={"summary": "<!channel> a & b"})
    with serving() as server, alerting(server.url, kind="slack") as (alerts, _):
        alerts.record(odd)
        server.until(lambda: server.requests)
    (body,) = bodies(server)
    assert body.keys() == {"text"}
    assert "nan-inf: &lt;!channel&gt; a &amp; b -&gt; tocsin explain POL015" in body["text"]


def test_headers_come_from_the_environment_and_secrets_are_in_no_log_and_no_line(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    options: Any = {"headers": {"Authorization": "TOKEN"}, "environment": {"TOKEN": SECRET}}
    with serving(500, 404) as server:
        with alerting(f"{server.url}/services/{SECRET}", **options) as (alerts, said):
            alerts.record(finding())
            server.until(lambda: len(server.requests) == 2)
        assert server.requests[0].headers["Authorization"] == SECRET
        assert server.requests[0].path == f"/services/{SECRET}"
    assert said
    assert SECRET not in caplog.text + str(said) + repr(alerts.__dict__)


@pytest.mark.parametrize(
    ("config", "environment", "message"),
    [
        ({"url_env": "HOOK"}, {}, "the environment variable `HOOK` must be set, and is not"),
        ({"url_env": "HOOK"}, {"HOOK": SECRET}, "environment variable `HOOK` must be an address"),
        ({"url_env": "HOOK"}, {"HOOK": f"http://me:{SECRET}@localhost"}, "must not hold a name or password"),
        (
            {"url": "http://localhost", "headers": {"X-Token": "TOKEN"}},
            {"TOKEN": f"a\n{SECRET}"},
            "`TOKEN` must be one line of printable ASCII",
        ),
    ],
)
def test_what_cannot_be_delivered_is_refused_by_name_and_not_by_value(
    config: dict[str, Any], environment: dict[str, str], message: str
):
    receiver = AlertConfig.model_validate({"kind": "webhook", **config})
    with pytest.raises(ValueError, match="`alerts`: ") as refused:
        Alerts([receiver], environment, print)
    assert message in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "webhook"}, "either `url` or `url_env`"),
        ({"kind": "slack", "url": f"https://hooks.slack.com/{SECRET}"}, "its address is a secret"),
        ({"kind": "webhook", "url": f"http://a:{SECRET}@b"}, "must not hold a name or password"),
        ({"kind": "webhook", "url": "ftp://b"}, "must be an address"),
        (
            {"kind": "webhook", "url": "http://b", "headers": {"A": f"Bearer {SECRET}"}},
            "must name environment variables",
        ),
    ],
)
def test_a_configuration_with_a_secret_or_without_an_address_is_refused(config: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message.replace("`", ".")):
        AlertConfig.model_validate(config)


def test_each_receiver_has_its_own_least_severity_and_its_own_troubles():
    dead = f"http://127.0.0.1:{closed_port()}"
    with serving() as server:
        configs = [
            AlertConfig(kind="webhook", url=dead),
            AlertConfig(kind="webhook", url=server.url, min_severity="critical"),
        ]
        alerts = Alerts(configs, {}, lambda _: None)
        alerts.record(finding(1))
        alerts.record(finding(2, severity="critical"))
        server.until(lambda: server.requests)
        alerts.close(10.0)
    assert [body["id"] for body in bodies(server)] == ["nan-inf/learner#2"]


def test_what_an_earlier_attempt_told_is_not_told_again_and_its_end_is():
    with serving() as server, alerting(server.url) as (alerts, _):
        alerts.recall([finding()], None)
        alerts.record(finding())
        alerts.record(finding(state="resolved"))
        server.until(lambda: server.requests)
    assert [body["status"] for body in bodies(server)] == ["resolved"]
