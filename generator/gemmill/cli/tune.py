"""`gemmill tune`: measure variants, write the table that the runtime chooses by."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode, UsageError
from gemmill.cli.output import console, count, seconds, table
from gemmill.cli.progress import sweep_progress
from gemmill.cli.shapes import ModelOption, MOption, OpOption, ShapesOption, TensorParallelOption, problems_of
from gemmill.vocab import Arch

if TYPE_CHECKING:
    from gemmill.tune.program import TuneRequest, TuneResult


def parse_share(text: str) -> float:
    """`3%` or `0.03`. Raises BadParameter."""
    if isinstance(text, float):
        return text
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise typer.BadParameter(f"{text!r} is not a share such as 3% or 0.03")
    return value


def tune(
    shapes: ShapesOption = None,
    models: ModelOption = None,
    misses: Annotated[
        Path | None,
        typer.Option("--misses", metavar="FILE", help="Shapes that the runtime recorded (GEMMILL_RECORD_MISSES)."),
    ] = None,
    ops: OpOption = "fp8",
    tensor_parallel: TensorParallelOption = "1",
    m: MOption = None,
    build: o.BuildOption = None,
    selection: Annotated[
        str | None,
        typer.Option(
            "--selection", metavar="NAME", help="Compile this set's promising variants while others are timed."
        ),
    ] = None,
    filters: o.FilterOption = None,
    margin: Annotated[
        float,
        typer.Option(
            "--margin", parser=parse_share, metavar="SHARE", help="Today's choice stays unless beaten by this."
        ),
    ] = 0.03,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Times that each of the fastest is timed.")] = 9,
    candidates: Annotated[int, typer.Option("--candidates", min=1, help="Variants tried on a shape, at most.")] = 60,
    repeat: Annotated[
        int, typer.Option("--repeat", min=1, metavar="N", help="Runs of the whole sweep; says how far they agree.")
    ] = 1,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Time torch's own beside, for the report.")] = True,
    vllm_library: Annotated[
        Path | None, typer.Option("--vllm-so", metavar="FILE", help="vLLM's _C_stable_libtorch.abi3.so, timed beside.")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option("--journal", metavar="FILE", help="Where what is known is kept.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin the journal again instead of going on from it.")
    ] = False,
    table_file: Annotated[
        Path | None,
        typer.Option("--table", metavar="FILE", help="The table whose rows are replaced; by default one in the home."),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML report too.")] = None,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", metavar="ADDRESS", help="Measure on this Dask cluster's workers with GPU=1."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="No GPU: the reference runs, and times are invented.")
    ] = False,
    inject: Annotated[list[str] | None, typer.Option("--inject", metavar="NAME=FAULT", hidden=True)] = None,
) -> None:
    """Time variants on shapes and write the table that the runtime chooses by.

    Each variant is checked before it is timed, in a process that may crash or hang. What is known is on disk at once: after
    an interruption the same command goes on.

    Examples:

        gemmill tune --model llama-3-8b

        gemmill tune --model ./config.json --tp 2 --op all --report report.html

        gemmill tune --shapes shapes.csv --repeat 2 --margin 3%
    """
    from gemmill.tune.program import TuneRequest, read_builds, stand_in_build
    from gemmill.tune.sweep import SweepOptions

    problems = problems_of(shapes=shapes, models=models, misses=misses, ops=ops, tensor_parallel=tensor_parallel, m=m)
    if dry_run and build is None:
        found = [stand_in_build(variants.selection_of(selection or "smoke", Arch.SM90A, filters))]
        names = None
    else:
        folder, manifest = variants.build_of(build)
        found = read_builds([folder])
        names = frozenset(e.name for e in variants.filter_entries(manifest, filters)) if filters else None
    request = TuneRequest(
        problems=problems,
        builds=found,
        names=names,
        options=SweepOptions(rounds=rounds, most=candidates, margin=margin, repeats=repeat, peers=peers),
        journal=journal,
        fresh=fresh,
        table=table_file,
        dry_run=dry_run,
        faults=_faults(inject),
        vllm_library=str(vllm_library) if vllm_library is not None else None,
    )
    result = _run(request, selection if not dry_run else None, scheduler)
    if report is not None:
        from gemmill.tune.report import write_report

        write_report(result, report)
    _print_result(result)
    if report is not None:
        typer.echo(f"report: {report}")
    if not any(entry.outcome.rounds_us for entry in result.record.entries.values()):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _run(request: "TuneRequest", selection: str | None, scheduler: str | None) -> "TuneResult":
    from gemmill.tune.program import tune as run

    with sweep_progress() as observer:
        return run(request, observer)


def _faults(texts: list[str] | None) -> dict[str, str]:
    from gemmill.tune.checking import Fault

    found = {}
    for text in texts or ():
        name, _, fault = text.partition("=")
        if fault not in set(Fault):
            raise UsageError(f"--inject {text!r} is not NAME=FAULT with a fault of {', '.join(Fault)}")
        found[name] = fault
    return found


def _print_result(result: "TuneResult") -> None:
    for path, found in result.tables:
        rows = [
            (
                row.op,
                f"{row.m} x {row.n} x {row.k}",
                f"{row.us[0]:.2f}",
                "-" if row.margin is None else f"{row.margin:+.1%}",
                row.tied,
                row.variants[0],
            )
            for row in found.rows
        ]
        columns = ["op", "M x N x K", "us", "runner-up", "tied", "variant"]
        console().print(table(f"{count(len(rows), 'shape')} on {found.device}", columns, rows, right=columns[2:5]))
        typer.echo(f"table: {path if path is not None else 'not written, name one with --table'}")
    faults = [
        (problem, name, finding) for problem, found in result.record.faults.items() for name, finding in found.items()
    ]
    for problem, name, finding in faults:
        typer.echo(f"gemmill: {problem}: {name}: {finding.fault}: {finding.detail}", err=True)
    failed = [entry for entry in result.record.entries.values() if entry.outcome.error]
    for entry in failed:
        typer.echo(f"gemmill: {entry.outcome.problem}: {entry.outcome.error}", err=True)
    for i, agreed in enumerate(result.agreements, start=2):
        typer.echo(
            f"run {i} against run 1: {agreed.flipped} of {agreed.problems} winners flip ({agreed.flip_share:.1%}), "
            f"{agreed.beyond_margin} beyond the margin; regret {agreed.regret:.2%} on average, {agreed.worst_regret:.2%} at worst"
        )
    spent = sum(entry.outcome.seconds for entry in result.record.entries.values())
    checking = sum(entry.outcome.checking_seconds for entry in result.record.entries.values())
    typer.echo(f"measured in {seconds(spent)}, of which {seconds(checking)} checking; journal: {result.journal}")
