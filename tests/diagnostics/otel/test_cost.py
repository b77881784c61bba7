"""What export costs is measured on a run that really goes out. The number itself is read by people, not asserted."""

import re
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

from tests.diagnostics.run_folder import RUN, Run
from tocsin.schemas.events import RunResumed


def measure(runs_dir: Path, run: str = RUN) -> "CompletedProcess[str]":
    """In a process of its own, because providers are global."""
    command = [sys.executable, "-m", "tocsin.diagnostics.otel.cost", run, "--runs-dir", str(runs_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def recorded(runs_dir: Path, steps: int = 20) -> Run:
    """A run of `steps` steps, 50 ms each."""
    run = Run(runs_dir)
    for number in range(1, steps + 1):
        run.step(number, mono=0.05 * number, seconds={"total": 0.05})
    return run.firing()


def test_a_run_is_exported_at_its_own_pace_and_what_was_sent_and_spent_is_printed(tmp_path: Path):
    recorded(tmp_path).end()
    done = measure(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = re.fullmatch(
        r"export: ([\d.]+) ms of processor time a step in all threads \([\d.]+% of its 50 ms\), ([\d.]+) ms of it "
        r"where events are handed over; ([\d.]+) KiB a step sent, 20 steps\n",
        done.stdout,
    )
    assert found is not None, done.stdout
    spent_ms, handing_ms, sent_kib = map(float, found.groups())
    assert spent_ms > 0
    assert handing_ms > 0
    assert sent_kib > 0.5, "spans, metrics and log events have arrived"


def test_a_run_that_cannot_be_replayed_at_its_pace_is_refused_in_one_line(tmp_path: Path):
    run = recorded(tmp_path, steps=2)
    run.event(RunResumed, step=2, attempt=2)
    run.kill()
    for name, code, reason in ((RUN, 2, "must not have been resumed"), ("nothing", 3, "nothing")):
        done = measure(tmp_path, name)
        assert done.returncode == code
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1
