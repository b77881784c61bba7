"""Verdicts: doing nothing must not count as a success, and what works must."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tocsin.diagnostics.verdicts import EARLY, LAST, Judgement, Series, Verdict, fallen, level, quantile
from tocsin.schemas.actions import Verify

FIRE = 0.0
"""Level at which the simulated rule fires, in standard deviations of the noise around its mean."""


def target(threshold: float, operator: str = "<", within: int = 50) -> Verify:
    return Verify.model_validate(
        {"metric": "m", "operator": operator, "threshold": threshold, "within": within, "unit": "steps"}
    )


def noise(rng: np.random.Generator, n: int, phi: float) -> np.ndarray:
    """A stationary AR(1) series with mean 0 and standard deviation 1."""
    shocks = rng.normal(size=n) * math.sqrt(1 - phi**2)
    values = np.empty(n)
    values[0] = rng.normal()
    for t in range(1, n):
        values[t] = phi * values[t - 1] + shocks[t]
    return values


def judge(
    values: list[float], before: list[float], outcome: Series, verify: Verify, earlier: Sequence[float] = ()
) -> Verdict:
    """The verdict on a change after which `values` were measured, one a step."""
    metric = Series(before=before, earlier=list(earlier))
    later, outcome.after = outcome.after, []
    judgement = Judgement(verify, metric, {"reward": outcome})
    for t, value in enumerate(values, start=1):
        metric.after.append(value)
        outcome.after.append(later[t - 1])
        verdict = judgement.look(t / verify.within)
        if verdict is not None:
            return verdict
    raise AssertionError("the last look decides")


def share_met(phi: float, shift: float, *, clear: float, runs: int = 200, fault: float | None = None) -> float:
    """How often an action at the moment at which the rule fires is said to have met its target.

    The noise hovers at the threshold at which the rule fires, three steps in a row; the action takes three steps to
    arrive and then moves the level by `shift`. The reward is noise of its own. With `fault` the verdict also knows the
    readings before, and the level rose by as much when the finding began.
    """
    rng = np.random.default_rng([int(10 * phi), abs(int(10 * shift)), abs(int(10 * clear))])
    met = done = 0
    while done < runs:
        values, reward = noise(rng, 300, phi), noise(rng, 300, phi)
        fired = next((t for t in range(60, 200) if (values[t - 2 : t + 1] > FIRE).all()), None)
        if fired is None:
            continue
        start = fired + 3
        values[fired - 2 :] += fault or 0.0
        values[start:] += shift
        outcome = Series(before=reward[start - 20 : start].tolist(), after=reward[start:].tolist())
        before = values[start - 8 : start].tolist()
        earlier = [] if fault is None else values[max(0, start - 64) : start - 8].tolist()
        verdict = judge(values[start : start + 50].tolist(), before, outcome, target(clear), earlier)
        met += verdict.state == "target_met"
        done += 1
    return met / runs


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_a_sham_action_on_noise_at_the_threshold_is_verified_in_at_most_a_tenth(phi: float) -> None:
    assert share_met(phi, 0.0, clear=FIRE - 0.25) <= 0.1


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_a_shift_of_three_standard_deviations_is_verified_in_nine_tenths(phi: float) -> None:
    assert share_met(phi, -3.0, clear=FIRE - 0.25) >= 0.9


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_an_excursion_of_noise_that_ends_by_itself_is_verified_in_at_most_a_tenth(phi: float) -> None:
    assert share_met(phi, 0.0, clear=0.5, fault=None) > 0.2, "without the readings before, the target is met already"
    assert share_met(phi, 0.0, clear=0.5, fault=0.0) <= 0.1


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_a_fault_that_stood_out_and_was_taken_back_is_verified_nearly_always(phi: float) -> None:
    assert share_met(phi, -6.0, clear=2.0, fault=6.0) >= 0.85


def test_a_metric_that_hangs_together_still_lets_a_large_excursion_stand_out() -> None:
    drifting = [0.01 * t for t in range(40)]
    outcome = Series(before=[0.5] * 20, after=[0.5] * 50)
    verdict = judge([0.4] * 25 + [0.41] * 25, [3.0] * 8, outcome, target(0.6), drifting)
    assert verdict.state == "target_met"


def test_what_was_wrong_from_the_start_can_be_put_right() -> None:
    outcome = Series(before=[0.5] * 20, after=[0.5] * 50)
    verdict = judge([0.4] * 25 + [0.41] * 25, [3.0] * 8, outcome, target(0.6), [3.0, 3.1] * 10)
    assert verdict.state == "target_met"


def test_what_was_on_its_way_to_the_target_is_not_put_right_by_an_action() -> None:
    outcome = Series(before=[0.5] * 20, after=[0.5] * 50)
    falling = [3.0 - 0.06 * t for t in range(78)]
    verdict = judge([max(0.1, value) for value in falling[28:]], falling[20:28], outcome, target(0.6), falling[:20])
    assert verdict.state == "inconclusive"


def test_the_usual_check_of_the_last_value_verifies_nearly_every_sham() -> None:
    rng = np.random.default_rng(0)
    passed = [(noise(rng, 50, 0.5) < FIRE - 0.25).any() for _ in range(200)]
    assert np.mean(passed) > 0.9


def flat(reward: float = 0.5, n: int = 60) -> Series:
    wobble = [reward + 0.01 * (-1) ** t for t in range(n)]
    return Series(before=wobble[:20], after=wobble)


def wobbling(mean: float, n: int = 50) -> list[float]:
    return [mean + 0.1 * (-1) ** t for t in range(n)]


@pytest.mark.parametrize(
    ("operator", "before", "after", "state"),
    [
        ("<", 1.0, 0.2, "target_met"),
        ("<", 1.0, 0.9, "inconclusive"),  # moved, not far enough
        ("<", 1.0, 1.0, "no_effect"),
        ("<", 1.0, 1.4, "no_effect"),  # moved the wrong way
        (">", 0.2, 0.9, "target_met"),
        (">", 0.2, 0.2, "no_effect"),
    ],
)
def test_the_verdict_says_where_the_bound_lies(operator: str, before: float, after: float, state: str) -> None:
    verdict = judge(wobbling(after), wobbling(before, 12), flat(), target(0.5, operator))
    assert verdict.state == state


def test_success_is_said_at_the_first_look_that_shows_it() -> None:
    metric = Series(before=wobbling(1.0, 10), after=wobbling(0.2, 12))
    judgement = Judgement(target(0.5), metric, {})
    assert judgement.look(12 / 50) is None  # the first quarter is not over
    metric.after.append(0.2)
    verdict = judgement.look(13 / 50)
    assert verdict is not None
    assert verdict.state == "target_met"
    assert verdict.note.startswith("m 1 ± ")
    assert "after, target < 0.5" in verdict.note


def test_a_level_without_an_interval_says_why() -> None:
    assert level([1.0, 1.1, 0.9, 1.0, 1.2, 0.8, 1.0, 1.1, 0.9], EARLY).text == "1 ± 0.12 (n 9)"
    assert level([0.1 * i for i in range(9)], EARLY).text == "0.4 (n 9, too few or too correlated to say)"
    assert level([0.5], EARLY).text == "0.5 (n 1, too few or too correlated to say)"
    assert level([], EARLY).text == "nothing"


def test_no_verdict_before_eight_readings() -> None:
    metric = Series(before=wobbling(1.0, 10), after=wobbling(0.2, 7))
    assert Judgement(target(0.5), metric, {}).look(1.0) is None


def test_a_reward_that_falls_is_harm_even_when_the_target_is_met() -> None:
    outcome = Series(before=wobbling(2.0, 20), after=wobbling(1.0, 60))
    verdict = judge(wobbling(0.2), wobbling(1.0, 12), outcome, target(0.5))
    assert verdict.state == "harmed"
    assert verdict.note.startswith("reward fell from 2 ± ")


def test_a_decline_that_began_before_the_action_is_not_its_doing() -> None:
    falling = [2.0 - 0.05 * t + 0.1 * (-1) ** t for t in range(80)]
    assert fallen(Series(before=falling[:20], after=falling[20:])) is None
    assert fallen(Series(before=falling[:20], after=wobbling(-8.0, 30))) is not None


def test_a_series_without_spread_proves_nothing_when_failures_were_rare() -> None:
    rare = [0.0] * 11 + [1.0]
    often = [1.0] * 8
    for before, state in ((rare, "inconclusive"), (often, "target_met")):
        assert judge([0.0] * 20, before, flat(), target(0, "<=", within=20)).state == state


def test_readings_that_are_not_finite_are_no_success() -> None:
    after = [*wobbling(0.2, 49), math.inf]
    metric = Series(before=wobbling(1.0, 10), after=after)
    assert Judgement(target(0.5), metric, {}).last_look("the run ended").state == "inconclusive"


def test_the_last_look_of_a_run_that_ends_decides_if_it_can() -> None:
    metric = Series(before=wobbling(1.0, 10), after=wobbling(0.2, 12))
    assert Judgement(target(0.5), metric, {}).last_look("the run ended").state == "target_met"
    few = Series(before=wobbling(1.0, 10), after=wobbling(0.2, 3))
    assert Judgement(target(0.5), few, {}).last_look("the run ended").note.startswith("the run ended; m 1")


def test_autocorrelation_widens_the_interval() -> None:
    rng = np.random.default_rng(3)
    smooth, rough = noise(rng, 60, 0.8), noise(rng, 60, 0.0)
    assert level(smooth.tolist(), LAST).reach > 2 * level(rough.tolist(), LAST).reach


@pytest.mark.parametrize(
    ("freedom", "early", "last"),
    [(0.5, math.inf, math.inf), (1, 31.821, 12.706), (7, 2.996, 2.365), (1e9, 2.326, 1.96)],
)
def test_quantiles_are_those_of_student(freedom: float, early: float, last: float) -> None:
    assert quantile(freedom, EARLY) == pytest.approx(early, rel=3e-3)
    assert quantile(freedom, LAST) == pytest.approx(last, rel=3e-3)
