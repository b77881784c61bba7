"""One rule in a run: its lifecycle, whether it can be evaluated at present, and what readers know of it."""

from collections.abc import Sequence
from dataclasses import replace

from tocsin.diagnostics.features import Features
from tocsin.diagnostics.lifecycle import Episode, Track
from tocsin.diagnostics.render import clean
from tocsin.diagnostics.rule import MAY_WARN, Answer, Finding, Rule, is_added, not_evaluated
from tocsin.diagnostics.vetting import vetted
from tocsin.schemas.actions import Action
from tocsin.schemas.diagnosis import Cause, Diagnostic, NotEvaluated
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import StepCompleted


class Watch:
    """One rule and everything that the engine remembers about it."""

    def __init__(self, rule: Rule, *, is_disabled: bool) -> None:
        self.rule = rule
        self.is_disabled = is_disabled
        self.track = Track(rule.timing)
        self.is_added = is_added(rule)
        """Whether another package brought the rule, so that its answers are vetted."""
        trigger = rule.trigger.model_fields["type"].default
        waiting = not_evaluated("warm_up", f"waits for its first `{trigger}` event")
        self.status: NotEvaluated | None = (
            not_evaluated("disabled", "switched off by the configuration") if is_disabled else waiting
        )
        """Why the rule is not evaluated; None when it is."""
        self.explainer: Watch | None = None
        """The direct cause of what is open, while there is one."""
        self.waited = 0
        """Evaluations for which what is pending has waited for a cause."""
        self.outlasted = 0
        """Evaluations for which what is open has outlasted its cause."""
        self.is_held_back = False
        """What is pending would fire, and waits for room in a storm."""
        self.told: Diagnostic | None = None
        """The newest record that readers have of something open; None when they know of nothing open."""
        self.owed: Episode | None = None
        """An episode that readers believe open and that resolved in a silence."""
        self.outdated: int | None = None
        """Step from which what is open is told again, because a knob that its actions name has changed since."""
        self._absent = not_evaluated(
            "missing_input", f"no `{trigger}` event in the last {rule.timing.silent_after} steps"
        )
        self._silent_steps = 0
        self._missing = 0

    @property
    def id(self) -> str:
        """Id of the open episode or of the newest one."""
        assert self.track.episode is not None, "only an episode has an id"
        return self.id_of(self.track.episode)

    def id_of(self, episode: Episode) -> str:
        """`name/where#number`."""
        return f"{self.rule.name}/{self.rule.where}#{episode.number}"

    @property
    def causes(self) -> Sequence[Cause]:
        """Ranked causes of what is open or pending; those of the rule when the finding names none."""
        episode = self.track.candidate or self.track.episode
        own = None if episode is None else episode.finding.causes
        return self.rule.causes if own is None else own

    def concerns(self, kind: type[BaseEvent]) -> bool:
        """Whether an event of this type may lead to an evaluation."""
        return not self.is_disabled and (issubclass(kind, self.rule.trigger) or kind is StepCompleted)

    def answer(self, event: BaseEvent, features: Features) -> tuple[Answer, bool]:
        """What the rule says to `event`, and whether it was asked at all."""
        if isinstance(event, self.rule.trigger):
            self._silent_steps = 0
            return self._ask(features), True
        self._silent_steps += 1
        return self._absent, self._silent_steps > self.rule.timing.silent_after

    def is_unmoved(self, answer: Answer) -> bool:
        """Whether `answer` changes nothing: a rule that never spoke says once more that nothing is wrong, or why not.

        Most answers of a healthy run are of this kind, so this is what a rule costs.
        """
        if self.track.state != "inactive" or self.is_held_back:
            return False
        if answer is None:
            return self.status is None and self._missing == 0
        return answer is self.status

    def outdate(self, path: str, step: int) -> None:
        """A knob changed at `step`: actions that were computed from its old value can no longer be applied.

        They are computed anew, and the finding told again, when the change has had its time to show an effect.
        """
        waits = [] if self.told is None else [a.cooldown_steps for a in self.told.actions if _names(a, path)]
        if waits:
            self.outdated = step + max(waits)

    def is_outdated(self, answer: Answer, step: int) -> bool:
        """Whether what is open still holds and is due to be told again."""
        is_due = self.outdated is not None and step >= self.outdated
        return is_due and self.track.state == "firing" and isinstance(answer, Finding)

    def note(self, answer: Answer) -> bool:
        """Keep the status for coverage; whether it changed. A single gap in the input is not news."""
        before = self.status
        if not isinstance(answer, NotEvaluated):
            self.status, self._missing = None, 0
            return before is not None
        self._missing += 1
        is_gap = answer.reason == "missing_input" and self._missing < self.rule.timing.absent_after
        if not (is_gap and before is None):
            self.status = answer
        return self.status != before

    def _ask(self, features: Features) -> Answer:
        try:
            answer = self.rule.check(features, is_open=self.track.is_open)
            answer = vetted(answer) if self.is_added else answer
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # protects the other rules and the run from one that fails, exits or panics
            return not_evaluated("error", f"the rule raised `{clean(type(error).__name__[:80])}`")
        if isinstance(answer, Finding) and self.rule.proof not in MAY_WARN:
            return replace(answer, severity="info")
        return answer


def _names(action: Action, path: str) -> bool:
    return any(patch.path == path for patch in action.patches)
