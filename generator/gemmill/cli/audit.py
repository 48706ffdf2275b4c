"""`gemmill audit`: how well a build and its tables serve a model."""

from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli import variants
from gemmill.cli.exits import ExitCode
from gemmill.cli.output import HOW_TO_MEASURE, console, count, print_json, short, table
from gemmill.cli.shapes import (
    DEFAULT_OP,
    ModelOption,
    MOption,
    OpOption,
    ShapesOption,
    TensorParallelOption,
    workloads_of,
)
from gemmill.vocab import Arch

if TYPE_CHECKING:
    from gemmill.manifest import Manifest
    from gemmill.runtime.loss import Loss


def audit(
    models: ModelOption = None,
    shapes: ShapesOption = None,
    ops: OpOption = DEFAULT_OP,
    tensor_parallel: TensorParallelOption = "1",
    m: MOption = None,
    build: o.BuildOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Print the well-served shapes too.")] = False,
    as_json: o.JsonOption = False,
) -> None:
    """List shapes without a variant or a measured row.

    With the loss to expect of each. Needs no GPU. Exits 1 if a shape has no variant at all.

    Examples:

        gemmill audit --model config.json --tp 1,2

        gemmill audit --model deepseek-v3 --m 1,64,4096 --json
    """
    from gemmill.runtime.tuned import machine
    from gemmill.tuner.candidates import build_facts
    from gemmill.tuner.protocol import workload_to_json
    from gemmill.tuner.prune import audit as look
    from gemmill.tuner.prune import worst_first

    workloads = workloads_of(shapes=shapes, models=models, ops=ops, tensor_parallel=tensor_parallel, m=m)
    folder, manifest = variants.build_of(build)
    audited = look(workloads, build_facts(folder, manifest, machine(manifest)), Arch(manifest.arch).sm_count)
    loss = _loss_of(manifest)
    shown = audited if everything else worst_first(audited)
    if as_json:
        told = [vars(a) | {"workload": workload_to_json(a.workload)} for a in shown]
        print_json({"build": manifest.build_id, "shapes": len(audited), "audited": told, "loss": loss})
    else:
        headings = dict.fromkeys(" x ".join(name.upper() for name in a.workload.sizes) for a in audited)
        columns = ["op", ", ".join(headings), "chosen by", "expected loss", "variant"]
        rows = [
            (
                a.workload.op,
                a.workload.shape,
                f"{a.trust}{', unaligned' if a.unaligned else ''}",
                "-" if a.expected_loss is None else f"{a.expected_loss:z.0%}",
                short(a.variant or "none"),
            )
            for a in shown
        ]
        title = f"{count(len(audited), 'shape')} with build {manifest.build_id}, {len(worst_first(audited))} not measured as they are"
        console().print(table(title, columns, rows, right=columns[3:4]))
        if worst_first(audited):
            typer.echo(f"`gemmill tune` with these options measures them; {HOW_TO_MEASURE}")
        if loss is not None:
            typer.echo(f"build {manifest.build_id} {loss}")
    if any(a.variant is None for a in audited):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _loss_of(manifest: "Manifest") -> "Loss | None":
    """The loss of the whole build, by the times of the tables that it loads."""
    from gemmill.runtime.loss import loss_of
    from gemmill.runtime.tuned import load_tuned, machine

    return loss_of(manifest.entries, load_tuned(manifest.entries, machine(manifest)), Arch(manifest.arch).sm_count)
