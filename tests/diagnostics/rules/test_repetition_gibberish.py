"""GEN005: a share of loops that rises, never one that the task asks for."""

import pytest

from tests.diagnostics.scenario import batch, diagnostics, judged, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.repetition_gibberish import RepetitionGibberish
from tocsin.schemas.batch import TextStats
from tocsin.schemas.event import BaseEvent

RULE = RepetitionGibberish()


def looping(share: float, *, n: int, judged: int = 128) -> list[list[BaseEvent]]:
    """Steps of 128 completions of which `judged` are long and this share of them repeats itself."""
    texts = TextStats(judged=judged, repetitive=round(judged * share), script_judged=0, other_script=0, cut_with_end=0)
    return [[batch([[1.0, 0.0] * 4] * 16, texts=texts), step()] for _ in range(n)]


def test_fires_at_a_rise_and_proposes_a_lower_rate() -> None:
    found = diagnostics(RULE, [[started(learning_rate=1e-4)], *looping(0.02, n=20), *looping(0.5, n=10)])
    assert [record.reason for record in found][:1] == ["fired"]
    assert found[0].summary == (
        "50% of 256 completions of 64 tokens or more since step 20 repeat themselves, 2% at best before"
    )
    assert [action.id.rpartition("/")[2] for action in found[0].actions] == [
        "read-repetitive-completions",
        "lower-learning-rate",
        "resume-from-checkpoint",
    ]


@pytest.mark.parametrize(("share", "expected"), [(0.1, None), (0.18, "warning"), (0.4, "critical")])
def test_the_size_of_the_rise_decides_how_grave_it_is(share: float, expected: str | None) -> None:
    assert judged(RULE, [*looping(0.05, n=20), *looping(share, n=4)]) == expected


def test_tables_repeat_themselves_from_the_start() -> None:
    assert transitions(RULE, looping(0.4, n=60)) == []
    assert judged(RULE, looping(0.6, n=20)) == "info"


def test_chance_is_no_rise() -> None:
    assert transitions(RULE, [*looping(0.30, n=20), *looping(0.37, n=20)]) == []


def test_resolves_near_the_lowest_window() -> None:
    found = transitions(RULE, [*looping(0.02, n=20), *looping(0.5, n=10), *looping(0.07, n=30), *looping(0.03, n=20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]
    assert found[1][0] > 60


def test_short_completions_are_not_judged() -> None:
    assert unevaluated(RULE, looping(0.0, n=20, judged=0)) == (
        "not_applicable",
        "no completion has been long enough to be judged (64 tokens)",
    )
    assert unevaluated(RULE, looping(0.0, n=5, judged=10)) == (
        "warm_up",
        "fewer than 256 completions of 64 tokens or more were seen",
    )


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, [[batch([[1.0, 0.0]] * 16), step()] for _ in range(5)]) == (
        "missing_input",
        "batches do not say what is in their completions",
    )
