"""POL002: a multiple of the beginning, and what the reward makes of it."""

import math

import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.entropy_explosion import EntropyExplosion
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged

RULE = EntropyExplosion()
GOOD = [[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]] * 16
WORSE = [[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]] * 16
BAD = [[0.0] * 8] * 16


def steps(entropy: float | None, *, n: int, rewards: list[list[float]] = GOOD) -> list[list[BaseEvent]]:
    return [[batch(rewards), step(entropy=entropy)] for _ in range(n)]


def answer(run: list[list[BaseEvent]]) -> Finding | None:
    features = Features()
    for group in run:
        for event in group:
            features.update(event)
    found = RULE.check(features, is_open=False)
    assert found is None or isinstance(found, Finding)
    return found


def severity(run: list[list[BaseEvent]]) -> str | None:
    found = answer(run)
    return None if found is None else found.severity


def test_fires_when_five_steps_are_twice_the_beginning() -> None:
    found = diagnostics(RULE, [[started(learning_rate=3e-4)], *steps(0.5, n=20), *steps(1.25, n=12)])
    assert [(record.reason, record.fired.step) for record in found if record.fired] == [("fired", 26)]
    assert found[0].summary == "Entropy is 1.25 nats, 2.5 times its beginning"
    assert found[0].evidence[0].baseline == 0.5
    assert found[0].actions[0].patches[0].to == 1.5e-4


def test_a_rise_is_info_with_a_lost_reward_more_and_five_times_is_more_by_itself() -> None:
    calm = steps(0.2, n=20)
    assert severity([*calm, *steps(0.5, n=10)]) == "info"
    assert severity([*calm, *steps(0.7, n=10)]) == "info"
    assert severity([*calm, *steps(0.5, n=10, rewards=BAD)]) == "warning"
    assert severity([*calm, *steps(0.7, n=10, rewards=WORSE)]) == "warning"
    assert severity([*calm, *steps(0.7, n=10, rewards=BAD)]) == "critical"
    assert severity([*calm, *steps(1.1, n=10)]) == "warning"


def test_a_wanted_bonus_is_info_until_the_reward_falls() -> None:
    calm = [[started(entropy_coef=0.01)], *steps(0.2, n=20)]
    assert severity([*calm, *steps(1.1, n=10)]) == "info"
    found = answer([*calm, *steps(1.1, n=10, rewards=BAD)])
    assert found is not None
    assert found.severity == "critical"
    assert found.causes is not None
    assert found.causes[0].text == "the entropy bonus is too strong"
    assert found.proposals[0].title == "lower entropy_coef 0.01 to 0.005"


def test_a_bonus_that_was_raised_in_mid_run_does_not_make_its_own_baseline() -> None:
    raised = KnobChanged(path="entropy_coef", before=0.0, after=0.3, actor="fault:entropy-bonus", effective_step=20)
    found = answer([[started()], *steps(0.2, n=20), [raised], *steps(1.1, n=10, rewards=BAD)])
    assert found is not None
    assert found.proposals[0].patches[0].to == 0.0


def test_another_temperature_begins_anew() -> None:
    hotter = KnobChanged(path="temperature", before=1.0, after=2.0, actor="person:a", effective_step=20)
    assert transitions(RULE, [*steps(0.2, n=20), [hotter], *steps(1.5, n=40)]) == []


def test_a_multiple_of_next_to_nothing_is_no_finding() -> None:
    assert transitions(RULE, [*steps(0.02, n=20), *steps(0.29, n=40, rewards=BAD)]) == []


@pytest.mark.parametrize(("entropy", "fires"), [(0.499, False), (0.5, True)])
def test_twice_the_beginning_is_the_limit(entropy: float, fires: bool) -> None:
    assert bool(transitions(RULE, [*steps(0.25, n=20), *steps(entropy, n=20)])) is fires


def test_falling_entropy_is_what_success_looks_like() -> None:
    assert transitions(RULE, [*steps(2.0, n=20), *steps(0.1, n=60)]) == []


def test_resolves_below_one_and_a_half_times() -> None:
    run = [*steps(0.5, n=20), *steps(2.0, n=20), *steps(0.76, n=40)]
    assert [reason for _, reason in transitions(RULE, run)] == ["fired"]
    found = transitions(RULE, [*steps(0.5, n=20), *steps(2.0, n=20), *steps(0.7, n=40)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_an_entropy_that_is_not_a_number_counts_as_missing() -> None:
    run = [*steps(0.5, n=20), *steps(math.nan, n=20)]
    assert transitions(RULE, run) == []
    assert unevaluated(RULE, run) == ("missing_input", "steps that train tokens report no `entropy`")


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, steps(0.5, n=9)) == ("warm_up", "fewer than 10 steps with an entropy were seen")
    assert unevaluated(RULE, steps(None, n=9)) == ("missing_input", "steps that train tokens report no `entropy`")
    found = transitions(RULE, [*steps(0.5, n=20), *steps(2.0, n=20), *steps(None, n=20)])
    assert [reason for _, reason in found] == ["fired", "data_lost"]
