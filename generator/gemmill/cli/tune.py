"""`gemmill tune`: measure variants, write the table that the runtime chooses by."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode
from gemmill.cli.output import console, count, seconds
from gemmill.cli.shapes import (
    DEFAULT_OP,
    ModelOption,
    MOption,
    OpOption,
    ShapesOption,
    TensorParallelOption,
    workloads_of,
)
from gemmill.cli.tables import rows_table
from gemmill.vocab import Arch

if TYPE_CHECKING:
    from gemmill.build.scheduler import Scheduler
    from gemmill.manifest import Manifest
    from gemmill.space.selections import Selection
    from gemmill.tuner.heuristics import Shape, Tile
    from gemmill.tuner.program import TuneRequest, TuneResult
    from gemmill.tuner.protocol import WorkerSpec
    from gemmill.tuner.sweep import Executor, SweepOptions
    from gemmill.tuner.workloads import Workload


MissesOption = Annotated[
    Path | None,
    typer.Option("--misses", metavar="FILE", help="Shapes that the runtime recorded (GEMMILL_RECORD_MISSES)."),
]
SelectionOption = Annotated[
    str | None,
    typer.Option("--selection", metavar="NAME", help="Compile this set's promising variants while others are timed."),
]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Times that each of the fastest is timed.")]
CandidatesOption = Annotated[int, typer.Option("--candidates", min=1, help="Variants tried on a shape, at most.")]
RepeatOption = Annotated[
    int, typer.Option("--repeat", min=1, metavar="N", help="Runs of the whole sweep; says how far they agree.")
]
SecondOpinionOption = Annotated[
    bool, typer.Option("--second-opinion", help="Try the tiles that nvidia-matmul-heuristics names, too.")
]
BatchInvariantOption = Annotated[
    bool, typer.Option("--batch-invariant", help="Time the fastest of each order of K to the end, too.")
]
PeersOption = Annotated[bool, typer.Option("--peers/--no-peers", help="Time torch's own kernels too, for the report.")]
VllmOption = Annotated[
    Path | None,
    typer.Option("--vllm-so", metavar="FILE", help="vLLM's _C_stable_libtorch.abi3.so, to time its kernels too."),
]
JournalOption = Annotated[
    Path | None, typer.Option("--journal", metavar="FILE", help="The file that keeps the outcomes.")
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Begin the journal again instead of going on from it.")]
TableOption = Annotated[
    Path | None,
    typer.Option("--table", metavar="FILE", help="The table whose rows are replaced; by default one in the home."),
]
ReportOption = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML report too.")]
SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="ADDRESS", help="Measure on this Dask cluster's workers with GPU=1."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="No GPU: the reference runs, and times are invented.")]


def tune(
    shapes: ShapesOption = None,
    models: ModelOption = None,
    misses: MissesOption = None,
    ops: OpOption = DEFAULT_OP,
    tensor_parallel: TensorParallelOption = "1",
    m: MOption = None,
    build: o.BuildOption = None,
    selection: SelectionOption = None,
    filters: o.FilterOption = None,
    margin: o.MarginOption = 0.03,
    rounds: RoundsOption = 15,
    candidates: CandidatesOption = 60,
    repeat: RepeatOption = 1,
    second_opinion: SecondOpinionOption = False,
    batch_invariant: BatchInvariantOption = False,
    peers: PeersOption = True,
    vllm_library: VllmOption = None,
    journal: JournalOption = None,
    fresh: FreshOption = False,
    table_file: TableOption = None,
    report: ReportOption = None,
    scheduler: SchedulerOption = None,
    trust_network: o.TrustNetworkOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Time variants on shapes and write the table to choose by.

    The runtime chooses by that table. A process that may crash or hang checks each variant before it times it. Each
    outcome reaches the disk at once: after an interruption the same command continues.

    Examples:

        gemmill tune --model llama-3-8b

        gemmill tune --model ./config.json --tp 2 --op all --report report.html

        gemmill tune --shapes shapes.csv --repeat 2 --margin 3%
    """
    from gemmill.tuner.program import TuneRequest
    from gemmill.tuner.sweep import SweepOptions

    if dry_run:
        o.refuse_beside("--dry-run", "no kernel is timed", vllm_so=vllm_library)
        if build is not None:
            o.refuse_beside("--dry-run and --build", "nothing is compiled", selection=selection)
    workloads = workloads_of(shapes=shapes, models=models, misses=misses, ops=ops, tensor_parallel=tensor_parallel, m=m)
    timed = _candidates_of(build, selection, filters, dry_run=dry_run)
    options = SweepOptions(
        rounds=rounds,
        most=candidates,
        margin=margin,
        repeats=repeat,
        peers=peers,
        vllm=vllm_library is not None,
        orders=batch_invariant,
        advice=_advice(workloads) if second_opinion else {},
    )
    request = TuneRequest(
        workloads=workloads,
        builds=timed.builds,
        names=timed.names,
        options=options,
        journal=journal,
        label=selection or "",
        fresh=fresh,
        table=table_file,
        dry_run=dry_run,
        vllm_library=str(vllm_library) if vllm_library is not None else None,
    )
    result = _run(request, timed.compiled, o.scheduler_of(scheduler, trust_network=trust_network))
    _tell(result, options, report)
    if not any(entry.outcome.rounds_us for entry in result.record.entries.values()):
        raise typer.Exit(ExitCode.CHECK_FAILED)


@dataclass(frozen=True, kw_only=True)
class _Candidates:
    """The variants to time."""

    builds: "Sequence[tuple[Path, Manifest]]" = ()
    names: frozenset[str] | None = None
    """Of the builds' variants; None for all."""
    compiled: "Selection | None" = None
    """Variants that compile while others are timed."""


def _candidates_of(
    build: str | None, selection: str | None, filters: list[str] | None, *, dry_run: bool
) -> _Candidates:
    """Those of a build, of a selection, or of a stand-in for both in a dry run. Raises UsageError."""
    from gemmill.tuner.program import stand_in_build

    if dry_run and build is None:
        return _Candidates(builds=[stand_in_build(variants.selection_of(selection or "smoke", Arch.SM90A, filters))])
    if selection is not None:
        compiled = variants.selection_of(selection, Arch.SM90A, filters)
        return _Candidates(builds=() if build is None else [variants.timed_build_of(build)], compiled=compiled)
    folder, manifest = variants.timed_build_of(build)
    names = frozenset(e.name for e in variants.filter_entries(manifest, filters)) if filters else None
    return _Candidates(builds=[(folder, manifest)], names=names)


def _run(request: "TuneRequest", selection: "Selection | None", scheduler: "Scheduler | None") -> "TuneResult":
    from gemmill.cli.progress import sweep_progress
    from gemmill.tuner.program import tune as run

    with sweep_progress() as observer:
        if selection is None:
            return run(request, observer, lambda spec: _executor(spec, scheduler))
        from gemmill.tuner.waves import tune_selection

        return tune_selection(request, selection, lambda spec: _executor(spec, scheduler), observer=observer)


def _executor(spec: "WorkerSpec", scheduler: "Scheduler | None") -> "Executor":
    """The executor: the named cluster, else a process for each GPU of this machine."""
    if scheduler is not None:
        from gemmill.tuner.cluster import connect

        return connect(spec, scheduler)
    from gemmill.tuner import executors
    from gemmill.tuner.device import gpu_count

    gpus = 1 if spec.dry_run else gpu_count()
    if gpus <= 1:
        return executors.LocalExecutor(spec)
    return executors.LocalExecutor(spec, devices=[executors.visible_device(i) for i in range(gpus)])


def _advice(workloads: "Sequence[Workload]") -> "Mapping[Shape, Sequence[Tile]]":
    from gemmill.tuner.heuristics import advice

    return advice(sorted({p.call.sizes for p in workloads}))


def _tell(result: "TuneResult", options: "SweepOptions", report: Path | None) -> None:
    """Write the report, if the options name one, and print the result."""
    if report is not None:
        from gemmill.tuner.report import write_report

        agreements = result.agreements
        write_report(result.record, report, repeats=options.repeats, margin=options.margin, agreements=agreements)
    _print_result(result)
    if report is not None:
        typer.echo(f"report: {report}")


def _print_result(result: "TuneResult") -> None:
    from gemmill.tuner.choice import MARGIN
    from gemmill.tuner.sweep import decide_entry

    for path, found in result.tables:
        console().print(rows_table(f"{count(len(found.rows), 'shape')} on {found.device}", found.rows))
        typer.echo(f"table: {path if path is not None else 'not written, name one with --table'}")
    faults = [
        (workload, name, finding) for workload, found in result.record.faults.items() for name, finding in found.items()
    ]
    for workload, name, finding in faults:
        typer.echo(f"gemmill: {workload}: {name}: {finding.fault}: {finding.detail}", err=True)
    failed = [entry for entry in result.record.entries.values() if entry.outcome.error]
    for entry in failed:
        typer.echo(f"gemmill: {entry.outcome.workload}: {entry.outcome.error}", err=True)
    for i, agreed in enumerate(result.agreements, start=2):
        typer.echo(
            f"run {i} against run 1: {agreed.flipped} of {agreed.workloads} winners flip ({agreed.flip_share:z.1%}), "
            f"{agreed.beyond_margin} beyond the margin; regret {agreed.regret:z.2%} on average, {agreed.worst_regret:z.2%} at worst"
        )
    decisions = [decide_entry(entry, MARGIN) for entry in result.record.entries.values() if entry.repeat == 0]
    regrets = [d.regret for d in decisions if d is not None and d.regret is not None]
    if regrets:
        typer.echo(
            f"what was chosen before: {statistics.fmean(regrets):z.2%} slower than the fastest on average, "
            f"{max(regrets):z.2%} at worst, over {count(len(regrets), 'shape')}"
        )
    spent = sum(entry.outcome.seconds for entry in result.record.entries.values())
    checking = sum(entry.outcome.checking_seconds for entry in result.record.entries.values())
    typer.echo(f"measured in {seconds(spent)}, of which {seconds(checking)} checking; journal: {result.journal}")
    if (overlap := result.overlap) is not None:
        typer.echo(
            f"compiled {count(overlap.waves, 'wave')} of variants in {seconds(overlap.compiling_seconds)}; after the first, "
            f"measuring waited {seconds(overlap.waiting_seconds)} for it"
        )
