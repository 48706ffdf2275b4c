"""Clocks, power and temperature of a GPU while it was measured, by NVIDIA's management library (nvidia-ml-py)."""

import datetime
import statistics
import threading
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

SAMPLE_SECONDS = 0.25
_THROTTLES = {
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "HwThermalSlowdown": "heat",
    "SwThermalSlowdown": "heat, by the driver",
    "HwPowerBrakeSlowdown": "power brake",
}
"""Reasons for clocks below the requested ones, by the end of their names in NVML."""


def now() -> str:
    """The time in UTC, as ISO 8601 has it, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def nvml() -> ModuleType | None:
    """NVIDIA's management library, initialised. None where it or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # whatever it raises: there is no management library then
        return None
    return pynvml


def driver_version() -> str | None:
    """The driver's version, None where there is none."""
    library = nvml()
    if library is None:
        return None
    found = library.nvmlSystemGetDriverVersion()
    return found.decode() if isinstance(found, bytes) else str(found)


def gpu_count() -> int:
    """The number of GPUs that torch may use. Asking makes no CUDA context."""
    return torch.cuda.device_count()


class Monitor:
    """A context manager that samples a GPU in the background. Without the library or a GPU it has no samples."""

    def __init__(self, read: Callable[[], dict[str, float | tuple[str, ...]]] | None) -> None:
        self._read = read
        self._samples: list[dict[str, Any]] = []
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def of(cls, uuid: str | None) -> "Monitor":
        """A monitor of the GPU with this UUID, as torch writes it."""
        library = nvml() if uuid is not None else None
        if library is None:
            return cls(None)
        try:
            handle = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        except library.NVMLError:
            return cls(None)
        return cls(lambda: _sample(library, handle))

    def __enter__(self) -> "Monitor":
        if self._read is not None:
            self._thread = threading.Thread(target=self._run, name="gemmill-clocks", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()

    def summary(self) -> dict[str, Any]:
        """Minimum, median and maximum of each quantity (MHz, W, degrees C), and the share of samples with reduced
        clocks, by reason. Empty without samples.
        """
        samples = list(self._samples)
        if not samples:
            return {}
        result: dict[str, Any] = {}
        for name in (key for key in samples[0] if key != "throttled"):
            column = [sample[name] for sample in samples]
            result[name] = {
                "min": min(column),
                "median": statistics.median(column),
                "max": max(column),
                "samples": len(column),
            }
        reasons = Counter(reason for sample in samples for reason in sample["throttled"])
        result["throttled"] = {reason: round(count / len(samples), 3) for reason, count in sorted(reasons.items())}
        return result

    def take(self) -> None:
        """One sample now."""
        if self._read is not None:
            self._samples.append(self._read())

    def _run(self) -> None:
        while True:
            try:
                self.take()
            except Exception:  # the GPU fell off the bus, say: measuring will find out
                return
            if self._end.wait(SAMPLE_SECONDS):
                return


def _sample(library: ModuleType, handle: Any) -> dict[str, float | tuple[str, ...]]:
    reasons = library.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    held = tuple(
        words
        for name, words in _THROTTLES.items()
        if reasons
        & (
            getattr(library, f"nvmlClocksThrottleReason{name}", None)
            or getattr(library, f"nvmlClocksEventReason{name}", 0)
        )
    )
    return {
        "clocks.sm": float(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM)),
        "clocks.mem": float(library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM)),
        "power.draw": library.nvmlDeviceGetPowerUsage(handle) / 1000.0,
        "temperature.gpu": float(library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)),
        "throttled": held,
    }
