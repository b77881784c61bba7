"""RWD004: groups that teach without a right answer."""

from tests.diagnostics.rules.several_rewards import EXACT, evaluated, launched, taught
from tests.diagnostics.scenario import diagnostics, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.proxy_only_variance import ProxyOnlyVariance
from tocsin.schemas.event import BaseEvent

RULE = ProxyOnlyVariance()


def steps(unsolved: int, n: int) -> list[list[BaseEvent]]:
    """`n` steps of 16 groups with spread, of which `unsolved` have no pass."""
    return [taught(passed=[0] * unsolved + [4] * (16 - unsolved)) for _ in range(n)]


def test_names_groups_that_differ_in_style_alone() -> None:
    found = diagnostics(RULE, [launched(), *steps(4, 60), *steps(12, 20)])
    assert [record.reason for record in found] == ["fired"]
    assert found[0].summary == "48 of 64 groups with reward spread since step 67 have no completion that passes"
    assert found[0].actions[0].title == "let style count only where a completion passes, or halve the weight"


def test_learning_the_form_first_is_normal() -> None:
    assert transitions(RULE, [launched(), *steps(14, 50), *steps(2, 40)]) == []


def test_groups_without_spread_teach_nothing_and_do_not_count() -> None:
    run = [taught(passed=[0] * 12 + [4] * 4, zero_spread=[True] * 12 + [False] * 4) for _ in range(80)]
    assert transitions(RULE, [launched(), *run]) == []


def test_exactly_half_fires_and_less_does_not() -> None:
    assert [reason for _, reason in transitions(RULE, [launched(), *steps(8, 70)])] == ["fired"]
    assert transitions(RULE, [launched(), *steps(7, 90)]) == []


def test_resolves_when_most_groups_have_a_pass() -> None:
    found = transitions(RULE, [launched(), *steps(12, 70), *steps(4, 30)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_is_critical_when_the_held_out_score_fell() -> None:
    features = Features()
    for event in [*launched(), evaluated(0.7), *(e for group in steps(12, 60) for e in group), evaluated(0.4)]:
        features.update(event)
    features.settings.step = 60
    answer = RULE.check(features, is_open=False)
    assert isinstance(answer, Finding)
    assert answer.severity == "critical"


def test_says_what_it_needs() -> None:
    assert unevaluated(RULE, steps(12, 60)) == ("missing_input", "the run does not state its reward functions")
    assert unevaluated(RULE, [launched(EXACT), *steps(12, 60)]) == (
        "not_applicable",
        "there is one reward function only",
    )
    other = EXACT.model_copy(update={"label": "other"})
    assert unevaluated(RULE, [launched(EXACT, other), *steps(12, 60)]) == (
        "not_applicable",
        "no reward function beside those that decide what a pass is",
    )
    assert unevaluated(RULE, [launched(), *(taught(passed=None) for _ in range(60))]) == (
        "missing_input",
        "batches do not count passes by group",
    )


def test_rewards_that_are_not_numbers_are_no_groups_with_spread() -> None:
    nan = [float("nan")] * 16
    run = [taught(passed=[0] * 16, reward_max=nan) for _ in range(60)]
    assert unevaluated(RULE, [launched(), *run])[0] == "warm_up"  # type: ignore[index]
