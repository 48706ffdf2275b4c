"""`gemmill convert`: a checkpoint in another format, or under another project's key names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli.exits import UnavailableError
from gemmill.cli.output import console, count, plain, size, table

if TYPE_CHECKING:
    from rich.progress import Progress

    from gemmill.checkpoints.convert import Conversion
    from gemmill.checkpoints.steps import Step
    from gemmill.quantize import LayerError

WORST = 10
"""Layers that the command prints."""


SourceArgument = Annotated[Path, typer.Argument(metavar="IN", help="A safetensors file, or a folder of shards.")]
OutArgument = Annotated[
    Path, typer.Argument(metavar="OUT", help="The converted checkpoint: a file from a file, a folder from a folder.")
]
ToOption = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="FORMAT",
        help="channel (also fp8 and fp8_channel), block128 (also fp8_block), int8, int8_asymmetric, nvfp4, mxfp4, mxfp6, mxfp8, nvfp4_2to4 to prune, or bf16 to decode.",
    ),
]
NamesOption = Annotated[
    str | None,
    typer.Option(
        "--names",
        metavar="PROJECT",
        help="Whose key names are written: compressed-tensors, modelopt, lightx2v, deepseek, deepseek-v4, gpt-oss or gpt-oss-torch; by default the first that has the format.",
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="FORMAT", help="The format of IN, where neither shapes nor config.json tell it."),
]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="GLOB", help="Convert layers whose keys fit, no others.")
]
KeepOption = Annotated[
    list[str] | None, typer.Option("--keep", metavar="GLOB", help="Leave layers whose keys fit as they are.")
]
RequantizeOption = Annotated[
    bool, typer.Option("--requantize", help="Decode layers of another format and round them again.")
]
RoundingOption = Annotated[
    str, typer.Option("--rounding", metavar="up|ocp", help="How scales of mx formats are rounded.")
]
RescaleOption = Annotated[
    bool, typer.Option("--rescale", help="With nvfp4_2to4: fit scales of floats to the weights that remain.")
]
InputsOption = Annotated[
    Path | None,
    typer.Option(
        "--inputs", metavar="FILE", help="Inputs of layers, [tokens, K] by name: also prints the error of outputs."
    ),
]
PackOption = Annotated[
    str | None,
    typer.Option(
        "--pack",
        metavar="KIND",
        help="Pack layers for kernels too, next to OUT, for activations bf16, e4m3, int8, nvfp4, mxfp4 or mxfp8.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="NAME", help="Where codes are made: cpu or cuda.")]


def convert(
    source: SourceArgument,
    out: OutArgument,
    to: ToOption,
    names: NamesOption = None,
    was: FromOption = None,
    only: OnlyOption = None,
    keep: KeepOption = None,
    requantize: RequantizeOption = False,
    rounding: RoundingOption = "up",
    rescale: RescaleOption = False,
    inputs: InputsOption = None,
    activations: PackOption = None,
    device: DeviceOption = "cpu",
) -> None:
    """Convert a safetensors checkpoint, and print each layer's error.

    Two layers are in memory at a time. An output file appears whole or not at all; after an interruption the same
    command continues. The errors of all layers go to conversion.json next to the output, the worst ten are printed. A
    config.json in IN goes to OUT, with the formats that its layers have now. Files of IN without weights, such as a
    tokenizer, are copied.

    Examples:

        gemmill convert model.safetensors model-nvfp4.safetensors --to nvfp4

        gemmill convert model.safetensors fp8.safetensors --to block128 --names deepseek --keep "*proj_out*"

        gemmill convert model.safetensors packed.safetensors --to mxfp4 --pack bf16
    """
    import torch

    from gemmill.checkpoints.convert import convert as run
    from gemmill.checkpoints.convert import is_converted
    from gemmill.checkpoints.folder import open_checkpoint
    from gemmill.checkpoints.steps import Asked

    if device != "cpu" and not torch.cuda.is_available():
        raise UnavailableError(f"--device {device} needs a GPU that torch can use: leave it out to convert on the CPU")
    asked = Asked(
        to=to,
        names=names,
        source=was,
        only=tuple(only or ()),
        keep=tuple(keep or ()),
        requantize=requantize,
        scale_rounding=rounding,
        rescale=rescale,
    )
    if activations is not None:
        from gemmill.nn.packed import CACHE, keep_packed, refuse_unpackable

        refuse_unpackable(open_checkpoint(source), asked, activations)
    if activations is not None and is_converted(source, out, asked):
        typer.echo(plain(f"{out} is there already, by the same conversion: only packing is left"))
    else:
        with _progress() as observer:
            seen = None if inputs is None else open_checkpoint(inputs)
            _tell(run(source, out, asked, device=device, inputs=seen, observer=observer))
    if activations is not None:
        names = keep_packed(open_checkpoint(out), activations)
        folder = (out if out.is_dir() else out.parent) / CACHE
        packed = f"{count(len(names), 'layer')} packed for {activations} activations"
        typer.echo(plain(f"{folder}: {packed}; load them with cache=True"))


class _Bar:
    """A bar that begins after planning: a refused conversion leaves none."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def planned(self, total: int, done: int) -> None:
        self._progress.update(self._task, total=total, completed=done)
        self._progress.start()
        if done:
            self._progress.console.print(f"goes on after {size(done)} of {size(total)}")

    def advanced(self, step: "Step") -> None:
        self._progress.update(self._task, advance=step.nbytes, description=plain(step.name))


@contextmanager
def _progress() -> Iterator[_Bar]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        BarColumn(bar_width=30),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    shown = console(stderr=True)
    progress = Progress(*columns, console=shown, disable=not shown.is_terminal)
    try:
        yield _Bar(progress)
    finally:
        progress.stop()


def _tell(made: "Conversion") -> None:
    if made.layers:
        shown = made.layers[:WORST]
        has_outputs, folds = (any(getattr(x, f) is not None for x in shown) for f in ("outputs", "unfolded"))
        columns = ["layer", "N x K", "error of weights"]
        columns += ["error of outputs"] * has_outputs + ["rows that do not fold", "spread"] * folds
        rows = [_row(layer, has_outputs=has_outputs, folds=folds) for layer in shown]
        title = f"{len(shown)} of {count(len(made.layers), 'layer')}, by relative squared error"
        console().print(table(title, columns, rows, right=columns[1:]))
        for layer in shown:
            if layer.unfolded:
                typer.echo(plain(f"{layer.name}: {layer.folding}; {made.report} has all"))
    renamed = f", {count(made.renamed, 'layer')} under other names with the same codes" if made.renamed else ""
    if not made.is_stated:
        why = "has layers of several formats, which config.json cannot state: it says nothing of quantisation"
        typer.echo(plain(f"gemmill: {made.out} {why}"), err=True)
    sizes = f"{size(made.read_bytes)} became {size(made.written_bytes)}"
    typer.echo(plain(f"{made.out}: {count(len(made.layers), 'layer')} quantised{renamed}; {sizes}"))


def _row(layer: "LayerError", *, has_outputs: bool, folds: bool) -> list[str]:
    row = [layer.name, f"{layer.n} x {layer.k}", f"{layer.weights:.2e}"]
    if has_outputs:
        row.append("-" if layer.outputs is None else f"{layer.outputs:.2e}")
    if folds:
        row += ["-", "-"] if layer.unfolded is None else [str(layer.unfolded), str(layer.spread)]
    return row
