"""The same completions in more and smaller steps: a rule whose window counts completions or groups says the same.

Each step becomes several, with its groups shared out in their order. Counts are those of the groups that a part has,
means stay, and so does what is not about groups; weights are synced after the last part.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pytest

from tests.diagnostics.bootstrap import NAMES, bootstrapped, recording
from tests.diagnostics.planted import FAULTS, planted
from tests.diagnostics.planted_rewards import REWARD_FAULTS
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rule import Rule
from tocsin.diagnostics.rules import ALL_RULES
from tocsin.schemas.base import as_float
from tocsin.schemas.batch import BatchConsumed, ComponentStats, Histogram, TextStats
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import QueueSampled, RolloutFailed, RunStarted
from tocsin.schemas.generation import SamplerSampled, WeightsSynced, WeightSyncStarted
from tocsin.schemas.step import StepCompleted

STEPS: Final = 150
ONSET: Final = 80
END: Final = 120
COUNTED: Final[dict[str, Rule]] = {
    rule.code: rule for rule in ALL_RULES if rule.timing.unit in ("completions", "groups")
}
SHOWN: Final = {
    **{name: FAULTS[name] for name in ("constant-reward", "truncated", "same-completions", "verifier-outage")},
    **REWARD_FAULTS,
}
"""Faults that a rule of completions or groups names."""


def split(steps: Iterable[list[BaseEvent]], parts: int) -> list[BaseEvent]:
    """The events of the same run with `parts` steps for each one."""
    stamped: list[BaseEvent] = []
    consumed = finished = 0
    for events in steps:
        for part in range(parts):
            for event in _part(events, part, parts):
                finished += isinstance(event, StepCompleted)
                consumed += len(event.groups.size) if isinstance(event, BatchConsumed) else 0
                stamp: dict[str, Any] = {"seq": len(stamped) + 1, "step": finished, "policy_version": finished}
                if isinstance(event, QueueSampled):
                    elsewhere = event.ledger.launched - event.ledger.consumed
                    moved = {"consumed": consumed, "launched": consumed + elsewhere}
                    stamp["ledger"] = event.ledger.model_copy(update=moved)
                stamped.append(event.model_copy(update=stamp))
    return stamped


def _part(events: list[BaseEvent], part: int, parts: int) -> Iterator[BaseEvent]:
    """The events of one part: its share of the batch, the step and the waits, and in the last part all others."""
    is_first, is_last = part == 0, part == parts - 1
    batch = next((event for event in events if isinstance(event, BatchConsumed)), None)
    mine = _columns(batch, part, parts)["group_index"] if batch else []
    for event in events:
        if isinstance(event, BatchConsumed):
            yield _batch(event, part, parts)
        elif isinstance(event, StepCompleted):
            yield _step(event, part, parts)
        elif isinstance(event, QueueSampled):
            waits = {name: getattr(event, name) / parts for name in ("learner_wait_s", "sampler_wait_s", "step_s")}
            yield event.model_copy(update=waits)
        elif isinstance(event, RolloutFailed):
            if event.group_index in mine:
                yield event
        elif isinstance(event, RunStarted):
            if is_first:
                yield _start(event, parts)
        elif is_last:
            versioned = isinstance(event, WeightSyncStarted | WeightsSynced | SamplerSampled)
            yield event.model_copy(update={"version": event.version * parts}) if versioned else event


def _start(event: RunStarted, parts: int) -> RunStarted:
    knobs = {**event.knobs, "groups_per_step": event.knobs["groups_per_step"] // parts, "weight_sync_every": parts}
    return event.model_copy(update={"knobs": knobs, "num_steps": event.num_steps * parts})


def _columns(event: BatchConsumed, part: int, parts: int) -> dict[str, Any]:
    n = len(event.groups.size) // parts
    cut = slice(part * n, (part + 1) * n)
    return {name: None if column is None else column[cut] for name, column in event.groups.__dict__.items()}


def _share(count: int, part: int, parts: int) -> int:
    """The share of a part in a count that does not say whose it is; all shares add up to it."""
    return count * (part + 1) // parts - count * part // parts


def _batch(event: BatchConsumed, part: int, parts: int) -> BatchConsumed:
    groups = event.groups.model_copy(update=_columns(event, part, parts))
    n, cut = sum(groups.size), sum(groups.truncated)
    means = [as_float(mean) for mean in groups.reward_mean]
    histogram, texts = event.length_histogram, event.texts
    changes: dict[str, Any] = {
        "groups": groups,
        "reward_mean": float(np.average(means, weights=groups.size)),
        "finish_reasons": {"stop": n - cut, "length": cut},
        "length_histogram": Histogram(edges=histogram.edges, counts=[_share(c, part, parts) for c in histogram.counts]),
        "component_stats": {
            name: ComponentStats(
                n=_share(stats.n, part, parts), min=stats.min, max=stats.max, std_within=stats.std_within
            )
            for name, stats in event.component_stats.items()
        },
    }
    if groups.passed is not None:
        changes["pass_rate"] = sum(groups.passed) / n
    if texts is not None:
        counts = {name: _share(value, part, parts) for name, value in texts.__dict__.items() if isinstance(value, int)}
        changes["texts"] = TextStats(**counts, unparsed={k: _share(v, part, parts) for k, v in texts.unparsed.items()})
    return event.model_copy(update=changes)


def _step(event: StepCompleted, part: int, parts: int) -> StepCompleted:
    counts = {
        n: _share(getattr(event, n), part, parts) for n in ("groups", "groups_trained", "tokens", "tokens_trained")
    }
    ratio = [item.model_copy(update={"tokens": _share(item.tokens, part, parts)}) for item in event.ratio]
    seconds = {name: value / parts for name, value in event.seconds.items()}
    return event.model_copy(update={**counts, "ratio": ratio, "seconds": seconds})


def run_of(name: str, fault: str | None) -> list[list[BaseEvent]]:
    steps: Iterable[list[BaseEvent]] = bootstrapped(recording(name), steps=STEPS, seed=9)
    return list(steps if fault is None else planted(steps, SHOWN[fault][0], first=ONSET, last=END))


def fired(events: Iterable[BaseEvent]) -> dict[str, list[int]]:
    """By code, after how many completions it fired or came back; only rules of completions and groups are asked."""
    engine = Engine(list(COUNTED.values()))
    found: dict[str, list[int]] = {}
    completions = 0
    for event in events:
        completions += sum(event.groups.size) if isinstance(event, BatchConsumed) else 0
        for record in engine.observe(event):
            if isinstance(record, Diagnostic) and record.reason in ("fired", "reopened"):
                found.setdefault(record.code, []).append(completions)
    return found


def reach(code: str, name: str) -> int:
    """Completions within which a rule sees what happens: its window, and steps of the run for its persistence."""
    knobs, timing = recording(name).start.knobs, COUNTED[code].timing
    size, groups = int(knobs["group_size"]), int(knobs["groups_per_step"])
    window = timing.window * (size if timing.unit == "groups" else 1)
    return window + (1 + timing.persistence) * size * groups


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("fault", [None, *SHOWN])
@pytest.mark.parametrize("name", NAMES)
def test_smaller_steps_change_no_verdict_of_a_window_of_completions_or_groups(
    name: str, fault: str | None, parts: int
) -> None:
    run = run_of(name, fault)
    whole, shared = fired(split(run, 1)), fired(split(run, parts))
    # Copies are no news to RWD006 where most groups were copies before, as they are in an easy run.
    assert fault is None or SHOWN[fault][1] in whole or (SHOWN[fault][1] == "RWD006" and whole)
    assert shared.keys() == whole.keys()
    for code, at in whole.items():
        assert abs(shared[code][0] - at[0]) < reach(code, name), code


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_a_step_are_the_step(name: str) -> None:
    run = run_of(name, "verifier-outage")
    whole, shared = split(run, 1), split(run, 4)

    def totals(events: list[BaseEvent]) -> dict[str, float]:
        batches = [event for event in events if isinstance(event, BatchConsumed)]
        steps = [event for event in events if isinstance(event, StepCompleted)]
        queues = [event for event in events if isinstance(event, QueueSampled)]
        return {
            "completions": sum(sum(batch.groups.size) for batch in batches),
            "passed": sum(as_float(batch.pass_rate) * sum(batch.groups.size) for batch in batches),
            "reward": sum(as_float(batch.reward_mean) * sum(batch.groups.size) for batch in batches),
            "lengths": sum(sum(batch.length_histogram.counts) for batch in batches),
            "failed": sum(event.completions for event in events if isinstance(event, RolloutFailed)),
            "tokens": sum(event.tokens for event in steps),
            "seconds": sum(event.seconds["total"] for event in steps),
            "lost": sum(abs(event.ledger.balance()) for event in queues),
        }

    assert totals(shared) == pytest.approx(totals(whole), rel=1e-9)
    assert len([e for e in shared if isinstance(e, StepCompleted)]) == 4 * STEPS
    assert [event.step for event in shared] == sorted(event.step for event in shared)
