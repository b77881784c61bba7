"""What the auto-tuner knows of a run, from the records of its feed alone.

Nothing here remembers a decision, only what came of it, so the records of a feed make the same memory again when a run
is resumed.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tocsin.diagnostics.modes import NAMES
from tocsin.schemas.actions import Action, ActionRecord
from tocsin.schemas.autotune import ACTOR
from tocsin.schemas.diagnosis import Coverage, Diagnostic
from tocsin.schemas.knobs import KnobValue

VERDICTS: Final = ("target_met", "no_effect", "harmed", "inconclusive", "confounded")
MAX_REVERTS: Final = 2
"""Reverts after which a rule is off for the run."""


class Moved(NamedTuple):
    """The last change of a knob."""

    step: int
    actor: str


@dataclass(kw_only=True)
class OwnChange:
    """An action that the auto-tuner applied and that is in force."""

    code: str
    diagnostic_id: str
    action_id: str
    on_failure: str
    request_id: str | None
    values: dict[str, tuple[KnobValue, KnobValue]] = field(default_factory=dict)
    """Value before and after, by knob."""


@dataclass
class Memory:
    """Open findings, changes in force and on trial, and what was learned from them."""

    open: dict[str, Diagnostic] = field(default_factory=dict)
    """Newest record of each open finding, by id."""
    silenced: dict[str, int] = field(default_factory=dict)
    """First step at which a silenced rule speaks again, by code."""
    on_trial: dict[str, None] = field(default_factory=dict)
    """Actions that were applied and have no verdict yet, by whomever; oldest first."""
    moved: dict[str, Moved] = field(default_factory=dict)
    """By knob."""
    own: dict[str, OwnChange] = field(default_factory=dict)
    """By action."""
    own_step: int | None = None
    """Step of our last change or revert."""
    codes: dict[str, str] = field(default_factory=lambda: {name: code for code, name in NAMES.items()})
    """Rule code by name; rules of other packages are learned from their findings."""
    changes: Counter[str] = field(default_factory=Counter)
    """Changes of ours so far, by code."""
    reverts: Counter[str] = field(default_factory=Counter)
    """Changes of ours that were taken back, by code."""
    failed: tuple[OwnChange, str] | None = None
    """A change that must be taken back, and why."""
    to_ask: deque[tuple[str, str, str]] = field(default_factory=deque)
    """Finding, action and reason of what is left to a person and was not said yet."""
    said: set[tuple[str, str]] = field(default_factory=set)
    """Action and text of what the feed says already."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Requests of ours that the door refused since the last one that it carried out, by action."""
    is_answered: bool = True
    """Whether our last request has its answer: an applied change or a refusal."""

    def observe(self, record: Diagnostic | ActionRecord | Coverage) -> None:
        """Count one record in."""
        if isinstance(record, Coverage):
            self.silenced = dict(record.silenced)
            return
        if isinstance(record, ActionRecord):
            self._action(record)
            return
        self.codes[record.name] = record.code
        if record.state in ("firing", "no_data"):
            self.open[record.id] = record
        else:
            self.open.pop(record.id, None)
            # Its next episode has another id, so nothing of this one is asked for again.
            mine = f"{record.id}/"
            self.said = {said for said in self.said if not said[0].startswith(mine)}
            for action_id in [action_id for action_id in self.refusals if action_id.startswith(mine)]:
                del self.refusals[action_id]

    def is_off(self, code: str) -> bool:
        """Whether a rule had its changes taken back too often."""
        return self.reverts[code] >= MAX_REVERTS

    def _action(self, record: ActionRecord) -> None:
        is_own = record.actor == ACTOR
        if is_own and record.request_id is None and record.state in ("dry_run", "rejected", "proposed"):
            self.said.add((record.action_id, record.note))
        elif is_own and record.state in ("rejected", "expired"):
            self.is_answered = True
            self.refusals[record.action_id] += 1
        elif record.state == "applied":
            self._applied(record, is_own=is_own)
        elif record.state == "reverted":
            self._reverted(record)
        elif record.state in VERDICTS:
            self.on_trial.pop(record.action_id, None)
            change = self.own.get(record.action_id)
            if is_own and change is not None and change.request_id == record.request_id:
                self._judged(change, record)

    def _applied(self, record: ActionRecord, *, is_own: bool) -> None:
        assert record.path is not None, "what was applied has a knob"
        self._moved(record, record.path, is_own=is_own)
        if record.diagnostic_id is not None:
            self.on_trial[record.action_id] = None
        if not is_own or record.diagnostic_id is None:
            return
        self.refusals.pop(record.action_id, None)
        code = self.codes.get(record.diagnostic_id.partition("/")[0], "")
        change = self.own.get(record.action_id)
        if change is None:
            action = self._action_of(record.diagnostic_id, record.action_id)
            change = self.own[record.action_id] = OwnChange(
                code=code,
                diagnostic_id=record.diagnostic_id,
                action_id=record.action_id,
                on_failure="revert" if action is None else action.on_failure,
                request_id=record.request_id,
            )
            self.changes[code] += 1
        if record.before is not None and record.after is not None:
            change.values[record.path] = (record.before, record.after)

    def _moved(self, record: ActionRecord, path: str, *, is_own: bool) -> None:
        """A knob has another value: whatever we changed about it before is not in force any more."""
        self.moved[path] = Moved(record.step, record.actor)
        if is_own:
            self.own_step, self.is_answered = record.step, True
        for change in [*self.own.values()]:
            if path in change.values and change.request_id != record.request_id:
                del self.own[change.action_id]

    def _action_of(self, diagnostic_id: str, action_id: str) -> Action | None:
        found = self.open.get(diagnostic_id)
        return None if found is None else next((a for a in found.actions if a.id == action_id), None)

    def _reverted(self, record: ActionRecord) -> None:
        change = self.own.pop(record.action_id, None)
        self.on_trial.pop(record.action_id, None)
        assert record.path is not None, "what was reverted has a knob"
        self._moved(record, record.path, is_own=record.actor == ACTOR)
        if change is None:
            return
        self.failed = None
        if record.actor == "learner":  # a resume from a checkpoint before the change says nothing about it
            return
        self.reverts[change.code] += 1
        if self.reverts[change.code] == MAX_REVERTS:
            name = change.diagnostic_id.partition("/")[0]
            text = (
                f"{change.code} {name} is off for this run: its changes were reverted {MAX_REVERTS} times, "
                "so that a person has to decide"
            )
            self.to_ask.append((change.diagnostic_id, change.action_id, text))

    def _judged(self, change: OwnChange, record: ActionRecord) -> None:
        if record.state == "harmed" or (record.state == "no_effect" and change.on_failure == "revert"):
            self.failed = (change, record.state)
        elif record.state == "no_effect" and change.on_failure == "ask":
            text = "the action had no effect and was kept: a person has to decide"
            self.to_ask.append((change.diagnostic_id, change.action_id, text))
