"""The request to a process that compiles a unit, and its answer.

Both are JSON files, so that ninja or a cluster can run the process.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gemmill.build.cache import ObjectCache
from gemmill.build.failures import CompileError, Failure, failure_of_exception
from gemmill.build.files import FileMemo
from gemmill.build.headers import changed_between, dependencies, header_set
from gemmill.build.own_code import included
from gemmill.build.processes import end_group_with_parent
from gemmill.typed_json import read_json
from gemmill.writing import write_whole

_MESSAGE_CHARACTERS = 200_000


@dataclass(frozen=True, kw_only=True)
class Request:
    """Where things are. Paths are text, since a request travels as JSON."""

    folder: str
    """The folder in which compilers run, and in which their output lies."""
    roots: dict[str, str]
    cache: str
    memo: str
    cuobjdump: str
    own_headers: list[str]
    """Folders of headers that the keys of members cover."""
    since: float
    """When the members' keys were made, in seconds since the epoch."""
    environment: dict[str, str]
    outcome: str
    """The file to write: a CompileOutcome."""

    def run(self, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run a program: its end and its output. Raises OSError."""
        return subprocess.run(
            list(map(str, command)), cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )

    def output(self, command: Sequence[str | Path]) -> str:
        """The output of a tool. Raises CompileError, OSError."""
        done = self.run(command)
        if done.returncode != 0:
            raise CompileError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def publish(
        self, object_file: Path, depfile: Path, compiled: Path, members: Mapping[str, str], **known: Any
    ) -> None:
        """Move an object into the cache, with its headers other than those that its key covers.

        `compiled` is the file that the compiler read. Raises OSError. Raises CompileError where a header changed after
        the key was made.
        """
        folder, roots = Path(self.folder), {name: Path(path) for name, path in self.roots.items()}
        memo, read = FileMemo(Path(self.memo)), dependencies(depfile, folder)
        covered = included(compiled.read_text(encoding="utf-8"), [folder, *map(Path, self.own_headers)])
        covered = {path.resolve() for path in covered}
        headers = header_set([path for path in read if path not in covered], roots, memo)
        if changed_between(read, self.since, time.time()):
            raise CompileError("a header was changed while the compiler read it", Failure.CHANGED)
        ObjectCache(Path(self.cache), roots, memo).publish(object_file, members, headers, **known)
        object_file.unlink()


@dataclass(frozen=True, kw_only=True)
class CompileOutcome:
    """The result of a unit. `failure` is empty where it published objects."""

    failure: str = ""
    message: str = ""
    bad: dict[str, str] = field(default_factory=dict)
    """First error line by source key, where the unit as a whole has no failure."""
    left_out: dict[str, str] = field(default_factory=dict)
    """The same for sources whose failure may have been the machine's: another build tries them again."""


Asked = TypeVar("Asked", bound=Request)


def answer(kind: type[Asked], compiles: Callable[[Asked], CompileOutcome]) -> int:
    """Serve the request that the process was started with, and return its exit status.

    It writes the outcome to a file, unless the disk does not allow it: then raises OSError. The exit status is 0 where
    every source has an object or a reason.
    """
    end_group_with_parent()
    request = read_json(Path(sys.argv[1]), kind, "build again")
    try:
        outcome = compiles(request)
    except CompileError as error:
        outcome = CompileOutcome(failure=error.failure, message=str(error)[-_MESSAGE_CHARACTERS:])
    except OSError as error:
        outcome = CompileOutcome(failure=failure_of_exception(error), message=str(error))
    write_whole(Path(request.outcome), json.dumps(asdict(outcome)))
    return 1 if outcome.failure else 0
