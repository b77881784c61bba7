"""The life of one finding: inactive -> pending -> firing -> resolved, or no_data while its input is gone.

A `Track` sees one answer per evaluation and says when a record is due. It knows nothing of events or records.
"""

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from tocsin.diagnostics.rule import Answer, Finding, Timing
from tocsin.diagnostics.spending import Spent
from tocsin.schemas.diagnosis import SEVERITIES, At, NotEvaluated, Reason, Severity

State = Literal["inactive", "pending", "firing", "no_data", "resolved"]
UNANSWERED: Final = frozenset({"missing_input", "error"})
"""Reasons that make a firing diagnostic lose its data; the others leave it as it is."""


def milder(one: Severity, other: Severity) -> Severity:
    """The lower of two severities."""
    return min(one, other, key=SEVERITIES.index)


def graver(one: Severity, other: Severity) -> Severity:
    """The higher of two severities."""
    return max(one, other, key=SEVERITIES.index)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One stretch of trouble, from the first evaluation at which the condition held."""

    number: int
    severity: Severity
    finding: Finding
    """The latest."""
    started: At
    last: At
    count: int = 1
    """Evaluations at which the condition held."""
    fired: At | None = None
    resolved: At | None = None
    before: Spent = field(default_factory=Spent)
    """What the run had spent when it started."""

    def seen(self, finding: Finding, at: At) -> "Episode":
        """This episode with one more evaluation at which the condition held."""
        return replace(self, finding=finding, last=at, count=self.count + 1)


class Track:
    """State of one rule. `advance` returns the reason for a record, or None when nothing changed."""

    def __init__(self, timing: Timing) -> None:
        self.state: State = "inactive"
        self.episode: Episode | None = None
        """The open episode, or the last one that resolved."""
        self.candidate: Episode | None = None
        """What is pending."""
        self._timing = timing
        self._quiet = 0
        self._missing = 0
        self._graver_for = 0
        self._grade: Severity = "info"
        self._reported_at_count = 0
        self._since_resolved = 0

    @property
    def is_open(self) -> bool:
        """Firing, or was firing when its data went missing."""
        return self.state in ("firing", "no_data")

    def is_due(self, answer: Answer) -> bool:
        """Whether `answer` would make it fire."""
        held = 0 if self.candidate is None else self.candidate.count
        return not self.is_open and isinstance(answer, Finding) and held + 1 >= self._timing.persistence

    def advance(self, answer: Answer, at: At, *, hold: bool = False, spent: Spent | None = None) -> Reason | None:
        """Take the answer of one evaluation. With `hold`, what would fire stays pending.

        `spent` is what the run has spent so far; an episode that begins now remembers it.
        """
        if not self.is_open:
            self._since_resolved += 1
        if isinstance(answer, NotEvaluated):
            return self._unanswered(answer)
        self._missing = 0
        if self.is_open:
            return self._open(answer, at)
        return self._closed(answer, at, hold=hold, spent=spent or Spent())

    def inherit(self, severity: Severity) -> None:
        """Raise what is open to the severity of something that it explains."""
        assert self.episode is not None, "only an episode has a severity"
        self.episode = replace(self.episode, severity=graver(self.episode.severity, severity))

    def run_ended(self) -> Reason | None:
        """The run is over: what is open stays open and says so; that is no resolution."""
        return "run_ended" if self.is_open else None

    def _unanswered(self, answer: NotEvaluated) -> Reason | None:
        self._drop_candidate()
        if answer.reason not in UNANSWERED:
            return None
        self._missing += 1
        if self.state == "firing" and self._missing >= self._timing.absent_after:
            self.state = "no_data"
            return "data_lost"
        return None

    def _drop_candidate(self) -> None:
        self.candidate = None
        if self.state == "pending":
            self.state = "inactive" if self.episode is None else "resolved"

    def _closed(self, finding: Finding | None, at: At, *, hold: bool, spent: Spent) -> Reason | None:
        if finding is None:
            self._drop_candidate()
            return None
        self.state = "pending"
        if self.candidate is None:
            number = 1 if self.episode is None else self.episode.number + 1
            self.candidate = Episode(
                number=number,
                severity=finding.severity,
                finding=finding,
                started=at,
                last=at,
                before=spent.copy(),
            )
        else:
            # An episode opens as grave as it was throughout its pending time; one bad reading does not decide.
            lowest = milder(self.candidate.severity, finding.severity)
            self.candidate = replace(self.candidate.seen(finding, at), severity=lowest)
        if hold or self.candidate.count < self._timing.persistence:
            return None
        return self._fire(self.candidate, at)

    def _fire(self, candidate: Episode, at: At) -> Reason:
        old = self.episode
        returned_after = self._since_resolved - candidate.count
        reopened = old is not None and returned_after < self._timing.reopen_within
        if old is not None and reopened:
            self.episode = replace(
                candidate,
                number=old.number,
                severity=graver(old.severity, candidate.severity),
                started=old.started,
                fired=old.fired,
                before=old.before,
                count=old.count + candidate.count,
            )
        else:
            self.episode = replace(candidate, fired=at)
        self.state, self.candidate = "firing", None
        self._quiet = self._graver_for = 0
        self._reported_at_count = self.episode.count
        return "reopened" if reopened else "fired"

    def _open(self, finding: Finding | None, at: At) -> Reason | None:
        assert self.episode is not None, "an open track has an episode"
        was_lost = self.state == "no_data"
        self.state = "firing"
        reason = self._quieter(self.episode, at) if finding is None else self._goes_on(self.episode, finding, at)
        return "data_back" if was_lost and reason is None else reason

    def _quieter(self, episode: Episode, at: At) -> Reason | None:
        self._quiet += 1
        self._graver_for = 0
        if self._quiet < self._timing.clear_persistence:
            return None
        self.state = "resolved"
        self._since_resolved = 0
        self.episode = replace(episode, resolved=at)
        return "resolved"

    def _goes_on(self, episode: Episode, finding: Finding, at: At) -> Reason | None:
        self._quiet = 0
        self.episode = episode = episode.seen(finding, at)
        if self._has_escalated(episode, finding):
            self.episode = replace(episode, severity=self._grade)
            self._graver_for = 0
            self._reported_at_count = episode.count
            return "escalated"
        if episode.count - self._reported_at_count >= self._timing.reminder_every:
            self._reported_at_count = episode.count
            return "reminder"
        return None

    def _has_escalated(self, episode: Episode, finding: Finding) -> bool:
        """Whether the finding has been graver than its episode for long enough, and by how much: `_grade`."""
        if SEVERITIES.index(finding.severity) <= SEVERITIES.index(episode.severity):
            self._graver_for = 0
            return False
        self._grade = finding.severity if self._graver_for == 0 else milder(self._grade, finding.severity)
        self._graver_for += 1
        return self._graver_for >= self._timing.persistence
