"""No rule sounds an alarm on healthy noise: 100,000 completions, resampled from recorded runs, for each of 20 seeds.

The seeds take turns at the recordings.
"""

import json
import math
from collections.abc import Iterable, Iterator

import pytest

from tests.diagnostics.bootstrap import NAMES, bootstrapped, recording
from tests.records import violations
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.schemas.batch import BatchConsumed
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import QueueSampled

COMPLETIONS = 100_000
SEEDS = range(20)
NOT_RECORDED = {
    "GEN005": "completions of 64 tokens and more",
    "GEN006": "texts with letters",
    "GEN012": "a verifier that looks for its answer within the text",
    "OFF013": "a server with a prefix cache",
    "SYS002": "an accelerator",
    "SYS004": "a server with preemption",
    "SYS006": "several servers",
    "SYS014": "a run that was resumed",
    "SYS015": "an accelerator",
}
"""Rules about faults that no recording can judge, and what it would need."""


def steps_of(name: str, *, completions: int = COMPLETIONS, seed: int) -> Iterator[list[BaseEvent]]:
    recorded = recording(name)
    knobs = recorded.start.knobs
    steps = math.ceil(completions / (knobs["groups_per_step"] * knobs["group_size"]))
    return bootstrapped(recorded, steps=steps, seed=seed)


def diagnose(engine: Engine, steps: Iterable[list[BaseEvent]]) -> list[Diagnostic]:
    records = [record for step in steps for event in step for record in engine.observe(event)]
    return [record for record in records if isinstance(record, Diagnostic)]


def alarms(found: list[Diagnostic]) -> list[str]:
    return [f"{r.code} at step {r.last.step}: {r.summary}" for r in found if r.kind == "fault" and r.severity != "info"]


@pytest.mark.parametrize(("seed", "name"), [(seed, NAMES[seed % len(NAMES)]) for seed in SEEDS])
def test_no_rule_warns_of_a_fault_in_healthy_noise(seed: int, name: str) -> None:
    assert alarms(diagnose(Engine(), steps_of(name, seed=seed))) == []


def test_every_rule_about_a_fault_judges_one_of_the_recordings() -> None:
    judged: set[str] = set()
    for name in NAMES:
        engine = Engine()
        diagnose(engine, steps_of(name, completions=30_000, seed=0))
        assert engine.coverage is not None
        judged |= set(engine.coverage.evaluated)
    assert {rule.code for rule in ALL_RULES if rule.kind == "fault"} - judged == set(NOT_RECORDED)


@pytest.mark.parametrize("name", NAMES)
def test_a_reward_that_breaks_in_the_noise_is_named(name: str) -> None:
    def broken(step: list[BaseEvent]) -> list[BaseEvent]:
        return [
            _all_alike(event) if isinstance(event, BatchConsumed) and event.step >= 100 else event for event in step
        ]

    found = diagnose(Engine(), map(broken, steps_of(name, completions=30_000, seed=0)))
    assert {text.split()[0] for text in alarms(found)} >= {"RWD001"}


def _all_alike(event: BatchConsumed) -> BatchConsumed:
    """Every completion gets 0.3."""
    groups = event.groups
    n = len(groups.size)
    columns = {"reward_mean": [0.3] * n, "reward_std": [0.0] * n, "reward_min": [0.3] * n, "reward_max": [0.3] * n}
    changed = groups.model_copy(update={**columns, "zero_spread": [True] * n, "passed": [0] * n})
    return event.model_copy(update={"groups": changed, "reward_mean": 0.3, "pass_rate": 0.0})


@pytest.mark.parametrize("name", NAMES)
def test_what_is_resampled_reads_as_one_run(name: str) -> None:
    events = [event for step in steps_of(name, completions=6_000, seed=1) for event in step]
    for event in events:
        assert violations(json.loads(event.model_dump_json(exclude_none=True)), "event") == []
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    times, steps = [event.mono for event in events], [event.step for event in events]
    assert (times, steps) == (sorted(times), sorted(steps))
    indices = [i for event in events if isinstance(event, BatchConsumed) for i in event.groups.group_index]
    assert indices == list(range(len(indices)))
    ledgers = [event.ledger for event in events if isinstance(event, QueueSampled)]
    assert [ledger.balance() for ledger in ledgers] == [0] * len(ledgers)
    assert ledgers[-1].consumed == len(indices)
