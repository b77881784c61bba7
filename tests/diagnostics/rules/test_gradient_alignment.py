"""OFF019: gradients that agree more than they did at the beginning, on data that are old."""

import math

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.gradient_alignment import GradientAlignment
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.step import RatioMoments

RULE = GradientAlignment()


def steps(cosine: float | None, *, n: int, staleness: int = 1) -> list[list[BaseEvent]]:
    ratio = [RatioMoments(staleness=staleness, tokens=500, mean=1, mean_square=1.01, max=2)]
    return [[step(grad_cosine=cosine, ratio=ratio)] for _ in range(n)]


def test_fires_when_gradients_agree_for_long() -> None:
    found = diagnostics(RULE, [[started(max_staleness=2)], *steps(0.02, n=30), *steps(0.6, n=60)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "info")]
    assert found[0].last.step == 30 + 6 + 19
    assert found[0].summary == "Gradients of neighbouring steps have a cosine of 0.55 on average, 0.02 in the first 20"
    assert found[0].actions[0].title == "lower max_staleness 2 to 1"


def test_agreement_that_was_there_from_the_beginning_is_no_finding() -> None:
    assert transitions(RULE, steps(0.5, n=200)) == []


def test_agreement_that_passes_is_no_finding() -> None:
    assert (
        transitions(
            RULE, [*steps(0.0, n=30), *[item for _ in range(8) for item in [*steps(0.9, n=6), *steps(-0.1, n=30)]]]
        )
        == []
    )


def test_fresh_data_are_not_judged() -> None:
    none = ("not_applicable", "no data are older than the weights: `max_staleness` is 0")
    fresh = [*steps(0.0, n=30, staleness=0), *steps(0.6, n=100, staleness=0)]
    assert unevaluated(RULE, [[started(max_staleness=0)], *fresh]) == none
    assert transitions(RULE, fresh) == []


@pytest.mark.parametrize(("cosine", "fires"), [(0.25, False), (0.26, True)])
def test_a_quarter_does_not_fire(cosine: float, fires: bool) -> None:
    assert bool(transitions(RULE, [*steps(0.0, n=30), *steps(cosine, n=200)])) is fires


def test_resolves_below_fifteen_hundredths() -> None:
    begun = [*steps(0.0, n=30), *steps(0.6, n=60)]
    assert [reason for _, reason in transitions(RULE, [*begun, *steps(0.16, n=200)])] == ["fired"]
    assert [reason for _, reason in transitions(RULE, [*begun, *steps(0.1, n=200)])] == ["fired", "resolved"]


def test_a_cosine_that_is_not_a_number_counts_as_missing() -> None:
    assert unevaluated(RULE, [*steps(0.0, n=30), *steps(math.nan, n=10)]) == (
        "missing_input",
        "steps report no `grad_cosine`",
    )


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, steps(None, n=10)) == ("missing_input", "steps report no `grad_cosine`")
    assert unevaluated(RULE, [*steps(None, n=1), *steps(0.0, n=19)]) == ("warm_up", "fewer than 20 cosines were seen")
