"""The monitor beside a running trainer."""

import logging
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.diagnostics.run_samples import LowReward, diagnostic, evaluated
from tests.records import problems
from tocsin.diagnostics import monitor as monitor_module
from tocsin.diagnostics.feed import Record, RunWriter
from tocsin.diagnostics.monitor import Lost, Monitor
from tocsin.diagnostics.reader import FeedReader, read_events
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    ClockTicked,
    ComponentHeartbeat,
    EvaluationCompleted,
    RunContinued,
    RunEnded,
    RunPaused,
)

NEVER_S = 3600.0


def wait_for(condition: Callable[[], bool]) -> None:
    """Returns once `condition` holds; fails after ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited ten seconds"
        time.sleep(0.005)


def events_of(folder: Path) -> list[BaseEvent]:
    return list(read_events(folder / "events.jsonl"))


def ids_of(folder: Path) -> list[str]:
    records = FeedReader(folder).page(limit=1000).records
    return [record.id if isinstance(record, Diagnostic) else "coverage" for record in records]


@contextmanager
def disk_full_beyond(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_event_becomes_a_line_a_record_and_a_call(tmp_path: Path):
    shown: list[Record] = []
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, LowReward(), attempt=3, tick_s=NEVER_S, on_record=shown.append)
        monitor.start()
        monitor.at(step=5, policy_version=4, config_generation=2)
        before = time.monotonic()
        monitor.emit(evaluated(-1.0))
        assert monitor.close(10)
    (event,) = events_of(tmp_path)
    assert (event.run_id, event.attempt, event.seq) == ("run-a", 3, 1)
    assert (event.step, event.policy_version, event.config_generation) == (5, 4, 2)
    assert before <= event.mono <= time.monotonic()
    assert len(event.ts) == len("2026-01-31T12:00:00.000Z")
    assert ids_of(tmp_path) == ["coverage", "low-reward/learner#1"]
    assert [record.seq for record in shown] == [1, 2]
    assert monitor.lost == Lost(0, 0, 0, 0)
    assert list(problems(tmp_path)) == []


def test_events_of_many_threads_are_all_written_in_one_order(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, LowReward(), attempt=1, tick_s=NEVER_S)
        monitor.start()
        threads = [threading.Thread(target=lambda: [monitor.emit(evaluated(1.0)) for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert monitor.close(10)
    assert [event.seq for event in events_of(tmp_path)] == list(range(1, 201))


def test_ticks_go_on_while_the_trainer_is_silent_and_reach_the_engine(tmp_path: Path):
    engine = LowReward()
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, engine, attempt=1, tick_s=0.02)
        monitor.start()
        monitor.emit(evaluated(1.0))
        wait_for(lambda: len(engine.seen) >= 5)
        monitor.close(10)
    ticks = [event for event in events_of(tmp_path) if isinstance(event, ClockTicked)]
    assert engine.seen == events_of(tmp_path)
    idle = [tick.idle_s for tick in ticks[1:]]
    assert idle == sorted(idle)
    assert idle[-1] >= 0.02 * (len(idle) - 1)
    assert all(tick.attempt == 1 and tick.mono > 0 for tick in ticks)


def test_heartbeats_of_a_process_that_waits_are_no_news(tmp_path: Path):
    engine = LowReward()
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, engine, attempt=1, tick_s=0.02)
        monitor.start()
        monitor.emit(evaluated(1.0))
        wait_for(lambda: len(engine.seen) >= 3)
        monitor.emit(ComponentHeartbeat(component="rollout", state="alive", busy="generate", busy_s=9.0))
        wait_for(lambda: len(engine.seen) >= 6)
        monitor.close(10)
    idle = [event.idle_s for event in events_of(tmp_path) if isinstance(event, ClockTicked)]
    assert idle[-1] > idle[0]
    assert idle[1:] == sorted(idle[1:])


def test_ticks_say_that_a_run_stands_still_on_request(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, LowReward(), attempt=1, tick_s=0.01)
        monitor.start()
        monitor.emit(RunPaused(actor="person:ada"))
        wait_for(lambda: ticks_of(tmp_path)[-1:] == [True])
        monitor.emit(RunContinued(actor="person:ada", paused_s=1.0))
        wait_for(lambda: ticks_of(tmp_path)[-1:] == [False])
        monitor.close(10)


def ticks_of(folder: Path) -> list[bool]:
    """Whether each tick so far called the run paused."""
    return [event.paused for event in events_of(folder) if isinstance(event, ClockTicked)]


def test_nothing_ticks_after_the_end_of_the_run(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, LowReward(), attempt=1, tick_s=0.01)
        monitor.start()
        monitor.emit(RunEnded(outcome="completed"))
        wait_for(lambda: writer.last_event_seq > 0 and isinstance(events_of(tmp_path)[-1], RunEnded))
        time.sleep(0.05)
        monitor.close(10)
    assert isinstance(events_of(tmp_path)[-1], RunEnded)
    assert FeedReader(tmp_path).writer_state().state == "ended"


def test_emit_after_close_is_counted_and_never_raises(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, LowReward(), attempt=1, tick_s=NEVER_S)
        monitor.start()
        assert monitor.close(10)
        monitor.emit(evaluated(1.0))
        assert monitor.close(10)
    assert monitor.lost.events == 1


def test_a_full_queue_drops_and_counts_and_the_next_tick_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(monitor_module, "QUEUED_EVENTS", 3)
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, LowReward(), attempt=1, tick_s=0.01)
        for _ in range(5):
            monitor.emit(evaluated(1.0))
        monitor.start()
        wait_for(lambda: writer.last_event_seq >= 4)
        monitor.close(10)
    events = events_of(tmp_path)
    assert sum(isinstance(event, EvaluationCompleted) for event in events) == 3
    assert next(event.events_dropped for event in events if isinstance(event, ClockTicked)) == 2


def test_a_disk_that_refuses_costs_events_but_no_record_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    shown: list[Record] = []
    engine = LowReward()
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, engine, attempt=1, tick_s=NEVER_S, on_record=shown.append)
        monitor.start()
        monitor.emit(evaluated(1.0))
        wait_for(lambda: len(shown) == 1)
        feed_size, events_size = ((tmp_path / name).stat().st_size for name in ("feed.jsonl", "events.jsonl"))
        with disk_full_beyond(max(feed_size, events_size + 600)):
            monitor.emit(evaluated(-1.0))
            wait_for(lambda: len(shown) == 2)
            while monitor.lost.events < 2:
                monitor.emit(evaluated(1.0))
                time.sleep(0.01)
        monitor.emit(evaluated(-2.0))
        assert monitor.close(10)
    assert [record.seq for record in shown] == [1, 0, 3]
    assert ids_of(tmp_path) == ["coverage", "low-reward/learner#2", f"low-reward/learner#{engine.seen[-1].seq}"]
    assert [event.seq for event in events_of(tmp_path)] == list(range(1, len(engine.seen) + 1))
    assert [record.getMessage() for record in caplog.records if "could not be written" in record.getMessage()] == [
        "tocsin monitor: `EvaluationCompleted` could not be written; later failures of this kind are only counted"
    ]


def test_a_writer_that_is_closed_too_early_costs_events_only(tmp_path: Path):
    writer = RunWriter(tmp_path, "run-a")
    monitor = Monitor(writer, LowReward(), attempt=1, tick_s=NEVER_S)
    writer.close()
    monitor.start()
    monitor.emit(evaluated(1.0))
    assert monitor.close(10)
    assert monitor.lost.events == 1


class Faulty:
    """An engine that raises at every event."""

    def observe(self, event: BaseEvent) -> list[Record]:
        """Fails."""
        raise ZeroDivisionError("a rule divided by zero")


class Confused:
    """An engine that tries to write a pending finding before a firing one."""

    def observe(self, event: BaseEvent) -> list[Record]:
        """Two records, one of which must stay in the engine."""
        firing = diagnostic(event_seq=event.seq)
        return [firing.model_copy(update={"state": "pending"}), firing]


def test_an_engine_that_raises_is_logged_once_and_everything_else_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, Faulty(), attempt=1, tick_s=NEVER_S)
        monitor.start()
        for _ in range(3):
            monitor.emit(evaluated(1.0))
        assert monitor.close(10)
    assert len(events_of(tmp_path)) == 3
    assert monitor.lost == Lost(events=0, records=0, engine_errors=3, hook_errors=0)
    (entry,) = caplog.records
    assert (entry.name, entry.levelno) == ("tocsin", logging.ERROR)
    assert "the engine failed at event 1; training is not affected" in entry.getMessage()


def test_a_record_that_cannot_be_written_does_not_hold_up_the_next(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, Confused(), attempt=1, tick_s=NEVER_S)
        monitor.start()
        monitor.emit(evaluated(1.0))
        assert monitor.close(10)
    assert ids_of(tmp_path) == ["nan-inf/learner#1"]
    assert monitor.lost.records == 1


def test_a_listener_that_raises_loses_nothing(tmp_path: Path):
    def fail(record: Record) -> None:
        raise RuntimeError("listener")

    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, LowReward(), attempt=1, tick_s=NEVER_S, on_record=fail)
        monitor.start()
        monitor.emit(evaluated(-1.0))
        monitor.emit(evaluated(-1.0))
        assert monitor.close(10)
    assert ids_of(tmp_path) == ["coverage", "low-reward/learner#1", "low-reward/learner#2"]
    assert monitor.lost.hook_errors == 3


@pytest.mark.parametrize("records_left", [0, 1, 2, 3, 4])
def test_a_resumed_run_rebuilds_the_engine_and_completes_the_feed_once(tmp_path: Path, records_left: int):
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, LowReward(), attempt=1, tick_s=NEVER_S)
        monitor.start()
        for reward in (-1.0, 1.0, -2.0, -3.0):
            monitor.emit(evaluated(reward))
        assert monitor.close(10)
    whole = (tmp_path / "feed.jsonl").read_text()
    kept = whole.splitlines(keepends=True)[: 1 + records_left]
    (tmp_path / "feed.jsonl").write_text("".join(kept))
    for attempt in (2, 3):
        engine, shown = LowReward(), list[Record]()
        with RunWriter(tmp_path, "run-a") as writer:
            monitor = Monitor(writer, engine, attempt=attempt, tick_s=NEVER_S, on_record=shown.append)
            monitor.start()
            monitor.emit(evaluated(float(attempt)))
            assert monitor.close(10)
        assert engine.seen == events_of(tmp_path)
        assert (tmp_path / "feed.jsonl").read_text() == whole
        assert [record.seq for record in shown] == (list(range(records_left + 1, 5)) if attempt == 2 else [])
    assert [event.attempt for event in events_of(tmp_path)] == [1, 1, 1, 1, 2, 3]


def test_cost_is_reported_per_event_and_per_step(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        monitor = Monitor(writer, LowReward(), attempt=1, tick_s=NEVER_S)
        monitor.start()
        for step in range(20):
            monitor.at(step=step, policy_version=0, config_generation=0)
            for _ in range(3):
                monitor.emit(evaluated(1.0))
        assert monitor.close(10)
    for cost in monitor.cost():
        assert cost.num == 60
        assert 0 < cost.event_median_us <= cost.event_p99_us
        assert cost.event_median_us < cost.step_median_us <= cost.step_p99_us
        assert cost.total_s >= 19 * cost.event_median_us / 1e6


def test_whoever_acts_on_records_sees_each_event_with_what_is_written_of_it_and_all_of_it_again_on_resume(
    tmp_path: Path,
):
    seen: list[tuple[int, int, list[str]]] = []

    def see(event: BaseEvent, records: Sequence[Record]) -> None:
        on_file = ids_of(tmp_path)
        assert len(on_file) >= len(records), "records are on file before anybody acts on them"
        seen.append((event.attempt, event.seq, [record.record for record in records]))

    for attempt in (1, 2):
        with RunWriter(tmp_path, "run-a") as writer:
            monitor = Monitor(writer, LowReward(), attempt=attempt, tick_s=NEVER_S, on_judged=see)
            monitor.start()
            monitor.emit(evaluated(-1.0))
            assert monitor.close(10)
    first = (1, 1, ["coverage", "diagnostic"])
    assert seen == [first, first, (2, 2, ["diagnostic"])]
    assert monitor.lost.hook_errors == 0
