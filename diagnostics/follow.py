"""Pages of a feed one after the other, for `tocsin feed`."""

import time
from collections.abc import Iterator
from typing import Final, Literal

from tocsin.diagnostics.reader import FeedReader
from tocsin.schemas.base import Model
from tocsin.schemas.diagnosis import Severity
from tocsin.schemas.feed import ActiveCounts, Page, WriterState

POLL_S: Final = 0.5
"""Pause between polls when everything is read."""


class PageLine(Model):
    """Last line of a page in `tocsin feed --json`: the page without its records."""

    record: Literal["page"] = "page"
    next_cursor: str
    has_more: bool
    reset: bool
    active: ActiveCounts
    writer: WriterState


def page_line(page: Page) -> PageLine:
    """What a program needs beside the records to go on and to judge the run."""
    return PageLine(**{name: part for name, part in page if name != "records"})


def follow(
    reader: FeedReader, first: Page, *, limit: int, min_severity: Severity | None, poll_s: float = POLL_S
) -> Iterator[Page]:
    """The pages after `first` that bring records or another state of the writer.

    Ends when the writer has ended or is dead and a poll made after that found nothing new.
    """
    page = first
    while True:
        if not page.has_more and page.writer.state in ("alive", "starting", "stalled"):
            time.sleep(poll_s)
        following = reader.page(page.next_cursor, limit=limit, min_severity=min_severity)
        if following.records or following.reset or following.writer.state != page.writer.state:
            yield following
        over = page.writer.state in ("ended", "dead") and following.next_cursor == page.next_cursor
        page = following
        if over:
            return
