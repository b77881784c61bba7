"""GEN014: rows that are left out for their length, judged once."""

import math

import pytest

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.prompt_truncated import PromptTruncated
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.setup import RunSetup

RULE = PromptTruncated()
STEPS: list[list[BaseEvent]] = [[batch([[1.0, 0.0] * 4] * 16), step()] for _ in range(80)]


def launched(usable: int, **refused: int) -> list[BaseEvent]:
    setup = RunSetup(train_prompts=usable, refused_prompts=refused)
    return [started(setup=setup, max_completion_tokens=512)]


def test_names_the_share_of_rows_left_out_and_stays_open() -> None:
    found = diagnostics(RULE, [launched(800, prompt_too_long=200), *STEPS])
    assert [record.reason for record in found] == ["fired"]
    assert found[0].summary == "200 of 1000 training rows are left out because their prompts are too long"
    assert [action.title for action in found[0].actions] == [
        "raise model.max_length and start again",
        "lower max_completion_tokens, now 512, and start again",
    ]


def test_rows_that_cannot_be_read_are_another_matter() -> None:
    assert transitions(RULE, [launched(800, bad_row=200), *STEPS]) == []


@pytest.mark.parametrize(
    ("refused", "severity"), [(0, None), (10, None), (11, "warning"), (100, "warning"), (101, "critical")]
)
def test_one_in_a_hundred_is_allowed_and_one_in_ten_is_grave(refused: int, severity: str | None) -> None:
    features = Features()
    features.update(launched(1000 - refused, prompt_too_long=refused)[0])
    answer = RULE.check(features, is_open=False)
    assert (answer.severity if isinstance(answer, Finding) else None) == severity


def test_another_start_with_all_rows_resolves_it() -> None:
    found = transitions(RULE, [launched(800, prompt_too_long=200), *STEPS, launched(1000)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_says_that_the_number_of_rows_is_missing() -> None:
    assert unevaluated(RULE, [[started()], *STEPS]) == (
        "missing_input",
        "the run does not state how many rows its data have",
    )
    assert unevaluated(RULE, STEPS) == ("warm_up", "waits for its first `run_started` event")


def test_steps_that_are_not_numbers_leave_it_as_it_was() -> None:
    bad = step(outcome="nonfinite", nonfinite=["loss"], loss=math.nan)
    broken: list[list[BaseEvent]] = [[batch([[math.nan] * 8] * 16), bad] for _ in range(80)]
    assert transitions(RULE, [launched(1000), *broken]) == []
    found = transitions(RULE, [launched(800, prompt_too_long=200), *broken])
    assert [reason for _, reason in found] == ["fired"]


def test_no_rows_at_all_are_no_share() -> None:
    assert transitions(RULE, [launched(0), *STEPS]) == []
