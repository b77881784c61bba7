"""Memory meters: a CPU claims nothing, a pretended accelerator reports what the micro-batches would have needed."""

import pytest
import torch

from tocsin.schemas.config import DeviceConfig
from tocsin.schemas.events import DeviceInfo
from tocsin.schemas.resources import PhasePeak
from tocsin.trainer.devices import GIB, CpuMeter, SimulatedMeter, describe_device, memory_meter, others_bytes
from tocsin.trainer.models import ModelError, resolve_device

CPU = torch.device("cpu")
PRETENDED = DeviceConfig(simulated_memory_gib=0.5, simulated_bytes_per_token=1000)


def peak(size: int) -> PhasePeak:
    return PhasePeak(allocated_bytes=size, reserved_bytes=size)


def test_a_cpu_measures_nothing_and_refuses_nothing():
    meter = memory_meter(DeviceConfig(), CPU, 10**6)
    assert isinstance(meter, CpuMeter)
    with meter.phase("forward_backward"):
        meter.before_microbatch(10**12)
    assert meter.sample() == []


def test_a_pretended_accelerator_adds_activations_to_weights_gradients_and_moments():
    meter = memory_meter(PRETENDED, CPU, 100)
    assert isinstance(meter, SimulatedMeter)
    with meter.phase("forward_backward"):
        meter.before_microbatch(50)
        meter.before_microbatch(30)
    with meter.phase("optimizer"):
        pass
    (sample,) = meter.sample()
    assert (sample.device, sample.kind, sample.total_bytes) == ("simulated:0", "simulated", GIB // 2)
    assert sample.baseline_bytes == 400
    assert sample.phases == {"forward_backward": peak(400 + 50 * 1000), "optimizer": peak(400)}


def test_every_sample_starts_new_peaks():
    meter = memory_meter(PRETENDED, CPU, 100)
    with meter.phase("forward_backward"):
        meter.before_microbatch(50)
    meter.sample()
    with meter.phase("forward_backward"):
        meter.before_microbatch(20)
    assert meter.sample()[0].phases == {"forward_backward": peak(400 + 20 * 1000)}


def test_a_micro_batch_that_fits_exactly_runs_and_one_more_token_does_not():
    config = DeviceConfig(simulated_memory_gib=(400 + 50 * 1000) / GIB, simulated_bytes_per_token=1000)
    meter = memory_meter(config, CPU, 100)
    meter.before_microbatch(50)
    with pytest.raises(torch.OutOfMemoryError, match="51400 bytes needed, 50400 there"):
        meter.before_microbatch(51)


def test_a_refused_micro_batch_leaves_no_peak_behind():
    config = DeviceConfig(simulated_memory_gib=2000 / GIB, simulated_bytes_per_token=100)
    meter = memory_meter(config, CPU, 100)
    with meter.phase("forward_backward"), pytest.raises(torch.OutOfMemoryError):
        meter.before_microbatch(1000)
    assert meter.sample()[0].phases == {"forward_backward": peak(400)}


def test_the_run_says_where_it_computes():
    assert describe_device(DeviceConfig(), CPU) == DeviceInfo(name="cpu", kind="cpu")
    assert describe_device(PRETENDED, CPU) == DeviceInfo(
        name="simulated accelerator", kind="simulated", memory_bytes=GIB // 2
    )


def test_a_device_that_is_not_there_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("cpu") == CPU
    with pytest.raises(ModelError, match="must be one that this machine has, got `cuda`; use `auto` or `cpu`"):
        resolve_device("cuda")


def test_memory_of_other_processes_counts_as_used():
    assert others_bytes(total=80, free=30, reserved=20) == 30
    assert others_bytes(total=80, free=60, reserved=20) == 0
    assert others_bytes(total=80, free=61, reserved=20) == 0, "the driver rounds; never negative"
