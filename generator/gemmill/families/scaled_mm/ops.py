"""The GEMM ops, and what must hold for a call of each."""

from collections.abc import Sequence

from gemmill.families.scaled_mm.accepts import INT32_MAX
from gemmill.families.scaled_mm.config import RESULTS_OF
from gemmill.families.scaled_mm.scales import scales_fault
from gemmill.family import Let, Op, OpSchema, OpSet, Require, Special, Step, When
from gemmill.vocab import DType

SCALED_MM = OpSchema(
    "cutlass_scaled_mm(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()"
)
SCALED_MM_AZP = OpSchema(
    "cutlass_scaled_mm_azp(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor azp_adj, "
    "Tensor? azp, Tensor? bias) -> ()"
)
GEMM_OPS = (SCALED_MM, SCALED_MM_AZP)
OPERANDS_OF = {SCALED_MM.name: tuple(RESULTS_OF), SCALED_MM_AZP.name: (DType.S8,)}


def _sizes() -> tuple[Step, ...]:
    return (
        *(
            Require(f"rank({x}) == 2", f"{x} has {{{x}.rank}} dimensions {{{x}.shape}}, expected 2")
            for x in ("out", "a", "b")
        ),
        Let("M", "size(a, 0)"),
        Let("K", "size(a, 1)"),
        Let("N", "size(b, 1)"),
        Let("rows_of_b", "size(b, 0)"),
        Require(
            "rows_of_b == K",
            "a is [M, K] = {a.shape} and b is [K, N] = {b.shape}: K is {K} in a and {rows_of_b} in b",
        ),
        Require("size(out, 0) == M and size(out, 1) == N", "out is {out.shape}, expected [M, N] = [{M}, {N}]"),
        Require(
            f"M <= {INT32_MAX} and N <= {INT32_MAX} and K <= {INT32_MAX}",
            f"M, N, K = {{M}}, {{N}}, {{K}}: each must be at most {INT32_MAX}",
        ),
    )


def _dtypes(operands: Sequence[DType]) -> tuple[Step, ...]:
    expected = _any_of(operands)
    results = (
        When(
            f"dtype(a) in {_among([operand])}",
            (
                Require(
                    f"dtype(out) in {_among(RESULTS_OF[operand])}",
                    f"out is {{out.dtype}}, expected {_any_of(RESULTS_OF[operand])}"
                    f"{' as a and b are' if RESULTS_OF[operand] == (operand,) else ''}",
                ),
            ),
        )
        for operand in operands
    )
    return (
        Require(f"dtype(a) in {_among(operands)}", f"a is {{a.dtype}}, expected {expected}"),
        Require("dtype(b) == dtype(a)", f"b is {{b.dtype}} and a is {{a.dtype}}: both must have one dtype, {expected}"),
        *results,
    )


def _among(dtypes: Sequence[DType]) -> str:
    return f"({''.join(f'{dtype.torch_name}, ' for dtype in dtypes)})"


def _any_of(dtypes: Sequence[DType]) -> str:
    *first, last = (dtype.torch_name for dtype in dtypes)
    return f"{', '.join(first)} or {last}" if first else last


_STRIDES = (
    Require("step(a, 1) == 1", "a has strides {a.strides}: it must be row-major (last stride 1); call a.contiguous()"),
    Require(
        "step(b, 0) == 1",
        "b has strides {b.strides}: it must be column-major (first stride 1), as the transpose of a contiguous [N, K] "
        "weight is",
    ),
    Require("step(out, 1) == 1", "out has strides {out.strides}: it must be row-major (last stride 1)"),
    Let("out_stride", "row_stride(out)"),
    Require("M <= 1 or out_stride >= N", "out has row stride {out_stride} for rows of {N}: its rows overlap"),
)


def _vector(name: str, letter: str, dtype: str, expected: str) -> tuple[Step, ...]:
    return (
        Require(f"dtype({name}) == {dtype}", f"{name} is {{{name}.dtype}}, expected {expected}"),
        Require(
            f"numel({name}) == {letter} and longer({name}) <= 1",
            f"{name} has shape {{{name}.shape}}, expected [{letter}] = [{{{letter}}}]",
        ),
        Require(f"dense({name}) == 1", f"{name} has strides {{{name}.strides}}: its values must be contiguous"),
    )


def _places(names: Sequence[str]) -> tuple[Step, ...]:
    return tuple(
        step
        for name in names
        for step in (
            Require(
                f"together({name}, out)",
                f"{name} is on {{{name}.device}} and out is on {{out.device}}: all tensors must be on one device",
            ),
            Require(
                f"apart(out, {name})",
                f"out overlaps {name} in memory: results would overwrite operands that are still to be read",
            ),
        )
    )


def _op(schema: OpSchema) -> Op:
    azp: tuple[Step, ...] = (
        *_vector("azp_adj", "N", "int32", "int32"),
        When("azp", _vector("azp", "M", "int32", "int32")),
    )
    scales = tuple(
        Require(f"dtype({x}) == float32", f"{x} is {{{x}.dtype}}, expected float32") for x in ("a_scales", "b_scales")
    )
    return Op(
        schema=schema,
        fixed={"groups": int(schema is SCALED_MM)},
        contract=(
            *_sizes(),
            *_dtypes(OPERANDS_OF[schema.name]),
            *_STRIDES,
            *scales,
            Special("scales"),
            When("bias", _vector("bias", "N", "dtype(out)", "{out.dtype}")),
            *(azp if schema is SCALED_MM_AZP else ()),
            *_places(schema.arguments[1:]),
        ),
    )


OPS = OpSet(ops=tuple(map(_op, GEMM_OPS)), specials={"scales": scales_fault})
