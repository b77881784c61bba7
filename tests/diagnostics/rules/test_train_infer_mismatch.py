"""OFF004: a gap that is there whatever the weights, told apart from weights that did not arrive."""

import math

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, synced, transitions, unevaluated
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.train_infer_mismatch import TrainInferMismatch
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import LogProbGap, RatioMoments

RULE = TrainInferMismatch()


def gap(size: float, *, staleness: int = 0, n: int = 1) -> list[list[BaseEvent]]:
    """Steps whose tokens differ by `size` nats on average, all of one staleness."""
    found = LogProbGap(k1=0, k3=0, abs_mean=size, abs_p95=size, abs_p99=size, abs_max=size)
    bucket = RatioMoments(staleness=staleness, tokens=900, mean=1, mean_square=1, max=1)
    return [[step(logprob_gap=found, ratio=[bucket])] for _ in range(n)]


def probed(size: float, moved: float, n: int) -> list[list[BaseEvent]]:
    return [[step(), synced(size, moved)] for _ in range(n)]


def severity(steps: list[list[BaseEvent]]) -> str:
    features = Features()
    for event in (event for group in steps for event in group):
        features.update(event)
    found = RULE.check(features, is_open=False)
    assert isinstance(found, Finding)
    return found.severity


@pytest.mark.parametrize("size", [0.01, 0.1, 3.0])
def test_fires_on_a_probe_gap_that_does_not_follow_the_learner(size: float) -> None:
    found = transitions(RULE, probed(size, 0.1, 30))
    assert [reason for _, reason in found] == ["fired"]
    assert found[0][0] <= 10


def test_warns_and_offers_a_lower_rate() -> None:
    found = diagnostics(RULE, [[started(learning_rate=1e-4)], *probed(0.01, 0.1, 10)])
    assert [record.severity for record in found] == ["warning"]
    assert found[0].summary == (
        "Sampler and learner disagree by 0.01 nats on the probe over 7 syncs; the learner moved 0.7"
    )


def test_weights_that_did_not_arrive_are_left_to_their_own_rule() -> None:
    assert transitions(RULE, [[step(), synced(0.1 * i, 0.1)] for i in range(1, 40)]) == []


def test_fires_on_tokens_of_the_current_weights() -> None:
    assert transitions(RULE, gap(0.05, n=20)) == [(7, "fired")]
    assert severity(gap(0.05, n=10)) == "warning"
    assert severity(gap(0.2, n=10)) == "critical"


def test_drift_of_older_tokens_is_no_mismatch() -> None:
    assert transitions(RULE, [*probed(0.0, 0.1, 5), *gap(0.5, staleness=1, n=30)]) == []


def test_exactly_the_limit_does_not_fire() -> None:
    assert transitions(TrainInferMismatch(warn=0.0625), gap(0.0625, n=20)) == []


def test_resolves_when_the_gap_is_gone() -> None:
    found = transitions(RULE, [*gap(0.05, n=10), *gap(0.001, n=20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]
    found = transitions(RULE, [*probed(0.01, 0.1, 12), *probed(0.0, 0.1, 12)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_a_gap_that_is_not_a_number_is_left_to_the_rule_that_names_it() -> None:
    assert transitions(RULE, [*probed(0.0, 0.1, 1), *gap(math.nan, n=20)]) == []


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, [[step()] for _ in range(10)]) == (
        "missing_input",
        "no weight sync and no step with tokens of the current weights",
    )


def test_takes_its_threshold_from_the_configuration() -> None:
    with pytest.raises(ValueError, match="must rise in the order clear < warn < critical"):
        Engine([RULE], thresholds={"OFF004": {"warn": 0.01}})


def noisy(mean: float, *, n: int, spread: float = 0.5) -> list[list[BaseEvent]]:
    ratio = RatioMoments(staleness=1, tokens=900, mean=mean, mean_square=mean * mean + spread * spread, max=9)
    return [[step(ratio=[ratio]), synced(0.0, 0.1)] for _ in range(n)]


def test_fires_on_noise_that_lifts_the_mean_ratio_of_old_tokens_too() -> None:
    found = diagnostics(RULE, noisy(1.3, n=20))
    assert [(record.reason, record.last.step) for record in found] == [("fired", 7)]
    assert found[0].summary == (
        "The mean ratio of learner to sampler is 1.3 over 4500 tokens, where drift alone leaves it at 1"
    )
    assert [reason for _, reason in transitions(RULE, [*noisy(1.3, n=20), *noisy(1.0, n=20)])] == ["fired", "resolved"]


@pytest.mark.parametrize(("mean", "spread"), [(1.0, 2.0), (1.04, 0.1), (1.2, 5.0), (0.7, 0.2)])
def test_a_mean_ratio_that_drift_chance_or_filters_explain_is_no_mismatch(mean: float, spread: float) -> None:
    assert transitions(RULE, noisy(mean, n=40, spread=spread)) == []
