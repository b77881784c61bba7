"""Whether anybody still writes a run."""

import json
import os
import socket
from pathlib import Path

from tests.diagnostics.run_samples import evaluated, manifest
from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.display import stall
from tocsin.diagnostics.feed import RunWriter
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.runs import write_manifest
from tocsin.schemas.config import DiagnosticsConfig
from tocsin.schemas.events import ClockTicked, ComponentHeartbeat, RunEnded, RunResumed

NOW = 1_770_000_000.0


def test_a_writer_that_speaks_is_alive_and_one_that_fell_silent_is_stalled(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(ClockTicked(idle_s=1.0, ts=utc_text(NOW), step=12))
        state = FeedReader(tmp_path, now=lambda: NOW + 2.5).writer_state()
        assert (state.state, state.last_event_age_s, state.step) == ("alive", 2.5, 12)
        assert FeedReader(tmp_path, now=lambda: NOW + 61).writer_state().state == "stalled"


def test_a_writer_whose_ticks_report_a_hung_trainer_is_stalled(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(ClockTicked(idle_s=301.0, ts=utc_text(NOW)))
        assert FeedReader(tmp_path, now=lambda: NOW + 1).writer_state().state == "stalled"


def test_heartbeats_do_not_hide_that_the_trainer_hangs(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(ClockTicked(idle_s=301.0, ts=utc_text(NOW)))
        beat = ComponentHeartbeat(component="rollout", state="alive", busy="score", busy_s=301.0, ts=utc_text(NOW + 1))
        writer.event(beat)
        assert FeedReader(tmp_path, now=lambda: NOW + 1).writer_state().state == "stalled"


def test_a_person_reads_whether_the_trainer_hangs_or_the_whole_process(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(ClockTicked(idle_s=301.0, ts=utc_text(NOW)))
        trainer = FeedReader(tmp_path, now=lambda: NOW + 1).writer_state()
        process = FeedReader(tmp_path, now=lambda: NOW + 61).writer_state()
    assert stall(trainer) == "the clock ticks and the trainer does nothing"
    assert stall(process) == "the process lives and says nothing"


def test_a_pause_that_somebody_asked_for_is_no_hang(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(ClockTicked(idle_s=9000.0, paused=True, ts=utc_text(NOW)))
        assert FeedReader(tmp_path, now=lambda: NOW + 1).writer_state().state == "alive"
        assert FeedReader(tmp_path, now=lambda: NOW + 61).writer_state().state == "stalled"
        writer.event(ClockTicked(idle_s=301.0, ts=utc_text(NOW)))
        assert FeedReader(tmp_path, now=lambda: NOW + 1).writer_state().state == "stalled"


def test_a_writer_that_has_not_spoken_yet_is_starting_and_stalled_after_half_an_hour(tmp_path: Path):
    with RunWriter(tmp_path, "run-a"):
        assert FeedReader(tmp_path).writer_state().model_dump() == {
            "state": "starting",
            "attempt": 1,
            "last_event_age_s": None,
            "step": 0,
        }
        locked = (tmp_path / "writer.lock").stat().st_mtime
        assert FeedReader(tmp_path, now=lambda: locked + 1799).writer_state().state == "starting"
        late = FeedReader(tmp_path, now=lambda: locked + 1801).writer_state()
        assert (late.state, late.attempt) == ("stalled", None)
    assert FeedReader(tmp_path).writer_state().state == "dead"


def test_a_run_that_ended_and_is_taken_up_again_is_starting_until_the_new_attempt_speaks(tmp_path: Path):
    first = manifest("run-a")
    write_manifest(tmp_path, first)
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(RunEnded(outcome="interrupted", attempt=1, step=50))
    assert FeedReader(tmp_path).writer_state().state == "ended"
    with RunWriter(tmp_path, "run-a") as writer:
        undeclared = FeedReader(tmp_path).writer_state()
        second = first.attempts[0].model_copy(update={"attempt": 2, "pid": os.getpid()})
        write_manifest(tmp_path, first.model_copy(update={"attempts": [*first.attempts, second]}))
        declared = FeedReader(tmp_path).writer_state()
        assert undeclared == declared
        assert (declared.state, declared.attempt, declared.step) == ("starting", 2, 50)
        writer.event(ClockTicked(idle_s=1.0, attempt=2, ts=utc_text()))
        assert FeedReader(tmp_path).writer_state().state == "alive"


def test_a_crashed_run_that_is_taken_up_again_is_starting(tmp_path: Path):
    first = manifest("run-a")
    second = first.attempts[0].model_copy(update={"attempt": 2, "pid": os.getpid()})
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(ClockTicked(idle_s=1.0, attempt=1, ts=utc_text(NOW)))
        write_manifest(tmp_path, first.model_copy(update={"attempts": [*first.attempts, second]}))
        assert FeedReader(tmp_path).writer_state().state == "starting"


def test_a_process_that_still_holds_the_run_it_has_ended_is_not_starting(tmp_path: Path):
    own = manifest("run-a")
    attempt = own.attempts[0].model_copy(update={"pid": os.getpid(), "host": socket.gethostname()})
    write_manifest(tmp_path, own.model_copy(update={"attempts": [attempt]}))
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(RunEnded(outcome="completed", attempt=1))
        assert FeedReader(tmp_path).writer_state().state == "ended"


def test_a_writer_that_is_gone_is_dead_unless_it_said_that_the_run_ended(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(ClockTicked(idle_s=1.0, attempt=1))
    assert FeedReader(tmp_path).writer_state().state == "dead"
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(RunEnded(outcome="completed", attempt=1))
        writer.event(evaluated(0.5).model_copy(update={"attempt": 1}))
    assert FeedReader(tmp_path).writer_state().state == "ended"
    with RunWriter(tmp_path, "run-a") as writer:
        resumed = RunResumed(checkpoint_step=1, rewound_from_step=2, knobs={}, devices=[], versions={}, attempt=2)
        writer.event(resumed.model_copy(update={"ts": utc_text()}))
        assert FeedReader(tmp_path).writer_state().state == "alive"
    assert FeedReader(tmp_path).writer_state().state == "dead"


def test_a_lock_file_without_a_lock_is_no_life(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(evaluated(0.5))
    (tmp_path / "writer.lock").write_text(json.dumps({"pid": os.getpid(), "host": "here"}))
    assert FeedReader(tmp_path).writer_state().state == "dead"


def test_the_patience_of_a_reader_grows_with_the_tick_of_the_run(tmp_path: Path):
    slow = manifest("run-a").config.model_copy(update={"diagnostics": DiagnosticsConfig(tick_s=20.0)})
    with RunWriter(tmp_path, "run-a") as writer:
        write_manifest(tmp_path, manifest("run-a").model_copy(update={"config": slow}))
        writer.event(ClockTicked(idle_s=1.0, ts=utc_text(NOW)))
        assert FeedReader(tmp_path, now=lambda: NOW + 239).writer_state().state == "alive"
        assert FeedReader(tmp_path, now=lambda: NOW + 241).writer_state().state == "stalled"
