"""`gemmill explain`: which variant a call gets, and why not the others."""

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gemmill.cli import options as o
from gemmill.cli.exits import UsageError
from gemmill.cli.output import console, print_json, table

if TYPE_CHECKING:
    from gemmill.runtime.evidence import Evidence
    from gemmill.runtime.select import Choice

NEAREST = 5
"""Variants that are listed one by one."""
MOST_REASONS = 5
"""Reasons that are listed one by one."""


class Operand(StrEnum):
    """Dtypes of a and b, and of the input of a quantisation op."""

    E4M3 = "e4m3"
    S8 = "s8"
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"


class Out(StrEnum):
    """Dtypes of out and bias, and of codes."""

    BF16 = "bf16"
    F16 = "f16"
    E4M3 = "e4m3"
    S8 = "s8"


class Azp(StrEnum):
    """Zero points of a."""

    NONE = "none"
    TENSOR = "tensor"
    TOKEN = "token"


def explain(
    op: Annotated[
        str, typer.Argument(metavar="OP", help="cutlass_scaled_mm, cutlass_scaled_mm_azp or a quantisation op.")
    ],
    m: Annotated[int, typer.Option("-m", min=0, help="Rows of a and out.")],
    n: Annotated[int | None, typer.Option("-n", min=0, help="Columns of b and out.")] = None,
    k: Annotated[int | None, typer.Option("-k", min=0, help="Columns of a, rows of b.")] = None,
    dtype: Annotated[
        Operand | None, typer.Option("--dtype", help="Dtype of a and b (e4m3), or of a quantisation op's input (bf16).")
    ] = None,
    out: Annotated[
        Out | None,
        typer.Option(
            "--out", help="Dtype of out and bias (bf16; f16 of f16 operands), or of the codes of a quantisation op."
        ),
    ] = None,
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
    hidden: Annotated[
        int | None, typer.Option("--hidden", min=0, help="Quantisation ops: columns of the codes.")
    ] = None,
    group: Annotated[int | None, typer.Option("--group", help="Quantisation ops: elements that share a scale.")] = None,
    activation: Annotated[
        str | None, typer.Option("--activation", help="act_and_mul ops: silu, gelu or gelu_tanh.")
    ] = None,
    ue8m0: Annotated[bool, typer.Option("--ue8m0", help="Quantisation ops: scales are powers of two.")] = False,
    m_major: Annotated[
        bool, typer.Option("--scales-m-major", help="Quantisation ops: scales of groups lie M-major.")
    ] = False,
    build: o.BuildOption = None,
    everything: Annotated[bool, typer.Option("--all", help="List every other variant with its reason.")] = False,
    as_json: o.JsonOption = False,
) -> None:
    """Say which variant a call gets, and why.

    With the measured row that it rests on, the five that come nearest, and how many others which rule rejected. Allocates nothing: only shapes, strides and dtypes are looked at.

    Examples:

        gemmill explain cutlass_scaled_mm -m 16 -n 4096 -k 4096

        gemmill explain cutlass_scaled_mm -m 512 -n 4096 -k 4100 --dtype s8 --bias --lda 4112

        gemmill explain cutlass_scaled_mm_azp -m 16 -n 4096 -k 4096 --dtype s8 --azp token --json

        gemmill explain act_and_mul_per_block_quant -m 16 --hidden 14336 --activation gelu --group 64 --ue8m0
    """
    question = {name: value for name, value in locals().items() if name not in ("op", "build", "everything", "as_json")}
    question["azp"] = None if azp is Azp.NONE else azp
    import gemmill
    from gemmill.numerics.cases import cases_of_op
    from gemmill.runtime.evidence import evidence_of
    from gemmill.runtime.schemas import BY_NAME

    if op not in BY_NAME:
        raise UsageError(f"no op {op!r} to explain: there are {', '.join(BY_NAME)}")
    try:
        given = cases_of_op(op).asked(op, question)
    except ValueError as error:
        raise UsageError(str(error)) from None
    loaded = gemmill.load(build)
    try:
        choice = gemmill.explain(op, *given)
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(error)) from None
    evidence = None if choice.measured is None else evidence_of(choice, loaded.tuned)
    if as_json:
        print_json(
            {
                "op": op,
                "chosen": choice.entry and choice.entry.name,
                "trust": choice.trust.name.lower(),
                "measured": evidence,
                "rejected": [{"name": other.name, "reason": other.reason} for other in choice.trace],
            }
        )
        return
    _print_choice(choice, evidence, everything)


def _print_choice(choice: "Choice", evidence: "Evidence | None", everything: bool) -> None:
    out = console()
    chosen = f"{choice.entry.name} ({choice.trust.name.lower()})" if choice.entry else "no variant takes this call"
    out.print(chosen, markup=False)
    if evidence is not None:
        row = evidence.row
        sizes = " x ".join(map(str, (choice.measured or row.sizes).values()))
        runner_up = f"; {row.margin:.1%} slower: {row.variants[1]}" if row.margin is not None else ""
        out.print(f"measured: {row.op} {sizes}, {row.us[0]:.2f} us{runner_up}", markup=False)
        out.print(f"on {evidence.source.gpu}, {evidence.source.date[:10]}, in {evidence.table}", markup=False)
    fits = sorted((other for other in choice.trace if other.us is not None), key=lambda other: other.us or 0.0)
    shown = choice.trace if everything else fits[:NEAREST]
    if shown:
        title = "not chosen" if everything else f"the nearest of {len(fits)} that fit too"
        out.print(table(title, ["variant", "why not"], [(other.name, other.reason) for other in shown]))
    reasons = Counter(other.reason for other in choice.trace if other.us is None)
    if reasons and not everything:
        rows = [(count, reason) for reason, count in reasons.most_common(MOST_REASONS)]
        if rest := reasons.total() - sum(count for count, _ in rows):
            rows.append((rest, f"{len(reasons) - MOST_REASONS} other reasons, which --all lists"))
        out.print(table("rejected", ["variants", "why"], rows, right=["variants"]))
