"""Whether a request may be carried out. Pure: the asking side foresees with it what the trainer will answer.

The trainer asks twice, when it reads a request and again at the barrier where it changes something, because the run
goes on in between.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from tocsin.diagnostics.added_rules import added
from tocsin.diagnostics.causes import NEVER_HIDDEN
from tocsin.diagnostics.knob_patch import reach
from tocsin.diagnostics.render import clean, value
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.schemas.actions import Action, Patch
from tocsin.schemas.base import SCHEMA_VERSION
from tocsin.schemas.control import ControlRequest, KnobPatch, Verb
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.knobs import LIMITS, Effective, Knobs, KnobValue, unknown_knob

MAX_REASON: Final = 400
"""Characters of a reason; what a request contains may be quoted in it."""

EFFECT: Final[dict[Effective, str]] = {
    "next_step": "from the next step on",
    "next_opened_step": "for the next step whose slots open",
    "next_sampler_batch": "from the next sampler batch on",
    "next_sync": "from the next weight sync on",
}


class Refused(ValueError):
    """The request will not be carried out; the message is one line and says why."""

    def __init__(self, reason: str) -> None:
        short = clean(" ".join(reason.split()))
        super().__init__(short if len(short) <= MAX_REASON else f"{short[: MAX_REASON - 3]}...")


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What a request is judged by."""

    attempt: int
    step: int
    config_generation: int
    knobs: Knobs
    launched: Knobs
    """Values at the first launch of the run."""
    is_paused: bool
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Knobs that cannot change while this attempt runs, and why."""
    ceilings: Mapping[str, float] = field(default_factory=dict)
    """Largest values that this run can bear, where they are below the bounds of the registry."""
    previous: Mapping[str, KnobValue] = field(default_factory=dict)
    """Values before the newest change of a knob: to take a change back is always within reach."""
    findings: Sequence[Diagnostic] = ()
    """Open diagnostics, for `act`."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """What will happen."""

    patches: tuple[KnobPatch, ...]
    """Knob changes, each with the value in force as `expect`; all of them or none."""
    effect: str
    """One line."""


def admit(request: ControlRequest, situation: Situation, *, now: str) -> Admitted:
    """What the request does in this situation at the time `now`, a `Timestamp`. Raises `Refused`."""
    major = SCHEMA_VERSION.split(".")[0]
    if request.schema_version.split(".")[0] != major:
        raise Refused(f"`schema_version` must be {major}.x, got {request.schema_version}")
    if request.expires <= now:
        raise Refused(f"`expires` must lie in the future, got {request.expires or 'nothing'} at {now}; ask again")
    return admit_at_barrier(request, situation)


def admit_at_barrier(request: ControlRequest, situation: Situation) -> Admitted:
    """The part of `admit` that depends on the run alone. Raises `Refused`."""
    if request.attempt != situation.attempt:
        raise Refused(
            f"`attempt` must be {situation.attempt}, got {request.attempt}; "
            "the run was resumed in between: look at it and ask again"
        )
    if request.config_generation not in (None, situation.config_generation):
        raise Refused(
            f"`config_generation` must be {situation.config_generation}, got {request.config_generation}; "
            "a knob changed in between: look at its value and ask again"
        )
    return VERBS[request.verb](request, situation)


def _set(request: ControlRequest, situation: Situation) -> Admitted:
    return _changes(request.patches, situation)


def _act(request: ControlRequest, situation: Situation) -> Admitted:
    action = _open_action(request.action_id or "", situation.findings)
    if action.disabled is not None:
        raise Refused(f"action `{action.id}` must be enabled, and is not: {action.disabled}")
    if action.applicability == "advisory" or not action.patches:
        raise Refused(f"action `{action.id}` must have patches to apply, and is advice only: {action.title}")
    given = {patch.path: patch.to for patch in request.patches}
    patches = [_chosen(patch, given) for patch in action.patches]
    if given:
        raise Refused(f"action `{action.id}` computes the value of {', '.join(map(_quoted, given))}; give none")
    return _changes(patches, situation)


def _open_action(id: str, findings: Sequence[Diagnostic]) -> Action:
    actions = {action.id: action for finding in findings for action in finding.actions}
    if id not in actions:
        raise Refused(
            f"`action_id` must be an action of an open diagnostic, got `{id}`; there are: "
            f"{', '.join(map(_quoted, actions)) or 'none'}"
        )
    return actions[id]


def _chosen(patch: Patch, given: dict[str, KnobValue]) -> KnobPatch:
    """The action's patch with its value, which for a placeholder is taken out of `given`."""
    if patch.effective == "restart":
        raise Refused(f"`{patch.path}` must be a knob that can change in a running run; it needs a restart")
    if patch.to is not None:
        return KnobPatch(path=patch.path, expect=patch.expect, to=patch.to)
    if patch.path not in given:
        raise Refused(
            f"`{patch.path}` must be given a value between {value(patch.min)} and {value(patch.max)}; "
            f"for instance --value {patch.path}={value(patch.expect)}"
        )
    to = given.pop(patch.path)
    if not patch.min <= to <= patch.max:
        raise Refused(f"`{patch.path}` must be between {value(patch.min)} and {value(patch.max)}, got {_shown(to)}")
    return KnobPatch(path=patch.path, expect=patch.expect, to=to)


def _changes(patches: Sequence[KnobPatch], situation: Situation) -> Admitted:
    for patch in patches:
        _check_patch(patch, situation)
    changed = with_values(situation.knobs, {patch.path: patch.to for patch in patches})
    moved = []
    for patch in patches:
        before, after = knob(situation.knobs, patch.path), knob(changed, patch.path)
        if before != after:
            moved.append(KnobPatch(path=patch.path, expect=before, to=after))
    if not moved:
        raise Refused(f"{', '.join(f'`{p.path}` is {value(p.to)}' for p in patches)} already; nothing to change")
    effects = [f"{p.path} {value(p.expect)} -> {value(p.to)} {EFFECT[LIMITS[p.path].effective]}" for p in moved]
    return Admitted(tuple(moved), "; ".join(effects))


def _check_patch(patch: KnobPatch, situation: Situation) -> None:
    if patch.path not in LIMITS:
        raise Refused(unknown_knob(patch.path))
    if patch.path in situation.fixed:
        raise Refused(f"`{patch.path}` must stay as it is while this attempt runs: {situation.fixed[patch.path]}")
    current = knob(situation.knobs, patch.path)
    if patch.expect is not None and not _same(patch.expect, current):
        raise Refused(
            f"`{patch.path}` must be {_shown(patch.expect)} as expected, and is {value(current)}; "
            "somebody changed it in between: look at it and ask again"
        )
    ceiling = situation.ceilings.get(patch.path, math.inf)
    if patch.to > max(ceiling, current):
        raise Refused(f"`{patch.path}` must be at most {ceiling:g} in this run, got {_shown(patch.to)}")
    if not _same(patch.to, situation.previous.get(patch.path, math.nan)):
        _check_reach(patch, current, knob(situation.launched, patch.path))


def _check_reach(patch: KnobPatch, current: KnobValue, launched: KnobValue) -> None:
    if isinstance(current, bool) or isinstance(patch.to, bool):
        return  # a switch has no distance; the type of the new value is checked with the bounds
    limits = LIMITS[patch.path]
    if not limits.low <= patch.to <= limits.high:
        return  # out of bounds, which has a message of its own
    low, high = reach(patch.path, current, launched)
    if not low <= patch.to <= high:
        raise Refused(
            f"`{patch.path}` must be between {value(low)} and {value(high)} after one change, got {_shown(patch.to)}: "
            f"at most a factor {limits.step_ratio:g} from {value(current)} and "
            f"{limits.drift_ratio:g} from its launch value {value(launched)}; change it in several steps"
        )


def with_values(knobs: Knobs, changes: Mapping[str, KnobValue]) -> Knobs:
    """`knobs` with other values, all of them or none. Raises `Refused` for a wrong type, a bound, or a forbidden mix.

    The paths must exist.
    """
    try:
        return Knobs.model_validate({**knobs.model_dump(), **changes}, strict=True)
    except ValidationError as error:
        raise Refused("; ".join(_message(item["loc"], item["msg"]) for item in error.errors())) from None


def _message(where: tuple[int | str, ...], text: str) -> str:
    message = text.removeprefix("Value error, ")
    return f"`{where[0]}`: {message}" if where else message


def _silence(request: ControlRequest, situation: Situation) -> Admitted:
    names = {rule.code: rule.name for rule in (*ALL_RULES, *added().rules)}
    code, until = request.code or "", request.until_step or 0
    if code not in names:
        raise Refused(f"`code` must be the code of a rule, got `{code}`; `tocsin rules` lists them")
    if until <= situation.step:
        return Admitted((), f"{code} {names[code]} is not silenced any more")
    if code in NEVER_HIDDEN:
        raise Refused(f"{code} {names[code]} must not be silenced: what it reports is never hidden")
    return Admitted((), f"records of {code} {names[code]} are held back until step {until}")


def _pause(request: ControlRequest, situation: Situation) -> Admitted:
    if situation.is_paused:
        raise Refused(f"the run is paused already, at step {situation.step}; `tocsin resume` goes on")
    return Admitted((), "training pauses at the next step barrier")


def _resume(request: ControlRequest, situation: Situation) -> Admitted:
    if not situation.is_paused:
        raise Refused("the run must be paused to go on, and is not; for a run that ended: tocsin train --resume")
    return Admitted((), "training goes on")


def _checkpoint(request: ControlRequest, situation: Situation) -> Admitted:
    return Admitted((), "a checkpoint is written at the next step barrier")


def _stop(request: ControlRequest, situation: Situation) -> Admitted:
    return Admitted((), "the run writes a checkpoint at the next step barrier and ends; tocsin train --resume goes on")


VERBS: Final[dict[Verb, Callable[[ControlRequest, Situation], Admitted]]] = {
    "set": _set,
    "act": _act,
    "silence": _silence,
    "pause": _pause,
    "resume": _resume,
    "checkpoint": _checkpoint,
    "stop": _stop,
}


def knob(knobs: Knobs, path: str) -> KnobValue:
    """The value of a knob that exists."""
    found: KnobValue = knobs.__dict__[path]
    return found


def _same(expected: KnobValue, current: KnobValue) -> bool:
    """Equal, and both switches or both numbers; one that was written down again may lack the last bits."""
    return math.isclose(expected, current, rel_tol=1e-9) and isinstance(expected, bool) == isinstance(current, bool)


def _shown(item: KnobValue) -> str:
    text = value(item) if isinstance(item, float) else str(item).lower()
    return text if len(text) <= 24 else f"{text[:21]}..."


def _quoted(text: str) -> str:
    return f"`{text}`"
