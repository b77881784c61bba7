"""RWD003: what is solved is told apart from what is still being learned, by the held-out prompts."""

from tests.diagnostics.rules.several_rewards import evaluated
from tests.diagnostics.scenario import batch, diagnostics, step, transitions, unevaluated
from tocsin.diagnostics.rules.prompts_too_easy import PromptsTooEasy
from tocsin.schemas.event import BaseEvent

RULE = PromptsTooEasy()
SOLVED = [[1.0] * 8] * 14 + [[1.0] * 7 + [0.0]] * 2
MIXED = [[1.0] * 8] * 8 + [[1.0] * 4 + [0.0] * 4] * 8


def phase(groups: list[list[float]], rate: float, steps: int = 10) -> list[list[BaseEvent]]:
    """Some steps and the evaluation that ends them."""
    return [*([batch(groups), step()] for _ in range(steps)), [evaluated(rate), step()]]


def test_says_at_the_second_look_that_little_is_left_to_learn() -> None:
    run = [*phase(MIXED, 0.8), *phase(SOLVED, 0.93), *phase(SOLVED, 0.935), *phase(SOLVED, 0.934)]
    found = diagnostics(RULE, run)
    assert [(record.reason, record.kind, record.severity) for record in found] == [("fired", "efficiency", "info")]
    assert found[0].summary == (
        "Little is left to learn here: 56 of 64 groups pass as a whole, and the held-out score is 0.934 after 0.935"
    )


def test_a_held_out_score_that_rises_is_learning() -> None:
    rates = [0.5, 0.6, 0.7, 0.8, 0.9]
    assert transitions(RULE, [event for rate in rates for event in phase(SOLVED, rate)]) == []


def test_exactly_four_fifths_fires_and_a_group_less_does_not() -> None:
    rule = PromptsTooEasy(fire=52 / 64, clear=0.5)
    at = [[1.0] * 8] * 13 + [[1.0] * 7 + [0.0]] * 3
    below = [[1.0] * 8] * 12 + [[1.0] * 7 + [0.0]] * 4
    assert [reason for _, reason in transitions(rule, [*phase(at, 0.9), *phase(at, 0.9), *phase(at, 0.9)])] == ["fired"]
    assert transitions(rule, [*phase(below, 0.9), *phase(below, 0.9), *phase(below, 0.9)]) == []


def test_resolves_with_harder_prompts() -> None:
    run = [*phase(SOLVED, 0.93), *phase(SOLVED, 0.93), *phase(SOLVED, 0.93), *phase(MIXED, 0.93)]
    assert [reason for _, reason in transitions(RULE, run)] == ["fired", "resolved"]


def test_is_not_evaluated_without_evaluations() -> None:
    assert unevaluated(RULE, [[batch(SOLVED), step()] for _ in range(20)]) == (
        "warm_up",
        "waits for its first `evaluation_completed` event",
    )
    assert unevaluated(RULE, phase(SOLVED, float("nan"))) == (
        "warm_up",
        "fewer than two evaluations or 64 groups were seen",
    )
