"""What became of a request at the control door, in words: for the command line and for the network alike."""

from typing import Final

from tocsin.diagnostics import render
from tocsin.diagnostics.control import Outcome
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import CheckpointSaved, KnobChanged, RunContinued, RunEnded, RunPaused

NOT_YET: Final = "not carried out yet; the run is in the middle of a step"


def told(outcome: Outcome) -> list[str]:
    """What became of a request that was accepted, line by line."""
    assert outcome.answer is not None
    reason = render.clean(outcome.answer.reason)
    if outcome.state == "duplicate":
        return [f"duplicate: an earlier request with this key was accepted: {reason}"]
    later = [] if outcome.is_final else [NOT_YET]
    return [f"accepted: {reason}", *map(effect, outcome.effects), *later]


def unanswered(timeout_s: float) -> str:
    """Why nothing is known about a request."""
    return f"no answer within {timeout_s:g} s; the request was withdrawn, so nothing will change"


def effect(event: BaseEvent) -> str:
    """`applied at step 12: learning_rate 0.0001 -> 5e-05`. For the events that can follow from a request."""
    where = f"at step {event.step}"
    if isinstance(event, KnobChanged):
        return f"applied {where}: {event.path} {render.value(event.before)} -> {render.value(event.after)}"
    if isinstance(event, RunPaused):
        return f"paused {where}"
    if isinstance(event, RunContinued):
        return f"went on {where} after {event.paused_s:.1f} s"
    if isinstance(event, CheckpointSaved):
        return f"saved {where}: {render.clean(event.path)}"
    assert isinstance(event, RunEnded), "nothing else follows from a request"
    return f"ended {where}: {event.outcome}"
