"""RWD014: wrong answers that grow longer than right ones, under the variant that makes it so."""

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.normalisation_bias import NormalisationBias
from tocsin.schemas.event import BaseEvent

RULE = NormalisationBias()


def lengths(passed: float | None, failed: float | None, *, n: int, groups: int = 16) -> list[list[BaseEvent]]:
    """Steps with groups of both kinds, whose passing and failing completions have these lengths."""
    rewards = [[1.0, 0.0] * 4] * groups
    return [[batch(rewards, length_passed=passed, length_failed=failed), step()] for _ in range(n)]


def launched(variant: str = "grpo") -> list[BaseEvent]:
    return [started(loss_variant=variant)]


def test_wrong_answers_that_outgrow_right_ones_are_information() -> None:
    found = diagnostics(RULE, [launched(), *lengths(100, 110, n=60), *lengths(100, 200, n=20)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "info")]
    assert found[0].summary == (
        "Failing completions are 2.00 times as long as passing ones of the same prompts, 1.10 times at first"
    )
    assert found[0].evidence[0].baseline == 1.1


def test_wrong_answers_that_were_always_longer_are_none() -> None:
    assert transitions(RULE, [launched(), *lengths(100, 200, n=100)]) == []


def test_a_growth_that_stays_below_the_limit_is_none() -> None:
    assert transitions(RULE, [launched(), *lengths(100, 110, n=60), *lengths(100, 150, n=40)]) == []


def test_resolves_when_the_lengths_are_close_again() -> None:
    run = [launched(), *lengths(100, 110, n=60), *lengths(100, 200, n=20), *lengths(100, 140, n=20)]
    assert [reason for _, reason in transitions(RULE, run)] == ["fired"]
    assert [reason for _, reason in transitions(RULE, [*run, *lengths(100, 120, n=30)])] == ["fired", "resolved"]


def test_other_variants_are_not_judged() -> None:
    run = [launched("dapo"), *lengths(100, 110, n=60), *lengths(100, 200, n=20)]
    assert unevaluated(RULE, run) == (
        "not_applicable",
        "only the loss variant `grpo` divides by a completion's own length",
    )


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, [launched(), *lengths(None, None, n=20)]) == (
        "missing_input",
        "no group had passing and failing completions to compare",
    )
    assert unevaluated(RULE, [launched(), *lengths(100, 110, n=20)]) == (
        "warm_up",
        "fewer than 50 steps and 64 groups more with both kinds were seen",
    )


def test_lengths_that_are_no_numbers_are_left_out() -> None:
    run = [launched(), *lengths(100, 110, n=60), *lengths(float("nan"), 200, n=20)]
    assert unevaluated(RULE, run) is None
    assert transitions(RULE, run) == []
