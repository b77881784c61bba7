"""The inbox of the control door: each file of `control/` is claimed, read once, and trusted in nothing.

Claiming is renaming into `control/done/`, so that an asker who removes a request can be sure that it was not read.
The work of one poll is bounded, whatever lies in the folder.
"""

import contextlib
import errno
import os
import stat
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from tocsin.diagnostics.render import clean
from tocsin.schemas.base import read
from tocsin.schemas.config import describe_errors
from tocsin.schemas.control import ControlRequest

DONE: Final = "done"
SUFFIX: Final = ".json"
MAX_BYTES: Final = 64 * 1024
KEPT: Final = 100
"""Files that stay in `done/`."""
PER_POLL: Final = 16
"""Requests that one poll reads. More wait, and cost nothing while they do."""
SCANNED: Final = 5_000
"""Names that one poll looks at."""
ABANDONED_S: Final = 60.0
"""After this, a file that was written aside and never renamed is filed away unread."""
MAX_ID: Final = 64

_REQUEST: Final = TypeAdapter(ControlRequest)


class Letter(NamedTuple):
    """One file, read."""

    id: str
    """Name without its ending, fit for a record."""
    request: ControlRequest | None
    problem: str = ""
    """Why there is no request."""


class _Unreadable(ValueError):
    """The file holds no request; the message says why."""


class ControlInbox:
    """The files of one control folder, oldest first. One owner."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stuck: set[str] = set()
        """Names that cannot be moved: answered once, then left alone."""
        with contextlib.suppress(OSError):
            (folder / DONE).mkdir(mode=0o700, exist_ok=True)
        self._done = deque(_oldest_first(folder / DONE))

    def letters(self) -> Iterator[Letter]:
        """What arrived, at most `PER_POLL`. Each is claimed before it is read, and never read again."""
        try:
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            return  # no folder, no requests
        try:
            for name in self._arrived(folder):
                letter = self._open(folder, name)
                if letter is not None:
                    yield letter
        finally:
            os.close(folder)

    def _arrived(self, folder: int) -> list[str]:
        found: list[tuple[int, str]] = []
        abandoned: list[str] = []
        with os.scandir(folder) as entries:
            for _, entry in zip(range(SCANNED), entries, strict=False):
                if entry.name == DONE or entry.name in self._stuck:
                    continue
                with contextlib.suppress(OSError):  # it was withdrawn in this moment
                    age = entry.stat(follow_symlinks=False).st_mtime_ns
                    if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                        found.append((age, entry.name))
                    elif time.time() - age / 1e9 > ABANDONED_S:
                        abandoned.append(entry.name)
                if len(found) == PER_POLL:
                    break
        for name in abandoned[:PER_POLL]:
            self._claim(folder, name)
        return [name for _, name in sorted(found)]

    def _open(self, folder: int, name: str) -> Letter | None:
        """The letter in a file; None when it was withdrawn before it could be claimed."""
        shown = os.fsencode(name.removesuffix(SUFFIX)).decode("utf-8", "replace")
        id = clean(shown)[:MAX_ID] or "?"
        try:
            if not self._claim(folder, name):
                return None
            request = _parse(_content(f"{DONE}/{name}", folder))
            if request.id != name.removesuffix(SUFFIX):
                raise _Unreadable(f"`id` must be the name of the file, `{id}`, got `{request.id}`")
        except _Unreadable as error:
            return Letter(id, None, str(error))
        return Letter(id, request)

    def _claim(self, folder: int, name: str) -> bool:
        """Move a file to `done/`; whether it was still there. Raises `_Unreadable` when it cannot be moved."""
        try:
            os.rename(name, f"{DONE}/{name}", src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._stuck.add(name)
            raise _Unreadable(f"the file must be movable to `{DONE}/`: {error.strerror}") from error
        self._done.append(name)
        while len(self._done) > KEPT:
            _remove(f"{DONE}/{self._done.popleft()}", folder)
        return True


def _oldest_first(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            found = [(entry.stat(follow_symlinks=False).st_mtime_ns, entry.name) for entry in entries]
    except OSError:
        return []
    return [name for _, name in sorted(found)]


def _remove(path: str, folder: int) -> None:
    """Remove a file or an empty folder; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        try:
            os.unlink(path, dir_fd=folder)
        except IsADirectoryError:
            os.rmdir(path, dir_fd=folder)


def _content(path: str, folder: int) -> bytes:
    """Bytes of a regular file of our own user that is small enough. Raises `_Unreadable`."""
    try:
        # Not blocking: opening a pipe would otherwise wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
    except OSError as error:
        what = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise _Unreadable(f"a request must be a readable regular file, got {what}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _Unreadable(f"a request must be a regular file, got {_kind(status.st_mode)}")
        if status.st_uid != os.geteuid():
            raise _Unreadable(f"a request must belong to user {os.geteuid()}, who runs this, got {status.st_uid}")
        if status.st_size > MAX_BYTES:
            raise _Unreadable(f"a request must have at most {MAX_BYTES} bytes, got {status.st_size}")
        return os.read(descriptor, MAX_BYTES + 1)
    finally:
        os.close(descriptor)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _parse(content: bytes) -> ControlRequest:
    if not content:
        raise _Unreadable("a request must be a JSON object, got an empty file; write aside and rename")
    try:
        return read(_REQUEST, content)
    except ValidationError as error:
        found = error.errors(include_url=False)
        if found[0]["type"] == "json_invalid":
            raise _Unreadable(
                f"a request must be JSON, {found[0]['ctx']['error']}; write aside and rename, so that it arrives whole"
            ) from None
        raise _Unreadable(describe_errors(found[:3], source="request").replace("\n", "; ")) from None
