"""GEN002: an end token inside of completions that were cut, never a model that does not end."""

import pytest

from tests.diagnostics.scenario import batch, diagnostics, run, step, transitions, unevaluated
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.rules.eos_missing import EosMissing
from tocsin.diagnostics.rules.truncation_high import TruncationHigh
from tocsin.schemas.batch import TextStats
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent

RULE = EosMissing()
GOOD = [[1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]] * 16
BAD = [[0.0] * 8] * 16


def cut(hit: int, inside: int, *, n: int, rewards: list[list[float]] = GOOD) -> list[list[BaseEvent]]:
    """Steps of 128 completions of which `hit` ended at the limit, `inside` of them after an end token."""
    texts = TextStats(judged=0, repetitive=0, script_judged=0, other_script=0, cut_with_end=inside)
    reasons = {"stop": 128 - hit, "length": hit}
    return [[batch(rewards, finish_reasons=reasons, texts=texts), step()] for _ in range(n)]


def test_names_a_sampler_that_does_not_see_the_end_and_is_critical_when_nothing_passes() -> None:
    found = diagnostics(RULE, [*cut(0, 0, n=20), *cut(128, 128, n=10, rewards=BAD)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "warning"), ("escalated", "critical")]
    assert [record.last.step for record in found] == [21, 23]
    assert found[1].summary == (
        "100% of 256 completions since step 22 went on after an end token until the length limit"
    )
    assert found[1].actions[0].id.endswith("/compare-end-tokens")


def test_from_the_first_step_on_it_takes_256_completions() -> None:
    found = diagnostics(RULE, cut(128, 128, n=6, rewards=BAD))
    assert [(record.last.step, record.severity) for record in found] == [(2, "critical")]


def test_a_model_that_never_ends_is_another_finding() -> None:
    assert transitions(RULE, [*cut(0, 0, n=20), *cut(128, 0, n=20, rewards=BAD)]) == []


def test_a_few_that_are_cut_after_an_end_are_none() -> None:
    assert transitions(RULE, [*cut(0, 0, n=20), *cut(30, 30, n=20)]) == []


@pytest.mark.parametrize(("hit", "inside", "fires"), [(64, 32, False), (64, 33, True), (38, 38, False), (40, 40, True)])
def test_exactly_at_a_limit_it_does_not_fire(hit: int, inside: int, fires: bool) -> None:
    rule = EosMissing(cut=38 / 128)
    assert bool(transitions(rule, cut(hit, inside, n=10))) is fires


def test_resolves_below_the_clear_threshold_only() -> None:
    found = transitions(RULE, [*cut(128, 128, n=10), *cut(20, 20, n=30), *cut(5, 5, n=20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]
    assert found[1][0] > 40


def test_explains_that_completions_are_cut() -> None:
    records = run(Engine([RULE, TruncationHigh()]), [*cut(0, 0, n=20), *cut(128, 128, n=10)])
    found = [record for record in records if isinstance(record, Diagnostic)]
    assert [(record.code, record.suppressed) for record in found] == [("GEN002", False), ("GEN001", True)]
    assert found[1].causes[0].code == "GEN002"


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, [[batch(GOOD), step()] for _ in range(5)]) == (
        "missing_input",
        "batches do not say what is in their completions",
    )
    assert unevaluated(RULE, cut(0, 0, n=1)) == (
        "warm_up",
        "fewer than 256 completions were seen under this length limit",
    )


def test_a_reward_that_is_no_number_makes_nothing_critical() -> None:
    found = diagnostics(RULE, cut(128, 128, n=10, rewards=[[float("nan")] * 8] * 16))
    assert [record.severity for record in found] == ["warning"]
