"""GEN011: completions without a reward because of the reward function, and of nothing else."""

import pytest

from tests.diagnostics.scenario import batch, diagnostics, step, transitions, unevaluated
from tocsin.diagnostics.rules.verifier_errors import VerifierErrors
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RolloutFailed

RULE = VerifierErrors()


def failed(completions: int, cause: str = "reward_error", *, prompt: int = 0) -> RolloutFailed:
    return RolloutFailed.model_validate(
        {
            "cause": cause,
            "prompt_id": f"{prompt}-00000000",
            "group_index": prompt,
            "completions": completions,
            "whole_group": completions >= 7,
            "error": "ValueError: no",
        }
    )


def scored(n: int, *failures: int, cause: str = "reward_error", size: int = 8) -> list[list[BaseEvent]]:
    """Steps of 16 groups that were scored, and groups of other prompts in which so many completions failed."""
    lost = [failed(num, cause, prompt=100 * i + j) for i in range(n) for j, num in enumerate(failures)]
    per_step = len(failures)
    rewards = [[1.0, 0.0] * (size // 2)] * 16
    return [[*lost[i * per_step : (i + 1) * per_step], batch(rewards), step()] for i in range(n)]


def test_half_of_the_groups_lost_is_critical_and_a_reason_to_pause() -> None:
    found = diagnostics(RULE, [*scored(20), *scored(10, *[8] * 18)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "critical")]
    assert found[0].last.step == 22
    assert found[0].summary == (
        "52.9% of 272 completions since step 22 got no reward: in 144 cases the function raised an error, "
        "over 18 prompts"
    )
    assert [action.id.rpartition("/")[2] for action in found[0].actions] == ["pause-run", "read-errors"]


@pytest.mark.parametrize(
    ("cause", "words", "verb"),
    [
        ("reward_timeout", "ran out of time", "give-more-time"),
        ("reward_invalid", "gave no number", "find-no-number"),
    ],
)
def test_names_the_commonest_cause(cause: str, words: str, verb: str) -> None:
    found = diagnostics(RULE, scored(20, 1, 1, 1, cause=cause))
    assert [record.severity for record in found] == ["warning"]
    assert words in found[0].summary
    assert found[0].actions[0].id.endswith(verb)


@pytest.mark.parametrize("cause", ["bad_row", "prompt_too_long", "worker_died", "sampler_refused", "sampler_error"])
def test_what_is_not_the_reward_functions_is_not_counted(cause: str) -> None:
    assert transitions(RULE, scored(20, 8, 8, 8, cause=cause)) == []


def test_rewards_of_zero_are_no_failures() -> None:
    assert transitions(RULE, [[batch([[0.0] * 8] * 16), step()] for _ in range(20)]) == []


def test_one_bad_prompt_is_information() -> None:
    bad = [[failed(8), batch([[1.0, 0.0] * 4] * 16), step()] for _ in range(20)]
    assert [record.severity for record in diagnostics(RULE, bad)] == ["info"]


def test_exactly_the_limit_does_not_fire() -> None:
    # 3 of 384 completions in three steps; the window holds two or three of them.
    assert transitions(VerifierErrors(fire=3 / 387), scored(20, 1, 1, 1, size=8)) != []
    assert transitions(VerifierErrors(fire=6 / 262), scored(20, 1, 1, 1, size=8)) == []


def test_resolves_when_the_function_answers_again() -> None:
    found = transitions(RULE, [*scored(20), *scored(10, *[8] * 4), *scored(20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]
    assert found[1][0] <= 36


def test_needs_256_completions_and_batches() -> None:
    assert unevaluated(RULE, scored(1)) == ("warm_up", "fewer than 256 completions were scored or failed")
    assert unevaluated(RULE, [[step()] for _ in range(5)]) == ("warm_up", "waits for its first `batch_consumed` event")
