"""SYS008: the run beside its own best pace, and the part of the step that grew."""

import math

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.throughput_regression import ThroughputRegression
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import CheckpointSaved, KnobChanged

RULE = ThroughputRegression()


def paced(total: float, *, n: int, tokens: int = 1000, **parts: float) -> list[list[BaseEvent]]:
    """Steps of `total` seconds, all of them computing apart from the parts that are named."""
    rest = {"forward_backward": total - sum(parts.values()), **parts}
    return [[step(tokens=tokens, seconds={**rest, "total": total})] for _ in range(n)]


def test_says_that_the_pace_fell_and_which_part_grew() -> None:
    (found,) = diagnostics(RULE, [*paced(1.0, n=40), *paced(3.0, n=60, wait=2.0)])
    assert (found.reason, found.severity, found.kind) == ("fired", "info", "efficiency")
    assert found.summary == (
        "333 tokens/s over 20 steps, 33% of the best 1e+03; what grew most is waiting for groups, from 0 to 2 s a step"
    )
    assert found.causes[0].code == "OFF016"
    assert 60 <= found.last.step <= 75


def test_fewer_syncs_are_proposed_where_syncs_grew_and_that_alone_may_warn() -> None:
    run = [[started(weight_sync_every=1, max_staleness=2)], *paced(1.0, n=40, sync_wait=0.1)]
    found = diagnostics(RULE, [*run, *paced(4.0, n=200, sync_wait=3.0)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "info"), ("escalated", "warning")]
    assert found[1].last.step > 140
    assert found[0].actions[0].title == "raise weight_sync_every 1 to 2"
    assert found[0].actions[0].preferred


def test_a_machine_that_is_shared_is_no_reason_to_warn() -> None:
    (found,) = diagnostics(RULE, [*paced(1.0, n=40, wait=0.2), *paced(4.0, n=400, wait=0.8)])
    assert found.severity == "info"


def test_half_of_the_best_pace_is_no_finding() -> None:
    assert transitions(RULE, [*paced(1.0, n=40), *paced(2.0, n=100)]) == []
    assert [reason for _, reason in transitions(RULE, [*paced(1.0, n=40), *paced(2.1, n=100)])] == ["fired"]


def test_shorter_completions_are_no_slower_run() -> None:
    assert transitions(RULE, [*paced(1.0, n=40), *paced(0.9, n=100, tokens=300)]) == []


def test_steps_around_a_checkpoint_do_not_count() -> None:
    saved = CheckpointSaved(path="checkpoints/1", seconds=1.0, bytes=1)
    slow: list[list[BaseEvent]] = [[saved, *steps] for steps in paced(5.0, n=60)]
    assert transitions(RULE, [*paced(1.0, n=40), *slow]) == []


def test_another_configuration_has_another_pace() -> None:
    change = KnobChanged(path="groups_per_step", before=16, after=32, actor="person:a", effective_step=41)
    assert transitions(RULE, [*paced(1.0, n=40), [change], *paced(3.0, n=100)]) == []


def test_resolves_when_the_pace_is_back() -> None:
    found = transitions(RULE, [*paced(1.0, n=40), *paced(3.0, n=60), *paced(1.0, n=60)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_waits_for_enough_steps_with_an_update() -> None:
    detail = "fewer than 20 steps with an update were seen"
    assert unevaluated(RULE, paced(1.0, n=19)) == ("warm_up", detail)
    assert unevaluated(RULE, [[step(outcome="no_signal")] for _ in range(60)]) == ("warm_up", detail)
    assert unevaluated(RULE, [[step(seconds={})] for _ in range(60)]) == ("warm_up", detail)


@pytest.mark.parametrize("wasted", [0.5, 0.9, math.nan])
def test_limits_must_rise(wasted: float) -> None:
    with pytest.raises(ValueError, match="SYS008"):
        ThroughputRegression(wasted=wasted)
