"""SYS005: a few slow groups, apart from long answers, hiccups and a learner that does not wait."""

import math

import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, times, transitions, unevaluated, waited
from tocsin.diagnostics.rules.straggler_tail import StragglerTail
from tocsin.schemas.batch import Quantiles
from tocsin.schemas.event import BaseEvent

RULE = StragglerTail()


def slow(
    *, n: int, learner: float = 0.6, slowest: float = 5.0, every: int = 6, longest: float = 10.0
) -> list[list[BaseEvent]]:
    """Steps of a second whose groups take 0.5 s, apart from one in every sixth step."""
    lengths = Quantiles(mean=10, p50=10, p95=longest, max=longest)
    return [
        [
            batch([[0.0, 1.0]] * 16, length=lengths),
            step(),
            waited(learner, 0.1, generate_s=times(0.5, slowest if i % every == 0 else 0.5), score_s=times(0.01)),
        ]
        for i in range(n)
    ]


def test_warns_when_the_learner_waits_for_a_few_slow_groups() -> None:
    (found,) = diagnostics(RULE, [[started(max_staleness=1, in_flight_groups=32)], *slow(n=80)])
    assert (found.reason, found.severity, found.kind) == ("fired", "warning", "efficiency")
    assert found.summary == (
        "The slowest of 128 groups took 5 s, 10.0 times as long as usual; the learner waited 60% of the time"
    )
    assert [action.title for action in found.actions] == [
        "look at what the slow groups have in common: server, length, moment",
        "raise max_staleness 1 to 2",
        "raise in_flight_groups 32 to 40",
    ]


def test_long_answers_explain_a_tail_of_their_own_size() -> None:
    (found,) = diagnostics(RULE, slow(n=80, longest=60.0))
    assert found.summary.endswith("(the longest completion explains it)")
    assert found.causes[0].code == "GEN003"


def test_exactly_four_times_is_no_tail() -> None:
    assert transitions(RULE, slow(n=80, slowest=2.0)) == []
    assert [reason for _, reason in transitions(RULE, slow(n=80, slowest=2.1))] == ["fired"]


def test_nobody_is_held_up_where_the_learner_does_not_wait() -> None:
    assert transitions(RULE, slow(n=80, learner=0.2)) == []


def test_one_hiccup_does_not_count() -> None:
    assert transitions(RULE, [*slow(n=60, slowest=0.5), *slow(n=1), *slow(n=60, slowest=0.5)]) == []


def test_resolves_when_no_group_is_slow() -> None:
    found = transitions(RULE, [*slow(n=80), *slow(n=60, slowest=0.5)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_says_what_is_missing() -> None:
    untimed: list[list[BaseEvent]] = [[step(), waited(0.7, 0.1)] for _ in range(60)]
    assert unevaluated(RULE, untimed) == ("missing_input", "no sample says how long generating takes")
    assert unevaluated(RULE, slow(n=10)) == ("warm_up", "fewer than 30 steps with an update were seen")


@pytest.mark.parametrize("slowest", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_left_out(slowest: float) -> None:
    assert transitions(RULE, slow(n=80, slowest=slowest)) == []


def test_is_info_where_the_learner_waits_for_less_than_half_of_the_time() -> None:
    assert diagnostics(RULE, slow(n=80, learner=0.45))[0].severity == "info"
    assert diagnostics(RULE, slow(n=80, longest=60.0))[0].severity == "info"
