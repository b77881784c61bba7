"""The control door: requests that arrive as files are answered within a second and carried out at the step barrier.

control/<id>.json --> door's thread: checks, answers (`control_answered`) --> pending --> barrier, in the main thread:
                                                                                knob changes, pause, checkpoint

The thread polls whatever the learner does, also while it waits or is paused. What it accepts is checked again at the
barrier, because the run goes on in between; a request that fails there is answered a second time, as refused, and
nothing of it is done. Two requests at once are two in a row: the second one is judged by what the first one will
leave behind.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from tocsin.diagnostics.admission import Admitted, Refused, Situation, admit, admit_at_barrier, with_values
from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.control import CONTROL_FOLDER
from tocsin.diagnostics.jsonl import NotAFeed
from tocsin.diagnostics.reader import FeedReader
from tocsin.schemas.control import ControlRequest
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ComponentHeartbeat, ControlAnswered, RunContinued, RunPaused
from tocsin.schemas.knobs import Knobs, KnobValue
from tocsin.trainer.control_inbox import ControlInbox, Letter
from tocsin.trainer.control_memory import Earlier

POLL_S: Final = 0.25
REMEMBERED: Final = 10_000
"""Idempotency keys of accepted requests; the oldest are forgotten."""
PULSE_S: Final = 60.0
"""How often a paused run says that it is alive: silence would read as a hang."""
CLOSE_S: Final = 5.0

log: Final = logging.getLogger("tocsin")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Who asked for a knob change, and how."""

    actor: str
    request_id: str | None = None
    action_id: str | None = None
    idempotency_key: str | None = None
    note: str = ""


class Where(Protocol):
    """The part of the loop's position that requests are judged by."""

    step: int
    config_generation: int


class Barrier(Protocol):
    """What the door needs of the step loop."""

    knobs: Knobs

    @property
    def position(self) -> Where:
        """Where the run is."""
        ...

    def change_knobs(self, changes: Mapping[str, KnobValue], origin: Origin) -> None:
        """Give knobs new values, all of them."""
        ...

    def save(self) -> Path:
        """Write a checkpoint of the present barrier."""
        ...

    def idle(self) -> None:
        """Serve the rollout side for a moment while training stands still. Raises `Interrupted`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What the door knows about the attempt and whom it tells."""

    folder: Path
    """Of the run."""
    attempt: int
    launched: Knobs
    emit: Callable[[BaseEvent], None]
    stop: Callable[[ControlRequest], None]
    """Ask the run to end at the next barrier. Called in the door's thread."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Knobs that cannot change in this attempt, and why."""
    ceilings: Mapping[str, float] = field(default_factory=dict)
    """Largest values that this run can bear."""
    earlier: Earlier = field(default_factory=Earlier)
    """Requests of earlier attempts."""


class _Pending(NamedTuple):
    request: ControlRequest
    admitted: Admitted


class ControlDoor:
    """One run's door. `open`, `at_barrier` and `close` belong to the main thread."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._inbox = ControlInbox(desk.folder / CONTROL_FOLDER)
        self._feed = FeedReader(desk.folder)
        self._lost = desk.earlier.take_lost()
        self._accepted = desk.earlier.keys
        """Idempotency keys in use, with the reasons given."""
        self._guard = threading.RLock()
        """Held while a request is judged, and while one that changes knobs is applied: `pending` and the loop's
        knobs are then one consistent picture."""
        self._pending: deque[_Pending] = deque()
        self._is_paused = False
        """As it will be when everything pending is carried out."""
        self._previous: dict[str, KnobValue] = {}
        """Values before the newest change through this door."""
        self._is_over = False
        self._loop: Barrier | None = None
        self._closing = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="tocsin-control", daemon=True)

    def open(self, loop: Barrier) -> None:
        """Start to answer requests about `loop`, beginning with those that an earlier attempt left undone."""
        self._loop = loop
        for answer in self._lost:
            self._desk.emit(answer)
        self._thread.start()

    def close(self) -> None:
        """Refuse what was not carried out and what still lies in the inbox, and end."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        with self._guard:
            self._is_over = True
            while self._pending:
                self._refuse(self._pending.popleft().request, "the run ended before it could be carried out")
        if self._loop is not None:
            self.poll()

    def at_barrier(self) -> None:
        """Carry out what was accepted. Blocks while the run is paused, and raises `Interrupted` there."""
        while (item := self._next()) is not None:
            self._carry_out(item)

    def hold(self, actor: str, reason: str) -> None:
        """Stand still at this barrier as if `actor` had asked for it, until somebody asks to go on."""
        with self._guard:
            self._is_paused = True
        self._stand_still(actor, reason)

    def poll(self) -> None:
        """Answer what arrived, a bounded number of requests."""
        try:
            for letter in self._inbox.letters():
                self._answer(letter)
        except Exception:  # the boundary around training: a faulty door costs itself, never the run
            if not self._has_failed:
                self._has_failed = True
                log.exception("tocsin control: requests could not be read; training is not affected")

    def _run(self) -> None:
        while not self._closing.wait(POLL_S):
            self.poll()

    def _answer(self, letter: Letter) -> None:
        request = letter.request
        if request is None:
            self._desk.emit(
                ControlAnswered(request_id=letter.id, state="refused", reason=letter.problem, actor="unknown")
            )
            return
        with self._guard:
            earlier = self._accepted.get(request.idempotency_key)
            if earlier is not None:
                self._desk.emit(_answer(request, "duplicate", earlier))
                return
            try:
                admitted = admit(request, self._situation(request), now=utc_text())
            except Refused as error:
                self._desk.emit(_answer(request, "refused", str(error)))
                return
            self._accept(request, admitted)

    def _situation(self, request: ControlRequest) -> Situation:
        """The run as it will be when everything pending is carried out."""
        if self._is_over:
            raise Refused("the run has ended; tocsin train --resume goes on with it")
        loop, desk = self._loop, self._desk
        assert loop is not None
        knobs, generation = loop.knobs, loop.position.config_generation
        for item in self._pending:
            with contextlib.suppress(Refused):  # it will be refused at the barrier, and change nothing
                knobs = with_values(knobs, {patch.path: patch.to for patch in item.admitted.patches})
                generation += len(item.admitted.patches)
        return Situation(
            attempt=desk.attempt,
            step=loop.position.step,
            config_generation=generation,
            knobs=knobs,
            launched=desk.launched,
            is_paused=self._is_paused,
            fixed=desk.fixed,
            ceilings=desk.ceilings,
            previous=self._previous,
            findings=self._open_findings() if request.verb == "act" else (),
        )

    def _open_findings(self) -> list[Diagnostic]:
        try:
            return self._feed.active()
        except (OSError, NotAFeed) as error:
            raise Refused(f"the feed must be readable to find the action: {error}") from error

    def _accept(self, request: ControlRequest, admitted: Admitted) -> None:
        self._accepted[request.idempotency_key] = admitted.effect
        if len(self._accepted) > REMEMBERED:
            del self._accepted[next(iter(self._accepted))]
        answer = _answer(request, "accepted", admitted.effect)
        self._desk.emit(answer.model_copy(update={"patches": list(admitted.patches)}))
        if request.verb == "stop":
            self._desk.stop(request)
        elif request.verb != "silence":  # which the engine does when it sees the answer
            self._pending.append(_Pending(request, admitted))
        if request.verb in ("pause", "resume"):
            self._is_paused = request.verb == "pause"

    def _refuse(self, request: ControlRequest, reason: str) -> None:
        """Take an acceptance back. Nothing was done, so that the same key may be used again."""
        self._accepted.pop(request.idempotency_key, None)
        self._desk.emit(_answer(request, "refused", reason))

    def _next(self) -> _Pending | None:
        """The next pending request that takes time; knob changes before it are applied on the way."""
        with self._guard:
            while self._pending:
                item = self._pending[0]
                if item.admitted.patches:
                    self._apply(item)
                self._pending.popleft()
                if not item.admitted.patches:
                    return item
        return None

    def _apply(self, item: _Pending) -> None:
        request, loop = item.request, self._loop
        assert loop is not None
        changes = request.model_copy(update={"verb": "set", "patches": list(item.admitted.patches)})
        now = Situation(
            attempt=self._desk.attempt,
            step=loop.position.step,
            config_generation=loop.position.config_generation,
            knobs=loop.knobs,
            launched=self._desk.launched,
            is_paused=self._is_paused,
            previous=self._previous,
        )
        try:
            admitted = admit_at_barrier(changes, now)
        except Refused as error:
            self._refuse(request, f"at the barrier: {error}")
            return
        origin = Origin(
            actor=request.actor,
            request_id=request.id,
            action_id=request.action_id,
            idempotency_key=request.idempotency_key,
            note=request.note,
        )
        loop.change_knobs({patch.path: patch.to for patch in admitted.patches}, origin)
        self._previous |= {patch.path: patch.expect for patch in admitted.patches if patch.expect is not None}

    def _carry_out(self, item: _Pending) -> None:
        assert self._loop is not None
        if item.request.verb == "pause":
            self._stand_still(item.request.actor, item.request.note)
        elif item.request.verb == "checkpoint":
            try:
                self._loop.save()
            except OSError as error:  # a full disk: the run goes on, and the asker learns of it
                self._refuse(item.request, f"the checkpoint could not be written: {error}")

    def _stand_still(self, actor: str, reason: str) -> None:
        """Serve everything but training until somebody asks to go on."""
        assert self._loop is not None
        began = pulse = time.monotonic()
        self._desk.emit(RunPaused(actor=actor, reason=reason))
        while (item := self._next()) is None or item.request.verb != "resume":
            if item is not None:
                self._carry_out(item)
                continue
            self._loop.idle()
            if time.monotonic() - pulse > PULSE_S:
                pulse = time.monotonic()
                detail = f"paused by {actor}"
                self._desk.emit(ComponentHeartbeat(component="learner", state="alive", detail=detail))
        self._desk.emit(RunContinued(actor=item.request.actor, paused_s=time.monotonic() - began))


def _answer(request: ControlRequest, state: str, reason: str) -> ControlAnswered:
    return ControlAnswered.model_validate(
        {
            "request_id": request.id,
            "verb": request.verb,
            "state": state,
            "reason": reason,
            "actor": request.actor,
            "idempotency_key": request.idempotency_key,
            "action_id": request.action_id,
            "patches": request.patches,
            "code": request.code,
            "until_step": request.until_step,
            "note": request.note,
        }
    )
