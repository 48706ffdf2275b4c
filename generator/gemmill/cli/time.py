"""`gemmill time`: variants on sizes that a user names."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode, UsageError
from gemmill.cli.output import console, count, print_json, short, table
from gemmill.cli.shapes import DEFAULT_OP, ShapesOption, sizes_of, workloads_of
from gemmill.registry import measured
from gemmill.vocab import Arch

if TYPE_CHECKING:
    from gemmill.manifest import Manifest
    from gemmill.tuner.timed import Timed
    from gemmill.tuner.workloads import Workload

_COLUMNS = ("op", "sizes", "variant", "us", "least us", "TFLOP/s", "GB/s", "")
_SIZES = "Sizes with commas, or FIRST:LAST:STEP."


def time_variants(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="A variant's name, alias, or a glob over names; by default the model's choices."
        ),
    ] = None,
    m: Annotated[str | None, typer.Option("-m", metavar="M,M", help=f"Rows of a. {_SIZES}")] = None,
    n: Annotated[str | None, typer.Option("-n", metavar="N,N", help="Columns of b.")] = None,
    k: Annotated[str | None, typer.Option("-k", metavar="K,K", help="Columns of a.")] = None,
    op: Annotated[
        str | None,
        typer.Option("--op", metavar="OP", help=f"Operands; by default the first that NAME takes, else {DEFAULT_OP}."),
    ] = None,
    shapes: ShapesOption = None,
    filters: o.FilterOption = None,
    build: o.BuildOption = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Times that each variant is timed.")] = 15,
    candidates: Annotated[int, typer.Option("--candidates", min=1, help="Variants of a size without NAME.")] = 20,
    peers: Annotated[bool, typer.Option("--peers", help="Time torch's own next to them.")] = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the rows as CSV; - for the terminal.")
    ] = None,
    as_json: o.JsonOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="No GPU: the reference runs, and times are invented.")
    ] = False,
) -> None:
    """Time variants on sizes, and print times, TFLOP/s and GB/s.

    Times CUDA graphs over copies of the weights that exceed L2, as `gemmill tune` does, each variant checked before. It writes
    no table. Exits 1 where nothing could be timed.

    Examples:

        gemmill time -m 16 -n 4096 -k 4096

        gemmill time '*_pingpong_*' -m 512:4096:512 -n 8192 -k 8192 --csv times.csv

        gemmill time -m 1,16,64 -n 4096 -k 4096 --op nvfp4_bf16 --peers --json
    """
    from gemmill.tuner.program import stand_in_build
    from gemmill.tuner.timed import time_variants as run

    if as_json and csv_file is not None:
        raise UsageError("--json with --csv: leave one of them out")
    wanted = [*([name] if name is not None else []), *(filters or ())]
    if dry_run and build is None:
        found = stand_in_build(variants.selection_of("smoke", Arch.SM90A, None))
    else:
        found = variants.timed_build_of(build)
    names = frozenset(e.name for e in variants.filter_entries(found[1], wanted)) if wanted else None
    if names is not None and not names:
        raise UsageError(
            f"no variant of build {found[1].build_id} fits {' and '.join(wanted)}: `gemmill list` prints their names"
        )
    workloads = _workloads(m, n, k, op, shapes, found[1], names)
    rows = run(workloads, found, names, rounds=rounds, most=candidates, peers=peers, dry_run=dry_run)
    _print(rows, found[1], csv_file, as_json=as_json)
    if not any(row.median_us for row in rows):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _workloads(
    m: str | None,
    n: str | None,
    k: str | None,
    op: str | None,
    shapes: Path | None,
    manifest: "Manifest",
    names: frozenset[str] | None,
) -> "list[Workload]":
    """The workloads in the order of the named sizes. Raises UsageError."""
    from gemmill.tuner.workloads import workload_of

    given = {"-m": m, "-n": n, "-k": k}
    if shapes is not None:
        if any(value is not None for value in given.values()):
            raise UsageError("--shapes with -m, -n or -k: the file has the sizes, leave one of them out")
        return workloads_of(shapes=shapes, models=None, ops=op or DEFAULT_OP, tensor_parallel="1", m=None)
    missing = [option for option, value in given.items() if value is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} not given: `gemmill time -m 16 -n 4096 -k 4096` times one size")
    axes = [sizes_of(option, value) for option, value in given.items() if value is not None]
    sizes = [{"m": at_m, "n": at_n, "k": at_k} for at_n in axes[1] for at_k in axes[2] for at_m in axes[0]]
    of_sizes = [known for known, names_of_sizes in measured().items() if set(names_of_sizes) == {"m", "n", "k"}]
    if op is not None and op not in of_sizes:
        raise UsageError(
            f"--op {op!r} has no sizes m, n, k alone: there are {', '.join(of_sizes)}; --shapes names others"
        )
    chosen = op or _op_of(of_sizes, sizes[0], manifest, names)
    return [workload_of(chosen, at) for at in sizes]


def _op_of(ops: list[str], sizes: dict[str, int], manifest: "Manifest", names: frozenset[str] | None) -> str:
    """The first op of which one of the variants takes the sizes; the default where none does, whose rows say why."""
    from gemmill.runtime.tuned import Machine
    from gemmill.tuner.candidates import build_facts
    from gemmill.tuner.timed import refusals
    from gemmill.tuner.workloads import workload_of

    if names is None:
        return DEFAULT_OP
    here = Machine(arch=manifest.arch, device=None, driver=None, nvcc=manifest.toolchain.nvcc)
    facts = build_facts(Path(manifest.build_id), manifest, here)
    found = ((op, refusals(facts, workload_of(op, sizes), names)) for op in ops)
    return next((op for op, refused in found if len(refused) < len(names)), DEFAULT_OP)


def _print(rows: "list[Timed]", manifest: "Manifest", csv_file: Path | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"build": manifest.build_id, "rows": [_plain(row) for row in rows]})
        return
    if csv_file is not None:
        text = io.StringIO()
        plain = [_plain(row) for row in rows]
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in plain for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(plain)
        if str(csv_file) == "-":
            typer.echo(text.getvalue(), nl=False)
            return
        csv_file.write_text(text.getvalue(), encoding="utf-8")
    title = f"{count(len(rows), 'time')} of build {manifest.build_id}"
    console().print(table(title, _COLUMNS, [_cells(row) for row in rows], right=_COLUMNS[3:7]))
    if csv_file is not None:
        typer.echo(f"times: {csv_file}")


def _cells(row: "Timed") -> tuple[str, ...]:
    numbers = (
        (f"{row.median_us:.2f}", f"{row.least_us:.2f}", f"{row.tflops:.1f}", f"{row.gbps:.0f}")
        if row.median_us
        else ("-",) * 4
    )
    return (
        row.workload.op,
        row.workload.shape,
        short(row.name),
        *numbers,
        row.fault or ("today's choice" if row.chosen else ""),
    )


def _plain(row: "Timed") -> dict[str, Any]:
    told = {name: getattr(row, name) for name in ("name", "median_us", "least_us", "tflops", "gbps", "chosen", "fault")}
    return {"op": row.workload.op, **row.workload.sizes, **told}
