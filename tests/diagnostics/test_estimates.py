"""Estimates: correct on independent values, honest on correlated ones."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from tocsin.diagnostics.estimates import (
    effective_size,
    lag_one_correlation,
    location_and_scale,
    mean_and_error,
    median,
)


def correlated(rng: np.random.Generator, n: int, r: float) -> list[float]:
    """An AR(1) series with mean 0 and variance 1."""
    values = [float(rng.standard_normal())]
    for noise in rng.standard_normal(n - 1) * math.sqrt(1 - r * r):
        values.append(r * values[-1] + float(noise))
    return values


def test_the_error_of_values_without_correlation_is_the_textbook_one() -> None:
    mean, error = mean_and_error([1.0, 4.0, 4.0, 1.0, 1.0, 4.0, 4.0, 1.0] * 50)
    assert mean == 2.5
    assert error == pytest.approx(1.5 / math.sqrt(399), rel=0.01)


@pytest.mark.parametrize("r", [0.0, 0.5, 0.8])
def test_the_error_is_that_of_the_mean_however_correlated_the_series(r: float) -> None:
    rng = np.random.default_rng(0)
    pairs = [mean_and_error(correlated(rng, 100, r)) for _ in range(400)]
    true_error = float(np.std([mean for mean, _ in pairs]))
    assert float(np.median([error for _, error in pairs])) == pytest.approx(true_error, rel=0.15)


def test_alternation_earns_no_smaller_error() -> None:
    assert effective_size([0.0, 1.0] * 20) == 40


def test_too_few_values_have_no_error_to_speak_of() -> None:
    assert mean_and_error([1.0, 2.0]) == (1.5, math.inf)
    assert math.isnan(mean_and_error([])[0])


def test_a_constant_has_no_error_and_no_correlation() -> None:
    assert mean_and_error([0.1] * 7) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-12))
    assert lag_one_correlation([3.0] * 7) == 0.0


@pytest.mark.parametrize("factor", [0.01, 1.0, 1000.0])
def test_what_rounding_leaves_of_a_constant_is_no_correlation(factor: float) -> None:
    # Means of equal values, added up in other ways, differ in the last digits, all of them on one side of their mean.
    values = [factor * (0.1 + 0.2)] * 20 + [factor * 0.3] * 5
    assert lag_one_correlation(values) == 0.0
    mean, error = mean_and_error(values)
    assert abs(mean - factor * 0.3) <= error <= 1e-11 * mean


def test_a_trend_counts_as_hardly_any_independent_value() -> None:
    assert effective_size([float(i) for i in range(50)]) < 3


@pytest.mark.parametrize("statistic", [median, lambda v: mean_and_error(v)[0], lambda v: location_and_scale(v)[0]])
def test_a_nan_stays_a_nan(statistic: Callable[[list[float]], float]) -> None:
    assert math.isnan(statistic([1.0, math.nan, 2.0]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_error_is_infinite_with_a_value_that_is_not_finite(value: float) -> None:
    assert mean_and_error([1.0, value, 2.0, -value])[1] == math.inf


def test_location_and_scale_ignore_an_outlier() -> None:
    assert location_and_scale([1.0, 2.0, 3.0, 4.0, 1e9]) == (3.0, pytest.approx(1.4826))
    assert median([3.0, 1.0]) == 2.0
