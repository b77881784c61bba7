"""Reading a pipe of another process, from asyncio and from threads, without ever blocking on it."""

import asyncio
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class PipeClosed(Exception):
    """The process at the other end is gone."""


def read_in_thread(connection: Connection, deliver: Callable[[Any], None], *, name: str) -> threading.Thread:
    """Call `deliver` with each message, and with `PipeClosed` after the last one. Ends with the pipe."""

    def read() -> None:
        while True:
            try:
                deliver(connection.recv())
            except (EOFError, OSError):
                deliver(PipeClosed(f"the {name} process is gone"))
                return

    thread = threading.Thread(target=read, name=f"read-{name}", daemon=True)
    thread.start()
    return thread


class Inbox:
    """Messages of one pipe as an asyncio queue."""

    def __init__(self, connection: Connection, *, name: str):
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def deliver(message: Any) -> None:
            # The loop may be closed already while the last message arrives; nobody waits for it then.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._queue.put_nowait, message)

        read_in_thread(connection, deliver, name=name)

    async def get(self, timeout_s: float | None = None) -> Any:
        """The next message. Raises `PipeClosed` when the process is gone, `TimeoutError` after `timeout_s`."""
        message = await asyncio.wait_for(self._queue.get(), timeout_s)
        if isinstance(message, PipeClosed):
            raise message
        return message


class Stopwatch:
    """Seconds since it was made, and laps by name."""

    def __init__(self) -> None:
        self.started = self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Book the time since the last lap on `name`."""
        now = time.monotonic()
        self.laps[name] = self.laps.get(name, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started
