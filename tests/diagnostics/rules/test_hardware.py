"""SYS015: counters of the driver, apart from power caps and a count that stands still."""

import pytest

from tests.diagnostics.scenario import GIB, diagnostics, started, step, transitions, unevaluated
from tocsin.diagnostics.rules.hardware import Hardware
from tocsin.schemas.event import BaseEvent
from tocsin.schemas.resources import DeviceMemory, ResourcesSampled

RULE = Hardware()
CUDA = [started(kinds=["cuda"])]


def sample(errors: int | None = 0, throttled: list[str] | None = None) -> list[BaseEvent]:
    device = DeviceMemory(
        device="cuda:0",
        kind="cuda",
        total_bytes=80 * GIB,
        baseline_bytes=GIB,
        phases={},
        ecc_errors=errors,
        throttled=throttled,
    )
    made = ResourcesSampled(devices=[device], host_rss_bytes={}, host_memory_frac=0.2, disk_free_bytes=GIB)
    return [step(), made]


def test_new_memory_errors_are_told_at_once() -> None:
    (found,) = diagnostics(RULE, [CUDA, *([sample(3)] * 5), sample(4)])
    assert (found.kind, found.severity, found.last.step) == ("fault", "info", 6)
    assert found.summary == "The accelerator counted 1 new uncorrected memory errors within 4 samples"


def test_errors_from_before_the_run_are_no_news() -> None:
    assert transitions(RULE, [CUDA, *([sample(7)] * 60)]) == []


def test_clocks_that_are_held_down_for_long_have_their_reason_told() -> None:
    hot = ["sw_thermal_slowdown", "hw_power_brake_slowdown"]
    (found,) = diagnostics(RULE, [CUDA, *([sample(0, [])] * 50), *([sample(0, hot)] * 10)])
    assert found.summary == "Clocks of the accelerator were held down in 12% of 50 samples: power brake, temperature"


def test_a_tenth_of_the_samples_and_a_power_cap_are_no_finding() -> None:
    now_and_then = [sample(0, ["hw_slowdown"] if i % 10 == 0 else []) for i in range(100)]
    assert transitions(RULE, [CUDA, *now_and_then]) == []
    assert transitions(RULE, [CUDA, *([sample(0, ["sw_power_cap"])] * 60)]) == []


def test_resolves_when_the_window_has_passed() -> None:
    run = [CUDA, *([sample(0)] * 5), *([sample(1)] * 70)]
    assert [reason for _, reason in transitions(RULE, run)] == ["fired", "resolved"]


def test_says_why_it_is_not_evaluated() -> None:
    assert unevaluated(RULE, [[started()], *([sample()] * 9)]) == ("not_applicable", "no accelerator")
    missing = ("missing_input", "no sample has the error and throttle counters of an accelerator")
    assert unevaluated(RULE, [CUDA, *([sample(None)] * 9)]) == missing


@pytest.mark.parametrize("throttled", [-0.1, 1.1, float("nan")])
def test_a_share_is_a_share(throttled: float) -> None:
    with pytest.raises(ValueError, match="SYS015"):
        Hardware(throttled=throttled)
