"""POL014: the size of updates and what it does, never the learning rate."""

import math

import pytest

from tests.diagnostics.scenario import batch, diagnostics, run, started, step, transitions, unevaluated
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rules.lr_too_high import LrTooHigh
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged
from tocsin.schemas.step import LogProbGap

RULE = LrTooHigh()
GOOD = [[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]] * 16
BAD = [[0.0] * 8] * 16


def updates(
    ratio: float, *, n: int = 1, gap: float = 0.005, rewards: list[list[float]] = GOOD, **more: object
) -> list[list[BaseEvent]]:
    moved = LogProbGap(k1=0, k3=0, abs_mean=gap, abs_p95=gap, abs_p99=gap, abs_max=gap)
    return [[batch(rewards), step(update_ratio=ratio, logprob_gap=moved, **more)] for _ in range(n)]


def idle(n: int) -> list[list[BaseEvent]]:
    nothing = step(outcome="no_signal", update_ratio=None, logprob_gap=None, ess_frac=None)
    return [[batch(BAD), nothing] for _ in range(n)]


def test_names_a_rate_a_hundred_times_too_high_two_steps_after_it_began() -> None:
    run = [[started(learning_rate=0.03)], *updates(7e-4, n=40), *updates(0.07), *updates(0.07, gap=5.0), *idle(10)]
    found = diagnostics(RULE, run)
    assert [(record.fired.step, record.severity) for record in found if record.fired] == [(43, "critical")]
    assert found[0].summary == "Updates are 100.0 times as large as this run tolerated, log-probs moved 5 nats"
    assert found[0].evidence[0].baseline == pytest.approx(7e-4)
    patch = found[0].actions[0].patches[0]
    assert (patch.expect, patch.to) == (0.03, 0.015)


def test_a_rate_that_was_raised_in_mid_run_may_go_all_the_way_back() -> None:
    raised = KnobChanged(path="learning_rate", before=3e-4, after=0.03, actor="fault:lr-too-high", effective_step=1)
    run = [[started(learning_rate=3e-4)], *updates(7e-4, n=40), [raised], *updates(0.07, gap=5.0, n=3)]
    assert diagnostics(RULE, run)[0].actions[0].patches[0].to == pytest.approx(3e-4)


def test_size_alone_is_no_finding() -> None:
    assert transitions(RULE, [*updates(7e-4, n=40), *updates(0.07, n=40)]) == []


def test_drift_alone_is_no_finding() -> None:
    assert transitions(RULE, [*updates(7e-4, n=40), *updates(7e-4, gap=0.5, ess_frac=0.2, n=40)]) == []


def test_warm_up_is_no_finding_even_with_the_drift_of_early_learning() -> None:
    warm_up = [item for i in range(1, 51) for item in updates(5e-5 * i, gap=0.2)]
    assert transitions(RULE, [*warm_up, *updates(2.5e-3, gap=0.2, n=50)]) == []


def test_a_schedule_that_restarts_its_rate_is_no_finding() -> None:
    cycle = [item for i in range(50, 0, -1) for item in updates(5e-5 * i, gap=0.2)]
    assert transitions(RULE, [*cycle, *cycle, *cycle]) == []


@pytest.mark.parametrize("effect", [{"gap": 0.15}, {"ess_frac": 0.4}, {"clip_low_frac": 0.15}, {"rewards": BAD}])
def test_each_effect_is_a_witness(effect: dict[str, object]) -> None:
    run = [*updates(7e-4, n=40), *updates(4e-3, n=10, **effect)]  # type: ignore[arg-type]
    assert [reason for _, reason in transitions(RULE, run)][:1] == ["fired"]


def test_the_fall_of_the_reward_makes_it_critical() -> None:
    found = diagnostics(RULE, [*updates(7e-4, n=40), *updates(4e-3, n=10, rewards=BAD)])
    assert found[-1].severity == "critical"
    assert found[-1].summary.endswith("and the reward fell to 0% of its best")


def test_two_and_a_half_times_the_tolerated_size_is_the_limit() -> None:
    assert transitions(RULE, [*updates(1e-3, n=40), *updates(2.4e-3, gap=0.5, n=20)]) == []
    assert transitions(RULE, [*updates(1e-3, n=40), *updates(2.6e-3, gap=0.5, n=4)]) == [(43, "fired")]


def test_without_a_past_only_an_enormous_update_counts() -> None:
    assert transitions(RULE, updates(0.02, gap=0.5, n=8)) == []
    assert [reason for _, reason in transitions(RULE, updates(0.05, gap=0.5, n=8))] == ["fired"]


def test_stays_open_without_updates_and_resolves_when_they_are_small_again() -> None:
    run = [*updates(7e-4, n=40), *updates(0.07, gap=5.0, n=2), *idle(50), *updates(7e-4, n=20)]
    assert transitions(RULE, run) == [(42, "fired"), (100, "resolved")]


def destroyed(*answer: BaseEvent) -> list[list[BaseEvent]]:
    """Ten times the rate in mid-run, then a policy that earns nothing and whose few updates are small."""
    start, dead = started(learning_rate=3e-4), updates(7e-4, gap=0.0, rewards=BAD, n=60)
    return [[start], *updates(7e-4, n=40), [rate(3e-4, 3e-3)], *updates(7e-3, gap=0.5, n=4), list(answer), *dead]


def rate(before: float, after: float) -> KnobChanged:
    return KnobChanged(path="learning_rate", before=before, after=after, actor="person:a", effective_step=1)


def test_small_updates_of_a_destroyed_policy_resolve_nothing_while_the_rate_is_unchanged() -> None:
    assert [reason for _, reason in transitions(RULE, destroyed())] == ["fired"]
    engine = Engine([RULE])
    run(engine, destroyed())
    (found,) = engine.active()
    assert found.summary == (
        "The learning rate that made updates 10.0 times as large as tolerated is still set, "
        "and the reward is 0% of its best"
    )
    assert (found.severity, found.evidence[0].observed) == ("critical", 0.0)
    assert found.actions[0].patches[0].to == pytest.approx(3e-4)


def test_small_updates_resolve_it_once_the_rate_was_lowered_however_low_the_reward() -> None:
    assert transitions(RULE, destroyed(rate(3e-3, 3e-4))) == [(42, "fired"), (51, "resolved")]


def test_a_rate_that_was_raised_further_is_no_answer_and_the_finding_is_told_again_for_it() -> None:
    assert [reason for _, reason in transitions(RULE, destroyed(rate(3e-3, 4e-3)))] == ["fired", "reminder"]


def test_small_updates_resolve_it_once_the_reward_is_back() -> None:
    found = transitions(RULE, [*destroyed(), *updates(7e-4, gap=0.0, n=20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_a_size_that_is_not_a_number_is_left_to_the_rule_that_names_it() -> None:
    assert transitions(RULE, [*updates(7e-4, n=40), *updates(math.nan, gap=math.nan, n=20)]) == []


def test_says_that_its_input_is_missing() -> None:
    steps = [[step(update_ratio=None)] for _ in range(10)]
    assert unevaluated(RULE, steps) == ("missing_input", "steps report no `update_ratio`")
    found = transitions(RULE, [*updates(7e-4, n=40), *updates(0.07, gap=5.0, n=4), *steps])
    assert [reason for _, reason in found] == ["fired", "data_lost"]
