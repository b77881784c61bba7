"""Files of the control folder that are not what they should be, and too many of them."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trainer.control_room import LAUNCHED, Room, make_room, patches, request
from tocsin.diagnostics.feed import RunWriter
from tocsin.schemas.events import ControlAnswered
from tocsin.trainer.control_inbox import KEPT, MAX_BYTES, PER_POLL


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """The control door of a run that stands at step 40."""
    with RunWriter(tmp_path / "run", "run") as writer:
        yield make_room(writer.folder, writer)


def make_symlink(path: Path) -> None:
    target = path.parent.parent / "elsewhere.json"
    target.write_text(json.dumps(request("stop", id=path.stem)))
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: p.write_text(""), "a request must be a JSON object, got an empty file"),
        (lambda p: p.write_text('{"id": "00000000000'), "a request must be JSON, EOF while parsing a string"),
        (lambda p: p.write_text("stop it"), "a request must be JSON, expected value at line 1"),
        (lambda p: p.write_bytes(b"\xff\xfe"), "a request must be JSON"),
        (lambda p: p.write_text("[" * 30_000), "a request must be JSON, recursion limit exceeded"),
        (lambda p: p.write_text("[]"), "request: `configuration`: Input should be an object"),
        (lambda p: p.write_text(json.dumps(request("stop"))[:-1] + "}" * 2), "a request must be JSON, trailing"),
        (lambda p: p.write_bytes(b" " * (MAX_BYTES + 1)), "a request must have at most 65536 bytes, got 65537"),
        (lambda p: p.write_text(json.dumps(request("stop"))), "`id` must be the name of the file, `0000beef"),
        (lambda p: p.write_text(json.dumps(request("dance", id=p.stem))), "request: `verb`: Input should be 'set'"),
        (lambda p: p.write_text(json.dumps(request(actor="root", id=p.stem))), "request: `actor`: String should match"),
        (lambda p: p.write_text(json.dumps(request(patches=[], id=p.stem))), "request: `configuration`: `set` needs"),
        (lambda p: p.write_text(json.dumps({"id": p.stem})), "request: `idempotency_key`: is required and missing; "),
        (
            lambda p: p.write_text(json.dumps(request(id=p.stem, patches=patches(learning_rate=1) * 2))),
            "request: `configuration`: `patches` must name each knob once",
        ),
        (
            lambda p: p.write_text(json.dumps(request(id=p.stem, patches=patches(learning_rate=float("nan"))))),
            "request: `patches.0.to",
        ),
        (make_symlink, "a request must be a readable regular file, got a symbolic link"),
        (os.mkfifo, "a request must be a regular file, got a named pipe"),
        (lambda p: p.mkdir(), "a request must be a regular file, got a directory"),
    ],
)
def test_a_file_that_holds_no_request_is_refused_once_and_changes_nothing(
    room: Room, make: Callable[[Path], object], reason: str
):
    make(room.control / "0000beef0000beef.json")
    ((state, given),) = room.polled()
    assert state == "refused"
    assert given.startswith(reason)
    assert room.polled() == []
    room.door.at_barrier()
    assert (room.loop.knobs, room.stopped, room.events) == (LAUNCHED, [], [])


def test_a_file_of_another_user_is_refused(room: Room, monkeypatch: pytest.MonkeyPatch):
    room.ask("stop")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert room.polled()[0][1].startswith(f"a request must belong to user {owner + 1}, who runs this, got {owner}")
    assert room.stopped == []


def test_fields_of_a_newer_version_are_ignored(room: Room):
    room.ask("checkpoint", schema_version="1.9.0", urgency="high")
    assert room.polled() == [("accepted", "a checkpoint is written at the next step barrier")]


def test_a_name_that_a_terminal_would_obey_is_answered_without_what_it_would_obey(room: Room):
    room.put("\x1b[31m\udcff.json", "{}")
    room.door.poll()
    (answer,) = room.events
    assert isinstance(answer, ControlAnswered)
    assert (answer.request_id, answer.actor) == ("?[31m\ufffd", "unknown")
    assert json.loads(answer.model_dump_json())["state"] == "refused"


def test_a_file_written_aside_is_left_alone_until_it_is_abandoned(room: Room):
    room.put(".0123456789abcdef", "half")
    room.put("0123456789abcdef.json.tmp", "half")
    assert room.polled() == []
    assert len(list(room.control.iterdir())) == 3
    for name in (".0123456789abcdef", "0123456789abcdef.json.tmp"):
        os.utime(room.control / name, (0, 0))
    assert room.polled() == []
    assert [path.name for path in room.control.iterdir()] == ["done"]


def test_a_request_that_is_withdrawn_in_time_is_not_answered(room: Room):
    id = room.ask("stop")
    (room.control / f"{id}.json").unlink()
    assert room.polled() == []


def test_a_flood_costs_a_bounded_time_per_poll_and_is_answered_in_the_end(room: Room):
    for number in range(10_000):
        room.put(f"{number:016x}.json", "{}")
    began, slowest = time.thread_time(), 0.0
    for _ in range(20):
        before = time.thread_time()
        assert len(room.polled()) == PER_POLL
        slowest = max(slowest, time.thread_time() - before)
    assert time.thread_time() - began < 20 * 0.05
    assert len(list((room.control / "done").iterdir())) == KEPT


def test_a_folder_that_is_gone_or_replaced_by_a_link_is_no_reason_to_fail(room: Room, caplog: pytest.LogCaptureFixture):
    room.control.rename(room.folder / "away")
    assert room.polled() == []
    room.control.symlink_to(room.folder / "away")
    room.ask("stop")
    assert (room.polled(), room.stopped, caplog.records) == ([], [], [])
