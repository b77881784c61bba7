"""What NVIDIA's driver says about the health of a device, where there is one to ask."""

from dataclasses import dataclass
from typing import Any, Final

REASONS: Final = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Bits of `nvmlClocksEventReasons` (nvml.h) that hold the clocks down; the others mean idle or a setting of somebody's.
"""


@dataclass(frozen=True, slots=True)
class Health:
    """Under the names of `DeviceMemory`; None is what the driver does not say."""

    busy_frac: float | None = None
    throttled: list[str] | None = None
    ecc_errors: int | None = None


class Driver:
    """One device, as its driver sees it."""

    def __init__(self, library: Any, handle: Any):
        self._library = library
        self._handle = handle

    def health(self) -> Health:
        """Asks the driver, which takes some ten microseconds a question."""
        library = self._library
        rates = self._ask(library.nvmlDeviceGetUtilizationRates)
        reasons = self._ask(library.nvmlDeviceGetCurrentClocksEventReasons)
        errors = self._ask(
            library.nvmlDeviceGetTotalEccErrors, library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, library.NVML_VOLATILE_ECC
        )
        return Health(
            busy_frac=None if rates is None else rates.gpu / 100,
            throttled=None if reasons is None else [name for bit, name in REASONS.items() if reasons & bit],
            ecc_errors=errors,
        )

    def _ask(self, question: Any, *arguments: Any) -> Any:
        """The answer; None from a device that has none, such as one without error correction."""
        try:
            return question(self._handle, *arguments)
        except self._library.NVMLError:
            return None


def find_driver(uuid: str) -> Driver | None:
    """The driver of the device with this id, such as `GPU-8f3c...`; None without nvidia-ml-py, driver or device."""
    try:
        import pynvml  # noqa: PLC0415  # only where there is a CUDA device
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return Driver(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError:
        return None
