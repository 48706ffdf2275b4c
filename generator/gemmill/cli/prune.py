"""`gemmill prune`: the smallest set of variants that is nearly as good as all of them."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli import variants
from gemmill.cli.exits import UsageError
from gemmill.cli.options import parse_share
from gemmill.cli.output import count
from gemmill.cli.shapes import ModelOption, MOption, OpOption, ShapesOption, TensorParallelOption, workloads_of
from gemmill.vocab import Arch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmill.tuner.prune import Pruned, Times
    from gemmill.tuner.workloads import Workload


def prune(
    measured: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="What was measured: journals of `gemmill tune`, packed or not, tables (*.json), and results of benchmarks/judge.py (*.json.xz).",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="The selection to write, for `gemmill build --select FILE`."),
    ],
    within: Annotated[
        float,
        typer.Option(
            "--within", parser=parse_share, metavar="SHARE", help="How far behind the best it may be at any shape."
        ),
    ] = 0.03,
    calls: Annotated[
        int,
        typer.Option(
            "--random",
            metavar="N",
            min=0,
            help="Of classes of calls that nothing measured keep the kernels within --within by the model, at so many random calls of each; 0 keeps all.",
        ),
    ] = 0,
    select: Annotated[
        str, typer.Option("--select", metavar="NAME", help="Take the variants from this set.")
    ] = "default",
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", metavar="PATTERN", help="Of that set the variants that fit all of these, as in `gemmill list`."
        ),
    ] = None,
    arch: Annotated[str, typer.Option("--arch", metavar="ARCH")] = "sm90a",
    shapes: ShapesOption = None,
    models: ModelOption = None,
    ops: OpOption = "all",
    tensor_parallel: TensorParallelOption = "1",
    m: MOption = None,
) -> None:
    """Write the smallest selection that is near the best everywhere.

    It is within --within of the best at each measured shape, or at each shape that options name. A table has the times
    of a shape's best four variants only. Variants for unaligned operands and other kinds of kernels stay; with --random
    other kinds have to be within --within of the model's choice.

    Examples:

        gemmill prune ~/.cache/gemmill/tune/nvidia-h200-0123abcd4567.jsonl --within 3% --out small.json

        gemmill prune sweep.jsonl --model llama-3-8b --op fp8 --m 16,128 --out llama.json
    """
    from gemmill.space.names import to_name
    from gemmill.tuner.prune import prune as choose
    from gemmill.tuner.prune import selection_of
    from gemmill.writing import write_whole

    if not (shapes or models) and (ops, tensor_parallel, m) != ("all", "1", None):
        raise UsageError("--op, --tp and --m are about the shapes of --model or --shapes: name some, or leave them out")
    wanted = None
    if shapes or models:
        wanted = workloads_of(shapes=shapes, models=models, ops=ops, tensor_parallel=tensor_parallel, m=m)
    times = _times_of(measured, wanted)
    everything = variants.selection_of(select, Arch(arch), filters)
    pruned = choose(times, within, everything)
    if not pruned.losses:
        raise UsageError(
            f"no variant of {select} was measured at any of {count(len(times), 'shape')}: name another --select"
        )
    selection = selection_of(pruned, everything, out.stem, calls, within)
    names = [to_name(config) for config in selection.configs]
    text = {"schema_version": 1, "name": selection.name, "arch": str(selection.arch), "within": within}
    write_whole(out, json.dumps(text | {"variants": names}, indent=1) + "\n")
    typer.echo(_told(pruned, count(len(selection.configs), "variant"), out))
    if left := len(times) - len(pruned.losses):
        typer.echo(f"gemmill: left out: {count(left, 'shape')} of which no variant of {select} was measured", err=True)


def _told(pruned: "Pruned", variants: str, out: Path) -> str:
    worst = max(pruned.losses.items(), key=lambda pair: pair[1])
    mean = math.fsum(pruned.losses.values()) / len(pruned.losses)
    return (
        f"{count(len(pruned.kernels), 'kernel')} suffice for {count(len(pruned.losses), 'shape')}, {mean:z.1%} behind the best in the mean and "
        f"{worst[1]:z.1%} at worst ({worst[0]}); with what was not measured {variants}: {out}"
    )


def _times_of(measured: list[Path], wanted: "Sequence[Workload] | None") -> "Times":
    """The times in files, at the wanted shapes; None for all. Raises UsageError where there are none of one, and as `_times_in`."""
    times: Times = {}
    for path in measured:
        for workload, us in _times_in(path).items():
            times.setdefault(workload, {}).update(us)
    if wanted is not None:
        missing = [workload for workload in wanted if workload not in times]
        if missing:
            raise UsageError(
                f"{count(len(missing), 'shape')} were not measured, the first is {missing[0]}: `gemmill tune` them first"
            )
        times = {workload: times[workload] for workload in wanted}
    if not times:
        raise UsageError(f"{measured[0]} has no measured shape: `gemmill tune` writes some")
    return times


def _times_in(path: Path) -> "Times":
    """The times that a journal, a table or a result of the judge holds. Raises JournalError, TableError, JsonError."""
    from gemmill.runtime.table_file import read_table
    from gemmill.tuner.journal import read_journal
    from gemmill.tuner.prune import times_of, times_of_drawn, times_of_table

    if path.name.endswith(".json.xz"):
        return times_of_drawn(path)
    if path.suffix == ".json":
        return times_of_table(read_table(path))
    record = read_journal(path)
    return times_of(record, 1 + max((key[1] for key in record.entries), default=0))
