"""Changes that somebody asks for over the network: what the question looks like, and what becomes of it.

Each is a dry run unless it says `apply`. The actor is never part of the question: the door knows who asks.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from tocsin.diagnostics.admission import Refused
from tocsin.diagnostics.answers import effect, unanswered
from tocsin.diagnostics.control import (
    ANSWER_S,
    Asker,
    Look,
    ask,
    ask_act,
    ask_set,
    ask_silence,
    carry_out,
    foresee,
    look_at,
)
from tocsin.diagnostics.render import clean
from tocsin.diagnostics.serve.operations import OpenRun
from tocsin.schemas.base import Count, Model
from tocsin.schemas.control import ControlRequest, Line, Verb
from tocsin.schemas.knobs import LIMITS, KnobValue, unknown_knob


class Unanswered(ValueError):
    """The run did not answer in time; the request was withdrawn."""


def _known(path: str) -> str:
    if path not in LIMITS:
        raise ValueError(unknown_knob(path[:60]))
    return path


def _whole(given: Any) -> Any:
    """JSON has one kind of number, in which 5.0 is the integer 5."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


KnobPath = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(LIMITS)})]
KnobValues = Annotated[dict[KnobPath, KnobValue], Field(max_length=16)]


class Ask(Model):
    """What every change may say."""

    apply: bool = False
    """Do it. Without, the answer says what would happen, and nothing changes."""
    idempotency_key: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
    """A second request with the key of an accepted one changes nothing and gets the same answer."""
    note: Line = ""
    """Why, on one line; it is kept with the change."""


class AskSet(Ask):
    """Change knobs at the next step barrier: all of them or none."""

    values: Annotated[KnobValues, Field(min_length=1)]
    """New values by knob."""
    expect: KnobValues = {}
    """Refuse unless these are in force; by default what is in force now."""


class AskAct(Ask):
    """Apply an action of an open diagnostic."""

    action_id: Annotated[str, Field(min_length=1, max_length=200)]
    values: KnobValues = {}
    """Values that a placeholder leaves open."""


class AskSilence(Ask):
    """Hold back the records of one rule."""

    code: Annotated[str, Field(pattern=r"^[A-Z]{3}[0-9]{3}$")]
    """Code of a rule."""
    steps: Annotated[int, Field(ge=0, le=10**9), BeforeValidator(_whole)]
    """For how long; 0 ends a silence."""


class Change(Model):
    """What a change did, or would do."""

    state: Literal["would_be_accepted", "accepted", "applied", "duplicate"]
    """`accepted`: it will be carried out at the next step barrier, which had not come when the answer was sent."""
    applied: bool
    """Whether anything was changed by this request."""
    reason: str
    """What happens, on one line."""
    effects: list[str]
    """What the run did."""
    config_generation: Count
    """Knob changes that the run had seen when this was asked."""
    request: ControlRequest


def _set(look: Look, asker: Asker, asked: Any) -> ControlRequest:
    if unused := ", ".join(asked.expect.keys() - asked.values.keys()):
        raise Refused(f"`expect` must name knobs that are set, got {unused}")
    return ask_set(look, asker, asked.values, asked.expect)


def _act(look: Look, asker: Asker, asked: Any) -> ControlRequest:
    return ask_act(look, asker, asked.action_id, asked.values)


def _silence(look: Look, asker: Asker, asked: Any) -> ControlRequest:
    return ask_silence(look, asker, asked.code, asked.steps)


def _plain(verb: Literal["pause", "resume", "checkpoint", "stop"]) -> Callable[[Look, Asker, Any], ControlRequest]:
    return lambda look, asker, asked: ask(look, asker, verb)


ASKS: Final[dict[Verb, tuple[type[Ask], Callable[[Look, Asker, Any], ControlRequest]]]] = {
    "act": (AskAct, _act),
    "set": (AskSet, _set),
    "silence": (AskSilence, _silence),
    "pause": (Ask, _plain("pause")),
    "resume": (Ask, _plain("resume")),
    "checkpoint": (Ask, _plain("checkpoint")),
    "stop": (Ask, _plain("stop")),
}
"""What a verb is asked with, and the request that it becomes."""


def change(run: OpenRun, verb: Verb, asked: Ask, actor: str) -> Change:
    """Foresee the answer of the run, or with `apply` ask and wait for it, at most `ANSWER_S` seconds.

    Raises `Refused`, of which `NobodyReads`, with the reason, `Unanswered`, and `ValueError` for what is out of form.
    """
    look = look_at(run.folder)
    asker = Asker(actor=actor, idempotency_key=asked.idempotency_key, note=asked.note)
    request = ASKS[verb][1](look, asker, asked)
    if asked.apply:
        return _carried_out(look, request)
    return Change(
        state="would_be_accepted",
        applied=False,
        reason=clean(foresee(look, request).effect),
        effects=[],
        config_generation=look.situation.config_generation,
        request=request,
    )


def _carried_out(look: Look, request: ControlRequest) -> Change:
    outcome = carry_out(look, request, timeout_s=ANSWER_S)
    if outcome.answer is None:
        raise Unanswered(unanswered(ANSWER_S))
    if outcome.state == "refused":
        raise Refused(outcome.answer.reason)
    state = outcome.state
    assert state in ("accepted", "applied", "duplicate"), "the others were raised"
    return Change(
        state=state,
        applied=state == "applied",
        reason=clean(outcome.answer.reason),
        effects=[] if state == "duplicate" else [effect(event) for event in outcome.effects],
        config_generation=look.situation.config_generation,
        request=request,
    )
