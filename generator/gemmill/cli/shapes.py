"""Options that say which shapes are meant, for tune, prune and audit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli.exits import UsageError
from gemmill.cli.output import count
from gemmill.registry import measured

if TYPE_CHECKING:
    from gemmill.tuner.workloads import Workload

_MEASURED = measured()
_OPS = ", ".join(_MEASURED)
_SIZES = " or ".join(dict.fromkeys(map(", ".join, _MEASURED.values())))
DEFAULT_OP = next(iter(_MEASURED))
_ALIKE = tuple(op for op, sizes in _MEASURED.items() if sizes == _MEASURED[DEFAULT_OP])
"""Ops whose shapes have the same sizes as the default op's. Shapes of other ops name their op."""
_OTHERS = tuple(op for op in _MEASURED if op not in _ALIKE)
ShapesOption = Annotated[
    Path | None,
    typer.Option(
        "--shapes",
        metavar="FILE",
        help=f"JSON or CSV with {_SIZES}. Perhaps with op: {', '.join(_ALIKE)}. Of other sizes are {', '.join(_OTHERS)}.",
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME_OR_FILE",
        help="A shipped model's name, a Hugging Face config.json, or with transformers a model's id; may be repeated.",
    ),
]
OpOption = Annotated[
    str,
    typer.Option(
        "--op",
        metavar="OPS",
        help=f"Of shapes that do not say: {', '.join(_ALIKE)} with commas, or all.",
    ),
]
TensorParallelOption = Annotated[
    str, typer.Option("--tp", metavar="N,N", help="Degrees of tensor parallelism that a model is divided by.")
]
MOption = Annotated[
    str | None,
    typer.Option("--m", metavar="M,M", help="Rows of a for models; by default 1, 16, 32 and doubled to 16384."),
]


def workloads_of(
    *,
    shapes: Path | None,
    models: list[str] | None,
    misses: Path | None = None,
    ops: str,
    tensor_parallel: str,
    m: str | None,
) -> "list[Workload]":
    """The workloads of the options. Those that share weights are neighbours. Raises UsageError."""
    from gemmill.tuner.hub_models import layers_named
    from gemmill.tuner.models import named_models
    from gemmill.tuner.shapes import read_misses, read_shapes
    from gemmill.tuner.workloads import grid

    wanted = _ALIKE if ops == "all" else tuple(dict.fromkeys(name.strip() for name in ops.split(",")))
    if not _MEASURED.keys() >= set(wanted):
        raise UsageError(f"--op {ops!r}: there are {_OPS}, and all")
    steps = numbers("--m", m) if m else None
    if not (shapes or models or misses):
        raise UsageError(
            "no shapes: name a file with --shapes, recorded misses with --misses, or a model with --model "
            f"({', '.join(named_models())}, or a config.json)"
        )
    if tensor_parallel != "1" and not models:
        raise UsageError("--tp without --model: it divides the weights of a model, leave it out")
    try:
        found = read_shapes(shapes, wanted, steps) if shapes else []
        missed, unusable = read_misses(misses, wanted, steps) if misses else ([], [])
        weights = [
            {"n": layer.n, "k": layer.k}
            for name in models or ()
            for ranks in numbers("--tp", tensor_parallel)
            for layer in layers_named(name, ranks)
        ]
        planned = grid(wanted, weights, steps)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if unusable:
        typer.echo(f"gemmill: {count(len(unusable), 'line')} left out, the first: {unusable[0]}", err=True)
    return sorted({*found, *missed, *planned})


def numbers(option: str, text: str) -> tuple[int, ...]:
    """The positive numbers of a text with commas. Raises UsageError, which names the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"{option} {text!r} is not a list of positive numbers such as 1,2,4")
    return tuple(int(part) for part in parts)


def sizes_of(option: str, text: str) -> tuple[int, ...]:
    """The numbers of a text as `numbers` takes it, or of FIRST:LAST:STEP, the last included. Raises UsageError."""
    parts = text.split(":")
    if len(parts) == 1:
        return numbers(option, text)
    if not all(part.isdecimal() and int(part) for part in parts) or len(parts) != 3:
        raise UsageError(f"{option} {text!r} is not FIRST:LAST:STEP such as 512:4096:512")
    first, last, step = map(int, parts)
    if first > last:
        raise UsageError(f"{option} {text!r} begins at {first} and ends at {last}: the last is the larger")
    return tuple(range(first, last + 1, step))
