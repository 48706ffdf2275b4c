"""A measuring process under a watchdog, which asks it one thing at a time and kills it if it does not answer.

It does not outlive the process that asks, however that ends. It holds the reading end of a pipe, the lifeline, whose
other end is only here.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gemmill import settings

START_SECONDS = 180.0
"""Seconds to import torch, load the builds and make a CUDA context. That takes minutes on a machine with a cold disk.
"""
_SOURCE_ROOT = Path(__file__).resolve().parents[2]


class WorkerDied(Exception):  # noqa: N818  (it is what happened)
    """The process crashed, or was killed because it did not answer."""

    def __init__(self, detail: str, *, hung: bool) -> None:
        super().__init__(detail)
        self.hung = hung


class WorkerError(RuntimeError):
    """The process lives and answers that something does not work; the text is its error's first line."""


class Worker:
    """One measuring process, started at its first use, and again after it died."""

    def __init__(self, spec: Any, program: str = "gemmill.tuner.bench", device: str | None = None) -> None:
        """`program` is a module that takes a spec, a dataclass of plain values, and answers as gemmill.tuner.bench does.
        It sees one GPU where `device` names one, as CUDA_VISIBLE_DEVICES does."""
        self._spec = spec
        self._program = program
        self._environment = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = self._lifeline = -1
        self._pending = b""
        self.starts = 0

    def ask(self, command: str, timeout: float, /, **arguments: Any) -> Any:
        """The answer to a command. Raises WorkerError, and WorkerDied where the process is gone afterwards."""
        started = self._process is not None
        if not started:
            self._start()
        process = self._process
        assert process is not None and process.stdin is not None  # started above
        try:
            process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            self._bury(f"its process was gone before {command}", hung=False)
        answer = json.loads(self._read_line(command, timeout + (0.0 if started else START_SECONDS)))
        if answer["ok"]:
            return answer["value"]
        if answer["dead"]:
            self._bury(answer["error"], hung=False)
        raise WorkerError(answer["error"])

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        os.close(self._answers)
        os.close(self._lifeline)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> None:
        self._answers, writing = os.pipe()
        watched, self._lifeline = os.pipe()
        self._pending = b""
        told = {**asdict(self._spec), "answers": writing, "lifeline": watched}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._program, json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                pass_fds=[writing, watched],
                env=settings.child_environment(python_path=_SOURCE_ROOT) | self._environment,
            )
        finally:
            os.close(writing)
            os.close(watched)
        self.starts += 1

    def _read_line(self, command: str, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            ready = select.select([self._answers], [], [], max(left, 0.0))[0]
            if not ready:
                self._bury(f"no answer to {command} within {timeout:.0f} s: it was killed", hung=True)
            part = os.read(self._answers, 1 << 16)
            if not part:
                self._bury(f"its process ended at {command}{self._how()}", hung=False)
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _how(self) -> str:
        assert self._process is not None  # after a command
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return ""
        return f" by signal {-code}" if code < 0 else f" with exit code {code}"

    def _bury(self, detail: str, *, hung: bool) -> None:
        self.close()
        raise WorkerDied(detail, hung=hung)


def _has_descriptor(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except (AttributeError, OSError, ValueError):
        return False
