"""`tocsin send`: a run is told of from its files, also when it can no longer speak."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.diagnostics.run_folder import Run, command, example
from tests.receivers import Server, closed_port, log_records, serving, spans
from tocsin.diagnostics import cli_send
from tocsin.diagnostics.cli import main
from tocsin.schemas.diagnosis import Diagnostic


@pytest.fixture(autouse=True)
def _quick_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_send, "POLL_S", 0.01)
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


def told(server: Server) -> list[tuple[str, str]]:
    bodies = [json.loads(request.body) for request in server.requests]
    return [(body["reason"], body["id"]) for body in bodies]


def send(server: Server, *more: str) -> int:
    return main(["send", "latest", "--to", f"webhook={server.url}", *more])


FINDING = "zero-std-groups/trainer#1"


def test_a_run_that_ended_is_told_of_by_what_it_left_open(runs: Path):
    Run(runs).firing().end()
    with serving() as server:
        assert send(server) == 1
    assert told(server) == [("fired", FINDING)]


def test_a_run_that_failed_is_told_of(runs: Path):
    Run(runs).healthy().end("failed", error="a text from elsewhere")
    with serving() as server:
        assert send(server) == 1
    assert told(server) == [("run_failed", "run-failed")]
    assert b"elsewhere" not in server.requests[0].body


def test_a_run_that_was_killed_is_told_of_because_it_cannot_say_so_itself(runs: Path):
    run = Run(runs).healthy()
    run.step(1)
    run.kill()
    with serving() as server:
        assert send(server) == 3
    assert told(server) == [("run_dead", "run-dead")]


def test_what_happens_while_it_follows_is_told_and_what_was_over_before_is_not(runs: Path):
    run = Run(runs).firing(id="zero-std-groups/trainer#0", fingerprint="0" * 16)
    run.writer.record(example(Diagnostic, id="zero-std-groups/trainer#0", fingerprint="0" * 16, state="resolved"))
    with serving() as server:
        process = command("send", run.folder.name, "--to", f"webhook={server.url}", cwd=runs.parent)
        run.firing()
        server.until(lambda: server.requests)
        run.writer.record(example(Diagnostic, state="resolved", reason="resolved"))
        server.until(lambda: len(server.requests) == 2)
        run.end()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert told(server) == [("fired", FINDING), ("resolved", FINDING)]


def test_telemetry_of_what_is_on_file_is_sent_when_asked(runs: Path):
    run = Run(runs).firing()
    run.step(1)
    run.end()
    with serving() as server:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url, "PATH": ""}
        process = command("send", "latest", "--all", cwd=runs.parent, env=variables)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == 1
    assert "tocsin.step" in {span.name for span in spans(server)}
    assert [record.event_name for record in log_records(server)] == ["tocsin.coverage", "tocsin.diagnostic"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "send: needs a receiver"),
        (["--to", "pigeon=http://127.0.0.1"], "--to: `kind`: Input should be 'webhook', 'slack' or 'alertmanager'"),
        (["--to", "webhook"], "must be an address like"),
        (["--to", "slack=https://hooks.slack.com/s3cret"], "its address is a secret"),
        (["--to", "slack=env:NOT_SET_ANYWHERE"], "the environment variable `NOT_SET_ANYWHERE` must be set"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_one_line(
    runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    Run(runs).healthy().end()
    assert main(["send", "latest", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n"), "s3cret" in err) == ("", 1, False)


def test_a_receiver_that_is_dead_is_said_and_the_command_ends(runs: Path, capsys: pytest.CaptureFixture[Any]):
    Run(runs).firing().end()
    address = f"http://127.0.0.1:{closed_port()}"
    assert main(["send", "latest", "--to", f"webhook={address}"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"alerts: webhook at {address} cannot connect; the run goes on, more of this is not shown",
        f"alerts: 1 message did not reach webhook at {address}",
    ]
