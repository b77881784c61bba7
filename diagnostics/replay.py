"""A recorded run, judged again: the same engine over the same events gives the same records."""

from collections.abc import Iterable, Iterator

from tocsin.diagnostics.engine import Engine, Record
from tocsin.schemas.event import BaseEvent


def replay(events: Iterable[BaseEvent], engine: Engine) -> Iterator[Record]:
    """Every record that `engine` has for `events`, in the order of the feed. Write metadata (`seq`) is left at 0."""
    for event in events:
        yield from engine.observe(event)
