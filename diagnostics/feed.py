"""The single writer of a run folder: `events.jsonl`, and `feed.jsonl`, which agents read.

Files are append-only and readable while they are written: a line appears whole, with one system call. The first
line is the header; its epoch stays the same until the file is replaced. Nothing is synced to disk line by line: a
killed process loses nothing that was written, a power failure may.
"""

import contextlib
import errno
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar, cast

from pydantic import BaseModel, ValidationError

from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.jsonl import Contents, lines_backwards, read_header
from tocsin.diagnostics.lock import RunLocked, acquire, release
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.base import read
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EVENT
from tocsin.schemas.feed import FEED_RECORD, Header, UnknownRecord

__all__ = [
    "EVENTS_FILE",
    "FEED_FILE",
    "Record",
    "RunLocked",
    "RunWriter",
    "StoredRecord",
    "parse_event",
    "parse_record",
]

EVENTS_FILE: Final = "events.jsonl"
FEED_FILE: Final = "feed.jsonl"

Record = Diagnostic | ActionRecord | Coverage
R = TypeVar("R", bound=Record)
StoredRecord = Diagnostic | ActionRecord | Coverage | UnknownRecord


def parse_event(line: bytes | None) -> BaseEvent | None:
    """An event as a lenient reader sees it; None when the line is unreadable."""
    try:
        return None if line is None else read(EVENT, line)
    except ValidationError:
        return None


def parse_record(line: bytes | None) -> StoredRecord | None:
    """A feed record as a lenient reader sees it; None when the line is unreadable or has no number."""
    try:
        record = None if line is None else read(FEED_RECORD, line)
    except ValidationError:
        return None
    return record if record is not None and record.seq > 0 else None


def readable_records(lines: Iterable[bytes]) -> Iterator[StoredRecord]:
    """The records among some lines, in their order."""
    for line in lines:
        record = parse_record(line)
        if record is not None:
            yield record


class RunWriter:
    """The single writer of a run folder. Safe to use from several threads.

    Opening a folder that has files goes on in them: the epoch stays, numbers follow the last readable line.
    Raises `RunLocked` when somebody else writes the folder, `NotAFeed` when a file in it is not ours, `ValueError`
    when the folder belongs to another run, and `OSError` when the disk refuses.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self.folder = folder
        self.run_id = run_id
        self._guard = threading.Lock()
        self._closed = False
        folder.mkdir(parents=True, exist_ok=True)
        control = folder / "control"
        control.mkdir(mode=0o700, exist_ok=True)
        control.chmod(0o700)
        with contextlib.ExitStack() as undo:
            undo.callback(release, acquire(folder))
            self._events = _Log(folder / EVENTS_FILE, "events", run_id)
            undo.callback(self._events.close)
            self._feed = _Log(folder / FEED_FILE, "feed", run_id)
            undo.callback(self._feed.close)
            self._find_ends()
            self._resources = undo.pop_all()

    def _find_ends(self) -> None:
        """Where the two files stop. An event number that a record names is taken, also when its event was lost."""
        events = (event.seq for line in self._events.backwards() if (event := parse_event(line)) is not None)
        self._last_seq = 0
        self._last_record_event_seq = 0
        self.records_of_last_event: tuple[Record, ...] = ()
        """The records that the feed ended with when it was opened: all that name its last `event_seq`."""
        for record in readable_records(self._feed.backwards()):
            self._last_seq = max(self._last_seq, record.seq)
            if isinstance(record, UnknownRecord):
                continue
            if self._last_record_event_seq == 0:
                self._last_record_event_seq = record.event_seq
            if record.event_seq < self._last_record_event_seq:
                break
            self.records_of_last_event = (record, *self.records_of_last_event)
        self._last_event_seq = max(next(events, 0), self._last_record_event_seq)

    @property
    def last_event_seq(self) -> int:
        """Number of the newest event; 0 when there is none."""
        return self._last_event_seq

    @property
    def last_record_event_seq(self) -> int:
        """Newest event that a record of the feed names; 0 when there is no record."""
        return self._last_record_event_seq

    def event(self, event: BaseEvent) -> BaseEvent:
        """Append an event; returns it with its number. Raises `OSError`; the number is then not used."""
        with self._guard:
            stamped = event.model_copy(update={"seq": self._last_event_seq + 1, "run_id": self.run_id})
            self._append(self._events, stamped)
            self._last_event_seq = stamped.seq
        return stamped

    def record(self, record: R) -> R:
        """Append a record to the feed; returns it with its number. Raises `OSError`; the number is then not used."""
        assert not isinstance(record, Diagnostic) or record.state != "pending", "pending findings stay in the engine"
        with self._guard:
            stamped = cast(R, record.model_copy(update={"seq": self._last_seq + 1, "run_id": self.run_id}))
            self._append(self._feed, stamped)
            self._last_seq = stamped.seq
            self._last_record_event_seq = max(self._last_record_event_seq, stamped.event_seq)
        return stamped

    def _append(self, log: "_Log", model: BaseModel) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the writer of this run is closed", str(log.path))
        log.append(_line(model))

    def close(self) -> None:
        """Close the files and let go of the folder. Closing twice does nothing."""
        with self._guard:
            if not self._closed:
                self._closed = True
                self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Log:
    """One append-only file: header first, then whole lines."""

    def __init__(self, path: Path, contents: Contents, run_id: str) -> None:
        self.path = path
        self._contents: Contents = contents
        self._run_id = run_id
        self._fd = self._open()
        self._start_fresh_line()

    def _open(self) -> int:
        """Descriptor of the file, made when it is missing or empty. Raises `NotAFeed`, `ValueError`, `OSError`."""
        if not self.path.exists() or self.path.stat().st_size == 0:
            self._create()
        header, self._start = read_header(self.path, self._contents)
        if header.run_id != self._run_id:
            raise ValueError(
                f"`run_id` must be `{header.run_id}` as in `{self.path}`, got `{self._run_id}`; use another folder"
            )
        return os.open(self.path, os.O_RDWR | os.O_APPEND)

    def _header(self) -> bytes:
        epoch = secrets.token_hex(6)
        return _line(Header(contents=self._contents, run_id=self._run_id, epoch=epoch, created=utc_text()))

    def _create(self) -> None:
        """Put the file in place with its header, so that no reader meets it without."""
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        aside.write_bytes(self._header())
        aside.replace(self.path)

    def append(self, line: bytes) -> None:
        """Write one line. After an `OSError` the file is as it was, or the next line starts fresh."""
        status = os.fstat(self._fd)
        if status.st_nlink == 0:  # somebody removed or replaced the file
            removed, self._fd = self._fd, self._open()
            os.close(removed)
            self._start_fresh_line()
        elif status.st_size != self._size:  # somebody cut the file, or a failed write could not be undone
            self._start_fresh_line()
        try:
            _write_all(self._fd, line)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)

    def _start_fresh_line(self) -> None:
        size = os.fstat(self._fd).st_size
        if size == 0:
            _write_all(self._fd, self._header())
        elif os.pread(self._fd, 1, size - 1) != b"\n":
            _write_all(self._fd, b"\n")
        self._size = os.fstat(self._fd).st_size

    def backwards(self) -> Iterator[bytes]:
        """Its lines after the header, last one first."""
        with self.path.open("rb") as file:
            yield from lines_backwards(file, self._start, self._size)

    def close(self) -> None:
        """Release the descriptor."""
        os.close(self._fd)


def _line(model: BaseModel) -> bytes:
    return model.model_dump_json(exclude_none=True).encode() + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    """Write everything; a full disk may take a part before it refuses."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
