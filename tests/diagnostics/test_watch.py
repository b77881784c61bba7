"""`tocsin watch`: a run as seen from its files, alive, ended, dead, and taken up again."""

import io
import os
import re
import signal
from pathlib import Path

from rich.console import Console

from tests.diagnostics.run_folder import RUN, Run, command, example
from tocsin.diagnostics.feed import EVENTS_FILE
from tocsin.diagnostics.watch import EventTail, Watcher, watch
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.events import ClockTicked, RunContinued, RunPaused, RunResumed
from tocsin.schemas.step import StepCompleted


def console(*, terminal: bool, width: int = 80) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=width, color_system=None, markup=False), out


def test_the_tail_gives_each_event_once_and_waits_for_a_torn_line(tmp_path: Path):
    run = Run(tmp_path)
    tail = EventTail(run.folder / EVENTS_FILE)
    assert [event.seq for event in tail.new()] == [1]
    assert list(tail.new()) == []
    run.step(1)
    assert [event.seq for event in tail.new()] == [2, 3, 4]
    whole = example(StepCompleted, seq=5).model_dump_json(exclude_none=True)
    with (run.folder / EVENTS_FILE).open("a") as file:
        file.write(whole[:40])
        file.flush()
        assert list(tail.new()) == []
        file.write(whole[40:] + "\n")
    assert [event.seq for event in tail.new()] == [5]
    run.kill()


def test_an_ended_run_is_shown_once_and_the_view_returns(tmp_path: Path):
    run = Run(tmp_path).healthy()
    for number in (1, 2, 3):
        run.step(number, reward_mean=0.25 * number)
    run.end()
    target, out = console(terminal=False, width=200)
    seen = watch(run.folder, target)
    assert seen.is_over
    assert out.getvalue().count("\n") == 1
    assert "step 3/" in out.getvalue()
    assert "ended: completed" in out.getvalue()


def test_a_pause_is_shown_until_the_run_goes_on(tmp_path: Path):
    run = Run(tmp_path).healthy()
    run.step(1, mono=100.0)
    run.event(RunPaused, step=1, actor="person:ada", mono=104.0)
    run.event(ClockTicked, step=1, paused=True, mono=116.0)
    seen = Watcher(run.folder)
    seen.refresh()
    assert seen.state_line().plain.startswith("alive, paused by person:ada for 12 s, last event ")
    run.event(RunContinued, step=1, mono=117.0)
    seen.refresh()
    run.kill()
    assert "paused" not in seen.state_line().plain


def test_a_run_that_starts_again_is_not_over(tmp_path: Path):
    Run(tmp_path).healthy().end("interrupted")
    run = Run(tmp_path, declared=2, started=False)
    seen = Watcher(run.folder)
    seen.refresh()
    run.kill()
    assert not seen.is_over
    assert seen.state_line().plain.startswith("starting: attempt 2, last event ")


def test_a_dead_run_never_looks_alive(tmp_path: Path):
    run = Run(tmp_path).healthy()
    run.step(1)
    run.kill()
    target, out = console(terminal=True)
    watch(run.folder, target)
    assert "dead" in out.getvalue()
    assert "alive" not in out.getvalue()


def test_news_appears_while_the_run_goes_on(tmp_path: Path):
    run = Run(tmp_path).healthy()
    run.step(1)
    target, out = console(terminal=False, width=300)

    def over(seen: Watcher) -> bool:
        if seen.history.step == 1:
            run.step(2)
            run.writer.record(example(Diagnostic, relations=[]))
            return False
        return seen.history.step == 2

    watch(run.folder, target, is_over=over)
    run.kill()
    shown = out.getvalue()
    record = example(Diagnostic)
    assert f"{record.code} {record.name}" in shown
    assert "alive" in shown


def test_the_panel_lists_what_is_open_and_fits_the_terminal(tmp_path: Path):
    run = Run(tmp_path).firing()
    run.step(1)
    target, out = console(terminal=True)
    watch(run.folder, target, is_over=lambda seen: True)
    run.kill()
    shown = out.getvalue()
    assert example(Diagnostic).name in shown
    assert {len(border) for border in re.findall("╭[^╮]*╮", shown)} == {80}


def test_another_attempt_starts_the_display_over(tmp_path: Path):
    run = Run(tmp_path).healthy()
    run.step(1, mono=5000.0)
    seen = Watcher(run.folder)
    seen.refresh()
    assert seen.history.outcomes.total() == 1
    run.event(RunResumed, step=0, checkpoint_step=0, mono=10.0)
    run.event(BatchConsumed, step=0, mono=11.0)
    seen.refresh()
    run.kill()
    assert seen.history.outcomes.total() == 0
    assert seen.history.began == 10.0


def test_time_is_that_of_the_run_and_goes_on_from_its_newest_event(tmp_path: Path):
    run = Run(tmp_path).healthy()
    run.step(1, mono=100.0)
    run.step(2, mono=104.0)
    seen = Watcher(run.folder)
    seen.refresh()
    run.kill()
    assert seen.history.pace_s() == 4.0
    assert 104.0 <= seen.clock() < 114.0


def test_the_command_has_the_exit_code_of_status_and_leaves_the_run_alone(tmp_path: Path):
    run = Run(tmp_path / "runs").healthy()
    run.step(1)
    with command("watch", RUN, "--runs-dir", str(tmp_path / "runs"), start_new_session=True) as watching:
        assert watching.stdout is not None
        assert "step 1/" in watching.stdout.readline()
        os.killpg(watching.pid, signal.SIGINT)
        assert watching.wait(20) == 130
    run.end()
    watching = command("watch", RUN, "--runs-dir", str(tmp_path / "runs"))
    out, err = watching.communicate(timeout=20)
    assert "ended: completed" in out
    assert (watching.returncode, err) == (0, "")


def test_a_missing_run_is_one_line(tmp_path: Path):
    watching = command("watch", "nothing", "--runs-dir", str(tmp_path))
    out, err = watching.communicate(timeout=20)
    assert (watching.returncode, out) == (3, "")
    assert err.startswith("tocsin: `RUN` must be a run folder")
    assert err.count("\n") == 1
