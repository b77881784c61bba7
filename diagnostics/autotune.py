"""The auto-tuner's policy: records of the feed in, decisions out. Pure, so that it is tested by scenarios.

    policy = Autotune(config)
    policy.observe(record)             # every record, also those of earlier attempts when a run is resumed
    for decision in policy.decide(now): ...    # at a step barrier of the present attempt

A finding is answered by its first action that nothing speaks against. What speaks against an action is said once, as
a decision of its own, so that the feed has every refusal with its reason. Another policy is any class with these two
methods that is made with the configuration; one that inherits from `Autotune` keeps its safety rules. Whatever a
policy decides, knobs that the configuration does not allow stay as they are, and the control door has the last word.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, runtime_checkable

from tocsin.diagnostics.added_rules import added
from tocsin.diagnostics.causes import PAIRS
from tocsin.diagnostics.modes import NAMES
from tocsin.diagnostics.render import value
from tocsin.diagnostics.tuner_memory import Memory, OwnChange
from tocsin.schemas.actions import Action, ActionRecord
from tocsin.schemas.autotune import AutotuneConfig
from tocsin.schemas.control import KnobPatch
from tocsin.schemas.diagnosis import SEVERITIES, Coverage, Diagnostic
from tocsin.schemas.knobs import KnobValue

MAX_REFUSALS: Final = 3
"""Requests that the door refuses in a row before an action is left to a person."""
ANSWER_STEPS: Final = 100
"""Steps after which a request without an answer counts as lost."""
DIRECT_CAUSES: Final = {
    pair.consequence: tuple(p.cause for p in PAIRS if p.consequence == pair.consequence) for pair in PAIRS
}


@dataclass(frozen=True, kw_only=True)
class Now:
    """The run at the moment of a decision."""

    step: int
    steps_left: int | None = None
    """Optimizer steps that are planned after this one; None when nobody said."""
    knobs: Mapping[str, KnobValue]
    """In force."""
    pending: frozenset[str] = frozenset()
    """Codes of rules whose condition holds and was not reported yet."""
    warming: frozenset[str] = frozenset()
    """Codes of rules that are warming up."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is to be done about a finding."""

    kind: Literal["apply", "revert", "dry_run", "decline", "ask"]
    """`apply` asks the control door for the action, with the values that it proposes; `revert` asks for `patches`,
    which take it back; the others are said in the feed."""
    code: str
    diagnostic_id: str
    action_id: str
    patches: tuple[KnobPatch, ...] = ()
    """What changes: of `apply` and `dry_run`, those of the action."""
    reason: str = field(default="")
    """One line that does not change from step to step."""


@runtime_checkable
class Policy(Protocol):
    """Whatever decides."""

    def observe(self, record: Diagnostic | ActionRecord | Coverage) -> None:
        """Take in one record of the feed."""
        ...

    def decide(self, now: Now) -> Sequence[Decision]:
        """What is to be done now."""
        ...


class Autotune:
    """The policy of Tocsin. Raises `ValueError` for a rule that does not exist."""

    def __init__(self, config: AutotuneConfig) -> None:
        unknown = sorted(set(config.allow) - set(NAMES) - {rule.code for rule in added().rules})
        if unknown:
            raise ValueError(f"`autotune.allow` must name codes of rules, got {', '.join(unknown)}; see `tocsin rules`")
        self.config = config
        self.memory = Memory()
        self._asked_at: int | None = None
        """Step of our last request of this attempt."""

    def observe(self, record: Diagnostic | ActionRecord | Coverage) -> None:
        """Take in one record of the feed."""
        self.memory.observe(record)

    def decide(self, now: Now) -> Sequence[Decision]:
        """Take back what failed, ask a person, or answer the most urgent finding: at most one change."""
        if self._is_waiting(now):
            return []
        decisions = [self._ask(*self.memory.to_ask.popleft()) for _ in range(len(self.memory.to_ask))]
        if self.memory.failed is not None:
            return [*decisions, *self._take_back(*self.memory.failed, now)]
        for finding in sorted(self.memory.open.values(), key=urgency):
            decisions += self._answer(finding, now)
            if decisions and decisions[-1].kind == "apply":
                self._asked(now)
                break
        return [decision for decision in decisions if self._is_news(decision)]

    def objection(self, finding: Diagnostic, action: Action, now: Now) -> str | None:
        """What speaks against taking `action` now; None when nothing does."""
        return (
            self._standing_objection(finding, action)
            or self._wait_for_others(finding, now)
            or self._cooldown(finding, action, now)
            or self._lock_objection(action, now)
        )

    def _is_waiting(self, now: Now) -> bool:
        """Whether a request of ours is under way."""
        if self.memory.is_answered or self._asked_at is None:
            return False
        return now.step - self._asked_at < ANSWER_STEPS

    def _asked(self, now: Now) -> None:
        self._asked_at, self.memory.is_answered = now.step, False

    def _is_news(self, decision: Decision) -> bool:
        if decision.kind in ("apply", "revert"):
            return True
        text = (decision.action_id, decision.reason)
        is_news = text not in self.memory.said
        self.memory.said.add(text)
        return is_news

    def _answer(self, finding: Diagnostic, now: Now) -> Iterator[Decision]:
        """Every refusal up to the first action that can be taken, and that one."""
        is_mild = SEVERITIES.index(finding.severity) < SEVERITIES.index(self.config.min_severity)
        is_answered = any(action.id in self.memory.on_trial for action in finding.actions)
        if is_mild or is_answered:
            return
        for action in sorted(finding.actions, key=lambda action: not action.preferred):
            if action.applicability == "advisory" or not action.patches:
                continue
            reason = self.objection(finding, action, now)
            if reason is None:
                yield self._apply(finding, action)
                return
            yield Decision(
                kind="decline", code=finding.code, diagnostic_id=finding.id, action_id=action.id, reason=reason
            )

    def _apply(self, finding: Diagnostic, action: Action) -> Decision:
        patches = tuple(KnobPatch(path=p.path, expect=p.expect, to=p.to) for p in action.patches if p.to is not None)
        changes = ", ".join(f"{patch.path} {value(patch.expect)} -> {value(patch.to)}" for patch in patches)
        return Decision(
            kind="apply" if self.config.mode == "on" else "dry_run",
            code=finding.code,
            diagnostic_id=finding.id,
            action_id=action.id,
            patches=patches,
            reason=f"{finding.code} {finding.name}: {changes}",
        )

    def _take_back(self, change: OwnChange, verdict: str, now: Now) -> list[Decision]:
        """Restore the knobs of a change that failed, as long as they have the values that it gave them."""
        is_ours = all(now.knobs.get(path) == after for path, (_, after) in change.values.items())
        refused = self.memory.refusals[change.action_id]
        if not is_ours or refused >= MAX_REFUSALS or self.config.mode != "on":
            self.memory.failed = None
            why = "the door refused to take it back" if refused else "this is a dry run"
            why = why if is_ours else "the knob has another value by now"
            asked = _about(change, "ask", f"verdict {verdict}, and {why}: a person has to decide")
            return [asked] if self._is_news(asked) else []
        self._asked(now)
        note = f"verdict {verdict}: the knob goes back, the weights keep what they learned meanwhile"
        patches = tuple(KnobPatch(path=p, expect=after, to=old) for p, (old, after) in change.values.items())
        return [replace(_about(change, "revert", note), patches=patches)]

    def _ask(self, diagnostic_id: str, action_id: str, reason: str) -> Decision:
        return Decision(kind="ask", code="", diagnostic_id=diagnostic_id, action_id=action_id, reason=reason)

    def _standing_objection(self, finding: Diagnostic, action: Action) -> str | None:
        """What speaks against it whenever it is looked at."""
        return self._spent(finding.code, action) or self._unfit(finding.code, action)

    def _spent(self, code: str, action: Action) -> str | None:
        """The rule has had its chances."""
        memory = self.memory
        if memory.is_off(code):
            return f"{code} is off for this run, because its changes were reverted"
        if memory.changes[code] >= self.config.max_changes:
            return f"{code} has led to {memory.changes[code]} changes, which is `autotune.max_changes`"
        if memory.refusals[action.id] >= MAX_REFUSALS:
            return f"the door refused it {MAX_REFUSALS} times"
        return None

    def _unfit(self, code: str, action: Action) -> str | None:
        """The action is not for us."""
        if action.disabled is not None:
            return action.disabled
        if any(patch.effective == "restart" for patch in action.patches):
            return "it takes a restart"
        if action.applicability == "placeholder" or any(patch.to is None for patch in action.patches):
            return "somebody has to choose its value"
        paths = [patch.path for patch in action.patches]
        if not all(self.config.permits(code, path, action.applicability) for path in paths):
            return f"`autotune` does not allow {code} to change {', '.join(paths)} [{action.applicability}]"
        return None

    def _wait_for_others(self, finding: Diagnostic, now: Now) -> str | None:
        """A change that is on trial, a silence, missing data, or a cause that may be about to show."""
        code = finding.code
        if self.memory.on_trial:
            return f"{next(iter(self.memory.on_trial))} is on trial: one change at a time"
        if now.step < self.memory.silenced.get(code, 0):
            return f"{code} is silenced until step {self.memory.silenced[code]}"
        if finding.state == "no_data":
            return "the data of the finding stopped"
        for cause in DIRECT_CAUSES.get(code, ()):
            if cause in now.pending or cause in now.warming:
                what = "pending" if cause in now.pending else "warming up"
                return f"{cause} {NAMES[cause]}, which may be its cause, is {what}"
        return None

    def _lock_objection(self, action: Action, now: Now) -> str | None:
        """The optimistic lock: the finding computed its action for other values than are in force."""
        for patch in action.patches:
            current = now.knobs.get(patch.path)
            if current != patch.expect:
                return f"`{patch.path}` is {value(current)}, and the action was made for {value(patch.expect)}"
        return None

    def _cooldown(self, finding: Diagnostic, action: Action, now: Now) -> str | None:
        """A change whose effect cannot be in what the finding saw, or could not be seen before the run is over."""
        delay = int(now.knobs.get("max_staleness", 0)) + 1
        rest = max(action.cooldown_steps, delay + 1)
        if now.steps_left is not None and now.steps_left < rest:
            return "too few steps are left to see what it does"
        own = self.memory.own_step
        if own is not None and now.step < own + rest:
            return f"autotune changed something at step {own} and waits until step {own + rest}"
        for patch in action.patches:
            moved = self.memory.moved.get(patch.path)
            # A finding that began after the change is about the new value.
            if moved is not None and finding.started.step <= moved.step and now.step < moved.step + rest:
                return (
                    f"`{patch.path}` was changed by {moved.actor} at step {moved.step}: wait until {moved.step + rest}"
                )
        return None


def _about(change: OwnChange, kind: Literal["ask", "revert"], reason: str) -> Decision:
    return Decision(
        kind=kind,
        code=change.code,
        diagnostic_id=change.diagnostic_id,
        action_id=change.action_id,
        reason=reason,
    )


def urgency(finding: Diagnostic) -> tuple[bool, bool, int, int, str]:
    """What is answered first: roots, faults, the graver, the older."""
    grave = SEVERITIES.index(finding.severity)
    return (finding.suppressed, finding.kind != "fault", -grave, finding.started.step, finding.id)
