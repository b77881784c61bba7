"""What must not look like success: actions that do nothing, judged on the noise of healthy runs, and a wrong rule.

The sham arm takes the recorded events of a healthy run and a rule whose threshold lies in the middle of the noise: the
median of what a metric was so far. Where three readings in a row are above it, an action is written into the events
that changes nothing, and the engine judges it against a clear threshold at the 40th percentile, a quarter of a
standard deviation lower. Metrics fall back after they crossed a threshold, whatever one does; a verdict of `target_met`
is a mistake.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.feed import EVENTS_FILE
from tocsin.diagnostics.proposals import measured, move, ranked
from tocsin.diagnostics.reader import read_events
from tocsin.diagnostics.readings import metric
from tocsin.diagnostics.rule import Answer, Finding, Proposal, Rule, Timing
from tocsin.diagnostics.rules.identical_completions import IdenticalCompletions
from tocsin.schemas.actions import ActionRecord, Patch, Verify
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Cause
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged
from tocsin.schemas.step import StepCompleted

WRONG_CODE: Final = IdenticalCompletions.code
ONSET: Final = 60
"""First step at which the wrong rule holds."""
SHAM_ID: Final = "sham/learner#1/sham"
METRICS: Final = (
    "step_completed.update_ratio",
    "step_completed.grad_norm",
    "step_completed.clip_high_frac",
    "step_completed.logprob_gap.abs_mean",
    "queue_sampled.learner_wait_s / step_s",
    "queue_sampled.sampler_wait_s / step_s",
)
"""What the rules verify their actions by, as far as it has noise in a healthy run."""
FIRST: Final = 40
"""Step before which nothing is judged."""
HELD: Final = 3
"""Readings in a row above the threshold."""
WITHIN: Final = 50
"""Steps in which the action has to show its effect."""
SPAN: Final = WITHIN + 15
"""Steps from one trial to the next: no verdict takes longer where every step is measured."""
DELAY: Final = 2
"""Steps until a batch was generated wholly under a change, at a staleness bound of 1."""


@dataclass(frozen=True, kw_only=True)
class WrongOnPurpose(IdenticalCompletions):
    """Always finds that completions are alike, and turns the temperature up, which ruins them."""

    def check(self, features: Features, *, is_open: bool) -> Answer:
        """Hold from `ONSET` on."""
        if features.settings.step < ONSET:
            return None
        verify = Verify(metric="step_completed.entropy", operator="<", threshold=0.0, within=40, unit="steps")
        return Finding(
            severity="warning",
            summary="Completions are alike, says a rule that is wrong on purpose",
            evidence=(measured("step_completed.entropy", 0.0, "<", 1.0, unit="nats", over=(1, "steps")),),
            proposals=ranked(move(features.settings, "temperature", 2.0, verify)),
        )


@dataclass(frozen=True)
class Crossing:
    """Where a metric crossed its threshold by chance."""

    path: str
    step: int
    clear: float


def crossings(events: Sequence[BaseEvent], path: str) -> Iterator[Crossing]:
    """The moments at which a rule about `path` would have fired, each far enough from the one before."""
    wanted = metric(path)
    seen: list[float] = []
    last = -SPAN
    end = events[-1].step - SPAN if events else 0
    for event in events:
        value = wanted.read(event) if isinstance(event, wanted.event) else math.nan
        if math.isnan(value):
            continue
        seen.append(value)
        before = sorted(seen[:-HELD])
        is_due = FIRST <= event.step <= end and event.step - last >= SPAN
        if is_due and min(seen[-HELD:]) > before[int(0.5 * len(before))]:
            last = event.step
            yield Crossing(path, event.step, before[int(0.4 * len(before))])


def sham_rule(crossing: Crossing) -> Rule:
    """A rule that holds from the crossing on and proposes what does nothing."""

    class Sham(Rule):
        """Finds the crossing."""

        code = "POL013"
        name = "sham"
        title = "Sham"
        kind = "fault"
        proof = "injected"
        where = "learner"
        reads = ("step_completed.outcome",)
        trigger = StepCompleted
        timing = Timing(unit="steps", window=1, warm_up=0, persistence=1, clear_persistence=1)
        causes: ClassVar[tuple[Cause, ...]] = ()

        def check(self, features: Features, *, is_open: bool) -> Answer:
            """Hold from the crossing on."""
            if features.settings.step < crossing.step:
                return None
            verify = Verify(metric=crossing.path, operator="<", threshold=crossing.clear, within=WITHIN, unit="steps")
            nothing = Patch(path="dual_clip", expect=3.0, to=2.9, min=1.0, max=100.0, effective="next_step")
            return Finding(
                severity="warning",
                summary="A metric crossed its threshold by chance",
                evidence=(measured(crossing.path, 1.0, ">", 0.0, unit="", over=(HELD, "steps")),),
                proposals=(
                    Proposal(
                        verb="sham", title="do nothing", applicability="review", patches=(nothing,), verify=verify
                    ),
                ),
            )

    return Sham()


def verdict(events: Sequence[BaseEvent], crossing: Crossing) -> str | None:
    """What the engine makes of an action that did nothing; None when the run ends before."""
    engine = Engine([sham_rule(crossing)])
    is_applied = False
    for event in events:
        records = engine.observe(_under(event, crossing) if is_applied else event)
        found = [record.state for record in records if isinstance(record, ActionRecord) and record.action_id == SHAM_ID]
        if found:
            return found[0]
        if not is_applied and isinstance(event, StepCompleted) and event.step >= crossing.step:
            is_applied = True
            change = {
                "path": "dual_clip",
                "before": 3.0,
                "after": 2.9,
                "actor": "autotune",
                "effective_step": event.step,
            }
            envelope = {name: event.__dict__[name] for name in BaseEvent.model_fields}
            number = {"config_generation": event.config_generation + 1}
            engine.observe(KnobChanged(**{**envelope, **change, **number}, action_id=SHAM_ID))
    return None


def _under(event: BaseEvent, crossing: Crossing) -> BaseEvent:
    """An event as it would read after a change that did nothing."""
    moved: dict[str, object] = {"config_generation": event.config_generation + 1}
    if isinstance(event, BatchConsumed) and event.step >= crossing.step + DELAY:
        generations = [generation + 1 for generation in event.groups.config_generation]
        moved["groups"] = event.groups.model_copy(update={"config_generation": generations})
    return event.model_copy(update=moved)


def report(runs: Sequence[Path]) -> list[str]:
    """Verdicts on actions that did nothing in healthy runs, by metric."""
    lines, all_of_it = [], Counter[str]()
    events = [list(read_events(run / EVENTS_FILE)) for run in runs]
    for path in METRICS:
        found = Counter(
            state
            for recorded in events
            for crossing in crossings(recorded, path)
            if (state := verdict(recorded, crossing)) is not None
        )
        all_of_it += found
        lines.append(f"sham {path}: {dict(found)}")
    total = sum(all_of_it.values())
    share = all_of_it["target_met"] / total if total else math.nan
    word = "ok" if share <= 0.1 else "NOT SHOWN"
    return [*lines, f"sham arm: {word}: {all_of_it['target_met']} of {total} succeeded ({share:.0%})"]
