"""A run folder with a real control door, whose loop is a small stand-in."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.diagnostics.run_folder import Run
from tests.trainer.control_room import Loop, Position
from tocsin.schemas.control import ControlRequest
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunEnded
from tocsin.schemas.knobs import Knobs
from tocsin.trainer.control import ControlDoor, Desk


@contextmanager
def served(run: Run) -> Iterator[Loop]:
    """A run whose door is open and that comes to a barrier a hundred times a second."""
    position, over = Position(step=3), threading.Event()

    def emit(event: BaseEvent) -> None:
        stamp = {"attempt": 1, "step": position.step, "ts": "2026-01-31T12:00:00.000Z"}
        run.writer.event(event.model_copy(update={**stamp, "config_generation": position.config_generation}))

    def stop(request: ControlRequest) -> None:
        emit(RunEnded(outcome="interrupted"))

    desk = Desk(folder=run.folder, attempt=1, launched=Knobs(), emit=emit, stop=stop)
    door = ControlDoor(desk)
    loop = Loop(emit, knobs=Knobs(), position=position)
    loop.while_idle = iter(lambda: lambda: over.wait(0.01), None)

    def barriers() -> None:
        while not over.wait(0.01):
            door.at_barrier()

    thread = threading.Thread(target=barriers)
    door.open(loop)
    thread.start()
    try:
        yield loop
    finally:
        over.set()
        thread.join()
        door.close()
        run.kill()
