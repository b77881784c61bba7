"""The single writer of a run folder."""

import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.diagnostics.run_samples import action, coverage, diagnostic, evaluated
from tests.records import problems
from tocsin.diagnostics.feed import RunLocked, RunWriter
from tocsin.diagnostics.jsonl import NotAFeed
from tocsin.diagnostics.reader import FeedReader, read_events
from tocsin.schemas.actions import Action, Patch
from tocsin.schemas.base import NonFinite
from tocsin.schemas.events import ClockTicked

WRITE_AND_WAIT = """
import sys, time
from pathlib import Path
from tocsin.diagnostics.feed import RunWriter
from tocsin.schemas.events import ClockTicked
writer = RunWriter(Path(sys.argv[1]), "run-a")
for _ in range(3):
    writer.event(ClockTicked(idle_s=1.0, step=7))
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def writer_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the run folder; it has written three events."""
    process = subprocess.Popen([sys.executable, "-c", WRITE_AND_WAIT, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def disk_full_beyond(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: writes go through in part, then fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_and_records_are_numbered_from_1_and_valid_after_a_header(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        assert (writer.last_event_seq, writer.last_record_event_seq) == (0, 0)
        assert [writer.event(evaluated(reward)).seq for reward in (0.5, 0.6)] == [1, 2]
        assert writer.record(diagnostic(event_seq=2)).seq == 1
        assert writer.record(action(event_seq=2)).run_id == "run-a"
        assert (writer.last_event_seq, writer.last_record_event_seq) == (2, 2)
    header, first, second = lines_of(tmp_path / "events.jsonl")
    assert (header["record"], header["contents"], header["run_id"]) == ("header", "events", "run-a")
    assert [(line["seq"], line["reward_mean"]) for line in (first, second)] == [(1, 0.5), (2, 0.6)]
    assert list(problems(tmp_path)) == []


def test_a_nan_is_written_as_an_object_and_read_back(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(evaluated(float("nan")))
        writer.record(diagnostic(observed=float("-inf")))
    assert lines_of(tmp_path / "events.jsonl")[1]["reward_mean"] == {"nonfinite": "nan"}
    (event,) = read_events(tmp_path / "events.jsonl")
    assert event.model_dump()["reward_mean"] == {"nonfinite": "nan"}
    (record,) = FeedReader(tmp_path).active()
    assert record.evidence[0].observed == NonFinite(nonfinite="-inf")


def test_what_was_written_is_read_back_equal(tmp_path: Path):
    placeholder = Action(
        id="nan-inf/learner#1/choose-lr",
        title="Choose a lower learning rate",
        applicability="placeholder",
        risk="low",
        patches=[Patch(path="learning_rate", expect=0.1, to=None, min=0.0, max=1.0, effective="next_step")],
    )
    with RunWriter(tmp_path, "run-a") as writer:
        event = writer.event(evaluated(0.25))
        records = [
            writer.record(diagnostic().model_copy(update={"actions": [placeholder]})),
            writer.record(action()),
            writer.record(coverage()),
        ]
    assert list(read_events(tmp_path / "events.jsonl")) == [event]
    assert FeedReader(tmp_path).page().records == records


def test_reopening_keeps_the_epoch_and_goes_on_counting(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(evaluated(0.5))
        writer.record(diagnostic(event_seq=1))
    epochs = [lines_of(tmp_path / name)[0]["epoch"] for name in ("events.jsonl", "feed.jsonl")]
    with RunWriter(tmp_path, "run-a") as writer:
        assert (writer.last_event_seq, writer.last_record_event_seq) == (1, 1)
        assert writer.event(evaluated(0.6)).seq == 2
        assert writer.record(diagnostic(event_seq=2)).seq == 2
    assert [lines_of(tmp_path / name)[0]["epoch"] for name in ("events.jsonl", "feed.jsonl")] == epochs


@pytest.mark.corrupt_files_expected
def test_a_torn_tail_is_followed_by_a_fresh_line_and_its_number_is_used_again(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        for reward in (0.1, 0.2, 0.3):
            writer.event(evaluated(reward))
    path = tmp_path / "events.jsonl"
    os.truncate(path, path.stat().st_size - 20)
    with RunWriter(tmp_path, "run-a") as writer:
        assert writer.last_event_seq == 2
        writer.event(evaluated(0.4))
    assert [(event.seq, event.model_dump()["reward_mean"]) for event in read_events(path)] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.4),
    ]


def test_a_tail_that_lacks_only_its_newline_keeps_its_number(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(evaluated(0.1))
    path = tmp_path / "events.jsonl"
    os.truncate(path, path.stat().st_size - 1)
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(evaluated(0.2))
    assert [event.seq for event in read_events(path)] == [1, 2]


@pytest.mark.corrupt_files_expected
def test_unreadable_lines_do_not_stop_the_count(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(evaluated(0.1))
        writer.record(diagnostic())
    for name in ("events.jsonl", "feed.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"\x00\xff garbage\n[]\n{}\n")
    with RunWriter(tmp_path, "run-a") as writer:
        assert (writer.event(evaluated(0.2)).seq, writer.record(diagnostic(event_seq=2)).seq) == (2, 2)


def test_an_event_number_that_a_record_names_is_not_given_out_again(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        for reward in (0.1, 0.2, 0.3):
            writer.event(evaluated(reward))
        writer.record(diagnostic(event_seq=3))
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with RunWriter(tmp_path, "run-a") as writer:
        assert writer.event(evaluated(0.4)).seq == 4


def test_a_second_writer_is_refused_with_pid_and_remedy(tmp_path: Path):
    with RunWriter(tmp_path, "run-a"), pytest.raises(RunLocked, match=rf"process {os.getpid()} .*stop it"):
        RunWriter(tmp_path, "run-a")
    RunWriter(tmp_path, "run-a").close()


def test_a_writer_in_another_process_is_named(tmp_path: Path):
    with writer_process(tmp_path) as process:
        with pytest.raises(RunLocked, match=f"process {process.pid} "):
            RunWriter(tmp_path, "run-a")
        assert FeedReader(tmp_path).writer_state().state == "alive"


def test_a_killed_writer_leaves_a_readable_feed_that_says_dead(tmp_path: Path):
    with writer_process(tmp_path) as process:
        process.kill()
        process.wait()
        page = FeedReader(tmp_path).page()
        assert (page.writer.state, page.writer.step, page.records) == ("dead", 7, [])
        assert [event.seq for event in read_events(tmp_path / "events.jsonl")] == [1, 2, 3]
        with RunWriter(tmp_path, "run-a") as writer:
            assert writer.event(ClockTicked(idle_s=0.0)).seq == 4


def test_a_full_disk_leaves_no_torn_line_and_no_gap(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(evaluated(0.1))
        with disk_full_beyond((tmp_path / "events.jsonl").stat().st_size + 30), pytest.raises(OSError, match="large"):
            writer.event(evaluated(0.2))
        assert writer.event(evaluated(0.3)).seq == 2
    assert [event.model_dump()["reward_mean"] for event in read_events(tmp_path / "events.jsonl")] == [0.1, 0.3]


@pytest.mark.corrupt_files_expected
def test_the_next_line_is_fresh_when_somebody_else_left_half_a_line(tmp_path: Path):
    with RunWriter(tmp_path, "run-a") as writer:
        writer.event(evaluated(0.1))
        with (tmp_path / "events.jsonl").open("ab") as file:
            file.write(b'{"half":')
        writer.event(evaluated(0.2))
    assert [event.seq for event in read_events(tmp_path / "events.jsonl")] == [1, 2]


@pytest.mark.parametrize("loss", ["emptied", "removed"])
def test_a_file_lost_under_the_writer_begins_again_with_a_new_epoch(tmp_path: Path, loss: str):
    path = tmp_path / "feed.jsonl"
    with RunWriter(tmp_path, "run-a") as writer:
        writer.record(diagnostic("a#1"))
        reader = FeedReader(tmp_path)
        cursor = reader.page().next_cursor
        path.unlink() if loss == "removed" else os.truncate(path, 0)
        writer.record(diagnostic("b#1"))
        page = reader.page(cursor)
    assert page.reset
    assert page.next_cursor.split(".")[0] != cursor.split(".")[0]
    assert [record.model_dump()["id"] for record in page.records] == ["b#1"]
    assert page.active.warning == 1


def test_control_requests_are_for_the_owner_only(tmp_path: Path):
    RunWriter(tmp_path / "runs" / "a", "run-a").close()
    assert stat.S_IMODE((tmp_path / "runs" / "a" / "control").stat().st_mode) == 0o700


def test_a_folder_of_another_run_is_refused(tmp_path: Path):
    RunWriter(tmp_path, "run-a").close()
    with pytest.raises(ValueError, match="`run_id` must be `run-a`"):
        RunWriter(tmp_path, "run-b")
    RunWriter(tmp_path, "run-a").close()


@pytest.mark.corrupt_files_expected
def test_a_foreign_file_is_never_appended_to(tmp_path: Path):
    (tmp_path / "events.jsonl").write_text('{"loss": 1.0}\n')
    with pytest.raises(NotAFeed, match=r"must begin with a header line of Tocsin"):
        RunWriter(tmp_path, "run-a")
    assert (tmp_path / "events.jsonl").read_text() == '{"loss": 1.0}\n'


def test_a_closed_writer_refuses_and_closing_twice_does_nothing(tmp_path: Path):
    writer = RunWriter(tmp_path, "run-a")
    writer.close()
    writer.close()
    with pytest.raises(OSError, match="the writer of this run is closed"):
        writer.event(evaluated(0.1))
