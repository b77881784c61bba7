"""RWD005: what chance alone does to small groups."""

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.group_size_small import GroupSizeSmall
from tocsin.schemas.event import BaseEvent

RULE = GroupSizeSmall()


def groups(size: int, pass_rate: float, *, n: int, count: int = 16) -> list[list[BaseEvent]]:
    rng = np.random.default_rng(0)
    return [[batch((rng.random((count, size)) < pass_rate).astype(float).tolist()), step()] for _ in range(n)]


def test_advises_groups_of_four_instead_of_two_at_the_same_number_of_completions() -> None:
    run = [[started(group_size=2, groups_per_step=64)], *groups(2, 0.5, n=20)]
    found = diagnostics(RULE, run)
    assert [(record.reason, record.kind, record.severity) for record in found] == [("fired", "lint", "info")]
    assert found[0].summary.startswith("Groups of 2 at pass rate 0.")
    action = found[0].actions[0]
    assert action.title == "raise group_size 2 to 4 and lower groups_per_step 64 to 32"
    assert [(patch.path, patch.to) for patch in action.patches] == [("group_size", 4), ("groups_per_step", 32)]


@pytest.mark.parametrize(("size", "pass_rate"), [(8, 0.5), (8, 0.88), (4, 0.5), (16, 0.85)])
def test_groups_that_are_large_enough_for_their_pass_rate_are_no_finding(size: int, pass_rate: float) -> None:
    assert transitions(RULE, groups(size, pass_rate, n=40)) == []


def test_at_the_ceiling_and_at_the_floor_the_prompts_are_the_reason() -> None:
    assert transitions(RULE, groups(4, 0.97, n=40)) == []
    assert transitions(RULE, groups(4, 0.02, n=40)) == []


def test_a_passing_dip_of_an_easy_run_is_no_finding() -> None:
    def rated(rate: float, n: int) -> list[list[BaseEvent]]:
        """Groups of four, in some of which one completion fails."""
        failed = round((1 - rate) * 16 * 4)
        step_of = [[0.0] + [1.0] * 3] * failed + [[1.0] * 4] * (16 - failed)
        return [[batch(step_of), step()] for _ in range(n)]

    assert transitions(RULE, [*rated(0.95, 20), *rated(0.89, 20), *rated(0.95, 20)]) == []
    assert [reason for _, reason in transitions(RULE, [*rated(0.95, 20), *rated(0.84, 20)])] == ["fired"]


def test_exactly_the_limit_fires() -> None:
    half: list[list[BaseEvent]] = [[batch([[0.0, 1.0]] * 16), step()] for _ in range(20)]
    assert [reason for _, reason in transitions(GroupSizeSmall(fire=0.5), half)] == ["fired"]
    assert transitions(GroupSizeSmall(fire=0.501), half) == []


def test_counts_groups_that_failures_left_with_one_score() -> None:
    run: list[list[BaseEvent]] = [[batch([[0.0, 1.0] * 4] * 12 + [[1.0]] * 4), step()] for _ in range(20)]
    found = diagnostics(RULE, run)
    assert found[0].summary == "32 of 128 groups have fewer than two scored completions"
    assert found[0].actions[0].id.endswith("/look-at-failures")


def test_resolves_when_groups_are_larger() -> None:
    found = transitions(RULE, [*groups(2, 0.5, n=20), *groups(8, 0.5, n=40)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_says_that_there_are_too_few_groups() -> None:
    assert unevaluated(RULE, groups(2, 0.5, n=3)) == ("warm_up", "fewer than 64 groups were seen")
    lost = [*groups(2, 0.5, n=20), *([step()] for _ in range(60))]
    assert [reason for _, reason in transitions(RULE, lost)] == ["fired", "data_lost"]


def test_rewards_that_are_not_numbers_do_not_count() -> None:
    broken: list[list[BaseEvent]] = [[batch([[float("nan"), 1.0]] * 16), step()] for _ in range(20)]
    assert unevaluated(RULE, broken) == ("warm_up", "fewer than 64 groups were seen")
