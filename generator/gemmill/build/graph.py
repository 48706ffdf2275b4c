"""The ninja graph of units to compile, and running it."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
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
from gemmill.build.requests import CompileOutcome
from gemmill.build.scheduler import Scheduler
from gemmill.build.sources import SourceKind, expand
from gemmill.build.units import Unit
from gemmill.build.workshop import Workshop
from gemmill.writing import write_whole

_SOURCE_ROOT = Path(__file__).resolve().parents[2]


def run_graph(
    units: Sequence[Unit], folder: Path, workshop: Workshop, done: Callable[[Unit, CompileOutcome], None]
) -> None:
    """Compile the units in `folder`, a new one, as many at a time as the options say; `done` is called as each ends.
    Raises BuildError where ninja cannot run, OSError where files cannot be written."""
    outcomes = {folder / f"{unit.key}.outcome.json": unit for unit in units}
    modules: dict[str, str] = {}
    python = shlex.quote(sys.executable).replace("$", "$$")
    lines = [
        "ninja_required_version = 1.10",
        "pool compilers",
        f"  depth = {workshop.options.job_count}",
        "rule compile",
        f"  command = {python} -m gemmill.build.compile_unit $in",
        "  description = $out",
        "  pool = compilers",
        "rule compile_dsl",
        f"  command = {python} -m gemmill.build.dsl_unit $in",
        "  description = $out",
        "",
    ]
    for path, unit in outcomes.items():
        request = folder / f"{unit.key}.request.json"
        _write_sources(unit, folder)
        of_dsl = unit.kind is SourceKind.DSL
        asked = (dsl_request if of_dsl else _request)(unit, folder, path, workshop)
        write_whole(request, json.dumps(asdict(asked)))
        modules[request.name] = "gemmill.build.dsl_unit" if of_dsl else "gemmill.build.compile_unit"
        lines.append(f"build {path.name}: {'compile_dsl' if of_dsl else 'compile'} {request.name}")
    if workshop.options.scheduler is not None:
        _run_cluster(workshop.options.scheduler, folder, modules, outcomes, done)
        return
    write_whole(folder / "build.ninja", "\n".join(lines) + "\n")
    _run_ninja(folder, _jobs(units, workshop.options), outcomes, done)


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
    """What every request says."""
    return {
        "roots": {name: str(path) for name, path in workshop.roots.items()},
        "cache": str(workshop.cache.folder),
        "memo": str(workshop.memo_path),
        "cuobjdump": str(workshop.toolchain.cuobjdump),
        "outcome": str(outcome),
    }


def _request(unit: Unit, folder: Path, outcome: Path, workshop: Workshop) -> CompileRequest:
    tools = workshop.toolchain
    host = unit.kind is SourceKind.BINDING
    stem = Path(unit.file_name).stem
    flags = expand(workshop.flags.for_kind(unit.kind), workshop.roots)
    outputs = ["-MD", "-MF", f"{stem}.d", "-c", unit.file_name, "-o", f"{stem}.o"]
    # nvcc would take the first gcc on PATH: the key covers the g++ that was found.
    compiler = [str(tools.gxx)] if host else [str(tools.nvcc), f"-ccbin={tools.gxx}"]
    return CompileRequest(
        **_common(outcome, workshop),
        command=[*workshop.launcher, *compiler, *flags, *outputs],
        folder=str(folder),
        stem=stem,
        members={source.key: source.name for source in unit.sources},
        is_host_code=host,
        environment=settings.compiler_environment(search=tools.programs),
    )


def dsl_request(unit: Unit, folder: Path, outcome: Path, workshop: Workshop) -> DslRequest:
    """What dsl_unit.py is asked for a unit whose files are in `folder`; makes a folder of its own there. Raises OSError."""
    dsl, tools = workshop.dsl, workshop.toolchain
    assert dsl is not None  # without one, no source of its kind is asked for
    own = folder / unit.key
    own.mkdir()
    return DslRequest(
        **_common(outcome, workshop),
        worker=list(dsl.worker),
        environment=settings.dsl_environment(workshop.arch.sm, search=tools.programs, python_path=_SOURCE_ROOT),
        sources=str(folder),
        folder=str(own),
        members=[
            {"key": source.key, "name": source.name, "symbol": source.symbol, "path": str(source.path)}
            for source in unit.sources
        ],
        adapter=[str(tools.gxx), *expand(workshop.flags.for_kind(unit.kind), workshop.roots)],
        made_from=[list(row) for row in dsl.made_from],
        objcopy=str(dsl.objcopy),
    )


def _run_cluster(
    scheduler: Scheduler,
    folder: Path,
    modules: Mapping[str, str],
    outcomes: Mapping[Path, Unit],
    done: Callable[[Unit, CompileOutcome], None],
) -> None:
    waiting = dict(outcomes)
    failures = run_on_cluster(scheduler, folder, modules, lambda: _report_ended(waiting, done))
    _report_ended(waiting, done)
    for path, unit in waiting.items():
        printed = failures.get(path.name.replace(".outcome.", ".request."), "").splitlines()
        done(unit, CompileOutcome(failure=Failure.TOOL, message=_why_no_outcome(printed)))


def _run_ninja(
    folder: Path, jobs: int, outcomes: Mapping[Path, Unit], done: Callable[[Unit, CompileOutcome], None]
) -> None:
    command = [str(_find_ninja()), "-k", "0", "-j", str(jobs)]
    waiting = dict(outcomes)
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
        )
    except OSError as error:
        raise BuildError(f"cannot run {command[0]} ({error.strerror}): install it with `pip install ninja`") from None
    with process:
        assert process.stdout is not None  # a pipe was asked for
        try:
            # ninja prints a line as each edge ends; what the edge wrote says how.
            for line in process.stdout:
                printed.append(line.rstrip())
                _report_ended(waiting, done)
        except BaseException:
            process.terminate()
            raise
    _report_ended(waiting, done)
    for unit in waiting.values():
        done(unit, CompileOutcome(failure=Failure.TOOL, message=_why_no_outcome(printed)))


def _report_ended(waiting: dict[Path, Unit], done: Callable[[Unit, CompileOutcome], None]) -> None:
    for path in [path for path in waiting if path.is_file()]:
        done(waiting.pop(path), CompileOutcome(**json.loads(path.read_text(encoding="utf-8"))))


def _why_no_outcome(printed: Sequence[str]) -> str:
    """The line that says most of what ninja and a failed process printed: a traceback ends with its error."""
    lines = [line for line in printed if line.strip() and not line.startswith(("[", "FAILED:", "ninja: build stopped"))]
    return lines[-1] if lines else "ninja printed no reason"


def _find_ninja() -> Path:
    try:
        from ninja import BIN_DIR
    except ImportError:
        on_path = shutil.which("ninja")
        if on_path is None:
            raise BuildError("no ninja: install it with `pip install 'gemmill[build]'`") from None
        return Path(on_path)
    return Path(BIN_DIR) / "ninja"
