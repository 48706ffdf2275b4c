"""A process that imports the CuTe DSL once and compiles emitted files, one after another: the DSL is not thread-safe.

It reads a line of JSON for each file, `{"source": PATH, "folder": PATH, "digest": TEXT}`. It answers each with a line
`{"failure", "error", "cpu_seconds", "peak_memory_bytes"}`. A first line gives the cost of the import. The object and
its C header go to the folder. The build keyed the kernel by that digest: where this process has imported something
else, a file changed meanwhile.
"""

import importlib
import json
import os
import re
import resource
import runpy
import sys
from pathlib import Path
from typing import TextIO

from gemmill.build.dsl_body import Bodies
from gemmill.build.failures import Failure, failure_of_exception
from gemmill.space.names import parse_name, symbol_of

_BODIES = Bodies()
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def main() -> int:
    """Serve until the input ends."""
    # The DSL's prints go the way of its warnings: replies have the standard output for themselves.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)
        importlib.import_module("cutlass.cute")  # all files import it
        _reply(replies, "", "")
        for line in sys.stdin:
            request, since = json.loads(line), _cpu_seconds()
            failure, error = _compile(Path(request["source"]), Path(request["folder"]), request["digest"])
            _reply(replies, failure, error, since)
    return 0


def _compile(source: Path, folder: Path, keyed: str) -> tuple[str, str]:
    """The Failure and the error; both are empty where the file compiles."""
    try:
        emitted = runpy.run_path(str(source))
        config = parse_name(emitted["NAME"])
        emitted["export"](config, symbol_of(config), folder)
        if _BODIES.what_makes(config) != keyed:
            return Failure.CHANGED, "a file of the kernels' bodies was changed meanwhile"
    except (Exception, SystemExit) as error:
        return failure_of_exception(error), describe(error)
    return "", ""


def describe(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its text that has words in it."""
    lines = [line.strip() for line in _ESCAPES.sub("", str(error)).splitlines()]
    text = next((line for line in lines if re.search(r"\w", line)), "it gave no reason")
    return f"{type(error).__name__}: {text}"


def _reply(replies: TextIO, failure: str, error: str, since: float = 0.0) -> None:
    row = {
        "failure": failure,
        "error": error,
        "cpu_seconds": round(_cpu_seconds() - since, 3),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    replies.write(json.dumps(row) + "\n")
    replies.flush()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
