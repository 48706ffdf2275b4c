"""`gemmill explain`: which variant a call gets, and why not the others."""

from enum import StrEnum
from typing import Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli.exits import UsageError
from gemmill.cli.output import console, print_json, table
from gemmill.space.predicate import SCALED_MM, SCALED_MM_AZP
from gemmill.vocab import DType


class Operand(StrEnum):
    """Dtypes of a and b."""

    E4M3 = "e4m3"
    S8 = "s8"


class Out(StrEnum):
    """Dtypes of out and bias."""

    BF16 = "bf16"
    F16 = "f16"


class Azp(StrEnum):
    """Zero points of a."""

    NONE = "none"
    TENSOR = "tensor"
    TOKEN = "token"


def explain(
    op: Annotated[str, typer.Argument(metavar="OP", help="cutlass_scaled_mm or cutlass_scaled_mm_azp.")],
    m: Annotated[int, typer.Option("-m", min=0, help="Rows of a and out.")],
    n: Annotated[int, typer.Option("-n", min=0, help="Columns of b and out.")],
    k: Annotated[int, typer.Option("-k", min=0, help="Columns of a, rows of b.")],
    dtype: Annotated[Operand, typer.Option("--dtype", help="Dtype of a and b.")] = Operand.E4M3,
    out: Annotated[Out, typer.Option("--out", help="Dtype of out and bias.")] = Out.BF16,
    per_token: Annotated[
        bool, typer.Option("--per-token/--per-tensor", help="A scale for each row of a, or one.")
    ] = True,
    per_channel: Annotated[
        bool, typer.Option("--per-channel/--one-b-scale", help="A scale for each column of b, or one.")
    ] = True,
    bias: Annotated[bool, typer.Option("--bias", help="Give a bias.")] = False,
    azp: Annotated[Azp, typer.Option("--azp", help="Zero points of a, for cutlass_scaled_mm_azp.")] = Azp.NONE,
    lda: Annotated[int | None, typer.Option("--lda", min=0, help="Row stride of a in elements; by default K.")] = None,
    ldb: Annotated[
        int | None, typer.Option("--ldb", min=0, help="Column stride of b in elements; by default K.")
    ] = None,
    ldd: Annotated[
        int | None, typer.Option("--ldd", min=0, help="Row stride of out in elements; by default N.")
    ] = None,
    build: o.BuildOption = None,
    as_json: o.JsonOption = False,
) -> None:
    """Say which variant a call gets, and why.

    For every other variant, the first rule that rejected it. Allocates nothing: only shapes, strides and dtypes are looked at.

    Examples:

        gemmill explain cutlass_scaled_mm -m 16 -n 4096 -k 4096

        gemmill explain cutlass_scaled_mm -m 512 -n 4096 -k 4100 --dtype s8 --bias --lda 4112

        gemmill explain cutlass_scaled_mm_azp -m 16 -n 4096 -k 4096 --dtype s8 --azp token --json
    """
    import torch

    import gemmill

    if op not in (SCALED_MM, SCALED_MM_AZP):
        raise UsageError(f"no op {op!r} to explain: there are {SCALED_MM} and {SCALED_MM_AZP}")
    if (op == SCALED_MM_AZP) == (azp is Azp.NONE):
        raise UsageError(f"{op} with --azp {azp}: {SCALED_MM} takes none, {SCALED_MM_AZP} takes tensor or token")

    def empty(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> torch.Tensor:
        kind = getattr(torch, dtype.torch_name)
        result = torch.empty(shape, dtype=kind, device="meta")
        return result if strides is None else torch.empty_strided(shape, strides, dtype=kind, device="meta")

    operand, result = DType(dtype), DType(out)
    tensors: list[torch.Tensor | None] = [
        empty(result, (m, n), (n if ldd is None else ldd, 1)),
        empty(operand, (m, k), (k if lda is None else lda, 1)),
        empty(operand, (k, n), (1, k if ldb is None else ldb)),
        empty(DType.F32, (m, 1) if per_token else (1,)),
        empty(DType.F32, (1, n) if per_channel else (1,)),
    ]
    if azp is not Azp.NONE:
        tensors += [empty(DType.S32, (n,)), empty(DType.S32, (m,)) if azp is Azp.TOKEN else None]
    tensors.append(empty(result, (n,)) if bias else None)
    gemmill.load(build)
    try:
        choice = gemmill.explain(op, *tensors)
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from None
    if as_json:
        print_json(
            {
                "op": op,
                "chosen": choice.entry and choice.entry.name,
                "trust": choice.trust.name.lower(),
                "rejected": choice.trace,
            }
        )
        return
    console().print(
        f"{choice.entry.name} ({choice.trust.name.lower()})" if choice.entry else "no variant takes this call",
        markup=False,
    )
    if choice.trace:
        console().print(table("not chosen", ["variant", "why not"], [(r.name, r.reason) for r in choice.trace]))
