"""SYS013: no evaluation for long, or one that cannot tell differences."""

import pytest

from tests.diagnostics.scenario import diagnostics, started, step, transitions
from tocsin.diagnostics.rules.eval_missing import EvalMissing
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import EvaluationCompleted, RunStarted
from tocsin.schemas.setup import RunSetup

RULE = EvalMissing()


def launched(steps: int, **setup: int) -> RunStarted:
    return started(setup=RunSetup(**setup)).model_copy(update={"num_steps": steps})  # type: ignore[arg-type]


def steps(n: int) -> list[list[BaseEvent]]:
    return [[step()] for _ in range(n)]


def evaluated(version: int, error: float = 0.02, **fields: object) -> EvaluationCompleted:
    made = {"name": "held-out", "version": version, "n": 512, "failed": 0, "reward_mean": 0.5, "reward_se": error}
    return EvaluationCompleted.model_validate({**made, "pass_rate": 0.5, "pass_rate_se": error, **fields})


def test_a_run_without_evaluations_is_told_so_and_why() -> None:
    found = diagnostics(RULE, [[launched(300, evaluation_prompts=0)], *steps(120)])
    assert [(record.last.step, record.severity, record.summary) for record in found] == [
        (101, "info", "No held-out evaluation for 101 steps: none is configured")
    ]


def test_a_long_plan_is_given_a_fifth_of_it() -> None:
    assert transitions(RULE, [[launched(1000)], *steps(200)]) == []
    assert transitions(RULE, [[launched(1000)], *steps(220)]) == [(201, "fired")]


def test_evaluations_that_come_as_configured_are_enough() -> None:
    run = [[launched(1000, evaluation_prompts=512, evaluation_every=300)], [evaluated(0)], *steps(300)]
    assert transitions(RULE, [*run, [evaluated(300)], *steps(300)]) == []
    assert transitions(RULE, [*run, *steps(320)]) == [(601, "fired")]


def test_an_evaluation_resolves_it() -> None:
    run = [[launched(300)], *steps(120), [evaluated(120)], *steps(10)]
    assert transitions(RULE, run) == [(101, "fired"), (121, "resolved")]


@pytest.mark.parametrize(("error", "expected"), [(0.05, []), (0.051, [(11, "fired")])])
def test_an_error_above_the_limit_is_too_large(error: float, expected: list[tuple[int, str]]) -> None:
    assert transitions(RULE, [[launched(300)], *steps(10), [evaluated(10, error)], *steps(10)]) == expected


def test_errors_of_rewards_and_errors_that_are_no_numbers_are_not_judged() -> None:
    rewards = evaluated(10, 0.5, pass_rate=None, pass_rate_se=None)
    broken = evaluated(10, float("nan"))
    for event in (rewards, broken):
        assert transitions(RULE, [[launched(300)], *steps(10), [event], *steps(10)]) == []
