"""The feed as server-sent events: one event per record, with its cursor as `id`, so that a reader that comes back with
`Last-Event-ID` misses nothing.

Pages are pulled from the file as fast as the reader takes them: nothing is queued for a slow one.
"""

from collections.abc import AsyncIterator
from typing import Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from tocsin.diagnostics.follow import page_line
from tocsin.diagnostics.serve.operations import OpenRun
from tocsin.diagnostics.serve.waiting import OVER, Poll, next_page, read_page
from tocsin.schemas.base import Model
from tocsin.schemas.feed import Page

PAGE: Final = 100
"""Records that are read at one time."""
WAIT_S: Final = 10.0
PING_S: Final = 15
"""Silence after which a comment is sent, so that nothing between here and there takes the connection for dead."""
SEND_S: Final = 30.0
"""A reader that takes nothing for this long is let go; it can come back with its cursor."""


async def stream(run: OpenRun, poll: Poll) -> Response:
    """The events after `poll.cursor`; no content for somebody who has read all of a run that is over.

    Raises `NotAFeed`, `BadCursor`, `OSError`.
    """
    first = await read_page(run, Poll(cursor=poll.cursor, limit=PAGE, min_severity=poll.min_severity))
    if poll.cursor is not None and _is_end(first) and not first.records and not first.reset:
        return Response(status_code=204)  # the one answer after which a browser does not come back
    return EventSourceResponse(_events(run, poll, first), ping=PING_S, send_timeout=SEND_S, sep="\n")


def _is_end(page: Page) -> bool:
    return page.writer.state in OVER and not page.has_more


async def _events(run: OpenRun, poll: Poll, page: Page) -> AsyncIterator[ServerSentEvent]:
    """Records as they come. An event `page` precedes them when reading started over, and follows when anything
    changed that records do not say: the writer, what is open, how far a filter has read."""
    said = ""
    while True:
        if page.reset:
            yield _event("page", page_line(page))
        epoch = page.next_cursor.partition(".")[0]
        for record in page.records:
            yield _event(record.record, record, f"{epoch}.{record.seq}")
        line = page_line(page)
        now = line.model_copy(update={"writer": line.writer.model_copy(update={"last_event_age_s": None, "step": 0})})
        if now.model_dump_json() != said:
            said = now.model_dump_json()
            yield _event("page", line, page.next_cursor)
        if _is_end(page):
            return
        following = Poll(cursor=page.next_cursor, limit=PAGE, min_severity=poll.min_severity)
        page = await next_page(run, following, WAIT_S)


def _event(name: str, content: Model, id: str | None = None) -> ServerSentEvent:
    return ServerSentEvent(content.model_dump_json(exclude_none=True, ensure_ascii=True), event=name, id=id, sep="\n")
