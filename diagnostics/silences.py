"""Silences: whose records somebody asked to hold back, and until when. The state behind them goes on."""

from tocsin.schemas.actions import ActionRecord, ActionState
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ControlAnswered, RunEnded


class Silences:
    """Codes that are silent at present, with the first step at which they are not any more."""

    def __init__(self) -> None:
        self.until: dict[str, int] = {}
        self._asked: dict[str, ControlAnswered] = {}

    def cover(self, code: str) -> bool:
        """Whether the records of a rule are held back now."""
        return code in self.until

    def take(self, event: BaseEvent) -> tuple[list[ActionRecord], list[str]]:
        """What an event changes: the records that say so, and the codes that may speak again."""
        if isinstance(event, ControlAnswered) and event.verb == "silence" and event.state == "accepted":
            return self._answered(event)
        if not self.until:
            return [], []
        over = [code for code, step in self.until.items() if event.step >= step or isinstance(event, RunEnded)]
        return [self._end(code, event, event.step) for code in over], over

    def _answered(self, event: ControlAnswered) -> tuple[list[ActionRecord], list[str]]:
        code, until = event.code or "", event.until_step or 0
        if until > event.step:
            self.until[code], self._asked[code] = until, event
            note = f"records of {code} are held back until step {until}"
            return [_record(event, event, "applied", _with_note(note, event.note))], []
        if code not in self.until:
            return [_record(event, event, "applied", f"{code} was not silenced")], []
        asked = self._asked[code]
        ended = self._end(code, event, event.step)
        return [ended, _record(event, event, "applied", f"{code} speaks again; {asked.actor} had silenced it")], [code]

    def _end(self, code: str, event: BaseEvent, step: int) -> ActionRecord:
        asked = self._asked.pop(code)
        self.until.pop(code)
        return _record(event, asked, "expired", f"the silence of {code} ended at step {step}")


def _with_note(text: str, note: str) -> str:
    return f"{text}: {note}" if note else text


def _record(event: BaseEvent, asked: ControlAnswered, state: ActionState, note: str) -> ActionRecord:
    return ActionRecord(
        run_id=event.run_id,
        event_seq=event.seq,
        ts=event.ts,
        step=event.step,
        config_generation=event.config_generation,
        action_id=f"request/{asked.request_id}",
        state=state,
        actor=asked.actor,
        idempotency_key=asked.idempotency_key,
        request_id=asked.request_id,
        note=note,
    )
