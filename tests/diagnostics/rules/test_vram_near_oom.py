"""SYS002: peaks near the size of a pretended accelerator, and retries after it ran out."""

import pytest

from tests.diagnostics.scenario import GIB, diagnostics, memory, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.vram_near_oom import VramNearOom
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.events import KnobChanged, ResourcesSampled
from tocsin.schemas.resources import PhasePeak

RULE = VramNearOom()


def used(share: float, *, n: int = 1, oom_retries: int = 0, **fields: object) -> list[list[BaseEvent]]:
    return [[memory(share, **fields), step(oom_retries=oom_retries)] for _ in range(n)]  # type: ignore[arg-type]


def reserved_only(reserved: float, allocated: float, *, n: int) -> list[list[BaseEvent]]:
    sample = memory(reserved)
    total = sample.devices[0].total_bytes
    peak = PhasePeak(allocated_bytes=int(total * allocated), reserved_bytes=int(total * reserved))
    device = sample.devices[0].model_copy(update={"phases": {"forward_backward": peak}})
    return [[sample.model_copy(update={"devices": [device]}), step()] for _ in range(n)]


def launched(**knobs: object) -> list[BaseEvent]:
    return [started(kinds=("simulated",), **knobs)]


def test_warns_after_two_samples_with_a_budget_computed_from_the_peak() -> None:
    found = diagnostics(RULE, [launched(microbatch_tokens=4096), *used(0.95, n=5)])
    assert [(record.last.step, record.reason, record.severity) for record in found] == [(3, "fired", "warning")]
    assert found[0].summary == "VRAM peaks at 95% of 80 GiB during forward_backward over 3 samples"
    # 10 % is fixed and 85 % belongs to 4,096 tokens: 75 % hold 3,614 of them.
    patch = found[0].actions[0].patches[0]
    assert (patch.path, patch.expect, patch.to) == ("microbatch_tokens", 4096, 2048)


def test_is_critical_when_nearly_nothing_is_left() -> None:
    assert [record.severity for record in diagnostics(RULE, [launched(), *used(0.98, n=5)])] == ["critical"]


def test_what_the_allocator_only_keeps_is_info() -> None:
    assert [record.severity for record in diagnostics(RULE, [launched(), *reserved_only(0.96, 0.6, n=5)])] == ["info"]


def test_a_sampler_sized_share_below_the_limit_is_no_finding() -> None:
    assert transitions(RULE, [launched(), *used(0.92, n=60, total=100 * GIB)]) == []
    assert transitions(RULE, [launched(), *used(0.93, n=3, total=100 * GIB)]) == [(3, "fired")]


def test_a_retry_warns_and_a_second_one_is_critical() -> None:
    once = [launched(microbatch_tokens=4096), *used(0.5, n=5), *used(0.5, oom_retries=1), *used(0.5, n=5)]
    found = diagnostics(RULE, once)
    assert [(record.last.step, record.severity) for record in found] == [(7, "warning")]
    assert found[0].summary.startswith("1 of the last 20 steps ran out of memory; VRAM peaks at 50%")
    twice = diagnostics(RULE, [*once, *used(0.5, oom_retries=1), *used(0.5, n=5)])
    assert [record.severity for record in twice] == ["warning", "critical"]


def test_the_budget_is_not_blamed_for_a_peak_in_another_phase() -> None:
    found = diagnostics(RULE, [launched(), *used(0.95, n=5, phase="optimizer")])
    assert [action.applicability for action in found[0].actions] == ["advisory", "advisory"]
    assert found[0].actions[0].title == "look at memory in phase optimizer: the budget is not it"


def test_a_budget_that_was_never_filled_has_to_fall_below_what_was() -> None:
    found = diagnostics(RULE, [launched(microbatch_tokens=4096), *used(0.95, n=5, max_tokens=1500)])
    assert found[0].actions[0].patches[0].to == 1024


def test_resolves_when_a_smaller_budget_was_measured() -> None:
    change = KnobChanged(path="microbatch_tokens", before=4096, after=2048, actor="person:a", effective_step=6)
    run = [launched(microbatch_tokens=4096), *used(0.95, n=5), [change], *used(0.6, n=10, max_tokens=2048)]
    assert transitions(RULE, run) == [(3, "fired"), (11, "resolved")]


def test_resolves_some_time_after_the_last_retry() -> None:
    found = transitions(RULE, [launched(), *used(0.5, n=5), *used(0.5, oom_retries=1), *used(0.5, n=40)])
    assert [reason for _, reason in found] == ["fired", "resolved"]
    assert found[1][0] == 30


def test_is_not_evaluated_without_an_accelerator() -> None:
    host = ResourcesSampled(devices=[], host_rss_bytes={}, host_memory_frac=0.1, disk_free_bytes=GIB)
    assert unevaluated(RULE, [[started()], *([step()] for _ in range(5))]) == ("not_applicable", "no accelerator")
    assert unevaluated(RULE, [[host, step()] for _ in range(5)]) == ("not_applicable", "no accelerator")


def test_says_that_its_input_is_missing() -> None:
    assert unevaluated(RULE, [launched(), *([step()] for _ in range(5))]) == (
        "warm_up",
        "fewer than 2 memory samples were seen",
    )
    found = transitions(RULE, [launched(), *used(0.95, n=5), *([step()] for _ in range(80))])
    assert [reason for _, reason in found] == ["fired", "data_lost"]


@pytest.mark.parametrize("total", [0, 1])
def test_a_device_without_a_size_is_not_divided_by(total: int) -> None:
    assert "fired" not in [reason for _, reason in transitions(RULE, [launched(), *used(0.5, n=20, total=total)])]
