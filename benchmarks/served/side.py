"""One engine of a comparison, as the program sees it that measures: a process of its own, asked through a pipe."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from types import MappingProxyType
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent.parent
SUBJECT = "gemmill"
_CACHES = ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_ENTRY_POINT = "[vllm.general_plugins]\nserved_random = served.random_weights:register\n"
_KEPT_OF_LOG = (
    "gemmill",
    "Using ",
    "Selected ",
    "Model loading took",
    "Loading weights took",
    "torch.compile took",
    "Error",
)
_FOLDERS = re.compile(r"(?<![\w./])/(?:[^\s\"'\\/]+/)+")
_ERROR = re.compile(r"\b\w+Error: .+")
_OF_ANOTHER = ("See root cause above", "See stack trace (above)")
"""Words of errors that vLLM raises where the engine runs in a process of its own, which ended."""
_MOST_LINES = 60
_END_SECONDS = 20


class EngineError(RuntimeError):
    """An engine failed, or its process ended."""


def end_engines_on_sigterm() -> None:
    """SIGTERM, which `timeout` sends, ends the program as an exception does, so that its engines end too and leave the GPU."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


class Side:
    """An engine that starts at once; `answer` waits for it."""

    def __init__(
        self,
        name: str,
        arguments: dict[str, Any],
        folder: Path,
        program: str = "served.one_engine",
        variables: Mapping[str, str] = MappingProxyType({}),
        is_served: bool | None = None,
    ) -> None:
        """`folder` gets the process's log and caches. The plugin serves where `is_served`, without it where the name is SUBJECT.
        `variables` of the environment come last."""
        self.name, self._log, self._has_started = name, folder / "log", False
        package = folder / "served_random-0.dist-info"
        package.mkdir(parents=True)
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: served-random\nVersion: 0\n", encoding="utf-8")
        (package / "entry_points.txt").write_text(_ENTRY_POINT, encoding="utf-8")
        self._pipe, theirs = Pipe()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", program, str(theirs.fileno()), json.dumps(arguments)],
                env=_environment(folder, name == SUBJECT if is_served is None else is_served) | dict(variables),
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # vLLM's own processes are of its group
            )
        theirs.close()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """The engine's answer. Raises EngineError."""
        try:
            self._pipe.send_bytes(json.dumps({"do": do, **request}).encode())
        except OSError as error:
            raise self._ended() from error
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer; the first says how long the start took. Raises EngineError."""
        try:
            found: dict[str, Any] = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if "error" in found:
            raise EngineError(f"{self.name}: {found['error']}{self._cause(found['error'])}"[:4000])
        self._has_started = True
        return found

    def stop(self) -> None:
        """Ends the process and all that it started. One that has not answered yet gets no time to end by itself."""
        if self._has_started:
            with suppress(OSError, subprocess.TimeoutExpired):
                self._pipe.send_bytes(b'{"do": "stop"}')
                self._process.wait(_END_SECONDS)
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pipe.close()

    def log_lines(self) -> list[str]:
        """Lines of the engine's log that say who serves and how long loading took, each once, without a machine's folders."""
        lines = _FOLDERS.sub(".../", self._log.read_text(encoding="utf-8", errors="replace")).splitlines()
        return list(dict.fromkeys(line[:400] for line in lines if any(word in line for word in _KEPT_OF_LOG)))[
            :_MOST_LINES
        ]

    def _cause(self, error: str) -> str:
        """The error of the engine's own process, where that of this one says no more than that it ended; else nothing."""
        if not any(words in error for words in _OF_ANOTHER):
            return ""
        log = self._log.read_text(encoding="utf-8", errors="replace")
        causes = [line for line in _ERROR.findall(log) if not any(words in line for words in _OF_ANOTHER)]
        return f" Its own process: {causes[-1]}" if causes else ""

    def _ended(self) -> EngineError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        return EngineError(f"{self.name}: the engine's process ended; its log ends with: {' | '.join(lines)}"[:4000])


def _environment(folder: Path, is_served: bool) -> dict[str, str]:
    """Caches of its own; the benchmarks' folder, and the entry point of random weights, where Python looks for packages."""
    path = [str(BENCHMARKS), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **{variable: str(folder / variable.lower()) for variable in _CACHES},
        "PYTHONPATH": os.pathsep.join(path),
        "GEMMILL_VLLM": "1" if is_served else "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function is sent to the model's process
        "VLLM_NO_USAGE_STATS": "1",
    }
