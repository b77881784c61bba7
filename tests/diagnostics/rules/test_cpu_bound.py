"""SYS007: an idle accelerator beside a busy core, counted over samples."""

import pytest

from tests.diagnostics.scenario import GIB, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.cpu_bound import CpuBound
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.resources import DeviceMemory, ResourcesSampled
from tocsin.schemas.setup import RunSetup

RULE = CpuBound()


def samples(
    *, n: int, busy: float | None = 0.05, learner: float = 0.95, rollout: float = 0.1, wall: float | None = 1.0
) -> list[list[BaseEvent]]:
    device = DeviceMemory(
        device="cuda:0", kind="cuda", total_bytes=80 * GIB, baseline_bytes=GIB, phases={}, busy_frac=busy
    )
    sample = ResourcesSampled(
        devices=[device],
        host_rss_bytes={},
        cpu_s={} if wall is None else {"learner": learner * wall, "rollout": rollout * wall},
        wall_s=wall,
        host_memory_frac=0.2,
        disk_free_bytes=GIB,
    )
    return [[step(), sample] for _ in range(n)]


CUDA = [started(kinds=["cuda"], setup=RunSetup(processors=8))]


def test_names_the_process_that_fills_its_core_while_the_accelerator_idles() -> None:
    (found,) = diagnostics(RULE, [CUDA, *samples(n=60)])
    assert (found.severity, found.kind) == ("info", "efficiency")
    assert found.summary == (
        "In 100% of 50 samples the accelerator was busy below 10% of the time while the learner filled a core, on a "
        "machine with 8 processors"
    )
    (found,) = diagnostics(RULE, [CUDA, *samples(n=60, learner=0.1, rollout=1.5)])
    assert "the rollout process filled a core" in found.summary


def test_half_of_the_samples_are_no_finding() -> None:
    mixed = [item for pair in zip(samples(n=30), samples(n=30, busy=0.8), strict=True) for item in pair]
    assert transitions(RULE, [CUDA, *mixed]) == []


def test_a_busy_accelerator_or_an_idle_process_is_fine() -> None:
    assert transitions(RULE, [CUDA, *samples(n=60, busy=0.1)]) == []
    assert transitions(RULE, [CUDA, *samples(n=60, learner=0.9)]) == []


def test_resolves_when_the_accelerator_is_busy_again() -> None:
    found = transitions(RULE, [CUDA, *samples(n=60), *samples(n=60, busy=0.8)])
    assert [reason for _, reason in found] == ["fired", "resolved"]


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, [[started()], *samples(n=60)]) == ("not_applicable", "no accelerator")
    missing = ("missing_input", "no sample says how busy the accelerator is")
    assert unevaluated(RULE, [CUDA, *samples(n=60, busy=None)]) == missing
    assert unevaluated(RULE, [CUDA, *samples(n=30)]) == ("warm_up", "fewer than 50 samples were seen")


def test_a_sample_without_processor_times_says_nothing() -> None:
    assert transitions(RULE, [CUDA, *samples(n=60, wall=None)]) == []
    assert transitions(RULE, [CUDA, *samples(n=60, wall=0.0)]) == []


@pytest.mark.parametrize("clear", [0.5, 0.6, float("nan")])
def test_limits_must_rise(clear: float) -> None:
    with pytest.raises(ValueError, match="SYS007"):
        CpuBound(clear=clear)
