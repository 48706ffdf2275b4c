"""One translation unit from request to cache: `python -m gemmill.build.compile_unit REQUEST.json`, run by ninja.

Runs the compiler, inspects the object, publishes it in the cache and writes the outcome beside the request.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gemmill.build.cache import ObjectCache
from gemmill.build.failures import Failure, failure_of_compiler, failure_of_exception
from gemmill.build.files import FileMemo
from gemmill.build.headers import changed_between, header_set
from gemmill.build.inspect import KernelFacts, read_ptxas, read_sass
from gemmill.writing import write_whole

_MESSAGE_CHARACTERS = 200_000


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What to compile and where things are; paths as text, since it travels as JSON."""

    command: list[str]
    folder: str
    """Where the compiler runs."""
    stem: str
    """The object and the list of headers are `<stem>.o` and `<stem>.d`."""
    members: dict[str, str]
    roots: dict[str, str]
    cache: str
    memo: str
    cuobjdump: str | None
    """Inspects the object; None for host code."""
    environment: dict[str, str]
    outcome: str
    """The file to write: a CompileOutcome."""


@dataclass(frozen=True, kw_only=True)
class CompileOutcome:
    """`failure` is empty where objects were published."""

    failure: str
    message: str = ""
    bad: dict[str, str] = field(default_factory=dict)
    """First error line by source key, of those of a unit that has no failure as a whole."""
    left_out: dict[str, str] = field(default_factory=dict)
    """The same of those whose failure may have been the machine's: another build tries them again."""


def compile_unit(request: CompileRequest) -> CompileOutcome:
    """Compile, inspect, publish."""
    folder = Path(request.folder)
    object_file = folder / f"{request.stem}.o"
    started = time.time()
    process = subprocess.Popen(
        request.command,
        cwd=folder,
        env=request.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None  # a pipe was asked for
    message = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        failure = failure_of_compiler(process.returncode, message)
        return CompileOutcome(failure=failure, message=message[-_MESSAGE_CHARACTERS:])

    facts: dict[str, KernelFacts] = {}
    if request.cuobjdump is not None:
        read_ptxas(message, facts)
        dump = subprocess.run(
            [request.cuobjdump, "-sass", str(object_file)],
            env=request.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if dump.returncode != 0:
            return CompileOutcome(
                failure=Failure.TOOL, message=f"{request.cuobjdump} failed: {(dump.stderr or dump.stdout).strip()}"
            )
        read_sass(dump.stdout, facts)
    roots = {name: Path(path) for name, path in request.roots.items()}
    memo = FileMemo(Path(request.memo))
    headers = header_set(folder / f"{request.stem}.d", folder, roots, memo)
    if changed_between(headers, roots, started, time.time()):
        return CompileOutcome(failure=Failure.CHANGED, message="a header was changed while the compiler read it")
    ObjectCache(Path(request.cache), roots, memo).publish(
        object_file,
        request.members,
        headers,
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 2),
        peak_memory_bytes=usage.ru_maxrss * 1024,
        facts=facts,
    )
    object_file.unlink()
    return CompileOutcome(failure="")


def main(argv: list[str]) -> int:
    """Exit status 0 where an object was published; the outcome is in a file in any case that the disk allows."""
    request = CompileRequest(**json.loads(Path(argv[1]).read_text(encoding="utf-8")))
    try:
        outcome = compile_unit(request)
    except OSError as error:
        outcome = CompileOutcome(failure=failure_of_exception(error), message=str(error))
    write_whole(Path(request.outcome), json.dumps(asdict(outcome)))
    return 1 if outcome.failure else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
