"""POL008: updates that go much further than the others."""

import math

import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.policy_kl_spike import PolicyKlSpike
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import RatioMoments

RULE = PolicyKlSpike()


def moments(k3: float | None, staleness: int = 1, tokens: int = 500) -> RatioMoments:
    return RatioMoments(staleness=staleness, tokens=tokens, mean=1, mean_square=1.01, max=2, k3=k3)


def steps(*values: float | None, tokens: int = 500) -> list[list[BaseEvent]]:
    return [[step(ratio=[moments(value, tokens=tokens)])] for value in values]


def severity(run: list[list[BaseEvent]]) -> str:
    features = Features()
    for group in run:
        for event in group:
            features.update(event)
    found = RULE.check(features, is_open=False)
    assert isinstance(found, Finding)
    return found.severity


def test_one_spike_is_info_and_the_second_within_thirty_updates_is_a_warning() -> None:
    run = [[started(learning_rate=3e-4, grad_clip=1.0)], *steps(*[1e-3] * 20, 0.3, 1e-3)]
    found = diagnostics(RULE, run)
    assert [(record.last.step, record.severity) for record in found] == [(21, "info")]
    assert found[0].summary == "1 of the last 21 updates moved the policy by more than 0.1 nats (largest 0.3)"
    assert [action.title for action in found[0].actions[:2]] == [
        "lower learning_rate 0.0003 to 0.00015",
        "lower grad_clip 1 to 0.5",
    ]
    assert severity(steps(*[1e-3] * 30, *[0.3, 1e-3, 1e-3, 1e-3] * 1)) == "info"
    assert severity(steps(*[1e-3] * 30, *[0.3, 1e-3, 1e-3, 1e-3] * 2)) == "warning"


def test_before_thirty_updates_nothing_says_what_is_usual() -> None:
    assert severity(steps(*[1e-3] * 15, *[0.3, 1e-3] * 7)) == "info"
    assert severity(steps(*[1e-3] * 16, *[0.3, 1e-3] * 7)) == "warning"


def test_one_spike_that_cost_the_reward_is_a_warning() -> None:
    good, bad = [[1.0, 0.0, 1.0, 1.0]] * 32, [[0.0] * 4] * 32
    before = [[batch(good), *step] for step in steps(*[1e-3] * 20, 0.3)]
    assert severity(before) == "info"
    assert severity([*before, *[[batch(bad), *step] for step in steps(*[1e-3] * 3)]]) == "warning"


def test_a_level_that_is_high_throughout_has_no_spikes() -> None:
    assert transitions(RULE, steps(*[0.02] * 30, *[0.15] * 3, *[0.02] * 10)) == []


def test_what_a_mismatch_adds_to_every_age_is_no_movement() -> None:
    both: list[list[BaseEvent]] = [[step(ratio=[moments(0.3, 0), moments(0.31, 1)])] for _ in range(40)]
    assert transitions(RULE, both) == []


def test_the_youngest_of_the_older_tokens_are_judged() -> None:
    old: list[list[BaseEvent]] = [[step(ratio=[moments(0.5, 4), moments(1e-3, 1)])] for _ in range(40)]
    assert transitions(RULE, old) == []


def test_noise_in_log_probs_is_no_movement() -> None:
    noisy = RatioMoments(staleness=1, tokens=500, mean=1.6, mean_square=4.0, max=9, k3=0.5)
    assert transitions(RULE, [*steps(*[1e-3] * 20), *[[step(ratio=[noisy])] for _ in range(30)]]) == []


def test_few_tokens_prove_nothing() -> None:
    assert transitions(RULE, [*steps(*[1e-3] * 20), *steps(0.5, 0.5, 0.5, tokens=127)]) == []


@pytest.mark.parametrize(("k3", "fires"), [(0.1, False), (0.11, True)])
def test_a_tenth_of_a_nat_does_not_fire(k3: float, fires: bool) -> None:
    assert bool(transitions(RULE, steps(*[1e-3] * 20, k3))) is fires


def test_resolves_when_thirty_updates_were_small() -> None:
    found = transitions(RULE, steps(*[1e-3] * 20, 0.3, *[1e-3] * 40))
    assert found == [(21, "fired"), (51, "resolved")]
    found = transitions(RULE, steps(*[1e-3] * 20, 0.3, *[1e-3] * 20, 0.06, *[1e-3] * 25))
    assert [reason for _, reason in found] == ["fired"]


def test_a_spike_that_is_not_a_number_is_left_to_the_rule_that_names_it() -> None:
    assert transitions(RULE, steps(*[1e-3] * 20, math.nan, math.inf, math.nan)) == []


def test_says_why_it_is_not_evaluated() -> None:
    fresh: list[list[BaseEvent]] = [[step(ratio=[moments(0.5, 0)])] for _ in range(10)]
    none = ("not_applicable", "no data are older than the weights: `max_staleness` is 0")
    assert unevaluated(RULE, [[started(max_staleness=0)], *fresh]) == none
    assert unevaluated(RULE, fresh) == ("warm_up", "no tokens of older weights were trained on yet")
    assert unevaluated(RULE, [[step()] for _ in range(10)]) == ("missing_input", "steps report no `ratio`")
    assert unevaluated(RULE, steps(*[None] * 10)) == ("missing_input", "`step_completed.ratio` has no `k3`")
