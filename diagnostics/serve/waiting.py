"""Waiting without holding anybody up: threads for what may block, and a poll that waits for something new."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

from tocsin.diagnostics.serve.operations import OpenRun, Runs, page
from tocsin.schemas.diagnosis import Severity
from tocsin.schemas.feed import Page

LONGEST_WAIT_S: Final = 30.0
LOOK_S: Final = 0.1
"""Pause between two looks at the size of the feed."""
JUDGE_S: Final = 2.0
"""Pause between two judgements of the writer, whose death no record announces."""
OVER: Final = ("ended", "dead")

SLOW: Final = anyio.CapacityLimiter(4)
"""For questions that read a whole recording."""
CHANGES: Final = anyio.CapacityLimiter(16)
"""For requests at a control door, which wait for the run; they must not keep readers waiting."""


async def in_thread(function: Callable[..., Any], *arguments: Any, limiter: anyio.CapacityLimiter | None = None) -> Any:
    """What `function` returns, run in a thread, because it may wait for a disk or for a run."""
    return await anyio.to_thread.run_sync(partial(function, *arguments), limiter=limiter)


async def opened(runs: Runs, run: str) -> OpenRun:
    """The run called `run`. Raises `RunNotFound`."""
    known = runs.known(run)
    if known is None:
        found: OpenRun = await in_thread(runs.open, run)
        return found
    return known


@dataclass(frozen=True, kw_only=True)
class Poll:
    """What somebody wants to read."""

    cursor: str | None = None
    limit: int = 20
    min_severity: Severity | None = None


async def next_page(run: OpenRun, poll: Poll, wait_s: float = 0.0) -> Page:
    """The page for `poll`. When it has no records: the first one that has, that says `reset` or `has_more`, or in
    which the writer is in another state; the last one when `wait_s` seconds are over or nobody writes any more.

    Raises `NotAFeed`, `BadCursor`, `OSError`.
    """
    deadline = time.monotonic() + min(wait_s, LONGEST_WAIT_S)
    stamp = run.feed_stamp()
    found = await read_page(run, poll)
    first = found.writer.state
    while not _is_news(found, first) and first not in OVER and time.monotonic() < deadline:
        stamp = await _changed(run, stamp, min(deadline, time.monotonic() + JUDGE_S))
        following = Poll(cursor=found.next_cursor, limit=poll.limit, min_severity=poll.min_severity)
        found = await read_page(run, following)
    return found


async def read_page(run: OpenRun, poll: Poll) -> Page:
    """The page for `poll` as it is now, read in a thread. Those who ask the same at the same time share one reading:
    a record wakes everybody who waits for it at once.
    """
    reading = run.readings.get(poll)
    if reading is None:
        read = partial(page, limit=poll.limit, min_severity=poll.min_severity)
        reading = run.readings[poll] = asyncio.ensure_future(in_thread(read, run, poll.cursor))
        reading.add_done_callback(partial(_forget, run, poll))
    found: Page = await asyncio.shield(reading)  # whoever goes away leaves it to the others
    return found


def _forget(run: OpenRun, poll: Poll, reading: "asyncio.Future[Page]") -> None:
    del run.readings[poll]
    if not reading.cancelled():
        reading.exception()  # everybody who waited has heard of it, or went away


def _is_news(found: Page, writer: str) -> bool:
    return bool(found.records) or found.reset or found.has_more or found.writer.state != writer


async def _changed(run: OpenRun, stamp: tuple[int, int, int], until: float) -> tuple[int, int, int]:
    """The stamp of the feed once it is another one than `stamp`, or when the time is up."""
    while (seen := run.feed_stamp()) == stamp and time.monotonic() < until:
        await anyio.sleep(min(LOOK_S, max(0.0, until - time.monotonic())))
    return seen
