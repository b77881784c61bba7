"""The engine: records on change, contained errors, coverage, bounded memory."""

import hashlib
import json
import math
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, memory, numbered, run, started, step
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Answer, Finding, Rule, Timing, threshold
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.schemas.actions import ActionRecord
from tocsin.schemas.diagnosis import Coverage, Diagnostic, Evidence
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import (
    ClockTicked,
    KnobChanged,
    Ledger,
    QueueSampled,
    RunEnded,
    RunPaused,
    RunResumed,
    RunStarted,
)
from tocsin.schemas.knobs import LIMITS
from tocsin.schemas.step import StepCompleted

MIXED = [[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]] * 16


@dataclass(frozen=True, kw_only=True)
class Clipped(Rule):
    """The upper clip fraction of the last step is high; the plainest rule there is."""

    code = "POL900"
    name = "clipped"
    title = "Clipped"
    kind = "fault"
    proof = "injected"
    where = "learner"
    reads = ("step_completed.clip_high_frac",)
    trigger = StepCompleted
    timing = Timing(unit="steps", window=1, warm_up=0, persistence=3, clear_persistence=5)
    rising = (("clear", "fire"),)
    causes = ()

    fire: float = threshold(0.5, "Fires above", high=1)
    clear: float = threshold(0.3, "Resolves below", high=1)

    def check(self, features: Features, *, is_open: bool) -> Answer:
        share = features.clips.window[-1].high
        if share <= (self.clear if is_open else self.fire):
            return None
        evidence = Evidence(
            metric="step_completed.clip_high_frac",
            observed=share,
            operator=">",
            threshold=self.fire,
            window=1,
            window_unit="steps",
            n=1,
        )
        return Finding(severity="critical", summary=f"Clip is {share:.2f}", evidence=(evidence,))


@dataclass(frozen=True, kw_only=True)
class Unproven(Clipped):
    """The same without a planted fault."""

    proof = "scenario"


@dataclass(frozen=True, kw_only=True)
class Broken(Clipped):
    """Raises in every evaluation, with a message that changes."""

    code = "POL901"
    name = "broken"

    def check(self, features: Features, *, is_open: bool) -> Answer:
        raise ZeroDivisionError(f"at step {features.settings.step}")


def shares(values: Iterator[float] | list[float]) -> Iterator[list[BaseEvent]]:
    for value in values:
        yield [step(clip_high_frac=value)]


def kinds(records: list[object]) -> list[tuple[str, str]]:
    return [(record.code, record.reason) for record in records if isinstance(record, Diagnostic)]


def test_a_metric_at_its_threshold_gives_at_most_two_records_in_a_thousand_steps() -> None:
    noise = np.random.default_rng(0).normal(0.5, 0.02, 1000)
    assert len(kinds(run(Engine([Clipped()]), shares(noise.tolist())))) <= 2


def test_a_thousand_violations_are_one_firing_and_a_few_reminders() -> None:
    reasons = Counter(reason for _, reason in kinds(run(Engine([Clipped()]), shares([0.9] * 1000))))
    assert reasons == {"fired": 1, "reminder": 1}


def test_only_rules_whose_fault_was_planted_go_above_info() -> None:
    for rule, severity in ((Clipped(), "critical"), (Unproven(), "info")):
        found = [record for record in run(Engine([rule]), shares([0.9] * 9)) if isinstance(record, Diagnostic)]
        assert [record.severity for record in found] == [severity]


def test_a_rule_that_raises_is_named_once_and_the_others_go_on() -> None:
    records = run(Engine([Broken(), Clipped()]), shares([0.9] * 50))
    assert kinds(records) == [("POL900", "fired")]
    covers = [record for record in records if isinstance(record, Coverage)]
    assert len(covers) == 1
    assert covers[0].health == "degraded"
    assert covers[0].evaluated == ["POL900"]
    assert covers[0].not_evaluated["POL901"].reason == "error"
    assert covers[0].not_evaluated["POL901"].detail == "the rule raised `ZeroDivisionError`"


def test_identity_holds_no_values() -> None:
    record = next(r for r in run(Engine([Clipped()]), shares([0.9] * 5)) if isinstance(r, Diagnostic))
    assert record.id == "clipped/learner#1"
    identity = json.dumps(["POL900", "r", [["component", "learner"]]])
    assert record.fingerprint == hashlib.sha256(identity.encode()).hexdigest()[:16]
    assert (record.event_seq, record.started.step, record.count, record.help) == (3, 1, 3, "tocsin explain POL900")


def test_pending_and_active_are_shown_on_request() -> None:
    engine = Engine([Clipped()])
    events = numbered(shares([0.9] * 4))
    assert engine.pending() == engine.active() == []
    for event in events[:2]:
        engine.observe(event)
    assert [(d.state, d.reason, d.count, d.fired) for d in engine.pending()] == [("pending", "pending", 2, None)]
    for event in events[2:]:
        engine.observe(event)
    assert engine.pending() == []
    assert [(d.state, d.count, d.last.step) for d in engine.active()] == [("firing", 4, 4)]


def test_what_is_open_when_the_run_ends_stays_open() -> None:
    records = run(Engine([Clipped()]), [*shares([0.9] * 5), [RunEnded(outcome="completed")]])
    last = next(record for record in reversed(records) if isinstance(record, Diagnostic))
    assert (last.state, last.reason, last.resolved) == ("firing", "run_ended", None)


def test_the_first_event_says_what_is_not_evaluated_yet() -> None:
    first = Engine(disable=["nan-inf"]).observe(numbered([[started()]])[0])[0]
    assert isinstance(first, Coverage)
    assert first.health == "unknown"
    later = [rule.code for rule in ALL_RULES if rule.trigger is not RunStarted]
    expected = {code: "disabled" if code == "POL015" else "warm_up" for code in later}
    assert {code: first.not_evaluated[code].reason for code in later} == expected


def test_rules_that_warm_up_one_after_the_other_make_a_few_coverage_records() -> None:
    records = run(Engine(), [[started()], *([batch(MIXED), step(entropy=0.5)] for _ in range(100))])
    covers = [record for record in records if isinstance(record, Coverage)]
    assert len(covers) <= 8
    assert {"POL001", "RWD001", "POL014"} <= set(covers[-1].evaluated)


def test_what_is_evaluated_now_is_known_before_it_is_recorded() -> None:
    engine = Engine()
    records = run(engine, [[started()], *([batch(MIXED), step()] for _ in range(4))])
    recorded = [record for record in records if isinstance(record, Coverage)][-1]
    assert engine.coverage is not None
    assert set(recorded.evaluated) < set(engine.coverage.evaluated)
    last = run(Engine(), [[started()], *([batch(MIXED), step()] for _ in range(4)), [RunEnded(outcome="completed")]])[
        -1
    ]
    assert isinstance(last, Coverage)
    assert last.evaluated == engine.coverage.evaluated


def test_lost_events_degrade_the_coverage() -> None:
    records = run(Engine([Clipped()]), [[step()], [ClockTicked(idle_s=1.0, events_dropped=3)]])
    covers = [record.health for record in records if isinstance(record, Coverage)]
    assert covers == ["ok", "degraded"]


def test_a_knob_change_is_an_action_record_and_a_resume_undoes_it() -> None:
    change = KnobChanged(path="learning_rate", before=1e-4, after=5e-5, actor="person:ada", effective_step=2)
    resume = RunResumed(
        checkpoint_step=0,
        rewound_from_step=2,
        knobs=started(learning_rate=1e-4).knobs,
        devices=[],
        versions={},
    )
    records = run(Engine([Clipped()]), [[started(learning_rate=1e-4)], [step()], [change], [resume]])
    actions = [record for record in records if isinstance(record, ActionRecord)]
    assert [(a.state, a.actor, a.path, a.before, a.after) for a in actions] == [
        ("applied", "person:ada", "learning_rate", 1e-4, 5e-5),
        ("reverted", "learner", "learning_rate", 5e-5, 1e-4),
    ]


def test_a_knob_change_restarts_only_the_windows_it_moves() -> None:
    features = Features()
    change = KnobChanged(path="max_staleness", before=1, after=2, actor="person:ada", effective_step=2)
    for event in numbered([[started()], [batch([[0, 1]] * 8), memory(0.5), step()], [change]]):
        features.update(event)
    assert (len(features.staleness.window), len(features.clips.window)) == (0, 0)
    assert (len(features.memory.window), features.rewards.totals.groups) == (1, 8)


@pytest.mark.parametrize("path", sorted(LIMITS))
def test_no_knob_restarts_the_baseline_of_the_outcome(path: str) -> None:
    features = Features()
    seen = [[batch([[0, 1] * 4] * 16), step()] for _ in range(12)]
    for event in numbered([[started()], *seen]):
        features.update(event)
    best, recent = features.outcome.best, features.outcome.recent.completions
    assert best is not None
    now = features.settings.knobs[path]
    features.update(KnobChanged(path=path, before=now, after=now, actor="person:ada", effective_step=13))
    assert (features.outcome.best, features.outcome.recent.completions) == (best, recent)
    assert best.reward_sum / best.completions == 0.5


def test_what_fires_goes_on_firing_over_a_knob_change_that_restarts_its_window() -> None:
    flat = [batch([[0.0] * 8] * 7 + [[1.0] * 8] * 7 + [[0.0, 1.0] * 4] * 2), step()]
    change = KnobChanged(path="group_size", before=8, after=16, actor="person:ada", effective_step=40)
    rule = next(rule for rule in ALL_RULES if rule.code == "RWD001")
    records = run(Engine([rule]), [[started()], *[flat] * 39, [change], *[flat] * 30])
    assert kinds(records) == [("RWD001", "fired")]
    engine = Engine([rule])
    run(engine, [[started()], *[flat] * 39, [change], *[flat] * 2])
    assert [record.state for record in engine.active()] == ["firing"]


def test_a_pause_is_no_wait_of_sampler_or_learner() -> None:
    ledger = Ledger(launched=0, in_flight=0, queued=0, consumed=0, dropped={}, failed={})
    busy = QueueSampled(ledger=ledger, learner_wait_s=0.01, sampler_wait_s=0.01, step_s=0.1)
    stood_still = busy.model_copy(update={"sampler_wait_s": 600.0})
    features = Features()
    pauses = [[RunPaused(actor="person:ada"), step(), stood_still], [step(), busy]] * 3
    for event in numbered([[started()], *[[step(), busy]] * 20, *pauses]):
        features.update(event)
    assert features.waits.shares(30)[1] <= 0.1


def test_rules_without_their_trigger_cost_nothing_and_still_notice_its_absence() -> None:
    engine = Engine([next(rule for rule in ALL_RULES if rule.code == "RWD001")])
    silent = run(engine, [[started()], *[[step()]] * 60])
    covers = [record for record in silent if isinstance(record, Coverage)]
    assert [cover.not_evaluated["RWD001"].reason for cover in covers] == ["warm_up", "missing_input"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disable": ["RWD0001"]}, "got `RWD0001`. Did you mean `RWD001`"),
        ({"thresholds": {"staleness": {"fire": 1}}}, "Did you mean `staleness-high`"),
        ({"thresholds": {"OFF001": {"fier": 6}}}, "Thresholds: fire, critical, clear, steps_of_ten, ess, k3"),
        ({"thresholds": {"POL003": {"fire": 1.5}}}, "must be a number from 0 to 1, got 1.5"),
        ({"thresholds": {"POL003": {"fire": math.nan}}}, "must be a number from 0 to 1, got nan"),
        ({"thresholds": {"POL003": {"fire": 0.01}}}, "must rise in the order clear < fire < critical"),
        ({"thresholds": {"POL015": {"fire": 1}}}, "this rule has no thresholds"),
        ({"rules": [Clipped(), Clipped()]}, "distinct codes"),
    ],
)
def test_refuses_what_does_not_exist(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace("?", r"\?")):
        Engine(**options)  # type: ignore[arg-type]


def test_thresholds_go_by_code_and_by_name() -> None:
    engine = Engine([Clipped()], thresholds={"clipped": {"fire": 0.95}})
    assert kinds(run(engine, shares([0.9] * 20))) == []


def test_memory_does_not_grow_with_the_run() -> None:
    rng = np.random.default_rng(0)
    template = [[batch((rng.random((16, 8)) < 0.6).astype(float).tolist()), memory(0.5), step()] for _ in range(50)]
    engine = Engine()
    sizes = []
    for repeat in range(20):
        for event in numbered(template):
            engine.observe(event.model_copy(update={"step": event.step + 50 * repeat}))
        sizes.append(len(pickle.dumps(engine)))
    assert max(sizes[4:]) < 1.1 * min(sizes[4:])


def test_every_rule_has_documented_input() -> None:
    assert all(rule.reads and rule.causes for rule in ALL_RULES)
