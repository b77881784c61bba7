"""Line formats of a run folder and the page that a reader gets.

`events.jsonl` and `feed.jsonl` hold one JSON object per line. The first line of each is a `Header`; its `epoch`
changes when the file is replaced, so that a cursor `"<epoch>.<seq>"` of the old file is recognised.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Discriminator, Field, FiniteFloat, Tag, TypeAdapter

from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.base import SCHEMA_VERSION, Count, Model, Timestamp
from tocsin.schemas.diagnosis import Coverage, Diagnostic

RECORD_KINDS: Final = ("diagnostic", "action", "coverage")


class Header(Model):
    """First line of `events.jsonl` and `feed.jsonl`."""

    record: Literal["header"] = "header"
    schema_version: str = SCHEMA_VERSION
    contents: Literal["events", "feed"]
    run_id: str
    epoch: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    created: Timestamp


class UnknownRecord(Model):
    """A feed record of a newer version."""

    model_config = ConfigDict(extra="allow")
    record: str
    seq: Count = 0


def _tag(value: Any) -> str:
    kind = value.get("record") if isinstance(value, dict) else getattr(value, "record", None)
    return kind if isinstance(kind, str) and kind in RECORD_KINDS else "unknown"


FeedRecord = Annotated[
    Annotated[Diagnostic, Tag("diagnostic")]
    | Annotated[ActionRecord, Tag("action")]
    | Annotated[Coverage, Tag("coverage")]
    | Annotated[UnknownRecord, Tag("unknown")],
    Discriminator(_tag),
    Field(description="One line of feed.jsonl after the header."),
]

FEED_RECORD: Final[TypeAdapter[Diagnostic | ActionRecord | Coverage | UnknownRecord]] = TypeAdapter(FeedRecord)
"""Parses any feed record. Use with `tocsin.schemas.base.read`."""


class ActiveCounts(Model):
    """Open diagnostics by severity, without those that another open one explains and stands for."""

    critical: Count = 0
    warning: Count = 0
    info: Count = 0
    explained: Count = 0
    """Open diagnostics that are left out of the other counts; see `Diagnostic.suppressed`."""


class WriterState(Model):
    """Whether anybody still writes. Computed by the reader from lock, process and age; never taken from the file."""

    state: Literal["alive", "starting", "stalled", "dead", "ended"]
    """`starting`: the process lives and loads, and its attempt has said nothing yet. `stalled`: it has said nothing
    for too long. `dead`: it is gone and never said that it ended."""
    attempt: Count | None = None
    """The attempt that is starting, from 1; absent in other states."""
    last_event_age_s: FiniteFloat | None = None
    """Seconds since the last line of `events.jsonl`; absent when there is none."""
    step: Count


class Page(Model):
    """Answer to one poll. Pass `next_cursor` with the next one."""

    records: list[FeedRecord]
    next_cursor: str
    """Opaque. Advances over records that a filter left out."""
    has_more: bool
    reset: bool
    """The file was replaced or truncated since the cursor was made; reading started over."""
    active: ActiveCounts
    writer: WriterState
