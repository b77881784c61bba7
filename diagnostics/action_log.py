"""The life of every action, told from events: approved or rejected, applied, and what came of it.

    control_answered -> approved | rejected
    knob_changed     -> applied -> trial -> target_met | no_effect | harmed | inconclusive | confounded
                     -> reverted, when the knob goes back
    its diagnostic is over or explained before it was applied -> expired
    autotune_decided -> dry_run | rejected (declined) | proposed (asked: a person has to decide)

That an action is proposed by a rule is in its diagnostic and gets no record of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tocsin.diagnostics.trials import Change, Offer, Past, Trial
from tocsin.diagnostics.verdicts import Verdict
from tocsin.schemas.actions import ActionRecord, ActionState
from tocsin.schemas.autotune import ACTOR, AutotuneDecided
from tocsin.schemas.control import KnobPatch, Verb
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    CheckpointSaved,
    ControlAnswered,
    KnobChanged,
    RunContinued,
    RunEnded,
    RunPaused,
    RunResumed,
)
from tocsin.schemas.knobs import KnobValue

OUTSTANDING: Final = 64
"""Accepted requests that may wait for their effect; the oldest beyond it expires."""
CARRIED_OUT: Final[dict[type[BaseEvent], Verb]] = {
    RunPaused: "pause",
    RunContinued: "resume",
    CheckpointSaved: "checkpoint",
    RunEnded: "stop",
}
"""Events that carry out an accepted request of these verbs."""

DECIDED: Final[dict[str, ActionState]] = {"dry_run": "dry_run", "declined": "rejected", "asked": "proposed"}
"""State of the record about a decision of the auto-tuner."""

FindOffer = Callable[[str], Offer | None]
"""The offer with this action id, if a diagnostic that readers know makes it."""


@dataclass(frozen=True, slots=True)
class Approval:
    """An accepted request that has not been carried out yet."""

    answer: ControlAnswered
    action_id: str
    offer: Offer | None


class ActionLog:
    """What was asked for, what is in force, and what is on trial."""

    def __init__(self) -> None:
        self._approved: dict[str, Approval] = {}
        """By request id, oldest first."""
        self._in_force: dict[str, Change] = {}
        """The newest change of each knob, by path."""
        self._trials: list[Trial] = []
        self._past = Past()

    def take(self, event: BaseEvent, knobs: Mapping[str, KnobValue], find: FindOffer) -> list[ActionRecord]:
        """The records that an event gives rise to; `knobs` are the values in force before it."""
        records: list[ActionRecord] = []
        if isinstance(event, ControlAnswered):
            records = self._answered(event, find)
        elif isinstance(event, KnobChanged):
            records = self._changed(event, find)
        elif isinstance(event, AutotuneDecided):
            records = _decided(event)
        elif isinstance(event, RunResumed):
            records = self._resumed(event, knobs)
        elif type(event) in CARRIED_OUT:
            records = self._carried_out(event)
        if self._trials:
            records += self._try(event)
        self._past.add(event)
        return records

    def closed(self, diagnostic_id: str, event: BaseEvent, why: str) -> list[ActionRecord]:
        """A diagnostic needs no answer any more: what was approved for it and not applied expires."""
        over = [key for key, item in self._approved.items() if item.offer and item.offer.diagnostic_id == diagnostic_id]
        return [self._expire(key, event, why) for key in over]

    def explained(self, diagnostic_id: str, cause_id: str, event: BaseEvent) -> list[ActionRecord]:
        """A cause became visible: unapplied actions of its symptom expire, applied ones are confounded."""
        records = self.closed(diagnostic_id, event, f"explained by {cause_id}")
        hit = [trial for trial in self._trials if trial.offer.diagnostic_id == diagnostic_id]
        return records + [self._decide(t, t.confounded(f"{cause_id} became visible as the cause"), event) for t in hit]

    def _answered(self, event: ControlAnswered, find: FindOffer) -> list[ActionRecord]:
        own_id = f"request/{event.request_id}"
        if event.state == "duplicate":
            return [_answer(event, own_id, "rejected", f"duplicate, nothing is done twice: {event.reason}")]
        earlier = self._approved.pop(event.request_id, None)
        if event.state == "refused":
            action_id = event.action_id or (earlier.action_id if earlier else own_id)
            return [_answer(event, action_id, "rejected", event.reason)]
        if event.verb == "silence":
            return []
        action_id = event.action_id or own_id
        offer = None if event.action_id is None else find(event.action_id)
        self._approved[event.request_id] = Approval(event, action_id, offer)
        note = f"{event.reason}; {event.note}" if event.note else event.reason
        target = None if offer is None else offer.diagnostic_id
        patches: list[KnobPatch | None] = [*event.patches] or [None]
        records = [_answer(event, action_id, "approved", note, patch, target) for patch in patches]
        if len(self._approved) > OUTSTANDING:
            records.append(self._expire(next(iter(self._approved)), event, "too many requests wait"))
        return records

    def _changed(self, event: KnobChanged, find: FindOffer) -> list[ActionRecord]:
        """A knob moved: an action is applied or taken back, and other trials lose their meaning."""
        previous = self._in_force.get(event.path)
        if event.actor == "launch":
            return []
        approval = self._take_approval(event)
        offer = approval.offer if approval else None
        if offer is None and event.action_id is not None:
            offer = find(event.action_id)
        change = _change(event, offer)
        is_undone = (
            previous is not None
            and not previous.is_undo
            and event.action_id is not None
            and previous.action_id == event.action_id
            and previous.before == event.after
            and previous.request_id != event.request_id
        )
        records = self._end_trials_hit_by(event, is_undone=is_undone)
        self._in_force[event.path] = replace(change, is_undo=is_undone)
        if is_undone:
            target = previous.diagnostic_id if previous else None
            return [*records, _of_change(event, change, "reverted", event.note or "the knob went back", target)]
        records.append(_of_change(event, change, "applied", event.note, change.diagnostic_id))
        if offer is not None:
            records += self._start_trial(change, offer, event)
        return records

    def _take_approval(self, event: KnobChanged) -> Approval | None:
        """The approval behind a change; it is done with when its last patch is in force."""
        approval = self._approved.get(event.request_id or "")
        if approval is not None:
            patches = approval.answer.patches
            if not patches or patches[-1].path == event.path:
                self._approved.pop(approval.answer.request_id)
        return approval

    def _end_trials_hit_by(self, event: KnobChanged, *, is_undone: bool) -> list[ActionRecord]:
        records = []
        for trial in list(self._trials):
            same = trial.change.action_id == event.action_id
            if same and is_undone:
                self._trials.remove(trial)
            elif not (same and trial.change.request_id == event.request_id):
                verdict = trial.confounded(f"`{event.path}` changed as well, by {event.actor}")
                records.append(self._decide(trial, verdict, event))
        return records

    def _start_trial(self, change: Change, offer: Offer, event: KnobChanged) -> list[ActionRecord]:
        for trial in self._trials:
            if trial.change.action_id == change.action_id:
                trial.widen(event)
                return []
        verify = offer.action.verify
        if verify is None:
            note = "the action does not say what would verify it"
            return [_of_change(event, change, "inconclusive", note, change.diagnostic_id)]
        generation = event.config_generation
        self._trials.append(Trial(change, offer, verify, generation=generation, past=self._past))
        return []

    def _resumed(self, event: RunResumed, knobs: Mapping[str, KnobValue]) -> list[ActionRecord]:
        """Changes later than the checkpoint are undone; other trials cannot go on over the gap."""
        records = []
        for path, new in event.knobs.items():
            if knobs.get(path, new) == new:
                continue
            change = self._in_force.pop(path, None) or _unknown_change(event, path, knobs[path])
            self._trials = [trial for trial in self._trials if trial.change.action_id != change.action_id]
            records.append(_undone(event, change, before=knobs[path], after=new))
        return records + [self._decide(trial, trial.end("the run was resumed"), event) for trial in [*self._trials]]

    def _carried_out(self, event: BaseEvent) -> list[ActionRecord]:
        verb = CARRIED_OUT[type(event)]
        done = [key for key, item in self._approved.items() if item.answer.verb == verb]
        records = [_answer_at(event, self._approved.pop(key), "applied", f"{verb}: done") for key in done]
        if isinstance(event, RunEnded):
            records += [self._expire(key, event, "the run ended") for key in [*self._approved]]
            records += [self._decide(trial, trial.end("the run ended"), event) for trial in [*self._trials]]
        return records

    def _try(self, event: BaseEvent) -> list[ActionRecord]:
        found = [(trial, trial.take(event, self._past)) for trial in self._trials]
        return [self._decide(trial, verdict, event) for trial, verdict in found if verdict is not None]

    def _decide(self, trial: Trial, verdict: Verdict, event: BaseEvent) -> ActionRecord:
        self._trials.remove(trial)
        return _of_change(event, trial.change, verdict.state, verdict.note, trial.offer.diagnostic_id)

    def _expire(self, key: str, event: BaseEvent, why: str) -> ActionRecord:
        return _answer_at(event, self._approved.pop(key), "expired", f"not applied: {why}")


def _change(event: KnobChanged, offer: Offer | None) -> Change:
    own_id = f"knob/{event.path}@{event.seq}" if event.request_id is None else f"request/{event.request_id}"
    return Change(
        action_id=event.action_id or own_id,
        diagnostic_id=None if offer is None else offer.diagnostic_id,
        path=event.path,
        before=event.before,
        after=event.after,
        actor=event.actor,
        request_id=event.request_id,
        idempotency_key=event.idempotency_key,
    )


def _unknown_change(event: RunResumed, path: str, value: KnobValue) -> Change:
    """A difference that no event explains: a change whose event was lost."""
    return Change(
        action_id=f"knob/{path}@{event.seq}",
        diagnostic_id=None,
        path=path,
        before=value,
        after=value,
        actor="learner",
        request_id=None,
        idempotency_key=None,
    )


def _undone(event: RunResumed, change: Change, *, before: KnobValue, after: KnobValue) -> ActionRecord:
    record = _of_change(
        event, change, "reverted", "resume: the change is later than the checkpoint", change.diagnostic_id
    )
    return record.model_copy(update={"before": before, "after": after, "actor": "learner"})


def _of_change(
    event: BaseEvent, change: Change, state: ActionState, note: str, diagnostic_id: str | None
) -> ActionRecord:
    return ActionRecord(
        run_id=event.run_id,
        event_seq=event.seq,
        ts=event.ts,
        step=event.step,
        config_generation=event.config_generation,
        action_id=change.action_id,
        diagnostic_id=diagnostic_id,
        state=state,
        actor=change.actor,
        path=change.path,
        before=change.before,
        after=change.after,
        idempotency_key=change.idempotency_key,
        request_id=change.request_id,
        note=note,
    )


def _decided(event: AutotuneDecided) -> list[ActionRecord]:
    """One record for each knob that it is about; one without a knob when it is about none."""
    patches: list[KnobPatch | None] = [*event.patches] or [None]
    return [
        ActionRecord(
            run_id=event.run_id,
            event_seq=event.seq,
            ts=event.ts,
            step=event.step,
            config_generation=event.config_generation,
            action_id=event.action_id,
            diagnostic_id=event.diagnostic_id,
            state=DECIDED[event.decision],
            actor=ACTOR,
            path=None if patch is None else patch.path,
            before=None if patch is None else patch.expect,
            after=None if patch is None else patch.to,
            note=event.reason,
        )
        for patch in patches
    ]


def _answer_at(event: BaseEvent, approval: Approval, state: ActionState, note: str) -> ActionRecord:
    """A record about an accepted request, at a later event."""
    target = None if approval.offer is None else approval.offer.diagnostic_id
    record = _answer(approval.answer, approval.action_id, state, note, None, target)
    return record.model_copy(
        update={
            "event_seq": event.seq,
            "ts": event.ts,
            "step": event.step,
            "config_generation": event.config_generation,
        }
    )


def _answer(
    event: ControlAnswered,
    action_id: str,
    state: ActionState,
    note: str,
    patch: KnobPatch | None = None,
    diagnostic_id: str | None = None,
) -> ActionRecord:
    return ActionRecord(
        run_id=event.run_id,
        event_seq=event.seq,
        ts=event.ts,
        step=event.step,
        config_generation=event.config_generation,
        action_id=action_id,
        diagnostic_id=diagnostic_id,
        state=state,
        actor=event.actor,
        path=None if patch is None else patch.path,
        before=None if patch is None else patch.expect,
        after=None if patch is None else patch.to,
        idempotency_key=event.idempotency_key,
        request_id=event.request_id,
        note=note,
    )
