"""OFF006: a mean ratio below one that drift cannot make."""

import math

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.sampling_truncation_bias import SamplingTruncationBias
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.setup import RunSetup
from tocsin.schemas.step import LogProbGap, RatioMoments

RULE = SamplingTruncationBias()


def steps(
    mean: float, *, n: int, spread: float = 0.1, one_sided: float = 0.95, tokens: int = 100, staleness: int = 1
) -> list[list[BaseEvent]]:
    """Updates whose ratios have this mean and standard deviation."""
    square = mean * mean + spread * spread
    ratio = RatioMoments(staleness=staleness, tokens=tokens, mean=mean, mean_square=square, max=2)
    gap = LogProbGap(k1=0.1 * one_sided, k3=0.01, abs_mean=0.1, abs_p95=0.2, abs_p99=0.2, abs_max=0.5)
    return [[step(ratio=[ratio], logprob_gap=gap)] for _ in range(n)]


def test_fires_when_every_token_lost_the_mass_that_was_cut() -> None:
    found = diagnostics(RULE, [*steps(1.0, n=10, one_sided=0.1), *steps(0.85, n=12)])
    assert [record.reason for record in found] == ["fired"]
    assert found[0].summary == (
        "The mean ratio of learner to sampler is 0.850 over 500 tokens, where drift alone leaves it at 1"
    )
    assert found[0].actions[0].applicability == "advisory"


def test_drift_leaves_the_mean_at_one() -> None:
    assert transitions(RULE, steps(1.0, n=60, spread=0.5)) == []


def test_noise_lifts_the_mean() -> None:
    assert transitions(RULE, steps(1.3, n=60, spread=0.8, one_sided=0.1)) == []


def test_a_policy_that_broke_away_has_ratios_that_scatter() -> None:
    assert transitions(RULE, steps(0.5, n=60, spread=0.5)) == []


def test_differences_of_both_signs_are_no_cut() -> None:
    assert transitions(RULE, steps(0.9, n=60, one_sided=0.5)) == []


@pytest.mark.parametrize(("mean", "fires"), [(0.991, False), (0.989, True)])
def test_a_hundredth_is_the_limit(mean: float, fires: bool) -> None:
    assert bool(transitions(RULE, steps(mean, n=20, spread=0.02))) is fires


def test_chance_explains_a_mean_of_few_tokens() -> None:
    assert transitions(RULE, steps(0.93, n=60, spread=0.4, tokens=60)) == []


def test_updates_with_few_tokens_are_pooled_until_there_are_enough() -> None:
    assert transitions(RULE, [*steps(1.0, n=10, tokens=20), *steps(0.9, n=30, spread=0.02, tokens=20)]) != []
    assert transitions(RULE, steps(0.9, n=60, spread=0.02, tokens=5)) == []


def test_resolves_when_the_mean_is_back() -> None:
    assert [reason for _, reason in transitions(RULE, [*steps(0.85, n=20), *steps(0.993, n=30, spread=0.02)])] == [
        "fired"
    ]
    found = transitions(RULE, [*steps(0.85, n=20), *steps(0.996, n=30, spread=0.02)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_filters_that_the_run_states_are_information_from_the_first_steps() -> None:
    setup = RunSetup(sampling={"top_p": 0.9, "top_k": 50})
    found = diagnostics(RULE, [[started(setup=setup)], *steps(1.0, n=5)])
    assert [(record.last.step, record.severity) for record in found] == [(3, "info")]
    assert found[0].summary == "The sampler draws with filters that are not neutral: top_k 50, top_p 0.9"
    neutral = RunSetup(sampling={})
    assert transitions(RULE, [[started(setup=neutral)], *steps(1.0, n=40)]) == []


def test_ratios_that_are_not_numbers_are_left_out() -> None:
    assert transitions(RULE, [*steps(1.0, n=10), *steps(math.nan, n=30)]) == []


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, [[step()] for _ in range(10)]) == ("missing_input", "steps report no `ratio`")
    few = ("warm_up", "fewer than 5 updates, or than 256 tokens in up to 50, were seen")
    assert unevaluated(RULE, steps(0.5, n=4)) == few
