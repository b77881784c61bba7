"""What earlier attempts of a run accepted, read from its events: a resumed run must not apply a request twice.

A request that was accepted and not carried out when the process was killed is answered as lost. Its key, and that of
a change which the resume undid because it is later than the checkpoint, may be used again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tocsin.diagnostics.feed import parse_event
from tocsin.diagnostics.jsonl import lines, read_header
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ControlAnswered, KnobChanged, RunResumed

MARKS: Final = tuple(
    f'"{kind.model_fields["type"].default}"'.encode() for kind in (ControlAnswered, KnobChanged, RunResumed)
)
"""Texts of which a line of interest contains one."""


@dataclass
class Earlier:
    """Requests of earlier attempts."""

    accepted: dict[str, ControlAnswered] = field(default_factory=dict)
    """By id: what was accepted and not taken back."""
    changed_at: dict[str, int] = field(default_factory=dict)
    """By id: config generation that its last knob change led to."""

    @property
    def keys(self) -> dict[str, str]:
        """Idempotency keys that count as used, with the reasons given."""
        return {answer.idempotency_key: answer.reason for answer in self.accepted.values() if answer.idempotency_key}

    def take_lost(self) -> list[ControlAnswered]:
        """Take out what was accepted and never done, as the answers that are due for it."""
        lost = [
            answer
            for id, answer in self.accepted.items()
            if answer.verb in ("set", "act") and id not in self.changed_at
        ]
        for answer in lost:
            del self.accepted[answer.request_id]
        reason = "lost: the run was killed before it was carried out; nothing was changed, ask again"
        return [_unstamped(answer, reason) for answer in lost]

    def rewind(self, config_generation: int) -> None:
        """Forget the changes that a checkpoint of this generation does not hold."""
        for id in [id for id, generation in self.changed_at.items() if generation > config_generation]:
            del self.changed_at[id]
            self.accepted.pop(id, None)

    def take(self, event: BaseEvent) -> None:
        """Count one event in."""
        if isinstance(event, RunResumed):
            self.rewind(event.config_generation)
        elif isinstance(event, KnobChanged) and event.request_id is not None:
            self.changed_at[event.request_id] = event.config_generation
        elif isinstance(event, ControlAnswered) and event.state == "accepted":
            self.accepted[event.request_id] = event
        elif isinstance(event, ControlAnswered) and event.state == "refused":
            self.accepted.pop(event.request_id, None)


def read_earlier(path: Path, config_generation: int) -> Earlier:
    """Requests of the attempts in an `events.jsonl`, as seen from a checkpoint. Raises `NotAFeed`."""
    earlier = Earlier()
    for event in _marked(path):
        earlier.take(event)
    earlier.rewind(config_generation)
    return earlier


def _marked(path: Path) -> Iterator[BaseEvent]:
    _, start = read_header(path, "events")
    with path.open("rb") as file:
        for line in lines(file, start):
            is_wanted = line.data is not None and any(mark in line.data for mark in MARKS)
            event = parse_event(line.data) if is_wanted else None
            if event is not None:
                yield event


def _unstamped(answer: ControlAnswered, reason: str) -> ControlAnswered:
    """The same request refused, for the present attempt to stamp."""
    own = {name: answer.__dict__[name] for name in ControlAnswered.model_fields if name not in BaseEvent.model_fields}
    return ControlAnswered(**{**own, "state": "refused", "reason": reason, "patches": []})
