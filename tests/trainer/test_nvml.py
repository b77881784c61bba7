"""What the driver's answers become, asked of a driver that is written here."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tocsin.trainer.nvml import Driver, Health, find_driver


class NotSupported(Exception):
    """What the library raises where a device has no answer."""


def library(**answers: Any) -> SimpleNamespace:
    """As much of pynvml as is asked; a question without an answer here is not supported."""

    def ask(question: str) -> Any:
        def answer(handle: str, *_: int) -> Any:
            assert handle == "device"
            if question not in answers:
                raise NotSupported
            return answers[question]

        return answer

    return SimpleNamespace(
        NVMLError=NotSupported,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlDeviceGetUtilizationRates=ask("rates"),
        nvmlDeviceGetCurrentClocksEventReasons=ask("reasons"),
        nvmlDeviceGetTotalEccErrors=ask("errors"),
    )


def test_percents_become_shares_and_bits_become_reasons():
    driver = Driver(library(rates=SimpleNamespace(gpu=40, memory=9), reasons=0x4 | 0x40, errors=2), "device")
    assert driver.health() == Health(busy_frac=0.4, throttled=["sw_power_cap", "hw_thermal_slowdown"], ecc_errors=2)


def test_an_idle_device_is_not_throttled():
    assert Driver(library(reasons=0x1), "device").health().throttled == []


def test_what_a_device_cannot_say_is_not_measured():
    assert Driver(library(), "device").health() == Health()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a driver")
def test_without_a_driver_there_is_nobody_to_ask():
    assert find_driver("GPU-00000000-0000-0000-0000-000000000000") is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_driver_of_a_real_device_answers():
    driver = find_driver(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    assert driver is not None
    health = driver.health()
    assert health.busy_frac is not None
    assert 0 <= health.busy_frac <= 1
    assert health.throttled is not None
