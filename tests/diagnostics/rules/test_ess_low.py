"""OFF005: a low effective sample size is variance; harm needs a second witness."""

import math

import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, synced, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.ess_low import EssLow
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import RatioMoments

RULE = EssLow()
GOOD = [[1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]] * 16
BAD = [[0.0] * 8] * 16


def moments(ess: float, *, staleness: int = 1, tokens: int = 100, mean: float = 1.0) -> RatioMoments:
    return RatioMoments(staleness=staleness, tokens=tokens, mean=mean, mean_square=mean * mean / ess, max=9)


def steps(
    *buckets: RatioMoments, n: int, rewards: list[list[float]] = GOOD, gap: float = 0.0, **fields: object
) -> list[list[BaseEvent]]:
    return [[batch(rewards), step(ratio=list(buckets), **fields), synced(gap, 0.1)] for _ in range(n)]


def answer(run: list[list[BaseEvent]]) -> Finding:
    features = Features()
    for group in run:
        for event in group:
            features.update(event)
    found = RULE.check(features, is_open=False)
    assert isinstance(found, Finding)
    return found


def test_fires_when_five_updates_pooled_are_worth_less_than_half() -> None:
    run = [[started(max_staleness=2, learning_rate=3e-4)], *steps(moments(0.99), n=20), *steps(moments(0.25), n=8)]
    found = diagnostics(RULE, run)
    assert [(record.reason, record.last.step, record.severity) for record in found] == [("fired", 24, "info")]
    assert found[0].summary == ("Ratios of 500 tokens have an effective sample size of 29%, mean 1, over 5 updates")
    assert [action.title for action in found[0].actions[:2]] == [
        "lower max_staleness 2 to 1",
        "lower learning_rate 0.0003 to 0.00015",
    ]


@pytest.mark.parametrize(
    "witness", [{"grad_norm": 1.6}, {"clip_low_frac": 0.04, "clip_high_frac": 0.02}, {"rewards": BAD}]
)
def test_is_more_than_info_when_its_mechanism_shows(witness: dict[str, object]) -> None:
    calm = steps(moments(0.99), n=20)
    assert answer([*calm, *steps(moments(0.4), n=5)]).severity == "info"
    assert answer([*calm, *steps(moments(0.4), n=5, **witness)]).severity == "warning"  # type: ignore[arg-type]
    assert answer([*calm, *steps(moments(0.2), n=5, **witness)]).severity == "critical"  # type: ignore[arg-type]


def test_tokens_are_pooled_and_not_averages_of_steps() -> None:
    one = [*steps(moments(0.99, tokens=1000), n=4), *steps(moments(0.05, tokens=20), n=1)]
    assert transitions(RULE, [item for _ in range(10) for item in one]) == []


@pytest.mark.parametrize(("ess", "fires"), [(0.5, False), (0.49, True)])
def test_one_half_does_not_fire(ess: float, fires: bool) -> None:
    assert bool(transitions(RULE, steps(moments(ess), n=20))) is fires


def test_resolves_at_seven_tenths() -> None:
    found = transitions(RULE, [*steps(moments(0.3), n=20), *steps(moments(0.65), n=30)])
    assert [reason for _, reason in found] == ["fired"]
    found = transitions(RULE, [*steps(moments(0.3), n=20), *steps(moments(0.75), n=30)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def first_cause(run: list[list[BaseEvent]]) -> str | None:
    found = answer(run)
    assert found.causes is not None
    return found.causes[0].code


def test_names_staleness_first_where_only_old_tokens_are_low_and_the_probe_agrees() -> None:
    run = steps(moments(0.99, staleness=1), moments(0.1, staleness=4), n=6)
    assert first_cause(run) == "OFF001"
    assert [item.metric for item in answer(run).evidence[1:]] == [
        "syncs in a row with weights_synced.probe_gap > probe_tolerance",
        "mean of step_completed.ratio",
        "ess of step_completed.ratio at staleness 1",
        "ess of step_completed.ratio at staleness 4",
    ]


def test_names_the_mismatch_first_where_noise_lifts_the_mean_ratio() -> None:
    assert first_cause(steps(moments(0.4, mean=1.3), n=6)) == "OFF004"


def test_names_the_sync_first_where_the_probe_follows_the_learner() -> None:
    run = [[*steps(moments(0.4), n=1)[0][:2], synced(0.1 * (i + 1), 0.1)] for i in range(6)]
    assert first_cause(run) == "OFF010"


def test_ratios_that_are_not_numbers_are_left_out() -> None:
    broken = RatioMoments(staleness=1, tokens=100, mean=math.nan, mean_square=math.inf, max=math.inf)
    assert transitions(RULE, [*steps(moments(0.99), n=10), *steps(broken, n=30)]) == []


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, [[step()] for _ in range(10)]) == ("missing_input", "steps report no `ratio`")
    few = ("warm_up", "fewer than 5 updates, or than 256 tokens in up to 50, were seen")
    assert unevaluated(RULE, steps(moments(0.1), n=4)) == few
    assert unevaluated(RULE, steps(moments(0.1, tokens=5), n=60)) == few
    lost = transitions(RULE, [*steps(moments(0.3), n=20), *([step()] for _ in range(20))])
    assert [reason for _, reason in lost] == ["fired", "data_lost"]
