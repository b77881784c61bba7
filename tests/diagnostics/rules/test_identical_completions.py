"""RWD006: copies are named where the entropy or the past forbids them, and a policy that converges is left alone."""

import numpy as np
import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.identical_completions import IdenticalCompletions
from tocsin.schemas.event import BaseEvent

RULE = IdenticalCompletions()
MIXED = [[1.0, 0.0] * 4] * 16


def of(distinct: list[list[int]], *, entropy: float | None = 0.1, tokens: int = 80) -> list[list[BaseEvent]]:
    """One step per element, with so many different completions in each group."""
    return [[batch(MIXED[: len(found)], distinct=found, tokens=tokens), step(entropy=entropy)] for found in distinct]


def test_names_copies_that_the_entropy_forbids() -> None:
    found = diagnostics(RULE, [[started(temperature=0.2)], *of([[1] * 16] * 10, entropy=0.5)])
    assert [record.reason for record in found] == ["fired"]
    # 0.5 nats a token, ten tokens a completion: two completions would agree once in 150 times.
    assert [(item.metric, item.observed) for item in found[0].evidence] == [
        ("batch_consumed.groups.distinct == 1", 1.0),
        ("step_completed.entropy times mean length", 5.0),
    ]
    assert found[0].actions[0].title == "raise temperature 0.2 to 0.4"


def test_names_a_stream_of_copies_that_set_in_at_once() -> None:
    found = diagnostics(RULE, [*of([[1] * 8 + [3] * 8] * 30), *of([[1] * 16] * 20, entropy=None)])
    assert [record.reason for record in found] == ["fired"]
    assert found[0].started.step >= 30
    assert found[0].summary.endswith("groups since step 30 consist of copies; 32 of the 64 before did")


@pytest.mark.parametrize("groups", [2, 16])
def test_a_policy_that_converges_to_one_answer_is_left_alone(groups: int) -> None:
    rng = np.random.default_rng(groups)
    shares = rng.binomial(groups, [1 - 0.8 * np.exp(-t / 40) for t in range(300)])
    assert transitions(RULE, of([[1] * share + [2] * (groups - share) for share in shares.tolist()])) == []


def test_short_answers_of_few_kinds_are_left_alone() -> None:
    assert transitions(RULE, of([[1] * 15 + [2]] * 40, entropy=1.2, tokens=8)) == []


def test_a_right_answer_that_comes_up_often_is_no_copy() -> None:
    assert transitions(RULE, of([[3] * 14 + [1] * 2] * 40, entropy=0.5)) == []


def test_the_limits_of_groups_and_of_nats_fire_and_less_does_not() -> None:
    nearly = [[1] * 15 + [2]] * 10
    rule = IdenticalCompletions(fire=15 / 16, nats=5)
    assert [reason for _, reason in transitions(rule, of(nearly, entropy=0.5))] == ["fired"]
    assert transitions(IdenticalCompletions(fire=0.94, nats=5), of(nearly, entropy=0.5)) == []
    assert transitions(rule, of(nearly, entropy=0.49)) == []


def test_resolves_when_completions_differ_again() -> None:
    run = [*of([[1] * 8 + [3] * 8] * 30), *of([[1] * 16] * 20, entropy=None), *of([[1] * 8 + [3] * 8] * 20)]
    assert [reason for _, reason in transitions(RULE, run)] == ["fired", "resolved"]
    run = [*of([[1] * 16] * 10, entropy=0.5), *of([[6] * 16] * 20, entropy=0.5)]
    assert [reason for _, reason in transitions(RULE, run)] == ["fired", "resolved"]


def test_says_that_counts_are_missing() -> None:
    assert unevaluated(RULE, [[batch(MIXED), step()] for _ in range(10)]) == (
        "missing_input",
        "batches do not count different completions by group",
    )
    assert unevaluated(RULE, of([[1] * 16] * 3))[0] == "warm_up"  # type: ignore[index]


def test_an_entropy_that_is_not_a_number_is_no_witness() -> None:
    assert transitions(RULE, of([[1] * 16] * 30, entropy=float("nan"))) == []
