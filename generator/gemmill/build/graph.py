"""The ninja graph of units to compile, and its run."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gemmill import settings
from gemmill.build.cluster import run_on_cluster
from gemmill.build.compile_unit import CompileRequest
from gemmill.build.dsl_unit import DslRequest
from gemmill.build.errors import BuildError
from gemmill.build.failures import Failure
from gemmill.build.options import BuildOptions
from gemmill.build.processes import ends_with_parent
from gemmill.build.requests import CompileOutcome
from gemmill.build.sources import SourceKind, expand, kernel_folders
from gemmill.build.units import Unit
from gemmill.build.workshop import Workshop
from gemmill.typed_json import read_json
from gemmill.writing import write_whole

_SOURCE_ROOT = Path(__file__).resolve().parents[2]


def run_graph(
    units: Sequence[Unit], folder: Path, workshop: Workshop, done: Callable[[Unit, CompileOutcome], None]
) -> None:
    """Compile the units in `folder`, which is new, as many at a time as the options say. Calls `done` as each ends.

    Raises BuildError where ninja cannot run, and OSError where files cannot be written.
    """
    waiting = {folder / f"{unit.key}.outcome.json": unit for unit in units}
    modules: dict[str, str] = {}
    edges = []
    for path, unit in waiting.items():
        request = folder / f"{unit.key}.request.json"
        _write_sources(unit, folder)
        ask, module = (dsl_request, "dsl_unit") if unit.kind is SourceKind.DSL else (compile_request, "compile_unit")
        write_whole(request, json.dumps(asdict(ask(unit, folder, path, workshop))))
        modules[request.name] = f"gemmill.build.{module}"
        edges.append(f"build {path.name}: {module} {request.name}")

    def report_ended() -> None:
        for path in [path for path in waiting if path.is_file()]:
            done(waiting.pop(path), read_json(path, CompileOutcome, "build again"))

    if workshop.options.scheduler is not None:
        failures = run_on_cluster(workshop.options.scheduler, folder, modules, report_ended)
        printed = {request: text.splitlines() for request, text in failures.items()}
    else:
        write_whole(folder / "build.ninja", "\n".join([*_rules(workshop.options), *edges, ""]))
        printed = dict.fromkeys(modules, _run_ninja(folder, _jobs(units, workshop.options), report_ended))
    report_ended()
    for path, unit in waiting.items():
        said = printed.get(path.name.replace(".outcome.", ".request."), [])
        done(unit, CompileOutcome(failure=Failure.TOOL, message=_why_no_outcome(said)))


def _rules(options: BuildOptions) -> Iterator[str]:
    python = shlex.quote(sys.executable).replace("$", "$$")
    yield from ("ninja_required_version = 1.10", "pool compilers", f"  depth = {options.job_count}")
    for module, pool in (("compile_unit", "compilers"), ("dsl_unit", "")):
        yield from (f"rule {module}", f"  command = exec {python} -m gemmill.build.{module} $in")
        yield from ("  description = $out", f"  pool = {pool}")


def _jobs(units: Sequence[Unit], options: BuildOptions) -> int:
    of_dsl = [unit.kind is SourceKind.DSL for unit in units]
    if all(of_dsl):
        return options.dsl_job_count
    return options.mixed_job_count if any(of_dsl) else options.job_count


def _write_sources(unit: Unit, folder: Path) -> None:
    for source in unit.sources:
        path = folder / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.text, encoding="utf-8")
    if unit.kind is not SourceKind.DSL:
        (folder / unit.file_name).write_text(unit.text, encoding="utf-8")


def _common(outcome: Path, workshop: Workshop) -> dict[str, Any]:
    """The part that all requests have in common."""
    return {
        "roots": {name: str(path) for name, path in workshop.roots.items()},
        "own_headers": [str(folder) for folder in kernel_folders(workshop.options.kernels_folder).values()],
        "since": workshop.opened,
        "cache": str(workshop.cache.folder),
        "memo": str(workshop.memo_path),
        "cuobjdump": str(workshop.toolchain.cuobjdump),
        "outcome": str(outcome),
    }


def compile_request(unit: Unit, folder: Path, outcome: Path, workshop: Workshop) -> CompileRequest:
    """The request to compile_unit.py for a unit whose files are in `folder`."""
    tools = workshop.toolchain
    host = unit.kind is SourceKind.BINDING
    stem = Path(unit.file_name).stem
    flags = expand(workshop.flags.for_kind(unit.kind), workshop.roots)
    outputs = ["-MD", "-MF", f"{stem}.d", "-c", unit.file_name, "-o", f"{stem}.o"]
    # nvcc would take the first gcc on PATH: the key covers the g++ of the toolchain.
    compiler = [str(tools.gxx)] if host else [str(tools.nvcc), f"-ccbin={tools.gxx}"]
    return CompileRequest(
        **_common(outcome, workshop),
        command=[*workshop.launcher, *compiler, *flags, *outputs],
        folder=str(folder),
        file_name=unit.file_name,
        members={source.key: source.name for source in unit.sources},
        is_host_code=host,
        environment=settings.compiler_environment(search=tools.programs),
    )


def dsl_request(unit: Unit, folder: Path, outcome: Path, workshop: Workshop) -> DslRequest:
    """The request to dsl_unit.py for a unit whose files are in `folder`. The unit gets a folder of its own there.

    Raises OSError.
    """
    dsl, tools = workshop.dsl, workshop.toolchain
    assert dsl is not None  # without a DSL, no unit has sources of its kind
    own = folder / unit.key
    own.mkdir()
    return DslRequest(
        **_common(outcome, workshop),
        worker=list(dsl.worker),
        environment=settings.dsl_environment(workshop.arch.sm, search=tools.programs, python_path=_SOURCE_ROOT),
        sources=str(folder),
        folder=str(own),
        members=[
            {
                "key": source.key,
                "name": source.name,
                "symbol": source.symbol,
                "path": str(source.path),
                "digest": source.body,
            }
            for source in unit.sources
        ],
        adapter=[str(tools.gxx), *expand(workshop.flags.for_kind(unit.kind), workshop.roots)],
        objcopy=str(dsl.objcopy),
        nvdisasm=str(tools.nvdisasm),
        machine=workshop.arch.sm.replace("sm_", "SM"),
        own_host_code=workshop.options.own_host_code,
    )


def _run_ninja(folder: Path, jobs: int, ended: Callable[[], None]) -> list[str]:
    """Run ninja, and return its output. Calls `ended` as each edge ends; the file that the edge wrote says how it
    ended.
    """
    command = [str(_find_ninja()), "-k", "0", "-j", str(jobs)]
    printed = []
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=settings.child_environment(python_path=_SOURCE_ROOT),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=ends_with_parent(),
        )
    except OSError as error:
        raise BuildError(f"cannot run {command[0]} ({error.strerror}): install it with `pip install ninja`") from None
    with process:
        assert process.stdout is not None  # Popen opened a pipe
        try:
            for line in process.stdout:
                printed.append(line.rstrip())
                ended()
        except BaseException:
            process.terminate()
            raise
    return printed


def _why_no_outcome(printed: Sequence[str]) -> str:
    """The most telling line of the output of ninja and a failed process: a traceback ends with its error."""
    lines = [line for line in printed if line.strip() and not line.startswith(("[", "FAILED:", "ninja: build stopped"))]
    return lines[-1] if lines else "ninja printed no reason"


def _find_ninja() -> Path:
    try:
        from ninja import BIN_DIR
    except ImportError:
        on_path = shutil.which("ninja")
        if on_path is None:
            raise BuildError("no ninja: install it with `pip install 'gemmill[toolchain]'`") from None
        return Path(on_path)
    return Path(BIN_DIR) / "ninja"
