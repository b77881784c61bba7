"""Readers of a run folder: pages of the feed by cursor, what is open, and whether anybody still writes.

A cursor is `"<epoch>.<seq>"`: the file it belongs to and the last record it has delivered. Handing back
`next_cursor` delivers every record once and in order, however slow the poller and however many there are.
"""

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeGuard

from tocsin.diagnostics.feed import FEED_FILE, StoredRecord, parse_event, parse_record, readable_records
from tocsin.diagnostics.jsonl import MAX_LINE_BYTES, NotAFeed, lines, lines_backwards, offset_after, read_header
from tocsin.diagnostics.liveness import RunWatch
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.diagnosis import SEVERITIES, Coverage, Diagnostic, Severity
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.feed import ActiveCounts, Page, WriterState

__all__ = ["BadCursor", "FeedReader", "NotAFeed", "UnknownId", "Unreadable", "read_events"]

SCAN_LIMIT: Final = 10_000
"""Records that one poll looks at. A filter that matches little answers an empty page with `has_more`."""

OPEN_STATES: Final = ("firing", "no_data")


class BadCursor(ValueError):
    """A cursor that no page returned."""


class UnknownId(ValueError):
    """An id that no record of the feed has."""


class Cursor(NamedTuple):
    """Which file, and how far into it."""

    epoch: str
    seq: int


@dataclass(slots=True)
class Unreadable:
    """Lines that a lenient reader left out."""

    count: int = 0
    examples: list[str] = field(default_factory=list)
    """The first few, each with its line number and why."""

    def add(self, number: int, why: str) -> None:
        """Count one line; `number` counts from 1, the header included."""
        self.count += 1
        if len(self.examples) < 3:
            self.examples.append(f"line {number}: {why}")


def read_events(path: Path, unreadable: Unreadable | None = None) -> Iterator[BaseEvent]:
    """The events of an `events.jsonl`, in order. Raises `NotAFeed` at once when it is none.

    Lines that cannot be read are left out and counted in `unreadable`. Reads to the end that the file has when the
    iterator gets there.
    """
    _, start = read_header(path, "events")
    return _events(path, start, Unreadable() if unreadable is None else unreadable)


def _events(path: Path, start: int, unreadable: Unreadable) -> Iterator[BaseEvent]:
    with path.open("rb") as file:
        for number, line in enumerate(lines(file, start), start=2):
            event = parse_event(line.data)
            if event is not None:
                yield event
            elif line.data is None:
                unreadable.add(number, f"longer than {MAX_LINE_BYTES} bytes")
            else:
                unreadable.add(number, "torn: the file ends in it" if line.torn else "not an event")


@dataclass(slots=True)
class _Index:
    """What one pass over the feed knows. Grows with the open diagnostics, not with the feed."""

    file: tuple[int, int, str]
    """Device, inode and epoch: another one is another feed."""
    start: int
    end: int
    """Offset after the last whole line read."""
    last_seq: int = 0
    open: dict[str, Diagnostic] = field(default_factory=dict)
    """Latest record of each open diagnostic, by id."""
    coverage: Coverage | None = None

    @property
    def epoch(self) -> str:
        return self.file[2]

    def take(self, record: StoredRecord) -> None:
        """Count one record in."""
        self.last_seq = max(self.last_seq, record.seq)
        if isinstance(record, Coverage):
            self.coverage = record
        elif isinstance(record, Diagnostic):
            if record.state in OPEN_STATES:
                self.open[record.id] = record
            else:
                self.open.pop(record.id, None)


class FeedReader:
    """Pages of one run's feed. Keep it between polls: it reads only what was added. Safe to use from several threads.

    Every method raises `NotAFeed` when the run folder has no feed. `now` is Unix time, for the age of the last event.
    """

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        self._path = folder / FEED_FILE
        self._watch = RunWatch(folder, now=now)
        self._guard = threading.Lock()
        self._index: _Index | None = None

    def page(self, cursor: str | None = None, *, limit: int = 20, min_severity: Severity | None = None) -> Page:
        """The records after `cursor`, oldest first, at most `limit`.

        Without a cursor: the latest record of each open diagnostic and the last `limit` records. With a cursor of a
        file that was since replaced or cut: from the first record on, and `reset`. `min_severity` leaves only
        diagnostics of at least that severity; the next cursor also passes over what it left out, and `has_more`
        says that there are records beyond it. Raises `BadCursor`, and `ValueError` for a limit below 1.
        """
        if limit < 1:
            raise ValueError(f"`limit` must be at least 1, got {limit}")
        since = None if cursor is None else _parse_cursor(cursor)
        with self._guard, self._path_open() as file:
            index = self._catch_up(file)
            reset = since is not None and (since.epoch != index.epoch or since.seq > index.last_seq)
            if since is None:
                records, reached = _newest(file, index, limit, min_severity), index.last_seq
            else:
                records, reached = _after(file, index, 0 if reset else since.seq, limit, min_severity)
            return Page(
                records=records,
                next_cursor=f"{index.epoch}.{reached}",
                has_more=reached < index.last_seq,
                reset=reset,
                active=count(index.open.values()),
                writer=self._watch.state(),
            )

    def active(self) -> list[Diagnostic]:
        """The latest record of each open diagnostic, the most severe first, a root before what it explains, then the
        oldest; what another one stands for comes last. The first one is what to answer first.
        """
        with self._guard, self._path_open() as file:
            records = list(self._catch_up(file).open.values())
        return sorted(records, key=_urgency)

    def coverage(self) -> Coverage | None:
        """The newest coverage record."""
        with self._guard, self._path_open() as file:
            return self._catch_up(file).coverage

    def history(self, id: str) -> list[Diagnostic | ActionRecord]:
        """Everything the feed says about a diagnostic, its actions included, or about one action. Oldest first."""
        with self._guard, self._path_open() as file:
            index = self._catch_up(file)
            return [record for record in _between(file, index.start, index.end) if _concerns(record, id)]

    def known_id(self, wanted: str) -> str:
        """`wanted` when the feed knows it, or the id of the newest finding of the rule or action it names.

        Raises `UnknownId`.
        """
        if self.history(wanted):
            return wanted
        recorded = [record for record in self.page(limit=1000).records if isinstance(record, Diagnostic)]
        matching = [r for r in recorded if wanted in (r.code, r.name, *(action.id for action in r.actions))]
        if matching:
            return matching[-1].id
        ids = ", ".join(sorted({record.id for record in recorded})) or "none yet"
        raise UnknownId(f"`ID` must be a diagnostic of this run, got `{wanted}`; there are: {ids}")

    def writer_state(self) -> WriterState:
        """Whether anybody still writes the run."""
        return self._watch.state()

    def _path_open(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotAFeed(f"`{self._path}` must be the feed of a run, and there is none; check the path") from error

    def _catch_up(self, file: BinaryIO) -> _Index:
        """The index of what the file holds now; starts over when it is another file or lost something."""
        header, start = read_header(self._path, "feed")
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino, header.epoch)
        index = self._index
        if index is None or index.file != identity or not _ends_a_line(file, index.end):
            index = _Index(identity, start=start, end=start)
        for line in lines(file, index.end, status.st_size):
            if line.torn:
                break
            record = parse_record(line.data)
            if record is not None:
                index.take(record)
            index.end = line.end
        self._index = index
        return index


def _ends_a_line(file: BinaryIO, offset: int) -> bool:
    """Whether a line still ends at `offset`; not so when the file was cut."""
    file.seek(offset - 1)
    return file.read(1) == b"\n"


def _parse_cursor(cursor: str) -> Cursor:
    found = re.fullmatch(r"([0-9a-f]{12})\.([0-9]{1,18})", cursor)
    if found is None:
        raise BadCursor(
            f"`cursor` must be a `next_cursor` as a page returned it, got `{cursor[:60]}`; leave it out to start over"
        )
    return Cursor(found[1], int(found[2]))


def _between(file: BinaryIO, start: int, end: int) -> Iterator[StoredRecord]:
    """The readable records between two offsets, in order of the file."""
    for line in lines(file, start, end):
        record = parse_record(line.data)
        if record is not None:
            yield record


def _after(
    file: BinaryIO, index: _Index, since: int, limit: int, min_severity: Severity | None
) -> tuple[list[StoredRecord], int]:
    """At most `limit` records above `since` that the filter lets through, and the last number looked at."""
    reached = since
    found: list[StoredRecord] = []
    if since >= index.last_seq:
        return found, reached
    offset = offset_after(file, since, (index.start, index.end), _seq_of)
    scanned = 0
    for record in _between(file, offset, index.end):
        if record.seq <= reached:
            continue
        reached = record.seq
        scanned += 1
        if _passes(record, min_severity):
            found.append(record)
        if len(found) == limit or scanned == SCAN_LIMIT:
            break
    return found, reached


def _newest(file: BinaryIO, index: _Index, limit: int, min_severity: Severity | None) -> list[StoredRecord]:
    """What is open, and the last `limit` records, each once and in order; both through the filter."""
    found: dict[int, StoredRecord] = {r.seq: r for r in index.open.values() if _passes(r, min_severity)}
    backwards = readable_records(lines_backwards(file, index.start, index.end))
    tail = (record for record in islice(backwards, SCAN_LIMIT) if _passes(record, min_severity))
    found.update((record.seq, record) for record in islice(tail, limit))
    return [found[seq] for seq in sorted(found)]


def _seq_of(line: bytes | None) -> int | None:
    record = parse_record(line)
    return None if record is None else record.seq


def _passes(record: StoredRecord, min_severity: Severity | None) -> bool:
    if min_severity is None:
        return True
    return isinstance(record, Diagnostic) and SEVERITIES.index(record.severity) >= SEVERITIES.index(min_severity)


def _concerns(record: StoredRecord, id: str) -> TypeGuard[Diagnostic | ActionRecord]:
    if isinstance(record, Diagnostic):
        return record.id == id
    return isinstance(record, ActionRecord) and id in (record.diagnostic_id, record.action_id)


def _urgency(record: Diagnostic) -> tuple[bool, int, bool, int, int]:
    return (
        record.suppressed,
        -SEVERITIES.index(record.severity),
        any(relation.kind == "explained_by" for relation in record.relations),
        record.started.step,
        record.seq,
    )


def count(records: Iterable[Diagnostic]) -> ActiveCounts:
    """Open diagnostics by severity; what another one stands for is counted as explained."""
    counts = Counter("explained" if record.suppressed else record.severity for record in records)
    return ActiveCounts(**counts)
