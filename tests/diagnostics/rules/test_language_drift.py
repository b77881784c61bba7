"""GEN006: completions in another script than their prompt, more than before."""

import pytest

from tests.diagnostics.scenario import batch, diagnostics, step, transitions, unevaluated
from tocsin.diagnostics.rules.language_drift import LanguageDrift
from tocsin.schemas.batch import TextStats
from tocsin.schemas.event import BaseEvent

RULE = LanguageDrift()


def drifting(share: float, *, n: int, judged: int = 128) -> list[list[BaseEvent]]:
    """Steps of 128 completions of which `judged` have letters, this share of them in another script."""
    other = round(judged * share)
    texts = TextStats(judged=0, repetitive=0, script_judged=judged, other_script=other, cut_with_end=0)
    return [[batch([[1.0, 0.0] * 4] * 16, texts=texts), step()] for _ in range(n)]


def test_a_rise_that_lasts_is_information() -> None:
    found = diagnostics(RULE, [*drifting(0.02, n=20), *drifting(0.25, n=30)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "info")]
    assert found[0].last.step == 39
    assert found[0].summary == (
        "25% of 256 completions since step 38 are in another script than their prompt, 2% at best before"
    )


def test_a_rise_of_a_few_steps_is_none() -> None:
    assert transitions(RULE, [*drifting(0.02, n=20), *drifting(0.25, n=10), *drifting(0.02, n=40)]) == []


@pytest.mark.parametrize("share", [0.0, 0.28])
def test_a_share_that_stays_below_the_level_is_none(share: float) -> None:
    assert transitions(RULE, drifting(share, n=60)) == []


def test_more_than_the_level_counts_from_the_start() -> None:
    assert transitions(RULE, drifting(0.4, n=60))[0][1] == "fired"


def test_resolves_near_the_lowest_window() -> None:
    found = transitions(RULE, [*drifting(0.02, n=20), *drifting(0.25, n=30), *drifting(0.03, n=40)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_texts_without_letters_are_not_judged() -> None:
    assert unevaluated(RULE, drifting(0.0, n=20, judged=0)) == (
        "not_applicable",
        "no prompt and completion have had 20 letters of one script to compare",
    )
    assert unevaluated(RULE, drifting(0.0, n=5, judged=10)) == (
        "warm_up",
        "fewer than 256 completions with letters enough were seen",
    )


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, [[batch([[1.0, 0.0]] * 16), step()] for _ in range(5)]) == (
        "missing_input",
        "batches do not say what is in their completions",
    )
