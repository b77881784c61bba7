"""OFF001: age is a risk; harm needs a second witness."""

import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.staleness_high import StalenessHigh
from tocsin.schemas.event import BaseEvent

RULE = StalenessHigh()
GROUPS = [[0.0, 1.0, 0.0, 1.0]] * 4


def aged(
    p95: float, *, n: int = 1, bound: int = 8, top: float | None = None, **fields: object
) -> list[list[BaseEvent]]:
    stale = (p95 / 2, p95, p95 if top is None else top)
    return [[batch(GROUPS, staleness=stale, max_staleness=bound), step(**fields)] for _ in range(n)]


def answer(steps: list[list[BaseEvent]]) -> Finding:
    features = Features()
    for group in steps:
        for event in group:
            features.update(event)
    found = RULE.check(features, is_open=False)
    assert isinstance(found, Finding)
    return found


def test_fires_when_half_of_ten_batches_are_too_old() -> None:
    assert transitions(RULE, [*aged(2, n=10), *aged(5, n=4), *aged(2, n=10)]) == []
    assert transitions(RULE, [*aged(2, n=10), *aged(5, n=5)]) == [(15, "fired")]


def test_exactly_four_steps_do_not_count() -> None:
    assert transitions(RULE, aged(4, n=40)) == []


def test_a_mean_at_the_bound_is_a_full_queue_and_no_finding() -> None:
    assert transitions(RULE, aged(1, n=40, bound=1)) == []


def test_age_alone_is_info_and_with_a_low_effective_sample_size_more() -> None:
    assert answer(aged(6, n=10)).severity == "info"
    assert answer(aged(6, n=10, ess_frac=0.4)).severity == "warning"
    assert answer(aged(9, n=10, bound=16, ess_frac=0.4)).severity == "critical"


def test_a_broken_bound_is_named_with_the_bound() -> None:
    found = answer(aged(3, n=10, bound=1))
    assert found.severity == "warning"
    assert found.summary == "Staleness p95 was above the bound 1 in 10 of 10 batches (median 3, largest 3 steps)"


def test_is_info_in_the_feed_until_its_fault_was_planted() -> None:
    found = diagnostics(RULE, [[started(max_staleness=4)], *aged(9, n=12, bound=1, ess_frac=0.1)])
    assert [record.severity for record in found] == ["info"]
    assert found[0].actions[0].title == "lower max_staleness 4 to 3"


def test_resolves_when_at_most_one_of_ten_batches_is_old() -> None:
    found = transitions(RULE, [*aged(6, n=12), *aged(1, n=20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]
    assert 21 <= found[1][0] <= 25


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, [[step()] for _ in range(20)]) == (
        "missing_input",
        "no `batch_consumed` with staleness arrived in the last 10 steps",
    )


def test_a_batch_whose_staleness_is_not_a_number_does_not_count() -> None:
    assert unevaluated(RULE, aged(float("nan"), n=20)) is not None


def test_takes_its_threshold_from_the_configuration() -> None:
    engine = Engine([RULE], thresholds={"OFF001": {"fire": 6}})
    assert engine.observe(aged(5)[0][0])[0].record == "coverage"


@pytest.mark.parametrize(("bound", "to"), [(64, 8), (16, 3), (6, 3), (4, 3), (3, 2)])
def test_a_bound_above_the_target_comes_down_to_it_as_far_as_one_change_goes_and_one_below_it_by_one(
    bound: int, to: int
) -> None:
    found = diagnostics(RULE, [[started(max_staleness=bound)], *aged(bound + 1, n=12, bound=bound)])
    action = found[0].actions[0]
    assert (action.title, action.patches[0].to) == (f"lower max_staleness {bound} to {to}", to)
    assert action.cooldown_steps > bound + 1, "longer than the delay of the pipeline"
