"""The device and software of a measurement."""

import platform
import subprocess
from pathlib import Path

import torch

_FACTS = ("name", "driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem", "memory.total", "vbios_version")


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
