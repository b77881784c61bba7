"""The feed of a run that is over must say what its events say."""

import itertools
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.diagnostics.run_samples import manifest
from tests.diagnostics.scenario import batch, numbered, started, step
from tocsin.diagnostics import integrity
from tocsin.diagnostics.cli import main
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.feed import RunWriter
from tocsin.diagnostics.runs import write_manifest
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunEnded


def recorded(runs: Path, release: str = version("tocsin")) -> Path:
    """The folder of a run that ended while its rewards had been constant for 40 steps."""
    folder = runs / "run-a"
    flat = [[0.5] * 8] * 16
    spread = [[0.0, 1.0] * 4] * 16
    steps: list[list[BaseEvent]] = [[started()]]
    steps += [[batch(spread if t < 20 else flat), step()] for t in range(60)]
    steps.append([RunEnded(outcome="completed")])
    engine = Engine()
    with RunWriter(folder, "run-a") as writer:
        write_manifest(folder, manifest("run-a").model_copy(update={"versions": {"tocsin": release}}))
        for event in numbered(steps):
            for record in engine.observe(writer.event(event)):
                writer.record(record)
    return folder


def cut(folder: Path) -> None:
    """Leave of the feed only what came before its first finding."""
    path = folder / "feed.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(itertools.takewhile(lambda line: b'"record":"diagnostic"' not in line, lines)))


def test_a_whole_feed_is_believed(runs: Path, capsys: pytest.CaptureFixture[str]):
    recorded(runs)
    assert main(["status", "latest"]) == 1
    out = capsys.readouterr().out
    assert "RWD001" in out
    assert "feed " not in out
    main(["status", "latest", "--json"])
    assert '"feed":"confirmed"' in capsys.readouterr().out


def test_a_feed_that_was_cut_does_not_read_as_healthy(runs: Path, capsys: pytest.CaptureFixture[str]):
    cut(recorded(runs))
    for options in ([], ["--pending"]):
        assert main(["status", "latest", *options]) == 3
        out = capsys.readouterr().out
        assert "it is incomplete or was changed, or the rules were; `tocsin replay run-a` judges" in out
    assert main(["watch", "latest"]) == 3


def test_the_run_of_another_release_and_a_long_one_are_not_compared(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folder = recorded(runs, "0.0.1")
    cut(folder)
    assert main(["status", "latest"]) == 0
    assert "not compared with the events: this release of Tocsin did not write the run" in capsys.readouterr().out
    write_manifest(folder, manifest("run-a").model_copy(update={"versions": {"tocsin": version("tocsin")}}))
    monkeypatch.setattr(integrity, "LARGEST_BYTES", 2**10)
    assert main(["status", "latest"]) == 0
    assert "not compared with the events: its events are larger than " in capsys.readouterr().out


@pytest.mark.corrupt_files_expected
@pytest.mark.parametrize("content", [b"", b"\x00\xff garbage\n"])
def test_status_without_a_readable_feed_shows_what_the_events_say(
    runs: Path, capsys: pytest.CaptureFixture[str], content: bytes
):
    (recorded(runs) / "feed.jsonl").write_bytes(content)
    assert main(["status", "latest"]) == 3
    out, err = capsys.readouterr()
    assert err == ""
    assert "ended: completed" in out
    assert "it cannot be read, so what is open is not known; `tocsin replay run-a` judges the events again" in out
    assert "nothing is open" not in out
    assert main(["status", "latest", "--json"]) == 3
    assert '"feed":"unreadable"' in capsys.readouterr().out
    assert main(["feed", "latest"]) == 2
    assert "xff" not in capsys.readouterr().err
