"""RWD011: who makes the advantages, asked only where the reward moves and the task does not."""

from tests.diagnostics.rules.several_rewards import EXACT, launched, path
from tests.diagnostics.scenario import diagnostics, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.reward_component_dominance import RewardComponentDominance

RULE = RewardComponentDominance()


GAMED = path(60, exact=(0.6, 0.5), style=(0.2, 0.8), exact_std=0.1, style_std=0.3)
HEALTHY = path(60, exact=(0.4, 0.6), style=(0.4, 0.4))


def test_names_a_side_reward_that_makes_nine_tenths_of_the_variance() -> None:
    found = diagnostics(RULE, [launched(), *HEALTHY, *GAMED])
    assert [record.reason for record in found] == ["fired"]
    assert found[0].summary.startswith("Side rewards make 90% of the variance within groups, style most of it; ")
    assert found[0].actions[0].title == "halve the weight of style, or gate it on a pass"


def test_dominance_while_the_pass_rate_rises_is_no_finding() -> None:
    rising = path(120, exact=(0.2, 0.8), style=(0.2, 0.8), exact_std=0.1, style_std=0.3)
    assert transitions(RULE, [launched(), *rising]) == []


def test_dominance_without_any_movement_is_no_finding() -> None:
    flat = path(120, exact=(0.5, 0.5), style=(0.5, 0.52), exact_std=0.1, style_std=0.3)
    assert transitions(RULE, [launched(), *flat]) == []


def test_a_side_reward_that_takes_the_place_of_passes_is_found_although_the_sum_stays() -> None:
    traded = path(60, exact=(0.8, 0.5), style=(0.2, 0.5), exact_std=0.1, style_std=0.3)
    found = diagnostics(RULE, [launched(), *traded])
    assert [record.reason for record in found] == ["fired"]
    assert "the pass rate by -0.125" in found[0].summary
    slower = path(60, exact=(0.8, 0.4), style=(0.3, 0.6), exact_std=0.1, style_std=0.3, reward_range=(0.0, 10.0))
    assert [reason for _, reason in transitions(RULE, [launched(), *slower])] == ["fired"]


def test_a_verifier_that_breaks_leaves_all_variance_to_the_rest_and_is_another_matter() -> None:
    broken = path(40, exact=(0.0, 0.0), style=(0.5, 0.5), exact_std=0.0, style_std=0.3)
    assert transitions(RULE, [launched(), *HEALTHY, *broken]) == []
    sinking = path(60, exact=(0.8, 0.2), style=(0.5, 0.5), exact_std=0.1, style_std=0.3)
    assert transitions(RULE, [launched(), *sinking]) == []


def test_a_pass_rate_that_sinks_within_three_standard_errors_has_not_fallen() -> None:
    sinking = path(60, exact=(0.6, 0.58), style=(0.5, 0.5), exact_std=0.1, style_std=0.3)
    assert transitions(RULE, [launched(), *sinking]) == []


def test_a_movement_counts_by_the_range_of_the_reward() -> None:
    def gamed(by: float, top: float) -> list[str]:
        run = path(60, exact=(0.5, 0.5), style=(0.2, 0.2 + by), exact_std=0.1, style_std=0.3, reward_range=(0.0, top))
        return [reason for _, reason in transitions(RULE, [launched(), *run])]

    # Of a change over 60 steps, 25/60 lie between the means of two halves of 50.
    assert gamed(0.21, 2.0) == []
    assert gamed(0.27, 2.0) == ["fired"]
    assert gamed(0.27, 4.0) == []
    assert gamed(0.54, 4.0) == ["fired"]


def test_what_is_solved_has_no_spread_of_its_own() -> None:
    solved = path(120, exact=(0.95, 0.95), style=(0.2, 0.8), exact_std=0.05, style_std=0.3)
    assert transitions(RULE, [launched(), *solved]) == []


def answered(style_std: float) -> str | None:
    """Severity at the end of a run whose `exact` has a spread of 1."""
    features = Features()
    gamed = path(60, exact=(0.6, 0.5), style=(0.2, 0.8), exact_std=1.0, style_std=style_std)
    for event in [*launched(), *(event for step in gamed for event in step)]:
        features.update(event)
    answer = RULE.check(features, is_open=False)
    return answer.severity if isinstance(answer, Finding) else None


def test_three_quarters_warn_and_nineteen_twentieths_are_critical() -> None:
    assert answered(1.73) is None  # 2.9929 / 3.9929
    assert answered(1.74) == "warning"
    assert answered(4.35) == "warning"
    assert answered(4.36) == "critical"


def test_resolves_when_the_pass_rate_rises_again() -> None:
    back = path(60, exact=(0.5, 0.8), style=(0.8, 0.8))
    found = transitions(RULE, [launched(), *HEALTHY, *GAMED, *back])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_says_what_it_needs() -> None:
    assert unevaluated(RULE, [launched(EXACT), *HEALTHY]) == ("not_applicable", "there is one reward function only")
    assert unevaluated(RULE, [launched(), *HEALTHY[:20]]) == (
        "warm_up",
        "fewer than 50 steps with a pass rate were seen",
    )


def test_spreads_that_are_not_numbers_make_no_share() -> None:
    nan = float("nan")
    run = path(120, exact=(0.6, 0.5), style=(0.2, 0.8), exact_std=nan, style_std=nan)
    assert transitions(RULE, [launched(), *run]) == []
