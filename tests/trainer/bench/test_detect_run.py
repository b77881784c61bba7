"""A small slice of the benchmark, for real: one healthy run, one fault, one that is resumed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.runs import tocsin

pytestmark = pytest.mark.training

PATIENCE_S = 300.0
ONLY = ("--only", "healthy/plain/1", "--only", "healthy/resumed/1", "--only", "lr-too-high/3/1")


def detect(out: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tocsin.diagnostics.cli", "bench", "detect", "--set", "tuning", "--out", str(out)]
    return subprocess.run(
        [*command, *ONLY, *arguments], cwd=out.parent, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_the_benchmark_trains_once_judges_and_keeps_what_it_judged(tmp_path: Path):
    out = tmp_path / "bench"
    first = detect(out, "--page", str(tmp_path / "page.md"))
    assert first.returncode == 0, first.stderr
    assert "| recall of faults that harm | 1.00" in first.stdout
    assert "| false alarms per healthy run | 0 in 2" in first.stdout
    assert "| `lr-too-high` | 3 | 1 of 1 | 1 of 1 | 1 of 1 |" in (tmp_path / "page.md").read_text()
    done = {path: path.stat().st_mtime_ns for path in out.rglob("done.json")}
    assert len(done) == 3
    again = detect(out)
    assert again.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in out.rglob("done.json")} == done

    (fault,) = [path.parent for path in done if "lr-too-high" in str(path)]
    (run,) = (fault / "runs").iterdir()
    assert {path.name for path in run.iterdir()} >= {"events.jsonl", "feed.jsonl", "run.json"}
    replayed = tocsin("replay", run, "--json", cwd=tmp_path)
    assert replayed.code == 1, replayed.stderr
    assert any(json.loads(line).get("code") == "POL014" for line in replayed.stdout.splitlines())
    (resumed,) = [path.parent for path in done if "resumed" in str(path)]
    manifest = json.loads(next((resumed / "runs").glob("*/run.json")).read_text())
    assert [attempt["attempt"] for attempt in manifest["attempts"]] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "no-such-fault/*"], "--only must match a case of the set `test`, got no-such-fault/*"),
        (["--judge-only"], "--judge-only needs finished runs in `bench`, and there are none: run without it first"),
        (["--out", "file"], "--out must be a folder, got the file `file`"),
        (
            ["--write", "file"],
            "file must have the marks `<!-- bench detect: begin -->` and `<!-- bench detect: end -->`",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_before_anything_is_trained(
    tmp_path: Path, arguments: list[str], message: str
):
    (tmp_path / "file").write_text("no marks")
    refused = tocsin("bench", "detect", "--no-rivals", *arguments, cwd=tmp_path)
    assert refused.code == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"tocsin: {message}")
    assert not refused.imported_torch


def test_a_run_whose_last_word_cannot_be_read_is_run_again(tmp_path: Path):
    place = tmp_path / "bench" / "tuning" / "healthy-plain-1"
    place.mkdir(parents=True)
    (place / "done.json").touch()
    judged = tocsin("bench", "detect", "--set", "tuning", "--judge-only", "--no-rivals", cwd=tmp_path)
    assert (judged.code, judged.stderr.count("there are none")) == (2, 1)
