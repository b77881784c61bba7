"""RWD002: prompts that cannot be solved are told from a policy, a verifier and a limit that fail."""

from collections.abc import Iterable

from tests.diagnostics.scenario import batch, diagnostics, numbered, run, started, step, transitions, unevaluated
from tocsin.diagnostics.engine import Engine
from tocsin.diagnostics.features import Features
from tocsin.diagnostics.rule import Finding
from tocsin.diagnostics.rules.prompts_too_hard import PromptsTooHard
from tocsin.diagnostics.rules.reward_collapse import RewardCollapse
from tocsin.diagnostics.rules.zero_std_groups import ZeroStdGroups
from tocsin.schemas.diagnosis import Diagnostic
from tocsin.schemas.event import BaseEvent

RULE = PromptsTooHard()
GOOD = [1.0] * 7 + [0.0]
FAILED = [0.0] * 8
RARE = [1.0] + [0.0] * 7
SOUND = [GOOD] * 16
HARD = [FAILED] * 13 + [GOOD] * 3


def of(rewards: Iterable[list[list[float]]], *, first: int = 0, **fields: object) -> list[list[BaseEvent]]:
    """One step per element, each with prompts of its own."""
    steps: list[list[BaseEvent]] = []
    for number, groups in enumerate(rewards, start=first):
        ids = [f"{number * 100 + i}-{number * 100 + i:08x}" for i in range(len(groups))]
        passed = [sum(value == 1 for value in group) for group in groups]
        steps.append([batch(groups, **{"prompt_id": ids, "passed": passed, **fields}), step()])  # type: ignore[arg-type]
    return steps


def test_names_prompts_that_became_too_hard_while_the_rest_is_solved_as_before() -> None:
    found = diagnostics(RULE, [[started(group_size=8)], *of([SOUND] * 40 + [HARD] * 12)])
    assert [(record.reason, record.severity) for record in found] == [("fired", "warning")]
    assert found[0].fired is not None
    assert 43 <= found[0].fired.step <= 48
    assert found[0].summary == ("52 of 64 groups since step 42 have no completion that passes; the others pass at 88%")
    assert [item.metric for item in found[0].evidence][:2] == ["failed groups", "batch_consumed.pass_rate"]
    assert found[0].causes[0].text == "the prompts are too hard for this model"
    assert [action.title for action in found[0].actions][-1] == "raise group_size 8 to 16"


def test_a_policy_that_collapses_is_not_the_prompts_fault() -> None:
    assert transitions(RULE, of([SOUND] * 40 + [[FAILED] * 12 + [RARE] * 4] * 30)) == []


def test_a_policy_that_left_its_task_for_another_reward_is_not_the_prompts_fault() -> None:
    paid = [
        batch([[value + 5 for value in group] for group in groups], reward_range=None, pass_rate=rate, passed=passed)
        for groups, rate, passed in [([FAILED] * 12 + [RARE] * 4, 4 / 128, [0] * 12 + [1] * 4)] * 30
    ]
    assert transitions(RULE, [*of([SOUND] * 40), *([event, step()] for event in paid)]) == []


def test_prompts_that_were_solved_before_are_not_too_hard() -> None:
    ids = [f"{i}-{i:08x}" for i in range(16)]
    assert transitions(RULE, of([SOUND] * 40 + [HARD] * 30, prompt_id=ids)) == []


def test_a_run_that_never_did_better_is_judged_after_twenty_steps_and_a_rising_one_is_not() -> None:
    flat = [[FAILED] * 10 + [RARE] * 6] * 40
    assert transitions(RULE, of(flat)) == [(22, "fired")]
    rising = [[FAILED] * (15 - t // 6) + [RARE] * (1 + t // 6) for t in range(40)]
    assert transitions(RULE, of(rising)) == []


def test_one_reward_everywhere_may_be_no_reward_and_is_left_to_rwd001() -> None:
    assert transitions(RULE, of([[FAILED] * 16] * 60)) == []


def test_resolves_when_fewer_than_two_fifths_fail() -> None:
    found = transitions(RULE, of([SOUND] * 40 + [HARD] * 12 + [SOUND] * 20))
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_cut_completions_and_lost_ones_come_first_among_the_causes() -> None:
    fields = {"truncated": [8] * 13 + [0] * 3, "num_failed": [1] * 16}
    found = diagnostics(
        RULE, [[started(max_completion_tokens=8)], *of([SOUND] * 40), *of([HARD] * 12, first=40, **fields)]
    )
    assert [cause.code for cause in found[0].causes][:2] == ["GEN001", "GEN011"]
    assert found[0].actions[0].title == "raise max_completion_tokens 8 to 12"


def test_exactly_half_of_the_groups_fires() -> None:
    half = [[FAILED] * 8 + [RARE] * 8] * 40
    assert [reason for _, reason in transitions(RULE, of(half))] == ["fired"]
    below = [[FAILED] * 7 + [RARE] * 9] * 40
    assert transitions(RULE, of(below)) == []


def test_is_critical_when_nearly_nothing_passes() -> None:
    features = Features()
    for event in numbered(of([[FAILED] * 15 + [RARE]] * 40)):
        features.update(event)
    answer = RULE.check(features, is_open=False)
    assert isinstance(answer, Finding)
    assert answer.severity == "critical"


def test_rewards_that_are_not_numbers_do_not_count() -> None:
    assert unevaluated(RULE, of([[[float("nan")] * 8] * 16] * 10)) == (
        "warm_up",
        "fewer than 64 groups with two completions were seen",
    )


def test_says_that_its_input_is_missing() -> None:
    answer = unevaluated(RULE, [[step()] for _ in range(60)])
    assert answer == ("missing_input", "no `batch_consumed` event in the last 50 steps")


def test_without_counts_of_passes_groups_at_the_lowest_reward_count_as_failed() -> None:
    found = transitions(RULE, of([SOUND] * 40 + [HARD] * 12, passed=None))
    assert [reason for _, reason in found] == ["fired"]


def test_stands_for_the_groups_without_spread_and_the_fall_of_the_reward() -> None:
    rules = [ZeroStdGroups(), RewardCollapse(), RULE]
    hard = [FAILED] * 13 + [[1.0] * 8] * 3
    records = run(Engine(rules), of([SOUND] * 40 + [hard] * 20))
    fired = [record for record in records if isinstance(record, Diagnostic)]
    assert fired[0].code == "RWD002"
    explained = {item.code for item in fired if any(link.kind == "explained_by" for link in item.relations)}
    assert explained == {"RWD001", "POL009"}
    assert {item.code for item in fired if item.suppressed} == {"RWD001"}
