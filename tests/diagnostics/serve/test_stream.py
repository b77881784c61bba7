"""The feed as server-sent events, read and resumed by clients that go away."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.diagnostics.run_folder import RUN, Run, example
from tests.diagnostics.serve.servers import serving
from tocsin.schemas.diagnosis import Coverage, Diagnostic

STREAM = f"/runs/{RUN}/stream"


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream: `id`, `event`, and `data` as JSON."""
    event: dict[str, Any] = {}
    for line in response.iter_lines():
        if not line and event:
            yield event
            event = {}
        elif line and not line.startswith(":"):
            name, _, text = line.partition(": ")
            event[name] = json.loads(text) if name == "data" else text


def test_a_run_that_is_over_is_told_to_its_end_and_then_there_is_no_content(runs: Path):
    Run(runs).firing().end()
    with serving(runs) as client:
        with client.stream("GET", STREAM) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            told = list(events(response))
        assert [event["event"] for event in told] == ["coverage", "diagnostic", "page"]
        assert told[-1]["data"]["writer"]["state"] == "ended"
        again = client.get(STREAM, headers={"Last-Event-ID": told[-1]["id"]})
        assert (again.status_code, again.content) == (204, b"")


def test_a_reader_that_comes_back_with_its_last_id_misses_nothing(runs: Path):
    run = Run(runs).healthy()
    over = threading.Event()

    def write() -> None:
        for number in range(60):
            run.writer.record(example(Coverage, event_seq=100 + number))
            over.wait(0.02)
        run.end()

    writer = threading.Thread(target=write)
    with serving(runs) as client:
        seen: list[int] = []
        last = client.get(f"/runs/{RUN}/feed").json()["next_cursor"]
        writer.start()
        while True:
            with client.stream("GET", STREAM, headers={"Last-Event-ID": last}) as response:
                if response.status_code == 204:
                    break
                for number, event in enumerate(events(response)):
                    last = event.get("id", last)
                    seen += [event["data"]["seq"]] if event["event"] != "page" else []
                    if number == 6:
                        break  # the connection is lost
        writer.join()
    assert seen == list(range(2, 62))


def test_a_filter_is_resumed_after_what_it_left_out(runs: Path):
    run = Run(runs).healthy()
    for _ in range(150):
        run.writer.record(example(Coverage))
    run.writer.record(example(Diagnostic, relations=[]))
    run.end()
    with serving(runs) as client:
        cursor = f"{client.get(f'/runs/{RUN}/feed').json()['next_cursor'].split('.')[0]}.0"
        params = {"cursor": cursor, "min_severity": "warning"}
        with client.stream("GET", STREAM, params=params) as response:
            told = list(events(response))
    assert [event["event"] for event in told if event["event"] != "page"] == ["diagnostic"]
    assert told[-1]["id"].endswith(".152")


def test_a_feed_that_was_replaced_is_told_from_its_start(runs: Path):
    Run(runs).firing().end()
    with serving(runs) as client, client.stream("GET", STREAM, params={"cursor": "0badcafe0bad.17"}) as response:
        told = list(events(response))
    assert (told[0]["event"], told[0]["data"]["reset"]) == ("page", True)
    assert [event["data"]["seq"] for event in told if event["event"] != "page"] == [1, 2]
