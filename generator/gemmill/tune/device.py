"""What a measurement was made on, and how the GPU's clocks and power were meanwhile."""

import datetime
import platform
import statistics
import subprocess
from pathlib import Path

import torch

_FACTS = ("name", "driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem", "memory.total", "vbios_version")
_STATE = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
_SAMPLE_MS = 1000


def environment() -> dict[str, object]:
    """GPU, driver and software, as JSON values. `gpu` is None where there is no GPU."""
    facts = _query(_FACTS)
    return {
        "gpu": facts.pop("name", None),
        "nvidia_smi": facts,
        "sm_count": torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else None,
        "l2_bytes": torch.cuda.get_device_properties(0).L2_cache_size if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit_of(folder: Path) -> str:
    """The checked-out commit, with "+" where tracked files differ from it; "unknown" outside a checkout."""
    try:
        head = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run(
            ["git", "-C", folder, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")


def _query(fields: tuple[str, ...]) -> dict[str, str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (value.strip() for value in answer.split(",")), strict=False))


class Monitor:
    """Samples clocks, power and temperature of GPU 0 in the background, as a context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._lines: list[str] = []

    def __enter__(self) -> "Monitor":
        command = ["nvidia-smi", f"--query-gpu={','.join(_STATE)}", "--format=csv,noheader,nounits", "--id=0"]
        try:
            self._process = subprocess.Popen(
                [*command, f"--loop-ms={_SAMPLE_MS}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            self._process = None
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._lines = self._process.communicate()[0].splitlines()

    def summary(self) -> dict[str, dict[str, float]]:
        """Minimum, median and maximum of each quantity, in nvidia-smi's units; empty where none was sampled."""
        rows = [values for line in self._lines if (values := _numbers(line)) is not None]
        if not rows:
            return {}
        columns = zip(*rows, strict=True)
        return {
            name: {"min": min(column), "median": statistics.median(column), "max": max(column), "samples": len(column)}
            for name, column in zip(_STATE, columns, strict=True)
        }


def _numbers(line: str) -> tuple[float, ...] | None:
    try:
        values = tuple(float(value) for value in line.split(","))
    except ValueError:
        return None
    return values if len(values) == len(_STATE) else None
