"""The engine: events in, records out, and the only place that remembers what is open.

It is pure: time, step and order come from the events, so a replay of `events.jsonl` says what the live run said.
One event passes through: features -> rules that it triggers -> their lifecycles -> records on change.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.lifecycle import Episode, Track
from tocsin.diagnostics.rule import MAY_WARN, Answer, Finding, Rule, not_evaluated
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.diagnostics.selection import select
from tocsin.schemas.actions import Action, ActionRecord
from tocsin.schemas.diagnosis import At, Coverage, Diagnostic, NotEvaluated, Reason
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import ClockTicked, KnobChanged, RunEnded, RunResumed
from tocsin.schemas.knobs import KnobValue
from tocsin.schemas.step import StepCompleted

Record = Diagnostic | Coverage | ActionRecord


class Watch:
    """One rule, its lifecycle, and whether it is evaluated at present."""

    def __init__(self, rule: Rule, *, is_disabled: bool) -> None:
        self.rule = rule
        self.is_disabled = is_disabled
        self.track = Track(rule.timing)
        trigger = rule.trigger.model_fields["type"].default
        waiting = not_evaluated("warm_up", f"waits for its first `{trigger}` event")
        self.status: NotEvaluated | None = (
            not_evaluated("disabled", "switched off by the configuration") if is_disabled else waiting
        )
        """Why the rule is not evaluated; None when it is."""
        self._absent = not_evaluated(
            "missing_input", f"no `{trigger}` event in the last {rule.timing.silent_after} steps"
        )
        self._silent_steps = 0
        self._missing = 0

    def answer(self, event: BaseEvent, features: Features) -> tuple[Answer, bool]:
        """What the rule says to `event`, and whether it was asked at all."""
        if self.is_disabled:
            return None, False
        if isinstance(event, self.rule.trigger):
            self._silent_steps = 0
            return self._ask(features), True
        if isinstance(event, StepCompleted):
            self._silent_steps += 1
            if self._silent_steps > self.rule.timing.silent_after:
                return self._absent, True
        return None, False

    def note(self, answer: Answer) -> None:
        """Keep the status for coverage. A single gap in the input of an evaluated rule is not news."""
        if not isinstance(answer, NotEvaluated):
            self.status, self._missing = None, 0
            return
        self._missing += 1
        is_gap = answer.reason == "missing_input" and self._missing < self.rule.timing.absent_after
        if not (is_gap and self.status is None):
            self.status = answer

    def _ask(self, features: Features) -> Answer:
        try:
            answer = self.rule.check(features, is_open=self.track.is_open)
        except Exception as error:  # protects the other rules and the run from a bug in one rule
            return not_evaluated("error", f"the rule raised `{type(error).__name__}`")
        if isinstance(answer, Finding) and self.rule.proof not in MAY_WARN:
            return replace(answer, severity="info")
        return answer


class Engine:
    """Judges a run event by event.

    Raises `ValueError` for a rule or threshold that does not exist and for a threshold out of its range.
    """

    def __init__(
        self,
        rules: Sequence[Rule] | None = None,
        *,
        disable: Collection[str] = (),
        thresholds: Mapping[str, Mapping[str, float]] = {},
    ) -> None:
        chosen = select(ALL_RULES if rules is None else rules, disable=disable, thresholds=thresholds)
        self._watches = [Watch(rule, is_disabled=off) for rule, off in chosen]
        self._features = Features()
        self._covered: tuple[object, ...] = ()
        self._coverage: Coverage | None = None
        self._lost_events = 0
        self._last: BaseEvent | None = None

    def observe(self, event: BaseEvent) -> list[Record]:
        """Take in one event; returns the records that are due, in the order in which they belong into the feed."""
        records: list[Record] = list(_knob_records(event, self._features.settings.knobs))
        self._features.update(event)
        self._last = event
        at = _at(event)
        if isinstance(event, ClockTicked):
            self._lost_events = max(self._lost_events, event.events_dropped)
        for watch in self._watches:
            answer, was_asked = watch.answer(event, self._features)
            if was_asked:
                watch.note(answer)
                self._report(records, watch, watch.track.advance(answer, at), event)
            if isinstance(event, RunEnded):
                self._report(records, watch, watch.track.run_ended(), event)
        coverage = self._changed_coverage(event)
        if coverage is not None:
            records.append(coverage)
        return records

    def active(self) -> list[Diagnostic]:
        """Everything open, with its newest evidence. The reason is that of the state, not of a record written."""
        found = []
        for watch in self._watches:
            if watch.track.is_open and watch.track.episode is not None and self._last is not None:
                reason: Reason = "data_lost" if watch.track.state == "no_data" else "fired"
                found.append(_diagnostic(watch, watch.track.episode, self._last, reason))
        return found

    def pending(self) -> list[Diagnostic]:
        """What holds, but not yet for long enough. Never written to the feed."""
        return [
            _diagnostic(watch, watch.track.candidate, self._last, "pending")
            for watch in self._watches
            if watch.track.candidate is not None and self._last is not None
        ]

    @property
    def coverage(self) -> Coverage | None:
        """The last coverage record; None before the first event."""
        return self._coverage

    def _report(self, records: list[Record], watch: Watch, reason: Reason | None, event: BaseEvent) -> None:
        if reason is not None:
            assert watch.track.episode is not None, "a record is about an episode"
            records.append(_diagnostic(watch, watch.track.episode, event, reason))

    def _changed_coverage(self, event: BaseEvent) -> Coverage | None:
        key = (
            self._lost_events > 0,
            *(None if w.status is None else (w.status.reason, w.status.detail) for w in self._watches),
        )
        if key == self._covered:
            return None
        self._covered = key
        evaluated = sorted(watch.rule.code for watch in self._watches if watch.status is None)
        missing = {watch.rule.code: watch.status for watch in self._watches if watch.status is not None}
        is_degraded = self._lost_events > 0 or any(status.reason == "error" for status in missing.values())
        self._coverage = Coverage(
            run_id=event.run_id,
            event_seq=event.seq,
            at=_at(event),
            evaluated=evaluated,
            not_evaluated=dict(sorted(missing.items())),
            health="degraded" if is_degraded else "ok" if evaluated else "unknown",
        )
        return self._coverage


def fingerprint(rule: Rule, run_id: str) -> str:
    """Identity of a finding: code, run and labels. No value, threshold, step or text is in it."""
    identity = json.dumps([rule.code, run_id, sorted(rule.labels.items())])
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _diagnostic(watch: Watch, episode: Episode, event: BaseEvent, reason: Reason) -> Diagnostic:
    rule, finding = watch.rule, episode.finding
    name = f"{rule.name}/{rule.where}#{episode.number}"
    state = watch.track.state if reason != "pending" else "pending"
    assert state != "inactive", "an inactive rule has nothing to report"
    return Diagnostic(
        run_id=event.run_id,
        event_seq=event.seq,
        code=rule.code,
        name=rule.name,
        kind=rule.kind,
        id=name,
        fingerprint=fingerprint(rule, event.run_id),
        episode=episode.number,
        state=state,
        reason=reason,
        severity=episode.severity,
        summary=finding.summary,
        labels=rule.labels,
        config_generation=event.config_generation,
        started=episode.started,
        fired=episode.fired,
        last=episode.last,
        resolved=episode.resolved,
        count=episode.count,
        evidence=list(finding.evidence),
        causes=list(rule.causes if finding.causes is None else finding.causes),
        actions=[] if state == "resolved" else _actions(finding, name),
        help=f"tocsin explain {rule.code}",
    )


def _actions(finding: Finding, diagnostic_id: str) -> list[Action]:
    return [
        Action(
            id=f"{diagnostic_id}/{proposal.verb}",
            title=proposal.title,
            applicability=proposal.applicability,
            risk=proposal.risk,
            preferred=proposal.preferred,
            patches=list(proposal.patches),
            verify=proposal.verify,
            on_failure=proposal.on_failure,
            cooldown_steps=proposal.cooldown_steps,
            disabled=proposal.disabled,
        )
        for proposal in finding.proposals
    ]


def _knob_records(event: BaseEvent, knobs: Mapping[str, KnobValue]) -> list[ActionRecord]:
    """What a knob change, or a resume that undid some, adds to the feed. Launch values are no change."""
    if isinstance(event, KnobChanged) and event.actor != "launch":
        return [_knob_record(event, event.path, event.before, event.after)]
    if isinstance(event, RunResumed):
        undone = [(path, knobs[path], new) for path, new in event.knobs.items() if knobs.get(path, new) != new]
        return [_knob_record(event, path, before, after) for path, before, after in undone]
    return []


def _knob_record(event: BaseEvent, path: str, before: KnobValue, after: KnobValue) -> ActionRecord:
    is_change = isinstance(event, KnobChanged)
    return ActionRecord(
        run_id=event.run_id,
        event_seq=event.seq,
        ts=event.ts,
        step=event.step,
        config_generation=event.config_generation,
        action_id=f"knob/{path}@{event.seq}",
        state="applied" if is_change else "reverted",
        actor=event.actor if isinstance(event, KnobChanged) else "learner",
        path=path,
        before=before,
        after=after,
        note="" if is_change else "resume: the change is later than the checkpoint",
    )


def _at(event: BaseEvent) -> At:
    return At(step=event.step, policy_version=event.policy_version, ts=event.ts)
