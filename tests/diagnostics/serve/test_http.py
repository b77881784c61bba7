"""What can be asked over HTTP, of runs that the real writer wrote, on a real socket."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.diagnostics.open_door import served
from tests.diagnostics.run_folder import RUN, Run, example
from tests.diagnostics.serve.servers import ACTOR, problem, serving, with_token
from tocsin.diagnostics.feed import FEED_FILE
from tocsin.diagnostics.reader import FeedReader, read_events
from tocsin.diagnostics.serve.routes import QUESTIONS, method
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.base import NonFinite
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.events import ControlAnswered, KnobChanged
from tocsin.schemas.feed import Page

ID = "zero-std-groups/trainer#1"
ACTION = f"{ID}/raise-group-size"


def test_several_runs_are_listed_newest_first_with_writer_and_what_is_open(runs: Path):
    Run(runs, "quiet").healthy().end()
    Run(runs, "loud").firing().kill()
    with serving(runs) as client:
        listed = {line["run"]: line for line in client.get("/runs").json()["runs"]}
        assert (listed["quiet"]["writer"]["state"], listed["quiet"]["active"]["warning"]) == ("ended", 0)
        assert (listed["loud"]["writer"]["state"], listed["loud"]["active"]["warning"]) == ("dead", 1)
        assert len(client.get("/runs", params={"limit": 1}).json()["runs"]) == 1
        assert client.get("/").json()["openapi"] == "/openapi.json"


def test_status_says_that_a_dead_run_proves_nothing(runs: Path):
    Run(runs, "dead").healthy().kill()
    Run(runs, "done").healthy().end()
    with serving(runs) as client:
        assert client.get("/runs/dead/status").json()["status"]["exit_code"] == 3
        seen = client.get("/runs/done/status").json()
    assert (seen["status"]["exit_code"], seen["status"]["writer"]["state"]) == (0, "ended")
    assert seen["coverage"]["evaluated"] == ["POL015", "RWD001"]
    assert seen["active"] == []


def test_the_feed_is_read_page_by_page_and_each_record_comes_once(runs: Path):
    run = Run(runs).firing()
    with serving(runs) as client:
        first = client.get(f"/runs/{RUN}/feed", params={"limit": 1}).json()
        Page.model_validate(first)
        run.writer.record(example(ActionRecord))
        run.writer.record(example(Coverage))
        got, cursor = [], first["next_cursor"]
        while True:
            page = client.get(f"/runs/{RUN}/feed", params={"cursor": cursor, "limit": 1}).json()
            got += [record["seq"] for record in page["records"]]
            cursor = page["next_cursor"]
            if not page["has_more"]:
                break
        run.kill()
    assert got == [3, 4]


def test_a_filter_leaves_out_what_is_milder_and_passes_over_it(runs: Path):
    run = Run(runs).firing(severity="info")
    with serving(runs) as client:
        page = client.get(f"/runs/{RUN}/feed", params={"min_severity": "warning"}).json()
        assert page["records"] == []
        assert page["next_cursor"].endswith(".2")
    run.kill()


def test_a_poll_waits_for_a_record_and_no_longer(runs: Path):
    run = Run(runs).healthy()
    with serving(runs) as client:
        cursor = client.get(f"/runs/{RUN}/feed").json()["next_cursor"]
        writer = threading.Timer(0.5, lambda: run.writer.record(example(Diagnostic, relations=[])))
        writer.start()
        page = client.get(f"/runs/{RUN}/feed", params={"cursor": cursor, "wait_s": 30}).json()
        writer.join()
        assert [record["code"] for record in page["records"]] == ["RWD001"]
        began = time.monotonic()
        params: dict[str, Any] = {"cursor": page["next_cursor"], "wait_s": 0.3}
        assert client.get(f"/runs/{RUN}/feed", params=params).json()["records"] == []
        assert time.monotonic() - began >= 0.3
    run.kill()


def test_a_poll_that_waits_hears_that_the_writer_died(runs: Path):
    run = Run(runs).healthy()
    with serving(runs) as client:
        cursor = client.get(f"/runs/{RUN}/feed").json()["next_cursor"]
        killer = threading.Timer(0.3, run.kill)
        killer.start()
        page = client.get(f"/runs/{RUN}/feed", params={"cursor": cursor, "wait_s": 30}).json()
        killer.join()
        assert page["writer"]["state"] == "dead"
        began = time.monotonic()
        params = {"cursor": page["next_cursor"], "wait_s": 30}
        assert client.get(f"/runs/{RUN}/feed", params=params).json()["records"] == []
        assert time.monotonic() - began < 25, "nobody writes any more, so nothing is waited for"


def test_a_feed_that_was_replaced_says_reset(runs: Path):
    run = Run(runs).firing().kill()
    with serving(runs) as client:
        cursor = client.get(f"/runs/{RUN}/feed").json()["next_cursor"]
        os.remove(run.folder / FEED_FILE)
        Run(runs).healthy().kill()
        page = client.get(f"/runs/{RUN}/feed", params={"cursor": cursor, "wait_s": 30}).json()
    assert (page["reset"], [record["record"] for record in page["records"]]) == (True, ["coverage"])


def test_one_finding_is_told_with_its_history(runs: Path):
    run = Run(runs).firing()
    run.writer.record(example(ActionRecord))
    run.kill()
    with serving(runs) as client:
        for name in (ID, "RWD001", "zero-std-groups", ACTION):
            found = client.get(f"/runs/{RUN}/get", params={"id": name}).json()
            assert [record["record"] for record in found["history"]][-1] == "action", name
        assert client.get(f"/runs/{RUN}/get", params={"id": ID}).json()["diagnostic"]["evidence"][0]["n"] == 64


def test_a_snapshot_has_the_numbers_around_a_step_and_leaves_text_out(runs: Path):
    run = Run(runs)
    for step in (1, 2, 3):
        run.step(step)
    run.end()
    with serving(runs) as client:
        seen = client.get(f"/runs/{RUN}/snapshot", params={"around": 2, "window": 1}).json()
        assert {row["step"] for row in seen["rows"]} == {1, 2, 3}
        assert (seen["first_step"], seen["last_step"]) == (0, 3)
        leaves = [leaf for row in seen["rows"] for leaf in row["metrics"].values()]
        assert leaves
        assert not any(isinstance(leaf, str) for leaf in leaves)
        narrow = client.get(f"/runs/{RUN}/snapshot", params={"around": 2, "contains": "batch_consumed.pass_rate"})
    assert {name for row in narrow.json()["rows"] for name in row["metrics"]} == {"pass_rate"}


def test_a_number_that_is_not_finite_stays_an_object_and_json_stays_json(runs: Path):
    run = Run(runs)
    run.step(1, loss=NonFinite(nonfinite="nan"), reward_mean=NonFinite(nonfinite="inf"))
    run.end()

    def forbidden(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    with serving(runs) as client:
        seen = json.loads(client.get(f"/runs/{RUN}/snapshot", params={"around": 1}).text, parse_constant=forbidden)
        status = json.loads(client.get(f"/runs/{RUN}/status").text, parse_constant=forbidden)
    metrics = {name: leaf for row in seen["rows"] for name, leaf in row["metrics"].items()}
    assert metrics["loss"] == {"nonfinite": "nan"}
    assert status["status"]["metrics"]["reward_mean"] == {"nonfinite": "inf"}


def test_knobs_have_the_value_in_force_and_how_far_one_change_may_go(runs: Path):
    run = Run(runs)
    with served(run), serving(runs) as client:
        states = client.get(f"/runs/{RUN}/knobs").json()
    (rate,) = [state for state in states["knobs"] if state["knob"]["path"] == "learning_rate"]
    assert (rate["value"], rate["low"], rate["high"]) == (1e-6, 5e-7, 2e-6)


def test_rules_are_listed_and_explained(runs: Path):
    with serving(runs) as client:
        listed = client.get("/rules").json()["rules"]
        assert len(listed) == 81
        entry = client.get("/rules/zero-std-groups").json()
        gap = next(line["code"] for line in listed if not line["has_rule"])
        assert "not_evaluated" in client.get(f"/rules/{gap}").json()["details"]
    assert entry["code"] == "RWD001"
    assert "What to do" in entry["details"]["documentation"]


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        ("/runs/nope/status", 404, "unknown-run"),
        ("/runs/nope/stream", 404, "unknown-run"),
        ("/runs/%2e%2e/status", 404, "unknown-run"),
        ("/runs/..%2F..%2Fetc/status", 404, "unknown-address"),
        ("/runs/a%00b/feed", 404, "unknown-run"),
        (f"/runs/{'x' * 3000}/feed", 404, "unknown-run"),
        (f"/runs/{RUN}/feed?cursor=yesterday", 400, "bad-cursor"),
        (f"/runs/{RUN}/stream?cursor=../..", 400, "bad-cursor"),
        (f"/runs/{RUN}/feed?limit=0", 400, "bad-query"),
        (f"/runs/{RUN}/feed?limit=1&limit=2", 400, "bad-query"),
        (f"/runs/{RUN}/feed?wait_s=3600", 400, "bad-query"),
        (f"/runs/{RUN}/feed?wait_s=nan", 400, "bad-query"),
        (f"/runs/{RUN}/feed?severity=warning", 400, "bad-query"),
        (f"/runs/{RUN}/get", 400, "bad-query"),
        (f"/runs/{RUN}/get?id=nope", 404, "unknown-id"),
        (f"/runs/{RUN}/snapshot?around=900", 404, "unknown-step"),
        (f"/runs/{RUN}/act", 405, "wrong-method"),
        ("/rules/XXX999", 404, "unknown-rule"),
        ("/nothing", 404, "unknown-address"),
    ],
)
def test_what_cannot_be_answered_is_one_clear_problem(runs: Path, path: str, status: int, kind: str):
    Run(runs).firing().end()
    with serving(runs) as client:
        assert problem(client.get(path)) == (status, kind)


def test_a_run_without_a_feed_says_so(runs: Path):
    run = Run(runs).end()
    os.remove(run.folder / FEED_FILE)
    with serving(runs) as client:
        assert problem(client.get(f"/runs/{RUN}/feed")) == (404, "no-feed")
        assert client.get("/runs").json()["runs"][0]["run"] == RUN


def test_every_change_is_a_dry_run_unless_it_says_apply(runs: Path):
    run = Run(runs).firing()
    bodies = {
        "act": {"action_id": ACTION},
        "set": {"values": {"learning_rate": 5e-7}},
        "silence": {"code": "RWD001", "steps": 10},
    }
    verbs = [question.name for question in QUESTIONS if method(question) == "post"]
    assert len(verbs) == 7
    with serving(runs) as client:
        for verb in set(verbs) - {"resume"}:
            answer = client.post(f"/runs/{RUN}/{verb}", json=bodies.get(verb, {}), headers=with_token())
            assert (answer.status_code, answer.json()["state"]) == (200, "would_be_accepted"), answer.text
            assert answer.json()["applied"] is False
    assert list((run.folder / "control").iterdir()) == []
    run.kill()


def test_a_change_is_made_in_the_name_of_the_token(runs: Path):
    run = Run(runs).firing()
    with served(run), serving(runs) as client:
        body = {"values": {"learning_rate": 5e-7}, "apply": True, "idempotency_key": "k1", "note": "reward fell"}
        answer = client.post(f"/runs/{RUN}/set", json=body, headers=with_token())
        assert answer.status_code in (200, 202), answer.text
        again = client.post(f"/runs/{RUN}/set", json=body, headers=with_token()).json()
        acted = client.post(f"/runs/{RUN}/act", json={"action_id": ACTION, "apply": True}, headers=with_token())
        assert acted.json()["effects"] == ["applied at step 3: group_size 8 -> 16"], acted.text
    assert (again["state"], again["applied"]) == ("duplicate", False)
    changes = [event for event in read_events(run.folder / "events.jsonl") if isinstance(event, KnobChanged)]
    assert [(change.actor, change.path, change.after) for change in changes] == [
        (ACTOR, "learning_rate", 5e-7),
        (ACTOR, "group_size", 16),
    ]
    assert changes[0].note == "reward fell"


@pytest.mark.parametrize(
    ("verb", "body", "status", "kind", "detail"),
    [
        ("set", {"values": {"learning_rate": 1.5}}, 409, "refused", "must be between 0 and 1, got 1.5"),
        ("set", {"values": {"learning_rate": 1e-5}}, 409, "refused", "between 5e-07 and 2e-06 after one change"),
        ("set", {"values": {"learning_rate": True}}, 409, "refused", "`learning_rate`"),
        ("set", {"values": {"model.path": 1}}, 422, "bad-request", "unknown knob `model.path`"),
        ("set", {"values": {"learning_rate": "1e-6"}}, 422, "bad-request", "learning_rate"),
        ("set", {"values": {}}, 422, "bad-request", "values"),
        ("set", {}, 422, "bad-request", "`values`: is required and missing"),
        (
            "set",
            {"values": {"grad_clip": 2}, "expect": {"clip_low": 1}},
            409,
            "refused",
            "must name knobs that are",
        ),
        ("set", {"values": {"grad_clip": 2}, "expect": {"grad_clip": 9}}, 409, "refused", "must be 9 as expected"),
        ("set", {"values": {"grad_clip": 2}, "aply": True}, 422, "bad-request", "`aply`: unknown key"),
        ("set", {"values": {"grad_clip": 2}, "actor": "person:root"}, 422, "bad-request", "`actor`: unknown key"),
        ("act", {"action_id": "no/such#1/action"}, 409, "refused", "must be an action of an open diagnostic"),
        ("silence", {"code": "POL015", "steps": 5}, 409, "refused", "must not be silenced"),
        ("silence", {"code": "nan", "steps": 5}, 422, "bad-request", "code"),
        ("pause", {"note": "two\nlines"}, 422, "bad-request", "note"),
        ("resume", {}, 409, "refused", "must be paused"),
    ],
)
@pytest.mark.parametrize("apply", [False, True])
def test_what_the_registry_does_not_allow_is_refused_with_the_reason(  # noqa: PLR0913, PLR0917 a table of cases
    runs: Path, verb: str, body: dict[str, Any], status: int, kind: str, detail: str, apply: bool
):
    run = Run(runs).firing()
    with served(run), serving(runs) as client:
        answer = client.post(f"/runs/{RUN}/{verb}", json={**body, "apply": apply}, headers=with_token())
        assert problem(answer) == (status, kind)
        assert detail in answer.json()["detail"]
    events = list(read_events(run.folder / "events.jsonl"))
    assert not any(isinstance(event, KnobChanged) for event in events)
    assert not any(isinstance(event, ControlAnswered) and event.state == "accepted" for event in events)


@pytest.mark.parametrize(("end", "kind"), [("end", "run-over"), ("kill", "run-over")])
def test_nobody_reads_requests_of_a_run_that_is_over(runs: Path, end: str, kind: str):
    run = Run(runs).firing()
    getattr(run, end)()
    with serving(runs) as client:
        answer = client.post(f"/runs/{RUN}/pause", json={"apply": True}, headers=with_token())
        assert problem(answer) == (409, kind)
    assert list((run.folder / "control").iterdir()) == []


def test_a_request_that_the_run_does_not_answer_is_withdrawn(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tocsin.diagnostics.serve.changes.ANSWER_S", 0.2)
    run = Run(runs).firing()
    with serving(runs) as client:
        answer = client.post(f"/runs/{RUN}/pause", json={"apply": True}, headers=with_token())
        assert problem(answer) == (504, "unanswered")
    assert list((run.folder / "control").iterdir()) == []
    run.kill()


@pytest.mark.parametrize(
    ("content", "media", "status", "kind"),
    [
        (b"{", "application/json", 400, "bad-body"),
        (b"\xff\xfe", "application/json", 400, "bad-body"),
        (b"[]", "application/json", 422, "bad-request"),
        (b'{"values": {"grad_clip": NaN}}', "application/json", 422, "bad-request"),
        (b"values=1", "application/x-www-form-urlencoded", 415, "wrong-media"),
    ],
)
def test_a_body_that_is_none_is_refused(runs: Path, content: bytes, media: str, status: int, kind: str):
    Run(runs).firing().kill()
    with serving(runs) as client:
        headers = {"Content-Type": media, **with_token()}
        assert problem(client.post(f"/runs/{RUN}/set", content=content, headers=headers)) == (status, kind)


def test_a_bug_is_logged_and_nothing_of_it_is_sent(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(self: FeedReader, *_: Any, **__: Any) -> None:
        raise RuntimeError("a secret path")

    Run(runs).firing().end()
    monkeypatch.setattr(FeedReader, "page", broken)
    with serving(runs) as client:
        answer: httpx.Response = client.get(f"/runs/{RUN}/feed")
        assert problem(answer) == (500, "internal")
    assert "secret" not in answer.text
    assert "a secret path" in caplog.text
