"""RWD010: a function at its floor is named, a satisfied one is mentioned, a rare one gets time."""

from typing import Any

from tests.diagnostics.rules.several_rewards import EXACT, STYLE, launched, stats, taught
from tests.diagnostics.scenario import diagnostics, transitions, unevaluated
from tocsin.diagnostics.components import Constant
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.dead_reward_component import DeadRewardComponent
from tocsin.schemas.event import BaseEvent

RULE = DeadRewardComponent()


def styled(low: float, high: float, n: int, *, completions: int = 128) -> list[list[BaseEvent]]:
    """`n` steps in which `style` lies between `low` and `high`, and `exact` varies."""
    made = {"exact": stats(0, 1, 0.4), "style": stats(low, high, n=completions)}
    return [taught(component_stats=made) for _ in range(n)]


def test_names_a_function_that_gives_nothing_to_anybody() -> None:
    found = diagnostics(RULE, [launched(), *styled(0, 0, 30)])
    assert [(record.reason, record.fired and record.fired.step) for record in found] == [("fired", 19)]
    assert found[0].summary == "Reward function style gave 0 to all 2560 completions of 20 steps"


def severity(steps: list[list[BaseEvent]], **declared: Any) -> str | None:
    """What the rule answers at the end, before it is held to what its proof allows."""
    features = Features()
    style = STYLE.model_copy(update=declared)
    for event in [*launched(EXACT, style), *(event for step in steps for event in step)]:
        features.update(event)
    answer = RULE.check(features, is_open=False)
    return answer.severity if isinstance(answer, Finding) else None


def test_the_floor_warns_and_the_top_and_an_unknown_end_inform() -> None:
    assert severity(styled(0, 0, 30)) == "warning"
    assert severity(styled(1, 1, 30)) == "info"
    assert severity(styled(0, 0, 30), low=None, high=None) == "info"
    assert severity(styled(0.5, 0.5, 30)) == "info"


def test_twenty_steps_and_256_completions_are_needed() -> None:
    assert severity(styled(0, 0, 19)) is None
    assert severity(styled(0, 0, 20, completions=12)) is None
    assert severity(styled(0, 0, 20, completions=13)) == "warning"


def test_a_rare_event_gets_a_thousand_completions() -> None:
    rare = [*styled(0, 1, 1, completions=40), *styled(0, 0, 24, completions=40)]
    assert severity(rare) is None
    assert severity([*rare, *styled(0, 0, 1, completions=40)]) == "warning"


def test_resolves_with_the_first_other_value() -> None:
    found = transitions(RULE, [launched(), *styled(0, 0, 30), *styled(0, 1, 5)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_another_constant_starts_the_count_over() -> None:
    constant = Constant()
    for value in (0.0, 0.0, 1.0, 1.0, 1.0):
        constant.follow(value, value, 8)
    assert (constant.value, constant.steps, constant.completions, constant.has_varied) == (1.0, 3, 24, True)


def test_says_what_it_needs() -> None:
    assert unevaluated(RULE, [launched(EXACT), *styled(0, 0, 30)]) == (
        "not_applicable",
        "there is one reward function only",
    )
    assert unevaluated(RULE, [launched(), *(taught(component_stats={}) for _ in range(30))]) == (
        "missing_input",
        "batches do not state the range of each reward function",
    )


def test_values_that_are_not_numbers_are_left_out() -> None:
    assert severity(styled(float("nan"), float("nan"), 30)) is None
