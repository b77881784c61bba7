"""Who writes a run folder: an advisory lock that dies with its process.

The lock file itself is never removed: a process that waits for it would then hold a lock on nothing.
"""

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Final, NamedTuple

LOCK_FILE: Final = "writer.lock"
PATIENCE_S: Final = 1.0
"""How long a writer waits for the lock. Readers that probe it hold it for microseconds, never for long."""


class RunLocked(ValueError):
    """Another process writes this run folder."""


class Holder(NamedTuple):
    """The process that holds a lock."""

    pid: int
    """0 when it has not written its id yet."""
    host: str
    since: float
    """Unix time at which it took the lock."""


def acquire(folder: Path) -> int:
    """Descriptor of the folder's lock file, locked and naming this process. Raises `RunLocked`."""
    path = folder / LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise RunLocked(_locked_message(path)) from None
        time.sleep(0.02)
    owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, owner, 0)
    return descriptor


def release(descriptor: int) -> None:
    """Let go of the lock, also for forked children that share the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _locked_message(path: Path) -> str:
    pid, host = _owner(path)
    return (
        f"`{path.parent}` must have one writer, and process {pid or 'unknown'} on {host or 'this host'} is it; "
        "wait for that run to end or stop it, or start a new run"
    )


def _owner(path: Path) -> tuple[int, str]:
    """Process id and host that the lock file names; 0 and nothing when it does not say."""
    try:
        owner = json.loads(path.read_bytes())
        return int(owner["pid"]), str(owner["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, ""


def living_writer(folder: Path) -> Holder | None:
    """The living process that writes this run folder.

    The lock decides. A process that is gone while its lock is still held (a forked child kept the descriptor) does
    not count; its id means something only on its own host.
    """
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        pid, host = _owner(folder / LOCK_FILE)
        lives = host != socket.gethostname() or _process_exists(pid)
        return Holder(pid, host, os.fstat(descriptor).st_mtime) if lives else None
    finally:
        os.close(descriptor)


def _process_exists(pid: int) -> bool:
    if pid <= 0:
        return True  # the lock is held, and its owner has not written its id yet
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
