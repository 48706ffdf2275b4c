"""One translation unit from request to cache: `python -m gemmill.build.compile_unit REQUEST.json`, run by ninja.

The process runs the compiler, inspects the object, publishes it in the cache and writes the outcome next to the
request.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gemmill.build.failures import CompileError, failure_of_compiler
from gemmill.build.inspect import KernelFacts, read_ptxas, read_sass
from gemmill.build.requests import CompileOutcome, Request, answer


@dataclass(frozen=True, kw_only=True)
class CompileRequest(Request):
    """A unit to compile with nvcc or the host compiler."""

    command: list[str]
    file_name: str
    """The file to compile. The object and the list of headers have its stem, and end in `.o` and `.d`."""
    members: dict[str, str]
    is_host_code: bool
    """Whether the host compiler makes the object: then it has no machine code of a GPU to inspect."""


def compile_unit(request: CompileRequest) -> CompileOutcome:
    """Compile, inspect and publish one unit. Raises OSError, CompileError."""
    object_file = (Path(request.folder) / request.file_name).with_suffix(".o")
    process = subprocess.Popen(
        request.command,
        cwd=request.folder,
        env=request.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None  # Popen opened a pipe
    message = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise CompileError(message, failure_of_compiler(process.returncode, message))
    facts: dict[str, KernelFacts] = {}
    if not request.is_host_code:
        read_ptxas(message, facts)
        read_sass(request.output([request.cuobjdump, "-sass", object_file]), facts)
    request.publish(
        object_file,
        object_file.with_suffix(".d"),
        Path(request.folder) / request.file_name,
        request.members,
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 2),
        peak_memory_bytes=usage.ru_maxrss * 1024,
        facts=facts,
    )
    return CompileOutcome()


if __name__ == "__main__":
    sys.exit(answer(CompileRequest, compile_unit))
