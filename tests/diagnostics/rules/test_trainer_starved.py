"""OFF016: shares of time, apart from start-up, turns and hiccups."""

import pytest

from tests.diagnostics.scenario import (
    batch,
    diagnostics,
    started,
    step,
    synced,
    times,
    transitions,
    unevaluated,
    waited,
)
from tocsin.diagnostics.rules.trainer_starved import TrainerStarved
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged

RULE = TrainerStarved()


def waits(
    learner: float, sampler: float, *, n: int, outcome: str = "updated", step_s: float = 1.0
) -> list[list[BaseEvent]]:
    return [[step(outcome=outcome), waited(learner, sampler, step_s=step_s)] for _ in range(n)]


def titles(steps: list[list[BaseEvent]], **knobs: object) -> list[str]:
    return [action.title for action in diagnostics(RULE, [[started(**knobs)], *steps])[0].actions]


def test_warns_when_the_learner_waits_most_of_the_time() -> None:
    found = diagnostics(RULE, [[started(max_staleness=1)], *waits(0.1, 0.2, n=60), *waits(0.8, 0.0, n=40, step_s=6)])
    assert [(record.reason, record.kind, record.severity) for record in found] == [("fired", "efficiency", "warning")]
    assert 65 <= found[0].last.step <= 75
    assert found[0].summary.startswith("The learner waited 63% of the time over 30 steps, the sampler 4%")


def test_a_third_of_the_time_is_the_usual_price() -> None:
    assert transitions(RULE, waits(0.35, 0.2, n=200)) == []


def test_start_up_does_not_count() -> None:
    assert transitions(RULE, [*waits(0.99, 0.0, n=8, step_s=60), *waits(0.1, 0.1, n=60)]) == []


def test_one_long_wait_does_not_decide() -> None:
    assert transitions(RULE, [*waits(0.1, 0.1, n=60), *waits(0.99, 0.0, n=1, step_s=300), *waits(0.1, 0.1, n=60)]) == []


def test_exactly_half_of_the_time_fires() -> None:
    assert transitions(RULE, waits(0.5, 0.0, n=60)) == [(42, "fired")]
    assert transitions(RULE, waits(0.49, 0.0, n=60)) == []


def test_taking_turns_at_staleness_zero_is_info_with_the_overlap_proposed() -> None:
    found = diagnostics(RULE, [[started(max_staleness=0)], *waits(0.6, 0.4, n=60)])
    assert found[0].severity == "info"
    assert found[0].summary.endswith("(they take turns at max_staleness 0)")
    assert found[0].actions[0].title == "raise max_staleness 0 to 1"


def test_older_data_is_proposed_only_where_the_sampler_waits_as_well() -> None:
    assert titles(waits(0.6, 0.3, n=60), max_staleness=1)[0] == "raise max_staleness 1 to 2"
    assert titles(waits(0.8, 0.0, n=60), max_staleness=1) == [
        "add samplers, raise sampler.batch_groups, or shorten completions"
    ]
    assert "raise max_staleness" not in " ".join(titles(waits(0.6, 0.3, n=60), max_staleness=8))


def test_a_cap_below_the_slots_is_lifted_first() -> None:
    run = waits(0.8, 0.0, n=60)
    assert titles(run, max_staleness=1, groups_per_step=16, in_flight_groups=16)[0] == "raise in_flight_groups 16 to 32"


def test_steps_without_signal_are_not_counted() -> None:
    idle = waits(0.9, 0.0, n=200, outcome="no_signal")
    assert unevaluated(RULE, idle) == ("warm_up", "fewer than 30 steps with an update were seen")


def test_resolves_when_the_wait_is_over() -> None:
    found = transitions(RULE, [*waits(0.8, 0.0, n=60), *waits(0.1, 0.1, n=60)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_a_change_of_the_bound_measures_anew_and_keeps_firing_meanwhile() -> None:
    change = KnobChanged(path="max_staleness", before=1, after=2, actor="person:a", effective_step=61)
    run = [[started(max_staleness=1)], *waits(0.8, 0.2, n=60), [change], *waits(0.1, 0.1, n=29)]
    assert [reason for _, reason in transitions(RULE, run)] == ["fired"]
    assert [reason for _, reason in transitions(RULE, [*run, *waits(0.1, 0.1, n=20)])] == ["fired", "resolved"]


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, [[step()] for _ in range(60)]) == (
        "missing_input",
        "no `queue_sampled` event in the last 50 steps",
    )
    found = transitions(RULE, [*waits(0.8, 0.0, n=60), *([step()] for _ in range(60))])
    assert [reason for _, reason in found] == ["fired", "data_lost"]


@pytest.mark.parametrize("length", [0.0, 1e-12])
def test_steps_without_length_are_no_shares(length: float) -> None:
    assert transitions(RULE, waits(0.0, 0.0, n=60, step_s=length)) == []


def timed(n: int, generate: float, score: float, slowest: float | None = None) -> list[list[BaseEvent]]:
    """Steps of a second in which the learner waits for most of the time."""
    sample = waited(0.7, 0.0, generate_s=times(generate, slowest), score_s=times(score))
    return [[batch([[0.0, 1.0]] * 16), step(), sample] for _ in range(n)]


def test_causes_are_ranked_by_what_groups_wait_for() -> None:
    def codes(steps: list[list[BaseEvent]]) -> list[str | None]:
        return [cause.code for cause in diagnostics(RULE, steps)[0].causes]

    assert codes(timed(60, 0.8, 0.01))[0] is None
    assert codes(timed(60, 0.8, 0.7))[:2] == [None, "GEN015"]
    assert codes(timed(60, 0.8, 0.01, slowest=8.0))[0] == "SYS005"
    took = {"total": 0.5, "load": 0.5, "verify": 0.0, "resume": 0.0, "write": 0.0}
    parts = {"wait": 0.7, "sync_wait": 0.0, "total": 1.0}
    slow_syncs = [[synced(seconds=took), step(seconds=parts), sample] for _, _, sample in timed(60, 0.8, 0.01)]
    assert codes(slow_syncs)[0] == "OFF012"


def test_evidence_holds_how_long_groups_take() -> None:
    (found,) = diagnostics(RULE, timed(60, 0.8, 0.1))
    last = found.evidence[-1]
    assert (last.metric, last.observed, last.threshold) == ("queue_sampled.generate_s.p50", 0.8, 0.1)
