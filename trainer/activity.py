"""What the rollout process is at work on, said every few seconds, so that a hang has a name.

Several things go on at once. The one that has gone on for longest is what everything else may be waiting for.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tocsin.schemas.events import Busy, ComponentHeartbeat
from tocsin.trainer.messages import Heartbeat

EVERY_S: Final = 10.0


class Activity:
    """What is under way."""

    def __init__(self) -> None:
        self._under_way: dict[object, tuple[float, Busy]] = {}
        self._idle_since = time.monotonic()

    @contextmanager
    def doing(self, what: Busy) -> Iterator[None]:
        """`what` is under way inside the `with` block."""
        key = object()
        self._under_way[key] = (time.monotonic(), what)
        try:
            yield
        finally:
            del self._under_way[key]
            self._idle_since = time.monotonic()

    @property
    def longest(self) -> tuple[float, Busy]:
        """Since when something has been under way for longest, and what; `idle` when nothing is."""
        return min(self._under_way.values(), default=(self._idle_since, "idle"))

    async def report(self, send: Callable[[Any], None], every_s: float = EVERY_S) -> None:
        """Send a heartbeat now and then, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            since, what = self.longest
            busy_s = time.monotonic() - since
            send(Heartbeat(ComponentHeartbeat(component="rollout", state="alive", busy=what, busy_s=busy_s)))
