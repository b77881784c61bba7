"""SYS001: the arithmetic of memory, on a pretended accelerator."""

import pytest

from tests.diagnostics.scenario import GIB, diagnostics, memory, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.vram_underused import VramUnderused
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, ResourcesSampled

RULE = VramUnderused()


def used(share: float, *, n: int = 1, oom_retries: int = 0, **fields: object) -> list[list[BaseEvent]]:
    return [[memory(share, **fields), step(oom_retries=oom_retries)] for _ in range(n)]  # type: ignore[arg-type]


def launched(**knobs: object) -> list[BaseEvent]:
    return [started(kinds=("simulated",), **knobs)]


def test_warns_after_ten_samples_with_a_budget_computed_from_the_peak() -> None:
    found = diagnostics(RULE, [launched(microbatch_tokens=4096), *used(0.34, n=15)])
    assert [(record.last.step, record.reason, record.severity) for record in found] == [(12, "fired", "warning")]
    assert found[0].summary == (
        "VRAM peaks at 34% of 80 GiB during forward_backward over 10 samples, with at least 8 micro-batches per step"
    )
    # 10 % is fixed and 24 % belongs to 4,096 tokens: 8,192 need 58 %, 16,384 would need 106 % and are refused.
    patch = found[0].actions[0].patches[0]
    assert (patch.path, patch.expect, patch.to) == ("microbatch_tokens", 4096, 8192)
    projected = next(item for item in found[0].evidence if item.metric == "projected_peak_frac")
    assert projected.observed == pytest.approx(0.58, abs=1e-6)


def test_proposes_at_most_what_one_change_may_do() -> None:
    found = diagnostics(RULE, [launched(microbatch_tokens=4096), *used(0.11, n=15, num=64)])
    assert found[0].actions[0].patches[0].to == 4096 * 4


def test_proposes_no_more_than_a_whole_step_needs() -> None:
    found = diagnostics(RULE, [launched(microbatch_tokens=4096), *used(0.11, n=15, num=2)])
    assert found[0].actions[0].patches[0].to == 8192


def test_never_proposes_a_budget_that_ran_out_of_memory() -> None:
    change = KnobChanged(path="microbatch_tokens", before=16384, after=4096, actor="learner", effective_step=1)
    found = diagnostics(RULE, [launched(microbatch_tokens=16384), [change], *used(0.11, n=15, num=64)])
    assert found[0].actions[0].patches[0].to == 8192


def test_between_the_limits_it_is_info() -> None:
    found = diagnostics(RULE, [launched(microbatch_tokens=4096), *used(0.5, n=15)])
    assert [record.severity for record in found] == ["info"]


def test_stays_quiet_at_the_limit_and_when_one_micro_batch_holds_the_step() -> None:
    assert transitions(RULE, [launched(), *used(0.6, n=30, total=100 * GIB)]) == []
    assert transitions(RULE, [launched(), *used(0.1, n=30, num=1)]) == []


def test_stays_quiet_after_the_learner_ran_out_of_memory() -> None:
    assert transitions(RULE, [launched(), *used(0.3, oom_retries=1), *used(0.3, n=40)]) == []


def test_resolves_when_the_budget_was_raised_and_keeps_firing_until_it_was_measured() -> None:
    change = KnobChanged(path="microbatch_tokens", before=4096, after=8192, actor="person:a", effective_step=16)
    steps = [launched(microbatch_tokens=4096), *used(0.34, n=15), [change], *used(0.7, n=15, max_tokens=8192)]
    assert transitions(RULE, steps) == [(12, "fired"), (27, "resolved")]


def test_is_not_evaluated_without_an_accelerator() -> None:
    host = ResourcesSampled(devices=[], host_rss_bytes={}, host_memory_frac=0.1, disk_free_bytes=GIB)
    assert unevaluated(RULE, [[started()], *([step()] for _ in range(5))]) == ("not_applicable", "no accelerator")
    assert unevaluated(RULE, [[host, step()] for _ in range(5)]) == ("not_applicable", "no accelerator")
    shared = memory(0.2, kind="mps")
    assert unevaluated(RULE, [[shared, step()] for _ in range(5)]) == ("not_applicable", "no accelerator")


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, [launched(), *used(0.3, n=12, phase="generate")]) == (
        "missing_input",
        "samples have no `forward_backward` peak or no `microbatches`",
    )
    found = transitions(RULE, [launched(), *used(0.34, n=15), *([step()] for _ in range(80))])
    assert [reason for _, reason in found] == ["fired", "data_lost"]
