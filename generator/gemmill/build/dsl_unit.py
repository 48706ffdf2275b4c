"""Emitted files of the CuTe DSL from request to cache: `python -m gemmill.build.dsl_unit REQUEST.json`, run by ninja.

The process starts a worker (dsl_worker.py), which compiles one file after another. Each object gets the symbols that
the extension's table calls. The process inspects and publishes objects in groups, and replaces a worker that dies. A
file on which workers died twice does not compile. Where the system killed them, most likely for want of memory, the
build leaves the file out.
"""

import json
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from gemmill.build.cubins import code_of, embedded_cubins, sections_of_code
from gemmill.build.errors import first_error
from gemmill.build.failures import CompileError, Failure, failure_of_compiler
from gemmill.build.inspect import KernelFacts, listings, merged, read_cubin
from gemmill.build.requests import CompileOutcome, Request, answer
from gemmill.emit.adapter import MachineCode, emit_adapter, emit_host_code, entry_of

_ATTEMPTS = 2
_TOGETHER = 8
"""Objects in one inspection: nvdisasm takes 0.3 s to begin, and a tenth of that for a kernel."""


@dataclass(frozen=True, kw_only=True)
class DslRequest(Request):
    """A list of files to compile with the CuTe DSL, in a folder of the request's own."""

    worker: list[str]
    sources: str
    """The folder of the emitted files."""
    members: list[dict[str, str]]
    """Of each file `key`, `name`, `symbol`, its `path` below `sources`, and the `digest` that its key covers."""
    adapter: list[str]
    """The C++ compiler with its flags."""
    objcopy: str
    nvdisasm: str
    machine: str
    """The architecture as nvdisasm spells it."""
    own_host_code: bool
    """Whether gemmill's host code launches the kernels, in place of that in the DSL's objects."""


class Worker:
    """A process that compiles, with its first reply read."""

    def __init__(self, request: DslRequest) -> None:
        self._log = Path(request.folder) / "worker.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                request.worker,
                cwd=request.folder,
                env=request.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        started = self._reply()
        self.start_seconds: float | None = started["cpu_seconds"] if started else None
        """CPU seconds of the DSL's import; None where the process ended before it was done."""

    def compile(self, **asked: str) -> dict[str, Any] | None:
        """The reply for one file, requested in the form that dsl_worker.py reads; None where the process has ended."""
        assert self._process.stdin is not None  # Popen opened a pipe
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError:
            return None
        return self._reply()

    def end(self) -> str:
        """Let the process end. Returns how it ended, and the last line that it wrote."""
        assert self._process.stdin is not None and self._process.stdout is not None  # Popen opened both pipes
        with suppress(OSError):  # it is gone, and its last request with it
            self._process.stdin.close()
        self._process.stdout.close()
        code = self._process.wait()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{how}: {lines[-1]}" if lines else how

    @property
    def was_killed(self) -> bool:
        """Whether a signal killed the process, as the system kills one that asks for too much memory."""
        return self._process.returncode == -signal.SIGKILL

    def _reply(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None  # Popen opened a pipe
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None


@dataclass(kw_only=True)
class _Batch:
    """How far a request has come."""

    request: DslRequest
    waiting: deque[dict[str, str]]
    attempts: dict[str, int] = field(default_factory=dict)
    exported: list[tuple[dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Members whose objects exist, with their facts for the cache."""
    bad: dict[str, str] = field(default_factory=dict)
    """First error line by source key."""
    left_out: dict[str, str] = field(default_factory=dict)


def compile_batch(request: DslRequest) -> CompileOutcome:
    """Compile, inspect and publish the files of a request. Raises OSError, CompileError."""
    batch = _Batch(request=request, waiting=deque(request.members))
    while batch.waiting:
        worker = Worker(request)
        if worker.start_seconds is None:
            raise CompileError(f"the CuTe DSL does not start ({worker.end()})")
        share = worker.start_seconds / len(batch.waiting)
        try:
            ended_on = _use(worker, batch, share)
        finally:
            how = worker.end()
            _publish_exported(batch)
        if ended_on is not None and batch.attempts[ended_on["key"]] == _ATTEMPTS:
            batch.waiting.popleft()
            errors = batch.left_out if worker.was_killed else batch.bad
            errors[ended_on["key"]] = f"the CuTe DSL's process ended on it twice ({how})"
    return CompileOutcome(bad=batch.bad, left_out=batch.left_out)


def _use(worker: Worker, batch: _Batch, share: float) -> dict[str, str] | None:
    """Compile until no member waits, or until the worker dies: returns the member on which it died."""
    while batch.waiting:
        member = batch.waiting[0]
        batch.attempts[member["key"]] = batch.attempts.get(member["key"], 0) + 1
        reply = worker.compile(
            source=str(Path(batch.request.sources) / member["path"]),
            folder=batch.request.folder,
            digest=member["digest"],
        )
        if reply is None:
            return member
        batch.waiting.popleft()
        failure, error = reply.pop("failure"), reply.pop("error")
        if failure not in ("", Failure.SOURCE):
            raise CompileError(error, Failure(failure))
        if error:
            batch.bad[member["key"]] = error
            continue
        reply["cpu_seconds"] = round(reply["cpu_seconds"] + share, 2)
        batch.exported.append((member, reply))
        if len(batch.exported) == _TOGETHER:
            _publish_exported(batch)
    return None


def _publish_exported(batch: _Batch) -> None:
    """Take the exported objects that can be used into the cache. Raises OSError, CompileError."""
    exported, batch.exported = batch.exported, []
    facts = _inspect([member["symbol"] for member, _ in exported], batch.request)
    for member, known in exported:
        if error := _publish(member, batch.request, facts.get(member["symbol"]), known):
            batch.bad[member["key"]] = error


def _publish(member: Mapping[str, str], request: DslRequest, facts: KernelFacts | None, known: dict[str, Any]) -> str:
    """Take an exported object into the cache. Returns why it cannot be used, or an empty text.

    Raises OSError, CompileError.
    """
    folder, symbol = Path(request.folder), member["symbol"]
    exported = folder / f"{symbol}.o"
    if facts is None:
        return "the CuTe DSL's object has no machine code in it"
    try:
        text, linked = _adapted(exported, symbol, member["name"], own=request.own_host_code)
    except (FileNotFoundError, ValueError) as error:
        return str(error)
    adapter = folder / f"{symbol}.cpp"
    adapter.write_text(text, encoding="utf-8")
    whole, depfile = folder / f"{symbol}.whole.o", folder / f"{symbol}.d"
    # One object with one symbol and perhaps that of its workspace, as nvcc makes it. Names without folders, since an error line goes into the manifest.
    outputs = ["-MD", "-MF", depfile.name, "-r", "-nostdlib", adapter.name, *linked, "-o", whole.name]
    done = request.run([*request.adapter, *outputs])
    if done.returncode != 0:
        message = done.stderr or done.stdout
        failure = failure_of_compiler(done.returncode, message)
        if failure is not Failure.SOURCE:
            raise CompileError(first_error(message), failure)
        return first_error(message)
    kept = (f"--keep-global-symbol={name}" for name in (symbol, f"{symbol}_workspace"))
    request.output([request.objcopy, *kept, whole])
    known["facts"] = {f"{symbol}_kernel": facts}
    request.publish(whole, depfile, adapter, {member["key"]: member["name"]}, **known)
    exported.unlink()
    exported.with_suffix(".fatbin").unlink(missing_ok=True)
    return ""


def _adapted(exported: Path, symbol: str, name: str, *, own: bool) -> tuple[str, list[str]]:
    """The C++ that launches an exported kernel, and the objects to link it with.

    gemmill's own host code takes the machine code out of the object, and nothing else. Raises OSError, and ValueError for an
    object that cannot be used.
    """
    if not own:
        header = exported.with_suffix(".h").read_text(encoding="utf-8")
        return emit_adapter(symbol, name, entry_of(header)), [exported.name]
    found = list(sections_of_code(exported.read_bytes()))
    kernels = [kernel for _, _, cubin in found for kernel, _ in code_of(cubin)]
    if len(found) != 1 or len(kernels) != 1:
        raise ValueError(
            f"the CuTe DSL's object has {len(kernels)} kernels in {len(found)} sections of its own, not one in one"
        )
    (_, code, _), file = found[0], exported.with_suffix(".fatbin")
    file.write_bytes(code)
    return emit_host_code(symbol, name, MachineCode(file=file.name, kernel=kernels[0])), []


def _inspect(symbols: Sequence[str], request: DslRequest) -> dict[str, KernelFacts]:
    """The facts of each object's machine code, by symbol. Objects without any are left out.

    Raises OSError, CompileError.
    """
    folder, usage, codes = Path(request.folder), [], []
    for symbol in symbols:
        exported = folder / f"{symbol}.o"
        for cubin in embedded_cubins(exported.read_bytes()) if exported.exists() else ():
            path = exported.with_suffix(".cubin")
            path.write_bytes(cubin)
            usage.append((symbol, request.output([request.cuobjdump, "-res-usage", path])))
            codes.append(list(code_of(cubin)))
            path.unlink()
    every = [code for of_cubin in codes for code in of_cubin]
    if not every:
        return {}
    together = folder / "code.bin"
    together.write_bytes(b"".join(code for _, code in every))
    listed = listings(request.output([request.nvdisasm, "-b", request.machine, "-hex", together]), every)
    found: dict[str, list[KernelFacts]] = {}
    for (symbol, text), of_cubin in zip(usage, codes, strict=True):
        found.setdefault(symbol, []).append(read_cubin("\n".join([text, *islice(listed, len(of_cubin))])))
    return {symbol: merged(facts) for symbol, facts in found.items()}


if __name__ == "__main__":
    sys.exit(answer(DslRequest, compile_batch))
