"""A run folder with a control door, and a stand-in for the step loop, for tests of the receiving side."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.diagnostics.admission import knob, with_values
from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.feed import RunWriter
from tocsin.schemas.control import ControlRequest
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import CheckpointSaved, ControlAnswered, KnobChanged
from tocsin.schemas.knobs import Knobs, KnobValue
from tocsin.trainer.control import ControlDoor, Desk, Origin

LAUNCHED = Knobs(learning_rate=1e-4)


@dataclass
class Position:
    """Where the stand-in is."""

    step: int = 40
    config_generation: int = 0


@dataclass
class Loop:
    """The step loop as the door sees it: knobs that change, checkpoints that are counted."""

    emit: Callable[[BaseEvent], None]
    knobs: Knobs = LAUNCHED
    position: Position = field(default_factory=Position)
    while_idle: Iterator[Callable[[], None]] = field(default_factory=lambda: iter(()))
    disk_is_full: bool = False

    def change_knobs(self, changes: Mapping[str, KnobValue], origin: Origin) -> None:
        before, self.knobs = self.knobs, with_values(self.knobs, changes)
        for path in changes:
            self.position.config_generation += 1
            own = {"config_generation": self.position.config_generation, "effective_step": self.position.step}
            values = {"before": knob(before, path), "after": knob(self.knobs, path)}
            self.emit(KnobChanged(path=path, **own, **values, **vars(origin)))

    def save(self) -> Path:
        if self.disk_is_full:
            raise OSError(28, "No space left on device")
        self.emit(CheckpointSaved(path="checkpoints/step-000040", seconds=0.1, bytes=1))
        return Path("checkpoints/step-000040")

    def idle(self) -> None:
        next(self.while_idle)()


@dataclass
class Room:
    """A run folder with its door."""

    folder: Path
    writer: RunWriter
    events: list[BaseEvent]
    loop: Loop
    door: ControlDoor
    stopped: list[ControlRequest]

    @property
    def control(self) -> Path:
        return self.folder / "control"

    def ask(self, verb: str = "set", **changes: Any) -> str:
        """Put a request into the inbox; returns its id."""
        content = request(verb, **changes)
        self.put(f"{content['id']}.json", json.dumps(content))
        return str(content["id"])

    def put(self, name: str, content: str | bytes) -> None:
        (self.control / name).write_bytes(content.encode() if isinstance(content, str) else content)

    def answers(self) -> list[tuple[str, str]]:
        """State and reason of everything that was answered since the last call."""
        found = [(event.state, event.reason) for event in self.events if isinstance(event, ControlAnswered)]
        self.events[:] = [event for event in self.events if not isinstance(event, ControlAnswered)]
        return found

    def polled(self) -> list[tuple[str, str]]:
        self.door.poll()
        return self.answers()


NEXT_ID = iter(range(1, 10**6))


def request(verb: str = "set", **changes: Any) -> dict[str, Any]:
    id = f"{next(NEXT_ID):016x}"
    content = {
        "id": id,
        "idempotency_key": id,
        "actor": "agent:nightwatch",
        "created": utc_text(),
        "expires": utc_text(time.time() + 60),
        "attempt": 1,
        "verb": verb,
    }
    if verb == "set" and "patches" not in changes:
        content["patches"] = [{"path": "learning_rate", "to": 5e-5}]
    return {**content, **changes}


def patches(**values: KnobValue) -> list[dict[str, Any]]:
    return [{"path": path, "to": to} for path, to in values.items()]


def make_room(folder: Path, writer: RunWriter) -> Room:
    """The door of the run in `folder`. Tests poll by hand; `open` starts the thread."""
    events: list[BaseEvent] = []
    stopped: list[ControlRequest] = []
    desk = Desk(folder=folder, attempt=1, launched=LAUNCHED, emit=events.append, stop=stopped.append)
    door, loop = ControlDoor(desk), Loop(events.append)
    door._loop = loop
    return Room(folder, writer, events, loop, door, stopped)
