"""The engine: events in, records out, and the only place that remembers what is open.

It is pure: time, step and order come from the events, so a replay of `events.jsonl` says what the live run said.
One event passes through: actions -> features -> silences -> rules that it triggers, causes before consequences ->
their lifecycles -> who explains whom -> records on change -> coverage.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from tocsin.diagnostics.action_log import ActionLog
from tocsin.diagnostics.causes import NEVER_HIDDEN, Links, in_causal_order
from tocsin.diagnostics.conclusion import Context, conclude, fingerprint, moment
from tocsin.diagnostics.evaluation import Watch
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.lifecycle import Episode
from tocsin.diagnostics.rule import Answer, Rule
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.diagnostics.selection import select
from tocsin.diagnostics.silences import Silences
from tocsin.diagnostics.spending import Spending
from tocsin.diagnostics.storm import Storm
from tocsin.diagnostics.trials import Offer
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.diagnosis import At, Coverage, Diagnostic, NotEvaluated, Reason
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, ControlAnswered, KnobChanged, RunEnded

__all__ = ["Engine", "Record", "fingerprint"]

Record = Diagnostic | Coverage | ActionRecord

LOUDER: tuple[Reason, ...] = ("fired", "reopened", "escalated", "data_back")
"""Changes after which a finding may begin to explain others."""
WARMING_STEPS: Final = 10
"""Steps between two coverage records that tell of nothing but rules settling, one after the other."""


class Engine:
    """Judges a run event by event.

    `left_out` names rules that could not be loaded, for coverage. Raises `ValueError` for a rule or threshold that does
    not exist and for a threshold out of its range.
    """

    def __init__(
        self,
        rules: Sequence[Rule] | None = None,
        *,
        disable: Collection[str] = (),
        thresholds: Mapping[str, Mapping[str, float]] = {},
        left_out: Mapping[str, NotEvaluated] = {},
    ) -> None:
        chosen = select(ALL_RULES if rules is None else rules, disable=disable, thresholds=thresholds)
        off = {rule.code for rule, is_off in chosen if is_off}
        ordered = in_causal_order([rule for rule, _ in chosen])
        self._watches = [Watch(rule, is_disabled=rule.code in off) for rule in ordered]
        self._concerned: dict[type[BaseEvent], list[Watch]] = {}
        """Rules that an event of a type may lead to an evaluation of; filled as types are met."""
        self._features = Features()
        self._links = Links(self._watches)
        self._silences = Silences()
        self._left_out = left_out
        self._storm, self._storm_of_added = Storm(), Storm()
        """Rules of other packages have room of their own, so that they change nothing about what ours say."""
        self._actions = ActionLog()
        self._spending = Spending()
        self._coverage: Coverage | None = None
        self._coverage_is_old = True
        self._is_warming = False
        """Rules have begun or ended to warm up since the last coverage record."""
        self._lost_events = 0
        self._last: BaseEvent | None = None

    def observe(self, event: BaseEvent) -> list[Record]:
        """Take in one event; returns the records that are due, in the order in which they belong into the feed."""
        records: list[Record] = list(self._actions.take(event, self._features.settings.knobs, self._offer))
        self._features.update(event)
        self._spending.update(event)
        self._last = event
        if self._silences.until or isinstance(event, ControlAnswered):
            self._hear_silences(event, records)
        kind = type(event)
        if kind not in self._concerned:
            self._concerned[kind] = [watch for watch in self._watches if watch.concerns(kind)]
        concerned = self._concerned[kind]
        if concerned:
            at = moment(event)
            for watch in concerned:
                answer, was_asked = watch.answer(event, self._features)
                if was_asked and not watch.is_unmoved(answer):
                    self._advance(watch, answer, at, event, records)
        self._follow(event, records)
        if self._is_coverage_due(event):
            self._coverage = self._cover(event)
            self._coverage_is_old = self._is_warming = False
            records.append(self._coverage)
        return records

    def _follow(self, event: BaseEvent, records: list[Record]) -> None:
        """What an event changes about what is open or covered, whatever the rules say to it."""
        if isinstance(event, RunEnded):
            self._end(event, records)
        elif isinstance(event, KnobChanged):
            for watch in self._watches:
                watch.outdate(event.path, event.step)
        elif isinstance(event, ClockTicked) and event.events_dropped > self._lost_events:
            self._coverage_is_old = self._coverage_is_old or self._lost_events == 0
            self._lost_events = event.events_dropped

    def active(self) -> list[Diagnostic]:
        """Everything open, with its newest evidence. The reason is that of the state, not of a record written."""
        found = []
        for watch in self._watches:
            if watch.track.is_open and watch.track.episode is not None and self._last is not None:
                reason: Reason = "data_lost" if watch.track.state == "no_data" else "fired"
                found.append(self._conclude(watch, watch.track.episode, self._last, reason))
        return found

    def pending(self) -> list[Diagnostic]:
        """What holds and is not reported: not for long enough yet, or held back. Never written to the feed."""
        return [
            conclude(watch, watch.track.candidate, self._last, "pending", Context(spent=self._spending.spent))
            for watch in self._watches
            if watch.track.candidate is not None and self._last is not None
        ]

    def unsettled(self) -> tuple[frozenset[str], frozenset[str]]:
        """Codes of rules that may be about to report something: those that are pending, and those that warm up."""
        pending = frozenset(watch.rule.code for watch in self._watches if watch.track.candidate is not None)
        waiting = [watch for watch in self._watches if watch.status is not None and watch.status.reason == "warm_up"]
        return pending, frozenset(watch.rule.code for watch in waiting)

    @property
    def coverage(self) -> Coverage | None:
        """What is evaluated now, which may be newer than the last record; None before the first event."""
        return None if self._last is None else self._cover(self._last)

    def _advance(self, watch: Watch, answer: Answer, at: At, event: BaseEvent, records: list[Record]) -> None:
        before = watch.status
        if watch.note(answer):
            self._coverage_is_old = self._coverage_is_old or not _is_settling(before, watch.status)
            self._is_warming = True
        is_due = watch.track.is_due(answer)
        hold = is_due and self._holds(watch, at.step)
        if watch.is_held_back and not (hold and is_due):
            watch.is_held_back, self._coverage_is_old = False, True
        reason = watch.track.advance(answer, at, hold=hold, spent=self._spending.spent)
        if watch.track.candidate is None:
            watch.waited = 0
        if reason is None:
            reason = self._links.review(watch)
        if reason is None and watch.is_outdated(answer, at.step):
            reason = "reminder"
        if reason is not None:
            self._change(watch, reason, event, records)

    def _holds(self, watch: Watch, step: int) -> bool:
        """Whether a finding that is about to fire stays pending: its cause is on the way, or too much has fired."""
        if watch.rule.code in NEVER_HIDDEN:
            return False
        candidate = watch.track.candidate
        onset = step if candidate is None else candidate.started.step
        if self._links.explainer(watch, onset) is not None:
            return False
        if self._links.waits(watch, onset):
            return True
        has_room = self._room(watch).has_room(step)
        if not has_room and not watch.is_held_back:
            watch.is_held_back = self._coverage_is_old = True
        return not has_room

    def _room(self, watch: Watch) -> Storm:
        return self._storm_of_added if watch.is_added else self._storm

    def _change(self, watch: Watch, reason: Reason, event: BaseEvent, records: list[Record]) -> None:
        """Report a change of state and what follows from it for causes and consequences."""
        due: list[tuple[Watch, Reason]] = [(watch, reason)]
        if reason in ("fired", "reopened"):
            watch.explainer, watch.outlasted = None, 0
        if reason in LOUDER:
            due += self._links.fired(watch)
        if reason in ("fired", "reopened") and watch.explainer is None:
            self._room(watch).spend(event.step)
        for item, _ in list(due):
            raised = self._links.inherit(item)
            due += [(root, "escalated") for root in raised if all(root is not other for other, _ in due)]
        for item, why in due:
            self._tell(item, why, event, records)
            if why == "explained" and item.explainer is not None:
                records += self._actions.explained(item.id, item.explainer.id, event)
            elif why == "resolved":
                records += self._actions.closed(item.id, event, "its diagnostic resolved")

    def _tell(self, watch: Watch, reason: Reason, event: BaseEvent, records: list[Record]) -> None:
        """Write what a watch has to say, unless somebody silenced it."""
        episode = watch.track.episode
        assert episode is not None, "a record is about an episode"
        if self._silences.cover(watch.rule.code):
            if reason == "resolved" and watch.told is not None and watch.told.id == watch.id:
                watch.owed = episode
            return
        self._write(watch, episode, reason, event, records)

    def _write(self, watch: Watch, episode: Episode, reason: Reason, event: BaseEvent, records: list[Record]) -> None:
        record = self._conclude(watch, episode, event, reason)
        watch.told, watch.outdated = None if reason == "resolved" else record, None
        records.append(record)

    def _conclude(self, watch: Watch, episode: Episode, event: BaseEvent, reason: Reason) -> Diagnostic:
        context = Context(self._links.relations(watch), self._links.is_suppressed(watch), self._spending.spent)
        return conclude(watch, episode, event, reason, context)

    def _hear_silences(self, event: BaseEvent, records: list[Record]) -> None:
        """Begin and end silences; what was held back is made up for when one ends."""
        said, over = self._silences.take(event)
        records += said
        self._coverage_is_old = self._coverage_is_old or bool(said)
        for watch in self._watches:
            if watch.rule.code in over:
                self._make_up(watch, event, records)

    def _make_up(self, watch: Watch, event: BaseEvent, records: list[Record]) -> None:
        episode, owed, watch.owed = watch.track.episode, watch.owed, None
        is_back = watch.track.is_open and episode is not None and owed is not None and episode.number == owed.number
        if owed is not None and not is_back:
            self._write(watch, owed, "resolved", event, records)
        if watch.track.is_open and episode is not None and not isinstance(event, RunEnded):
            self._write(watch, episode, "reminder", event, records)

    def _end(self, event: RunEnded, records: list[Record]) -> None:
        """The run is over: what is open stays open and says so; that is no resolution."""
        for watch in self._watches:
            reason = watch.track.run_ended()
            if reason is not None:
                self._tell(watch, reason, event, records)

    def _offer(self, action_id: str) -> Offer | None:
        """The action of this id in the newest record that readers have of something open."""
        diagnostic_id = action_id.rpartition("/")[0]
        for watch in self._watches:
            if watch.told is None or watch.told.id != diagnostic_id:
                continue
            for action in watch.told.actions:
                if action.id == action_id:
                    told = watch.told
                    since = told.started.step
                    return Offer(action=action, diagnostic_id=told.id, kind=told.kind, since_step=since)
        return None

    def _is_coverage_due(self, event: BaseEvent) -> bool:
        """Whether what is evaluated changed; how warming up goes on is told now and then, and at the end."""
        if self._coverage_is_old or self._coverage is None:
            return True
        is_first = self._coverage.health == "unknown" and any(watch.status is None for watch in self._watches)
        is_time = event.step - self._coverage.at.step >= WARMING_STEPS or isinstance(event, RunEnded)
        return self._is_warming and (is_first or is_time)

    def _cover(self, event: BaseEvent) -> Coverage:
        evaluated = sorted(watch.rule.code for watch in self._watches if watch.status is None)
        silent = {watch.rule.code: watch.status for watch in self._watches if watch.status is not None}
        missing = {**silent, **self._left_out}
        held_back = sum(watch.is_held_back for watch in self._watches)
        has_errors = any(status.reason == "error" for status in missing.values())
        is_degraded = self._lost_events > 0 or held_back > 0 or has_errors
        return Coverage(
            run_id=event.run_id,
            event_seq=event.seq,
            at=moment(event),
            evaluated=evaluated,
            not_evaluated=dict(sorted(missing.items())),
            health="degraded" if is_degraded else "ok" if evaluated else "unknown",
            held_back=held_back,
            silenced=dict(sorted(self._silences.until.items())),
        )


def _is_settling(before: NotEvaluated | None, now: NotEvaluated | None) -> bool:
    """Whether a rule only found out what it can judge, or warms up; one that lost what it judged by is news."""
    if before is None:
        return now is None or now.reason == "warm_up"
    return now is None or now.reason != "error"
