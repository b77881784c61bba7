import math

import numpy as np
import pytest

from tocsin.trainer.bench.rates import clustered_rate, upper_bound


def test_zero_events_allow_three_over_n():
    assert upper_bound(0, 30) == pytest.approx(-math.log(0.05) / 30)
    assert upper_bound(0, 30) == pytest.approx(0.1, abs=0.001)
    assert math.isnan(upper_bound(0, 0))


def test_the_bound_of_a_count_is_that_of_the_poisson_distribution():
    bound = upper_bound(3, 1)
    below = sum(math.exp(-bound) * bound**k / math.factorial(k) for k in range(4))
    assert below == pytest.approx(0.05)


def test_a_rate_without_spread_is_bounded_by_its_clusters_and_not_by_its_runs():
    clusters = [name for name in "abcd" for _ in range(50)]
    rate = clustered_rate([True] * 200, clusters)
    assert (rate.value, rate.high) == (1.0, 1.0)
    assert rate.low == pytest.approx(0.05 ** (1 / 4))
    none = clustered_rate([False] * 200, clusters)
    assert (none.low, none.high) == (0.0, pytest.approx(1 - 0.05 ** (1 / 4)))


def test_runs_that_agree_within_their_fault_widen_the_interval():
    rng = np.random.default_rng(3)
    alone = [bool(hit) for hit in rng.random(200) < 0.5]
    apart = clustered_rate(alone, [str(number) for number in range(200)])
    together = clustered_rate(
        [number % 4 < 2 for number in range(20) for _ in range(10)], [str(n) for n in range(20) for _ in range(10)]
    )
    assert apart.high - apart.low == pytest.approx(0.14, abs=0.02)
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_nothing_to_count_is_no_rate():
    rate = clustered_rate([], [])
    assert math.isnan(rate.value)
    assert str(rate) == "nothing to count"
