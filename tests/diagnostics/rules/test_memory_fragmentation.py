"""SYS003: memory that rises from sample to sample, apart from start-up, caches that fill and lengths that grow."""

from collections.abc import Callable

import pytest

from tests.diagnostics.scenario import GIB, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.memory_fragmentation import MemoryFragmentation
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.resources import DeviceMemory, PhasePeak, ResourcesSampled

RULE = MemoryFragmentation()


def sample(
    *, rss: float = 1.0, baseline: float | None = None, reserved: float = 0.5, used: float = 0.9, host: float = 0.2
) -> ResourcesSampled:
    """GiB of the learner; baseline in GiB of a device of 80, and its reserved peak as a share, `used` of it in use."""
    device = DeviceMemory(
        device="cuda:0",
        kind="cuda",
        total_bytes=80 * GIB,
        baseline_bytes=int((baseline or 0.0) * GIB),
        phases={
            "forward_backward": PhasePeak(
                allocated_bytes=int(80 * GIB * reserved * used), reserved_bytes=int(80 * GIB * reserved)
            )
        },
    )
    return ResourcesSampled(
        devices=[] if baseline is None else [device],
        host_rss_bytes={"learner": int(rss * GIB), "sampler": GIB},
        host_memory_frac=host,
        disk_free_bytes=GIB,
    )


def sampled(made: Callable[[int], ResourcesSampled], *, n: int) -> list[list[BaseEvent]]:
    """A sample every fifth step."""
    return [[*([step()] * 5), made(i)] for i in range(n)]


def test_warns_of_a_process_that_keeps_what_each_step_made() -> None:
    (found,) = diagnostics(RULE, [[started()], *sampled(lambda i: sample(rss=1 + 0.04 * i), n=30)])
    assert (found.reason, found.severity, found.kind) == ("fired", "warning", "fault")
    assert found.last.step == 65
    assert found.summary == "Memory of learner rose from 1.16 to 1.44 GiB over 35 steps, 0.69% a step"


def test_warns_of_a_device_whose_memory_at_rest_grows() -> None:
    (found,) = diagnostics(RULE, sampled(lambda i: sample(baseline=10 * 1.015**i), n=20))
    assert found.severity == "warning"
    assert found.summary.startswith("Memory of the accelerator at rest rose from ")


def test_is_critical_when_memory_is_full_before_the_planned_end() -> None:
    (found,) = diagnostics(RULE, [[started()], *sampled(lambda i: sample(baseline=10 + 2 * i), n=14)])
    assert found.severity == "critical"
    assert found.summary.endswith(", full before the planned end at this pace")
    host = sampled(lambda i: sample(rss=1 + 0.2 * i, host=0.2 + 0.02 * i), n=14)
    assert diagnostics(RULE, [[started()], *host])[0].severity == "critical"


def test_a_tenth_of_a_percent_a_step_is_the_limit() -> None:
    assert transitions(RULE, sampled(lambda i: sample(baseline=10 + 0.049 * i), n=30)) == []
    assert transitions(RULE, sampled(lambda i: sample(baseline=10 + 0.06 * i), n=30)) != []


def test_memory_that_stands_still_or_goes_up_and_down_is_no_leak() -> None:
    assert transitions(RULE, sampled(lambda i: sample(rss=2.0, baseline=10), n=40)) == []
    assert transitions(RULE, sampled(lambda i: sample(rss=1 + 0.5 * (i % 3), baseline=10 + i % 3), n=40)) == []


def test_what_start_up_adds_does_not_count() -> None:
    assert transitions(RULE, sampled(lambda i: sample(rss=min(2.0, 1 + 0.25 * i)), n=40)) == []


def test_a_cache_that_is_full_resolves() -> None:
    run = sampled(lambda i: sample(rss=1 + 0.04 * min(i, 20)), n=45)
    assert [reason for _, reason in transitions(RULE, run)] == ["fired", "resolved"]


def test_a_small_process_may_grow_by_a_few_mebibytes() -> None:
    assert transitions(RULE, sampled(lambda i: sample(rss=0.06 + 0.001 * i), n=15)) == []


def test_pieces_are_told_apart_from_a_full_device() -> None:
    (found,) = diagnostics(RULE, sampled(lambda i: sample(baseline=10, reserved=0.9, used=0.6), n=20))
    assert found.severity == "info"
    assert found.summary == "The allocator holds 72 of 80 GiB at its peak, of which 40% was never in use at once"
    assert transitions(RULE, sampled(lambda i: sample(baseline=10, reserved=0.9, used=0.8), n=20)) == []
    assert transitions(RULE, sampled(lambda i: sample(baseline=10, reserved=0.7, used=0.5), n=20)) == []


def test_waits_for_samples_after_the_start() -> None:
    detail = "fewer than 10 samples after the first steps were seen"
    assert unevaluated(RULE, sampled(lambda i: sample(), n=11)) == ("warm_up", detail)
    assert unevaluated(RULE, sampled(lambda i: sample(), n=12)) is None


@pytest.mark.parametrize("clear", [0.001, 0.1, float("nan")])
def test_limits_must_rise(clear: float) -> None:
    with pytest.raises(ValueError, match="SYS003"):
        MemoryFragmentation(clear=clear)
