"""Held-out results: means and standard errors by hand, and what cannot be known stays unknown."""

import math

import pytest

from tocsin.schemas.base import NonFinite, as_float
from tocsin.trainer.data import Failure
from tocsin.trainer.evaluation import evaluation_event
from tocsin.trainer.messages import Evaluated

NAN = NonFinite(nonfinite="nan")


def test_mean_and_standard_error_are_those_of_independent_draws():
    lost = [Failure("reward_error", "x", 2, whole_group=False)]
    event = evaluation_event("held-out", Evaluated(7, [0.0, 1.0, 1.0, 0.5], [False, True, True, False], lost))
    assert (event.name, event.version, event.n, event.failed) == ("held-out", 7, 4, 2)
    assert as_float(event.reward_mean) == pytest.approx(0.625)
    # Squared deviations 25/64, 9/64, 9/64 and 1/64 over n - 1 = 3, then over n = 4.
    assert as_float(event.reward_se) == pytest.approx(math.sqrt(44 / 64 / 3 / 4))
    assert as_float(event.pass_rate) == pytest.approx(0.5)
    assert as_float(event.pass_rate_se) == pytest.approx(math.sqrt(1 / 3 / 4))


def test_where_nothing_decides_there_is_no_pass_rate():
    event = evaluation_event("x", Evaluated(0, [0.0, 3.0], None, []))
    assert as_float(event.reward_mean) == 1.5
    assert event.pass_rate is None
    assert event.pass_rate_se is None


def test_nothing_scored_is_not_a_number_instead_of_zero():
    event = evaluation_event("x", Evaluated(0, [], [], [Failure("reward_timeout", "x", 8, whole_group=True)]))
    assert (event.n, event.failed) == (0, 8)
    assert event.reward_mean == event.reward_se == event.pass_rate == event.pass_rate_se == NAN


def test_one_draw_has_a_mean_and_no_standard_error():
    event = evaluation_event("x", Evaluated(0, [1.0], [True], []))
    assert as_float(event.pass_rate) == 1.0
    assert event.pass_rate_se == NAN


def test_equal_rewards_have_a_standard_error_of_zero():
    event = evaluation_event("x", Evaluated(0, [1.0] * 5, [True] * 5, []))
    assert as_float(event.reward_se) == 0.0
