"""`gemmill verify --report`: one file that owners of a GPU attach to an issue."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from gemmill import settings
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode, UnavailableError, UsageError
from gemmill.cli.output import console, count, print_json, table
from gemmill.vocab import Arch, without_kernels

if TYPE_CHECKING:
    from gemmill.manifest import Manifest
    from gemmill.report.content import Content


def write_report(path: Path, build: str | None, *, as_json: bool) -> None:
    """Make the report, written after each step. Raises typer.Exit where anything is wrong, UsageError, UnavailableError."""
    replaces = _refuse_path(path)
    arch = _arch_here()
    from gemmill.report import making
    from gemmill.report.places import Places
    from gemmill.writing import write_whole

    named = build or settings.build()
    found = variants.build_of(named) if named else None
    content = _begun(arch)
    places = Places([path.absolute().parent, *([found[0].parent] if found else [])])

    def kept() -> None:
        write_whole(path, json.dumps(content.public(places), indent=1) + "\n")

    if replaces:
        _tell(f"{path} had an earlier report, which is replaced")
    kept()
    try:
        if (made := found or _made(content, Arch(arch))) is not None:
            folder, manifest = made
            if content.build is None:
                making.note_build(content, manifest, None)
            kept()
            if making.verify(content, folder, manifest, _tell, kept):
                making.check_memory(content, folder, manifest, _tell, kept)
                making.time_calls(content, folder, manifest, _tell)
    except KeyboardInterrupt:
        kept()
        _tell(f"interrupted: {path} has the results until then")
        raise
    content.complete, content.ok = True, not content.failures
    kept()
    if as_json:
        print_json(content.public(places))
    else:
        _print(content, path)
    if not content.ok:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _refuse_path(path: Path) -> bool:
    """Whether an earlier report lies there. Raises UsageError where none can be written."""
    from gemmill.report.content import SCHEMA

    if not path.parent.is_dir():
        raise UsageError(f"--report {path}: there is no folder {path.parent}, make it or name another file")
    if not path.exists():
        return False
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = None
    if not (isinstance(told, dict) and told.get("schema") == SCHEMA):
        raise UsageError(f"--report {path}: it exists and is no report, which alone is replaced: name another file")
    return True


def _arch_here() -> str:
    """The architecture of the first GPU. Raises UnavailableError where kernels run on none."""
    from gemmill.doctor.machine import gpu_archs

    archs = gpu_archs()
    if not archs:
        raise UnavailableError(
            "verify runs kernels and torch finds no GPU: make the report on a machine that has one; nothing was written"
        )
    if archs[0] not in set(Arch):
        raise UnavailableError(without_kernels(archs[0]))
    return archs[0]


def _begun(arch: str) -> "Content":
    import torch

    from gemmill.doctor.machine import examine_driver, examine_python, examine_toolchain, examine_torch
    from gemmill.report.content import Content, Gpu

    examinations: tuple[Callable[[], Any], ...] = (examine_python, examine_torch, examine_driver, examine_toolchain)
    properties = torch.cuda.get_device_properties(0)
    return Content(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        gpu=Gpu(name=properties.name, capability=f"{properties.major}.{properties.minor}", arch=arch),
        machine=[
            {"subject": finding.subject, "state": str(finding.state), "found": finding.found}
            for examine in examinations
            for finding in examine()
        ],
    )


def _made(content: "Content", arch: Arch) -> "tuple[Path, Manifest] | None":
    """The build that serves the architecture, else a new one of all that can be compiled; None where that fails."""
    from gemmill.build.errors import BuildError
    from gemmill.build.options import BuildOptions
    from gemmill.cli.build import publish, what_can_be_compiled
    from gemmill.manifest import ManifestError
    from gemmill.report.making import note_build

    try:
        return variants.build_of(None, arch)
    except ManifestError:
        _tell(f"there is no build for {arch}: one is made, which takes long")
    begun = monotonic()
    try:
        selection = variants.selection_of(what_can_be_compiled(), arch, None)
        result, served = publish(selection, BuildOptions())
    except (BuildError, UnavailableError) as error:
        content.failures.append(f"nothing was built: {error}")
        return None
    _tell(served)
    note_build(content, result.manifest, round(monotonic() - begun, 1))
    return result.folder, result.manifest


def _print(content: "Content", path: Path) -> None:
    made = content.build
    right = sum(not row.fault for row in content.verify)
    times = [row for row in content.times if row.median_us]
    rows = [
        ("GPU", f"{content.gpu.name}, capability {content.gpu.capability}"),
        ("build", f"{made.build_id} for {made.made_for}, {made.variants} of {made.selection}" if made else "none"),
        ("verify", f"{right} of {count(len(content.verify), 'variant')} right"),
        ("memcheck", _of_memcheck(content)),
        ("times", content.times_note or count(len(times), "call")),
    ]
    console().print(table(f"report: {path}", ("", ""), rows))
    if times:
        cells = [(row.op, " x ".join(map(str, row.sizes.values())), f"{row.median_us:.2f}") for row in times]
        console().print(table("times", ("op", "sizes", "us"), cells, right=("us",)))
    for sentence in content.failures:
        _tell(sentence)


def _of_memcheck(content: "Content") -> str:
    passed = sum(row.outcome == "passed" for row in content.memcheck)
    called = f"{passed} of {count(len(content.memcheck), 'call')} passed"
    return f"{content.memcheck_note}: {called}" if content.memcheck else content.memcheck_note or "not run"


def _tell(text: str) -> None:
    typer.echo(f"gemmill: {text}", err=True)
