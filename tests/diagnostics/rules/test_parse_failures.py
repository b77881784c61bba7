"""GEN012: answers that a verifier cannot read."""

import math

from tests.diagnostics.scenario import batch, diagnostics, step, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.parse_failures import ParseFailures
from tocsin.schemas.batch import TextStats
from tocsin.schemas.event import BaseEvent

RULE = ParseFailures()
MIXED = [[1.0, 0.0] * 4] * 16


def of(unparsed: int, n: int, *, cut: int = 0, rewards: list[list[float]] = MIXED) -> list[list[BaseEvent]]:
    """`n` steps of 128 completions, `cut` of them cut off, in `unparsed` of which `numeric` found no answer."""
    texts = TextStats(
        judged=0,
        repetitive=0,
        script_judged=0,
        other_script=0,
        cut_with_end=0,
        unparsed={"numeric": unparsed, "other": 0},
    )
    ends = {"stop": 128 - cut, "length": cut}
    return [[batch(rewards, texts=texts, finish_reasons=ends), step()] for _ in range(n)]


def test_names_a_verifier_that_reads_too_few_answers() -> None:
    found = diagnostics(RULE, [*of(0, 30), *of(64, 10)])
    assert [record.reason for record in found] == ["fired"]
    assert found[0].summary == "numeric found no answer in 128 of 256 completions that were not cut off"


def test_a_model_that_still_learns_the_form_is_left_alone() -> None:
    learning = [step for share in range(100, 0, -4) for step in of(share, 1)]
    assert transitions(RULE, learning) == []


def test_nearly_all_from_the_start_is_critical() -> None:
    features = Features()
    for event in [event for group in of(120, 4) for event in group]:
        features.update(event)
    answer = RULE.check(features, is_open=False)
    assert isinstance(answer, Finding)
    assert answer.severity == "critical"
    assert transitions(RULE, of(120, 10)) == [(3, "fired")]


def test_exactly_a_fifth_is_allowed() -> None:
    assert transitions(ParseFailures(fire=0.25), of(32, 40)) == []
    assert [reason for _, reason in transitions(ParseFailures(fire=0.25), of(33, 40))] == ["fired"]


def test_completions_that_were_cut_do_not_count() -> None:
    found = diagnostics(RULE, [*of(0, 30), *of(32, 10, cut=64)])
    assert found[0].summary == "numeric found no answer in 128 of 256 completions that were not cut off"


def test_resolves_when_answers_can_be_read_again() -> None:
    found = transitions(RULE, [*of(0, 30), *of(64, 10), *of(4, 20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_says_what_it_needs() -> None:
    assert unevaluated(RULE, [[batch(MIXED), step()] for _ in range(10)]) == (
        "missing_input",
        "batches do not state what verifiers could read",
    )
    plain = TextStats(judged=0, repetitive=0, script_judged=0, other_script=0, cut_with_end=0)
    assert unevaluated(RULE, [[batch(MIXED, texts=plain), step()] for _ in range(10)]) == (
        "not_applicable",
        "no verifier looks for an answer within the text",
    )
    assert unevaluated(RULE, of(64, 1))[0] == "warm_up"  # type: ignore[index]
    assert unevaluated(RULE, of(0, 10, cut=128))[0] == "warm_up"  # type: ignore[index]


def test_rewards_that_are_not_numbers_say_nothing_about_what_could_be_read() -> None:
    broken = [[math.nan] * 8] * 16
    assert transitions(RULE, of(0, 40, rewards=broken)) == []
    assert transitions(RULE, [*of(0, 30), *of(64, 10, rewards=broken)]) == transitions(RULE, [*of(0, 30), *of(64, 10)])


def test_a_window_without_completions_is_no_share() -> None:
    nothing = of(0, 10, cut=128)
    assert transitions(RULE, [*nothing, *of(0, 30), *nothing]) == []
    found = transitions(RULE, [*of(0, 30), *of(64, 10), *nothing])
    assert [reason for _, reason in found] == ["fired"]
