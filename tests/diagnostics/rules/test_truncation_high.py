"""GEN001: how many completions are cut, judged by what it does."""

from tests.diagnostics.scenario import batch, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.truncation_high import TruncationHigh
from tocsin.schemas.batch import Quantiles
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged

RULE = TruncationHigh()
GOOD = [[1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]] * 16
BAD = [[0.0] * 8] * 16


def cut(share: float, *, n: int, rewards: list[list[float]] = GOOD, longest: float = 8) -> list[list[BaseEvent]]:
    """Steps of 128 completions of which this share ended at the limit."""
    hit = round(128 * share)
    fields = {
        "finish_reasons": {"stop": 128 - hit, "length": hit},
        "length": Quantiles(mean=7, p50=7, p95=longest, max=longest),
    }
    return [[batch(rewards).model_copy(update=fields), step()] for _ in range(n)]


def launched(**knobs: object) -> list[BaseEvent]:
    return [started(max_completion_tokens=8, **knobs)]


def test_warns_when_truncation_sets_in_and_is_critical_when_the_reward_falls() -> None:
    run = [launched(), *cut(0.0, n=40), *cut(1.0, n=10, rewards=BAD)]
    found = diagnostics(RULE, run)
    assert [(record.reason, record.severity) for record in found] == [("fired", "warning"), ("escalated", "critical")]
    assert [record.last.step for record in found] == [41, 43]
    assert found[1].summary == (
        "100% of 256 completions since step 42 ended at the length limit, 0% at best before; "
        "the reward is 0% of its best"
    )
    patch = found[1].actions[0].patches[0]
    assert (patch.path, patch.expect, patch.to) == ("max_completion_tokens", 8, 16)


def test_a_rise_without_a_fall_of_the_reward_is_a_warning() -> None:
    found = diagnostics(RULE, [*cut(0.02, n=40), *cut(0.5, n=30)])
    assert [record.severity for record in found] == ["warning"]


def test_a_base_that_is_cut_from_the_start_and_learns_is_info() -> None:
    found = diagnostics(RULE, cut(0.5, n=60))
    assert [record.severity for record in found] == ["info"]


def test_a_limit_that_leaves_no_room_to_learn_warns_from_the_start() -> None:
    found = diagnostics(RULE, cut(1.0, n=20, rewards=BAD))
    assert [(record.last.step, record.severity) for record in found] == [(2, "warning")]


def test_long_completions_that_end_by_themselves_are_no_finding() -> None:
    assert transitions(RULE, cut(0.0, n=60, longest=4000)) == []


def test_exactly_the_limit_does_not_fire() -> None:
    assert transitions(TruncationHigh(fire=0.5), cut(0.5, n=30)) == []
    assert transitions(RULE, cut(0.5, n=30)) == [(2, "fired")]


def test_when_completions_stay_below_the_knob_something_else_cuts() -> None:
    found = diagnostics(RULE, [launched(), *cut(0.0, n=40), *cut(1.0, n=4, longest=4)])
    assert found[0].actions[0].title == "find what cuts at 4 tokens; the knob allows 8"
    assert all(not action.patches for action in found[0].actions)


def test_resolves_below_the_clear_threshold_only() -> None:
    found = transitions(RULE, [*cut(0.0, n=40), *cut(0.6, n=10), *cut(0.25, n=30), *cut(0.05, n=20)])
    assert [reason for _, reason in found] == ["fired", "resolved"]
    assert found[1][0] > 80


def test_a_raised_limit_starts_the_window_over() -> None:
    change = KnobChanged(path="max_completion_tokens", before=8, after=16, actor="person:a", effective_step=51)
    run = [launched(), *cut(0.0, n=40), *cut(1.0, n=10), [change], *cut(0.0, n=20)]
    assert [reason for _, reason in transitions(RULE, run)] == ["fired", "resolved"]


def test_needs_256_completions() -> None:
    assert unevaluated(RULE, cut(1.0, n=1)) == (
        "warm_up",
        "fewer than 256 completions were seen under this length limit",
    )


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, [[step()] for _ in range(5)]) == ("warm_up", "waits for its first `batch_consumed` event")
    lost = [*cut(0.0, n=40), *cut(1.0, n=10), *([step()] for _ in range(60))]
    assert transitions(RULE, lost)[-1][1] == "data_lost"


def test_a_length_that_is_not_a_number_proposes_what_the_knob_allows() -> None:
    found = diagnostics(RULE, [launched(), *cut(0.0, n=40), *cut(1.0, n=4, longest=float("nan"))])
    assert found[0].actions[0].patches[0].to == 16
