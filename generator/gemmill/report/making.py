"""The steps of a report on an existing build. Each adds its part to the content, and then calls `kept`."""

from collections.abc import Callable
from pathlib import Path

from gemmill.manifest import Manifest
from gemmill.report import memcheck
from gemmill.report.child import ChildSpec
from gemmill.report.content import Content, ReportedBuild, Time, Verified
from gemmill.runtime.tuned import Machine
from gemmill.tuner.candidates import build_facts
from gemmill.tuner.protocol import TuneError
from gemmill.tuner.timed import refusals, time_variants
from gemmill.tuner.worker import Worker, WorkerDied, WorkerError
from gemmill.tuner.workloads import Workload, workload_of

PROGRAM = "gemmill.report.child"
OPEN_SECONDS = 300.0
VARIANT_SECONDS = 300.0
"""Seconds after which the cases of a variant count as hanging."""
ROUNDS = 15
TIMES = 10
_TIMED = ("fp8", "nvfp4", "mxfp8_mxfp4", "mxfp4", "mxfp8", "nvfp4_bf16", "int8", "fp8_groups", "bf16")
_ROWS = (16, 4096)
_N, _K = 4096, 4096
NO_TIMES = "left out: the build is emulated, so its times mean nothing"
Told = Callable[[str], None]
Kept = Callable[[], None]


def note_build(content: Content, manifest: Manifest, compiled_in_seconds: float | None) -> None:
    """The build, and a failure for each variant that did not compile."""
    content.build = ReportedBuild(
        build_id=manifest.build_id,
        gemmill_version=manifest.gemmill_version,
        made_for=manifest.made_for,
        emulated=manifest.is_emulated,
        selection=manifest.selection,
        variants=len(manifest.entries),
        not_compiled=tuple({"name": row.name, "error": row.error} for row in manifest.rejected),
        compiled_in_seconds=compiled_in_seconds,
        nvcc=manifest.toolchain.nvcc,
        cutlass=manifest.toolchain.cutlass,
        cutedsl=manifest.toolchain.cutedsl,
    )
    content.failures += [f"{row.name} did not compile: {row.error}" for row in manifest.rejected]


def verify(content: Content, folder: Path, manifest: Manifest, tell: Told, kept: Kept) -> bool:
    """Run the cases of every variant, each on its own in a process that is replaced where it dies. False where none can run."""
    with Worker(ChildSpec(build=str(folder)), PROGRAM) as worker:
        try:
            tell(f"{len(manifest.entries)} variants are verified {worker.ask('hello', OPEN_SECONDS)}")
        except (WorkerDied, WorkerError) as error:
            content.failures.append(f"build {manifest.build_id} cannot be loaded: {error}")
            return False
        for i, entry in enumerate(manifest.entries, 1):
            found = _verified(worker, entry.name)
            content.verify.append(found)
            if found.fault:
                content.failures.append(f"{found.name}: {found.fault}")
                tell(content.failures[-1])
            if i % 50 == 0:
                tell(f"{i} of {len(manifest.entries)} variants are verified")
            kept()
    return True


def _verified(worker: Worker, name: str) -> Verified:
    try:
        told = worker.ask("verify", VARIANT_SECONDS, name=name)
    except (WorkerDied, WorkerError) as error:
        return Verified(name=name, cases=None, wrong=None, worst_fraction=None, fault=str(error))
    failures = told["failures"]
    return Verified(
        name=name,
        cases=told["cases"],
        wrong=len(failures),
        worst_fraction=told["worst_fraction"],
        fault=failures[0] if failures else "",
    )


def check_memory(content: Content, folder: Path, manifest: Manifest, tell: Told, kept: Kept) -> None:
    """Memcheck over a call of a few variants; without the program a note."""
    program = memcheck.find_sanitizer()
    if program is None:
        content.memcheck_note = memcheck.NOT_FOUND
        tell(f"memcheck: {memcheck.NOT_FOUND}")
        return
    try:
        content.memcheck_note = memcheck.version_of(program)
        for entry in memcheck.few(manifest.entries):
            found = memcheck.check(program, folder, entry.name)
            content.memcheck.append(found)
            if found.outcome != "passed":
                content.failures.append(f"{found.name}: memcheck: {found.outcome}: {found.detail}")
                tell(content.failures[-1])
            kept()
    except OSError as error:
        content.memcheck_note = f"not run: compute-sanitizer cannot be started ({error.strerror})"
        content.failures.append(f"memcheck: {content.memcheck_note}")


def time_calls(content: Content, folder: Path, manifest: Manifest, tell: Told) -> None:
    """The first ten of a fixed list that the build serves, each with the variant that it gets."""
    if manifest.is_emulated:
        content.times_note = NO_TIMES
        return
    workloads = served(folder, manifest)
    if not workloads:
        content.times_note = "the build serves none of the calls that reports time"
        return
    tell(f"{len(workloads)} calls are timed")
    try:
        rows = time_variants(workloads, (folder, manifest), None, rounds=ROUNDS, most=1, peers=False, dry_run=False)
    except (TuneError, WorkerDied, WorkerError) as error:
        content.times_note = f"not timed: {error}"
        content.failures.append(f"times: {error}")
        return
    told = ("name", "median_us", "least_us", "tflops", "gbps", "fault")
    for row in rows:
        content.times.append(
            Time(op=row.workload.op, sizes=row.workload.sizes, **{name: getattr(row, name) for name in told})
        )
        if row.fault:
            content.failures.append(f"{row.name} was not timed at {row.workload}: {row.fault}")


def served(folder: Path, manifest: Manifest) -> list[Workload]:
    """The first ten workloads of the list that a variant of the build takes."""
    here = Machine(arch=manifest.arch, device=None, driver=None, nvcc=manifest.toolchain.nvcc)
    facts = build_facts(folder, manifest, here)
    names = frozenset(entry.name for entry in manifest.entries)
    all_of = (workload_of(op, {"m": m, "n": _N, "k": _K}) for op in _TIMED for m in _ROWS)
    return [workload for workload in all_of if len(refusals(facts, workload, names)) < len(names)][:TIMES]
