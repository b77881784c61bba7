"""GEN008: how prompts begin, judged from the launch and from what passes."""

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.chat_template_mismatch import ChatTemplateMismatch
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import RunResumed, RunStarted
from tocsin.schemas.setup import RunSetup, TemplateSetup

RULE = ChatTemplateMismatch()
GOOD = [[1.0, 0.0] * 4] * 16
BAD = [[0.0] * 8] * 16


def launched(*, has: bool = True, used: bool = True, doubled: int = 0) -> RunStarted:
    return started(setup=RunSetup(template=TemplateSetup(has=has, used=used, doubled_start=doubled, looked_at=64)))


def batches(rewards: list[list[float]], *, n: int) -> list[list[BaseEvent]]:
    return [[batch(rewards), step()] for _ in range(n)]


def test_names_a_doubled_start_token_at_the_first_batch() -> None:
    found = diagnostics(RULE, [[launched(doubled=60)], *batches(GOOD, n=20)])
    assert [(record.last.step, record.severity) for record in found] == [(0, "info")]
    assert found[0].summary == "60 of the first 64 prompts begin with two start tokens"


def test_names_a_template_that_is_not_used_when_nothing_passes() -> None:
    found = diagnostics(RULE, [[launched(used=False)], *batches(BAD, n=20)])
    assert [record.reason for record in found] == ["fired"]
    assert found[0].summary.startswith("The tokenizer's chat template is not used, and 0.0% of")


def test_a_base_model_without_a_template_is_left_alone() -> None:
    assert transitions(RULE, [[launched(has=False, used=False)], *batches(BAD, n=20)]) == []


def test_a_template_that_is_not_used_and_not_needed_is_left_alone() -> None:
    assert transitions(RULE, [[launched(used=False)], *batches(GOOD, n=20)]) == []


def test_a_collapse_later_on_is_not_blamed_on_the_template() -> None:
    assert transitions(RULE, [[launched(used=False)], *batches(GOOD, n=20), *batches(BAD, n=20)]) == []


def test_exactly_the_limit_does_not_fire() -> None:
    rewards = [*([[0.0] * 16] * 15), [1.0] + [0.0] * 15]  # 1 of 256
    run = [[launched(used=False)], *batches(rewards, n=10)]
    assert transitions(ChatTemplateMismatch(fire=1 / 256), run) == []
    assert transitions(ChatTemplateMismatch(fire=1.01 / 256), run)[0][1] == "fired"


def test_resolves_when_more_passes() -> None:
    found = transitions(RULE, [[launched(used=False)], *batches(BAD, n=20), *batches(GOOD, n=20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_resolves_when_a_later_attempt_mended_the_prompts() -> None:
    mended = RunSetup(template=TemplateSetup(has=True, used=True, doubled_start=0, looked_at=64))
    again = RunResumed(checkpoint_step=10, rewound_from_step=12, knobs={}, devices=[], versions={}, setup=mended)
    found = transitions(RULE, [[launched(doubled=60)], *batches(GOOD, n=12), [again], *batches(GOOD, n=10)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_says_that_the_run_does_not_describe_its_prompts() -> None:
    assert unevaluated(RULE, [[started()], *batches(BAD, n=20)]) == (
        "missing_input",
        "the run does not say how its prompts begin",
    )


def test_a_reward_that_is_no_number_is_no_finding() -> None:
    assert transitions(RULE, [[launched(used=False)], *batches([[float("nan")] * 8] * 16, n=20)]) == []
