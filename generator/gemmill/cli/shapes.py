"""Options that say which shapes are meant, for tune, prune and audit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli.exits import UsageError
from gemmill.cli.output import count

if TYPE_CHECKING:
    from gemmill.tune.problems import Problem

ShapesOption = Annotated[
    Path | None,
    typer.Option(
        "--shapes",
        metavar="FILE",
        help="JSON or CSV with m, n, k and perhaps op (fp8, int8, int8_azp, fp8_groups, bf16).",
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME_OR_FILE",
        help="A shipped model's name, or a Hugging Face config.json; may be repeated.",
    ),
]
OpOption = Annotated[
    str,
    typer.Option(
        "--op",
        metavar="OPS",
        help="Of shapes that do not say: fp8, int8, int8_azp, fp8_groups, bf16 with commas, or all.",
    ),
]
TensorParallelOption = Annotated[
    str, typer.Option("--tp", metavar="N,N", help="Degrees of tensor parallelism that a model is divided by.")
]
MOption = Annotated[
    str | None,
    typer.Option("--m", metavar="M,M", help="Rows of a for models; by default 1, 16, 32 and doubled to 16384."),
]


def problems_of(
    *,
    shapes: Path | None,
    models: list[str] | None,
    misses: Path | None = None,
    ops: str,
    tensor_parallel: str,
    m: str | None,
) -> "list[Problem]":
    """The problems that were asked for, those that share weights beside each other. Raises UsageError."""
    from gemmill.tune.models import layers_of, named_models, read_model
    from gemmill.tune.problems import M_BUCKETS, Op, grid
    from gemmill.tune.shapes import read_misses, read_shapes

    try:
        wanted = tuple(Op) if ops == "all" else tuple(dict.fromkeys(Op(name.strip()) for name in ops.split(",")))
    except ValueError:
        raise UsageError(f"--op {ops!r}: there are {', '.join(Op)}, and all") from None
    m_values = numbers("--m", m) if m else M_BUCKETS
    if not (shapes or models or misses):
        raise UsageError(
            "no shapes: name a file with --shapes, recorded misses with --misses, or a model with --model "
            f"({', '.join(named_models())}, or a config.json)"
        )
    if tensor_parallel != "1" and not models:
        raise UsageError("--tp without --model: it divides the weights of a model, leave it out")
    try:
        found = read_shapes(shapes, wanted, m_values) if shapes else []
        missed, unusable = read_misses(misses, wanted, m_values) if misses else ([], [])
        weights = [
            (layer.n, layer.k)
            for name in models or ()
            for ranks in numbers("--tp", tensor_parallel)
            for layer in layers_of(read_model(name), ranks)
        ]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if unusable:
        typer.echo(f"gemmill: {count(len(unusable), 'line')} left out, the first: {unusable[0]}", err=True)
    return sorted({*found, *missed, *grid(wanted, weights, m_values)})


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Positive numbers with commas. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"{option} {text!r} is not a list of positive numbers such as 1,2,4")
    return tuple(int(part) for part in parts)
