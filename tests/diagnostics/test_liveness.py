"""Whether anybody still writes a run."""

import json
import os
from pathlib import Path

from tests.diagnostics.run_samples import evaluated, manifest
from tocsin.diagnostics.clock import unix_seconds, utc_text
from tocsin.diagnostics.display import stall
from tocsin.diagnostics.feed import RunWriter
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.runs import write_manifest
from tocsin.schemas.config import DiagnosticsConfig
from tocsin.schemas.events import ClockTicked, RunEnded, RunResumed

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


def test_a_writer_that_never_spoke_is_stalled_after_a_while(tmp_path: Path):
    with RunWriter(tmp_path, "run-a"):
        assert FeedReader(tmp_path).writer_state().model_dump() == {
            "state": "alive",
            "last_event_age_s": None,
            "step": 0,
        }
        created = json.loads((tmp_path / "events.jsonl").read_text())["created"]
        later = (unix_seconds(created) or 0.0) + 61
        assert FeedReader(tmp_path, now=lambda: later).writer_state().state == "stalled"


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
