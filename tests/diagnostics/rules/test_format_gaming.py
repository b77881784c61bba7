"""GEN009: the form gained what the content lost."""

from tests.diagnostics.rules.several_rewards import EXACT, launched, path, taught
from tests.diagnostics.scenario import diagnostics, transitions, unevaluated
from tocsin.diagnostics.rules.format_gaming import FormatGaming

RULE = FormatGaming()
STEADY = path(60, exact=(0.7, 0.7), style=(0.2, 0.2))
TRADED = path(60, exact=(0.7, 0.4), style=(0.2, 0.9))


def test_names_a_style_that_rises_while_answers_get_worse() -> None:
    found = diagnostics(RULE, [launched(), *STEADY, *TRADED])
    assert [record.reason for record in found] == ["fired"]
    assert found[0].summary.startswith("Over 50 steps style rose by 2")
    assert found[0].evidence[1].observed < 0  # type: ignore[operator]


def test_form_and_content_that_rise_together_are_learning() -> None:
    assert transitions(RULE, [launched(), *path(120, exact=(0.3, 0.8), style=(0.1, 0.9))]) == []


def test_a_pass_rate_within_its_error_has_not_fallen() -> None:
    assert transitions(RULE, [launched(), *path(120, exact=(0.7, 0.65), style=(0.1, 0.9))]) == []


def test_a_fall_without_a_gain_of_form_is_another_fault() -> None:
    assert transitions(RULE, [launched(), *STEADY, *path(60, exact=(0.7, 0.2), style=(0.2, 0.3))]) == []


def test_exactly_a_fifth_of_the_range_fires() -> None:
    jump = [
        *(taught(pass_rate=0.8, style=0.25) for _ in range(25)),
        *(taught(pass_rate=0.4, style=0.5) for _ in range(30)),
    ]
    assert [reason for _, reason in transitions(FormatGaming(rise=0.25), [launched(), *jump])] == ["fired"]
    assert transitions(FormatGaming(rise=0.26), [launched(), *jump]) == []


def test_resolves_when_half_of_the_fall_is_made_up_for() -> None:
    found = transitions(RULE, [launched(), *STEADY, *TRADED, *path(80, exact=(0.7, 0.7), style=(0.9, 0.9))])
    assert [reason for _, reason in found] == ["fired", "resolved"]
    low = transitions(RULE, [launched(), *STEADY, *TRADED, *path(80, exact=(0.4, 0.45), style=(0.9, 0.9))])
    assert [reason for _, reason in low] == ["fired"]


def test_says_what_it_needs() -> None:
    assert unevaluated(RULE, [launched(EXACT), *STEADY]) == ("not_applicable", "there is one reward function only")
    assert unevaluated(RULE, STEADY) == ("missing_input", "the run does not state its reward functions")
    assert unevaluated(RULE, [launched(), *STEADY[:30]])[0] == "warm_up"  # type: ignore[index]


def test_means_that_are_not_numbers_are_left_out() -> None:
    nan = path(120, exact=(0.7, 0.2), style=(float("nan"), float("nan")))
    assert unevaluated(RULE, [launched(), *nan])[0] == "warm_up"  # type: ignore[index]
