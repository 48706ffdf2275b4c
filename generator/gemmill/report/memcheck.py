"""compute-sanitizer's memcheck over one small call of a few variants, each in a process of its own."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gemmill import settings
from gemmill.manifest import KernelEntry
from gemmill.report.child import ONCE
from gemmill.report.content import Checked

NOT_FOUND = "not run: compute-sanitizer is not found"
CALL_SECONDS = 300.0
BODIES = 4
"""The most variants to call under memcheck."""
_FOLDER = Path("/usr/local/cuda/bin")
_CLEAN = "ERROR SUMMARY: 0 errors"
_OPTIONS = (
    *("--tool", "memcheck", "--error-exitcode", "9", "--report-api-errors", "no", "--launch-timeout", "0"),
    *("--target-processes", "application-only", "--kernel-name", "kernel_substring=gemmill"),
)
_ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "GEMMILL_ENDLESS_WAITS": "1"}
"""Each tensor is an allocation of its own, and a kernel under memcheck takes minutes."""
_SOURCE_ROOT = Path(__file__).resolve().parents[2]


def find_sanitizer() -> str | None:
    """The program on PATH, else the CUDA toolkit's."""
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(_FOLDER))


def version_of(program: str) -> str:
    """The version in words. Raises OSError."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"Version (\S+)", told)
    return f"compute-sanitizer {found[1] if found else 'of unknown version'}"


def few(entries: Sequence[KernelEntry]) -> list[KernelEntry]:
    """Variants of different families, each the one of least machine code."""
    least: dict[str, KernelEntry] = {}
    for entry in sorted(entries, key=lambda entry: (entry.code_bytes, entry.name)):
        least.setdefault(entry.family, entry)
    return list(least.values())[:BODIES]


def check(program: str, build: Path, name: str, seconds: float = CALL_SECONDS) -> Checked:
    """Make a variant's call under memcheck. It kills one that hangs, with all of its processes. Raises OSError."""
    command = [program, *_OPTIONS, sys.executable, "-m", "gemmill.report.child", ONCE, str(build), name]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=settings.child_environment(python_path=_SOURCE_ROOT) | _ENVIRONMENT,
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return Checked(name=name, outcome="hung", detail=f"no end within {seconds:.0f} s: it was killed")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode == 0 and _CLEAN in text:
        return Checked(name=name, outcome="passed")
    lines = [line.strip("= \n") for line in text.splitlines() if line.strip("= \n")]
    told = [line for line in lines if not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY"))]
    if process.returncode == 9:
        return Checked(name=name, outcome="reported", detail="; ".join(told[:3]))
    last = told[-1] if told else "it wrote nothing"
    return Checked(name=name, outcome="died", detail=f"the process ended with {process.returncode}: {last}")
