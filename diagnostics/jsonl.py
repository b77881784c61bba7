"""Lines of an append-only JSON Lines file: forwards, backwards, and from a sequence number on.

Nothing here trusts the file: a line may be torn, may not be JSON, or may be longer than memory.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from tocsin.schemas.base import SCHEMA_VERSION, read
from tocsin.schemas.feed import Header

MAX_LINE_BYTES: Final = 16 * 2**20
"""A longer line is skipped in pieces and counts as unreadable."""
MAX_HEADER_BYTES: Final = 2**16
BLOCK_BYTES: Final = 2**16

Contents = Literal["events", "feed"]

_HEADER: Final = TypeAdapter(Header)


class NotAFeed(ValueError):
    """A file that is missing, empty, or does not begin with the header of the asked kind."""


class Line(NamedTuple):
    """One line and where it lies, in bytes."""

    start: int
    end: int
    data: bytes | None
    """Without the newline; None when it is longer than `MAX_LINE_BYTES`."""
    torn: bool
    """The file ends before the newline: the line is being written, or its writer died."""


def read_header(path: Path, contents: Contents) -> tuple[Header, int]:
    """The header of a file and the offset of the line after it. Raises `NotAFeed`."""
    try:
        with path.open("rb") as file:
            first = file.readline(MAX_HEADER_BYTES)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise NotAFeed(f"`{path}` must be a file of a run folder, and there is none; check the run's path") from error
    return _parse_header(path, first, contents), len(first)


def _parse_header(path: Path, first: bytes, contents: Contents) -> Header:
    if not first.endswith(b"\n"):
        what = "a first line without end" if first else "an empty file"
        raise NotAFeed(f"`{path}` must begin with a header line, got {what}; restore it, or move it away")
    try:
        header = read(_HEADER, first)
    except ValidationError as error:
        raise NotAFeed(
            f"`{path}` must begin with a header line of Tocsin, got a line that is none; "
            f"pass the `{contents}.jsonl` of a run folder"
        ) from error
    if header.contents != contents:
        raise NotAFeed(f"`{path}` must hold {contents}, got {header.contents}; pass the run's `{contents}.jsonl`")
    if header.schema_version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise NotAFeed(
            f"`{path}` must have schema version {SCHEMA_VERSION.split('.')[0]}.x, got {header.schema_version}; "
            "read it with the release of Tocsin that wrote it"
        )
    return header


def lines(file: BinaryIO, start: int, end: int | None = None) -> Iterator[Line]:
    """The lines that start at or after byte `start` and before byte `end`. Do not move `file` in between."""
    file.seek(start)
    position = start
    while end is None or position < end:
        data = file.readline(MAX_LINE_BYTES)
        if not data:
            return
        length = len(data)
        too_long = length == MAX_LINE_BYTES and not data.endswith(b"\n")
        while too_long and data and not data.endswith(b"\n"):
            data = file.readline(BLOCK_BYTES)
            length += len(data)
        torn = not data.endswith(b"\n")
        yield Line(position, position + length, None if too_long else data.removesuffix(b"\n"), torn)
        position += length


def lines_backwards(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """The lines between two offsets, last one first. Empty lines and those over `MAX_LINE_BYTES` are left out.

    An unterminated last line is included: it turns into an ordinary one when a writer adds the newline.
    """
    position, tail, inside_long_line = end, b"", False
    while position > start:
        size = min(max(BLOCK_BYTES, len(tail)), position - start)
        position -= size
        file.seek(position)
        pieces = (file.read(size) + tail).split(b"\n")
        if inside_long_line:
            pieces.pop()
            inside_long_line = not pieces
        tail = pieces[0] if pieces else b""
        for piece in reversed(pieces[1:]):
            if piece and len(piece) <= MAX_LINE_BYTES:
                yield piece
        if len(tail) > MAX_LINE_BYTES:
            tail, inside_long_line = b"", True
    if tail:
        yield tail


def offset_after(
    file: BinaryIO, seq: int, bounds: tuple[int, int], seq_of: Callable[[bytes | None], int | None]
) -> int:
    """An offset from which reading on meets every record above `seq`, at most a few blocks too early.

    Bisects the bytes between `bounds`, because `seq` rises with the lines. `seq_of` answers None for a line that
    holds no record.
    """
    low, high = bounds
    while high - low > BLOCK_BYTES:
        middle = (low + high) // 2
        found = _first_record(file, middle, high, seq_of)
        if found is not None and found[0] <= seq:
            low = found[1]
        else:
            high = middle
    return low


def _first_record(
    file: BinaryIO, middle: int, high: int, seq_of: Callable[[bytes | None], int | None]
) -> tuple[int, int] | None:
    """`seq` and end of the first readable record that starts between `middle` and `high`."""
    following = lines(file, middle - 1, high)
    next(following, None)  # the rest of the line that `middle` cut
    for line in following:
        seq = seq_of(line.data)
        if seq is not None:
            return seq, line.end
    return None
