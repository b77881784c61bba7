"""The asking side of the control door: look at a run, write a request, hand it in, and wait for the answer.

    look = look_at(folder)                                     # what the files say
    request = ask_set(look, asker, {"learning_rate": 1e-5})    # optimistic locks are taken from the look
    foresee(look, request)                                     # the dry run: raises `Refused` with the reason
    outcome = await_outcome(folder, request, submit(folder, request), timeout_s=10)

A request is a file in `control/`, written aside and renamed. Nothing here changes a run; the trainer alone does.
"""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from tocsin.diagnostics.action_log import CARRIED_OUT
from tocsin.diagnostics.admission import Admitted, Refused, Situation, admit
from tocsin.diagnostics.clock import utc_text
from tocsin.diagnostics.feed import EVENTS_FILE, parse_event
from tocsin.diagnostics.jsonl import NotAFeed, lines_backwards, read_header
from tocsin.diagnostics.reader import FeedReader
from tocsin.diagnostics.runs import read_manifest
from tocsin.diagnostics.watch import EventTail
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.config import describe_errors
from tocsin.schemas.control import ControlRequest, KnobPatch, Verb
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    ControlAnswered,
    KnobChanged,
    RunContinued,
    RunPaused,
    RunResumed,
    RunStarted,
)
from tocsin.schemas.feed import WriterState
from tocsin.schemas.knobs import Knobs, KnobValue

CONTROL_FOLDER: Final = "control"
ANSWER_S: Final = 10.0
"""How long an answer is waited for. It comes within a second while the run lives."""
LIFE_S: Final = 60.0
"""A request that nobody has read by then is refused."""
POLL_S: Final = 0.1
VERDICTS: Final = ("target_met", "no_effect", "harmed", "inconclusive", "confounded", "reverted", "expired")
"""States in which the story of an action ends."""
NO_REFERENCE: Final = "this attempt started with `kl_beta` = 0 and loaded no reference model"

FOLLOWS: Final[dict[Verb, type[BaseEvent]]] = {verb: kind for kind, verb in CARRIED_OUT.items()}
"""The event that follows an accepted request of these verbs."""


class NobodyReads(Refused):
    """The run is over or dead, so that nobody would read a request."""


@dataclass(frozen=True, kw_only=True)
class Asker:
    """Who asks, and how the request is told apart."""

    actor: str
    idempotency_key: str | None = None
    """None for a key of its own."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What the files of a run say at one moment."""

    folder: Path
    situation: Situation
    writer: WriterState


def look_at(folder: Path) -> Look:
    """The present state of a run. Raises `RunNotFound`, `BadManifest`, `NotAFeed`."""
    manifest = read_manifest(folder)
    reader = FeedReader(folder)
    writer = reader.writer_state()
    seen = _this_attempt(folder / EVENTS_FILE)
    attempt = len(manifest.attempts)
    begun = seen.begun.knobs if seen.begun is not None else manifest.config.knobs.model_dump()
    knobs = Knobs.model_validate({**begun, **{change.path: change.after for change in seen.changes}})
    situation = Situation(
        attempt=attempt,
        step=writer.step,
        config_generation=seen.config_generation,
        knobs=knobs,
        launched=manifest.config.knobs,
        is_paused=seen.is_paused,
        fixed={} if begun["kl_beta"] else {"kl_beta": NO_REFERENCE},
        previous={change.path: change.before for change in seen.changes},
        findings=reader.active(),
    )
    return Look(folder, situation, writer)


@dataclass
class _Seen:
    """The newest attempt, from its events."""

    begun: RunStarted | RunResumed | None = None
    changes: list[KnobChanged] = field(default_factory=list)
    """Oldest first."""
    is_paused: bool = False
    config_generation: int = 0


MARKS: Final = tuple(
    f'"{kind.model_fields["type"].default}"'.encode()
    for kind in (RunStarted, RunResumed, KnobChanged, RunPaused, RunContinued)
)
"""Texts of which a line of interest contains one, so that the other lines need no parsing."""


def _this_attempt(path: Path) -> _Seen:
    """Read backwards to the start of the newest attempt. Nothing when there is no file yet."""
    seen = _Seen()
    paused: bool | None = None
    for event in _newest_first(path):
        if isinstance(event, KnobChanged):
            seen.changes.insert(0, event)
        elif isinstance(event, RunPaused | RunContinued) and paused is None:
            paused = isinstance(event, RunPaused)
        seen.config_generation = max(seen.config_generation, event.config_generation)
        if isinstance(event, RunStarted | RunResumed):
            seen.begun = event
            break
    seen.is_paused = bool(paused)
    return seen


def _newest_first(path: Path) -> Iterator[BaseEvent]:
    try:
        _, start = read_header(path, "events")
    except NotAFeed:
        return
    with path.open("rb") as file:
        for line in lines_backwards(file, start, file.seek(0, os.SEEK_END)):
            event = parse_event(line) if any(mark in line for mark in MARKS) else None
            if event is not None:
                yield event


def ask_set(
    look: Look, asker: Asker, changes: Mapping[str, KnobValue], expected: Mapping[str, KnobValue] = {}
) -> ControlRequest:
    """A request for new knob values. What is not in `expected` is expected to be as the look saw it.

    Raises `ValueError`, as all requests do for an actor, key or note that is out of form.
    """
    known = {**look.situation.knobs.model_dump(), **expected}
    patches = [KnobPatch(path=path, expect=known.get(path), to=to) for path, to in changes.items()]
    return _request(look, asker, "set", {"patches": patches, "config_generation": look.situation.config_generation})


def ask_act(look: Look, asker: Asker, action_id: str, values: Mapping[str, KnobValue] = {}) -> ControlRequest:
    """A request to apply an action of an open diagnostic; `values` are those that a placeholder leaves open."""
    patches = [KnobPatch(path=path, to=to) for path, to in values.items()]
    generation = look.situation.config_generation
    return _request(look, asker, "act", {"action_id": action_id, "patches": patches, "config_generation": generation})


def ask_revert(look: Look, asker: Asker, action_id: str, patches: Sequence[KnobPatch]) -> ControlRequest:
    """A request to take an action back: the knobs get the values that they had before it."""
    generation = look.situation.config_generation
    return _request(
        look, asker, "set", {"action_id": action_id, "patches": list(patches), "config_generation": generation}
    )


def ask_silence(look: Look, asker: Asker, code: str, steps: int) -> ControlRequest:
    """A request to hold back the records of a rule for some steps; 0 ends a silence."""
    return _request(look, asker, "silence", {"code": code, "until_step": look.situation.step + steps})


def ask(look: Look, asker: Asker, verb: Literal["pause", "resume", "checkpoint", "stop"]) -> ControlRequest:
    """A request without further content."""
    return _request(look, asker, verb, {})


def _request(look: Look, asker: Asker, verb: Verb, content: dict[str, Any]) -> ControlRequest:
    id, now = secrets.token_hex(8), time.time()
    envelope = {
        "id": id,
        "idempotency_key": asker.idempotency_key if asker.idempotency_key is not None else id,
        "actor": asker.actor,
        "note": asker.note,
        "created": utc_text(now),
        "expires": utc_text(now + LIFE_S),
        "attempt": look.situation.attempt,
        "verb": verb,
    }
    try:
        return ControlRequest.model_validate({**envelope, **content})
    except ValidationError as error:
        raise ValueError(describe_errors(error.errors(), source="request")) from None


def foresee(look: Look, request: ControlRequest) -> Admitted:
    """What the trainer would do, as far as the files tell. Raises `Refused`, of which `NobodyReads`."""
    check_reader(look)
    return admit(request, look.situation, now=utc_text())


def check_reader(look: Look) -> None:
    """Raises `NobodyReads` for a run that is over, and `Refused` when it belongs to another user."""
    if look.writer.state in ("dead", "ended"):
        what = "is dead" if look.writer.state == "dead" else "has ended"
        raise NobodyReads(
            f"the run {what}: nobody would read the request; unless all its steps are done, "
            "tocsin train --resume goes on with it"
        )
    owner = (look.folder / CONTROL_FOLDER).stat().st_uid
    if owner != os.geteuid():
        raise Refused(f"the request must come from user {owner}, who owns the run, got user {os.geteuid()}")


def submit(folder: Path, request: ControlRequest) -> EventTail:
    """Hand a request in; returns the events that follow. Raises `OSError`, `NotAFeed`."""
    tail = EventTail(folder / EVENTS_FILE)
    tail.skip()
    control = os.open(folder / CONTROL_FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        aside, final = f".{request.id}", f"{request.id}.json"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(aside, flags, 0o600, dir_fd=control), "wb") as file:
            file.write(request.model_dump_json(exclude_none=True).encode())
        os.rename(aside, final, src_dir_fd=control, dst_dir_fd=control)
    finally:
        os.close(control)
    return tail


def withdraw(folder: Path, request: ControlRequest) -> bool:
    """Take a request back that nobody has read; whether it was still there."""
    path = folder / CONTROL_FOLDER / f"{request.id}.json"
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()
            return True
    return False


@dataclass
class Outcome:
    """What became of a request."""

    answer: ControlAnswered | None = None
    """The newest; a request that was accepted may still be refused at the barrier."""
    effects: list[BaseEvent] = field(default_factory=list)
    """What it led to: knob changes, pause, checkpoint, end of the run."""

    @property
    def state(self) -> Literal["unanswered", "accepted", "applied", "duplicate", "refused"]:
        """How far it came. A silence is applied by being accepted."""
        if self.answer is None:
            return "unanswered"
        if self.answer.state != "accepted":
            return self.answer.state
        needed = 0 if self.answer.verb == "silence" else max(1, len(self.answer.patches))
        return "applied" if len(self.effects) >= needed else "accepted"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will be heard."""
        return self.state in ("applied", "duplicate", "refused")

    def take(self, event: BaseEvent, request: ControlRequest) -> None:
        """Count one event in."""
        if isinstance(event, ControlAnswered):
            self.answer = event if event.request_id == request.id else self.answer
        elif isinstance(event, KnobChanged):
            self.effects += [event] if event.request_id == request.id else []
        elif self.answer is not None and isinstance(event, FOLLOWS.get(request.verb, ())):
            self.effects.append(event)


def await_outcome(folder: Path, request: ControlRequest, tail: EventTail, *, timeout_s: float) -> Outcome:
    """Wait until the request is carried out or refused, the run is over, or the time is up.

    A request without any answer by then is withdrawn, so that it cannot be carried out behind the asker's back; look
    at `Outcome.state` all the same, because the answer may come at this very moment.
    """
    outcome, reader = Outcome(), FeedReader(folder)
    deadline = time.monotonic() + timeout_s
    is_over = False
    while not is_over and not outcome.is_final:
        is_over = time.monotonic() > deadline or reader.writer_state().state in ("dead", "ended")
        if is_over and outcome.answer is None and not withdraw(folder, request):
            time.sleep(5 * POLL_S)  # it is being read at this moment
        for event in tail.new():
            outcome.take(event, request)
        if not outcome.is_final and not is_over:
            time.sleep(POLL_S)
    return outcome


def carry_out(look: Look, request: ControlRequest, *, timeout_s: float) -> Outcome:
    """Hand a request in and wait for what becomes of it, as `await_outcome` does.

    Raises `Refused`, of which `NobodyReads`, when it cannot be handed in, and `OSError`.
    """
    check_reader(look)
    return await_outcome(look.folder, request, submit(look.folder, request), timeout_s=timeout_s)


def await_verdict(folder: Path, action_id: str, cursor: str) -> ActionRecord | None:
    """The verdict on an action among the records after `cursor`; None when the run is over without one."""
    reader = FeedReader(folder)
    is_over = False
    while True:
        page = reader.page(cursor, limit=1000)
        for record in page.records:
            if isinstance(record, ActionRecord) and record.action_id == action_id and record.state in VERDICTS:
                return record
        cursor = page.next_cursor
        if page.has_more:
            continue
        if is_over:
            return None
        is_over = page.writer.state in ("dead", "ended")
        time.sleep(0 if is_over else 5 * POLL_S)
