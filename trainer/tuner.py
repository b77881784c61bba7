"""The auto-tuner's hands: what its policy decides goes to the control door as anybody's request, or into the feed.

    monitor's thread: event, records -> policy.observe ... policy.decide -> control/<id>.json | autotune_decided

It decides once per optimizer step of the present attempt. The events of earlier attempts, which the monitor shows it
first when a run is resumed, only fill the policy's memory: reverts, cool-downs and rules that are off outlive the
process, a request that was lost with it is asked anew.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from tocsin.diagnostics.admission import Situation
from tocsin.diagnostics.autotune import Autotune, Decision, Now, Policy
from tocsin.diagnostics.control import Asker, Look, ask_act, ask_revert, submit
from tocsin.diagnostics.engine import Engine, Record
from tocsin.schemas.autotune import ACTOR, AutotuneConfig, AutotuneDecided
from tocsin.schemas.config import RunConfig
from tocsin.schemas.control import ControlRequest
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, RunResumed, RunStarted
from tocsin.schemas.feed import WriterState
from tocsin.schemas.knobs import Knobs, KnobValue
from tocsin.schemas.step import StepCompleted

MAX_NOTE: Final = 200
MAX_KEY: Final = 128


def make_policy(config: AutotuneConfig) -> Policy:
    """The policy that the configuration names. Raises `ValueError`; a policy of the user's runs code of the user's."""
    if config.policy is None:
        return Autotune(config)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module, _, name = config.policy.partition(":")
    try:
        made: Any = attrgetter(name)(importlib.import_module(module))(config)
    except Exception as error:  # protects the start of the run: this runs code of the user
        raise ValueError(f"`autotune.policy` must be a class that takes the section [autotune]: {error}") from error
    if not isinstance(made, Policy):
        raise ValueError(f"`autotune.policy` must have `observe` and `decide`, got {config.policy} without")
    return made


class Tuner:
    """Follows one attempt of a run. `see` belongs to the monitor's thread."""

    def __init__(
        self, config: RunConfig, folder: Path, attempt: int, engine: Engine, emit: Callable[[BaseEvent], None]
    ) -> None:
        assert config.autotune is not None, "a run without the section has no tuner"
        self._settings = config.autotune
        self._config = config
        self._folder = folder
        self._attempt = attempt
        self._engine = engine
        self._emit = emit
        self._policy = make_policy(config.autotune)
        self._knobs: dict[str, KnobValue] = {}

    def see(self, event: BaseEvent, records: Sequence[Record]) -> None:
        """Take in an event with its records, and act when a step of this attempt is done."""
        for record in records:
            self._policy.observe(record)
        if isinstance(event, RunStarted | RunResumed):
            self._knobs = dict(event.knobs)
        elif isinstance(event, KnobChanged):
            self._knobs[event.path] = event.after
        elif isinstance(event, StepCompleted) and event.attempt == self._attempt:
            for decision in self._policy.decide(self._now(event)):
                self._carry_out(decision, event)

    def _now(self, event: BaseEvent) -> Now:
        pending, warming = self._engine.unsettled()
        left = self._config.steps - event.step
        return Now(step=event.step, steps_left=left, knobs=self._knobs, pending=pending, warming=warming)

    def _carry_out(self, decision: Decision, event: BaseEvent) -> None:
        if decision.kind not in ("apply", "revert"):
            self._say(decision, decision.kind, decision.reason)
            return
        problem = self._forbidden(decision)
        if problem is None:
            try:
                submit(self._folder, self._request(decision, event))
            except (OSError, ValueError) as error:  # no room for the file, or a policy that asks for nonsense
                problem = f"the request could not be written: {error}"
        if problem is not None:
            self._say(decision, "decline", problem)

    def _forbidden(self, decision: Decision) -> str | None:
        """What no policy may do, whatever it decides."""
        if self._settings.mode != "on":
            return "this is a dry run"
        # What is asked for is the action itself, so its own rule and knobs count beside those that the decision names.
        code, paths = decision.code, {patch.path for patch in decision.patches}
        for finding in self._engine.active():
            for action in finding.actions:
                if action.id == decision.action_id:
                    code, paths = finding.code, paths | {patch.path for patch in action.patches}
        outside = sorted(path for path in paths if not self._settings.permits(code, path, "automatic"))
        return f"`autotune` does not allow {code} to change {', '.join(outside)}" if outside else None

    def _request(self, decision: Decision, event: BaseEvent) -> ControlRequest:
        """The request of a decision, with the configuration that was seen as its lock."""
        situation = Situation(
            attempt=self._attempt,
            step=event.step,
            config_generation=event.config_generation,
            knobs=Knobs.model_validate(self._knobs),
            launched=self._config.knobs,
            is_paused=False,
        )
        look = Look(self._folder, situation, WriterState(state="alive", step=event.step))
        key = f"{ACTOR}:{decision.kind}:{decision.action_id}@{event.config_generation}"
        asker = Asker(actor=ACTOR, idempotency_key=key[-MAX_KEY:], note=decision.reason[:MAX_NOTE])
        if decision.kind == "revert":
            return ask_revert(look, asker, decision.action_id, decision.patches)
        return ask_act(look, asker, decision.action_id)

    def _say(self, decision: Decision, kind: str, reason: str) -> None:
        """Put on record what was decided without a change."""
        said = {"dry_run": "dry_run", "decline": "declined", "ask": "asked"}[kind]
        event = {
            "decision": said,
            "diagnostic_id": decision.diagnostic_id,
            "action_id": decision.action_id,
            "patches": list(decision.patches) if said == "dry_run" else [],
            "reason": reason,
        }
        self._emit(AutotuneDecided.model_validate(event))


def listener(
    config: RunConfig, folder: Path, attempt: int, engine: Engine, emit: Callable[[BaseEvent], None]
) -> Callable[[BaseEvent, Sequence[Record]], None]:
    """What the monitor shows every event to: the tuner of a run that asked for one. Raises `ValueError`."""
    if config.autotune is None or config.autotune.mode == "off":
        return lambda _event, _records: None
    return Tuner(config, folder, attempt, engine, emit).see
