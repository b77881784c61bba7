"""POL006: growth is the point of training; growth that costs the reward is not."""

import math

import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.ref_kl_runaway import RefKlRunaway
from tocsin.schemas.event import BaseEvent

RULE = RefKlRunaway()
GOOD = [[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]] * 16
WORSE = [[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]] * 16
BAD = [[0.0] * 8] * 16


def steps(kl: float | None, *, n: int, rewards: list[list[float]] = GOOD) -> list[list[BaseEvent]]:
    return [[batch(rewards), step(kl_ref=kl)] for _ in range(n)]


def severity(run: list[list[BaseEvent]]) -> str | None:
    features = Features()
    for group in [[started(kl_beta=0.001)], *run]:
        for event in group:
            features.update(event)
    found = RULE.check(features, is_open=False)
    return found.severity if isinstance(found, Finding) else None


def test_fires_at_the_third_value_of_five_times_the_usual() -> None:
    run = [[started(kl_beta=0.001, learning_rate=3e-4)], *steps(0.02, n=30), *steps(0.2, n=5)]
    found = diagnostics(RULE, run)
    assert [(record.reason, record.last.step, record.severity) for record in found] == [("fired", 33, "info")]
    assert found[0].summary == "KL to the reference is 0.2 nats, against 0.02 in the 20 steps before"
    assert [action.title for action in found[0].actions[:2]] == [
        "lower learning_rate 0.0003 to 0.00015",
        "raise kl_beta 0.001 to 0.002",
    ]


def test_growth_alone_is_info_and_with_a_lost_reward_more() -> None:
    assert severity([*steps(0.02, n=30), *steps(0.2, n=4)]) == "info"
    assert severity([*steps(0.02, n=30), *steps(0.2, n=4, rewards=WORSE)]) == "warning"
    assert severity([*steps(0.02, n=30), *steps(0.2, n=4, rewards=BAD)]) == "critical"


def test_ten_steps_above_two_nats_are_a_warning_by_themselves() -> None:
    assert severity(steps(2.1, n=23)) == "warning"
    assert severity([*steps(2.1, n=20), *steps(1.9, n=1), *steps(2.1, n=9)]) is None


def test_single_values_are_no_finding() -> None:
    spiky = [item for _ in range(10) for item in [*steps(0.02, n=5), *steps(2.0, n=2)]]
    assert transitions(RULE, [[started(kl_beta=0.001)], *spiky]) == []


def test_the_growth_of_the_first_steps_is_no_finding() -> None:
    growth = [item for i in range(60) for item in steps(1e-4 * i * i, n=1)]
    assert transitions(RULE, [[started(kl_beta=0.001)], *growth]) == []
    assert severity([*steps(1e-4, n=30), *steps(0.05, n=10)]) is None


@pytest.mark.parametrize(("kl", "fires"), [(0.3125, False), (0.32, True)])
def test_exactly_five_times_does_not_fire(kl: float, fires: bool) -> None:
    assert bool(transitions(RULE, [[started(kl_beta=0.001)], *steps(0.0625, n=30), *steps(kl, n=4)])) is fires


def test_resolves_when_the_distance_stays_and_the_reward_is_there() -> None:
    begun = [[started(kl_beta=0.001)], *steps(0.02, n=30), *steps(0.2, n=5)]
    assert [reason for _, reason in transitions(RULE, [*begun, *steps(0.2, n=30)])] == ["fired", "resolved"]
    lost = transitions(RULE, [*begun, *steps(0.2, n=60, rewards=BAD)])
    assert "resolved" not in [reason for _, reason in lost]


def test_values_that_are_not_numbers_say_nothing() -> None:
    assert transitions(RULE, [[started(kl_beta=0.001)], *steps(0.02, n=30), *steps(math.nan, n=30)]) == []


def test_says_why_it_is_not_evaluated() -> None:
    none = ("not_applicable", "the run has no reference model: `kl_beta` was 0 at launch")
    assert unevaluated(RULE, [[started()], *steps(None, n=30)]) == none
    begun: list[list[BaseEvent]] = [[started(kl_beta=0.001)]]
    assert unevaluated(RULE, [*begun, *steps(None, n=30)]) == ("missing_input", "steps report no `kl_ref`")
    short = ("warm_up", "fewer than 23 steps with `kl_ref` were seen")
    assert unevaluated(RULE, [*begun, *steps(0.02, n=22)]) == short
    assert unevaluated(RULE, [*begun, *steps(0.02, n=23)]) is None
