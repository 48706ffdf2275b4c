"""Every sentence with which a call is refused. A refused call writes nothing."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gemmill.families.scaled_mm.ops import GEMM_OPS, OPERANDS_OF, SCALED_MM, SCALED_MM_AZP
from gemmill.family.operand import INT32_MAX
from gemmill.runtime.checks import check
from gemmill.runtime.operands import Operand, of_arguments
from gemmill.runtime.schemas import BY_NAME

M, N, K = 4, 6, 8
Arguments = dict[str, torch.Tensor | None]


def good_call(op: str, dtype: torch.dtype = torch.int8) -> Arguments:
    """A call that is accepted; out is poisoned."""
    call: Arguments = {
        "out": torch.full((M, N), torch.nan, dtype=torch.bfloat16),
        "a": torch.ones(M, K).to(dtype),
        "b": torch.ones(N, K).to(dtype).t(),
        "a_scales": torch.ones(M, 1),
        "b_scales": torch.ones(1, N),
        "azp_adj": torch.ones(N, dtype=torch.int32),
        "azp": torch.ones(M, dtype=torch.int32),
        "bias": torch.ones(N, dtype=torch.bfloat16),
    }
    return {name: call[name] for name in BY_NAME[op].arguments}


def run(op: str, call: Arguments) -> None:
    getattr(torch.ops.gemmill, op).default(*call.values())


def column_major(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.t().contiguous().t()


KINDS_OF_SCALES = (
    f"for M, N, K = {M}, {N}, {K} expected one value or [{M}, 1] for a, with one value or [1, {N}] for b; or along K in groups of "
    f"128, [{M}, 1] with [1, 1] (128 x 128) or [1, {N}] (1 x 128); of 64, [{M}, 1] with [1, 1] (64 x 64) or [1, {N}] (1 x 64); "
    f"of 32, [{M}, 1] with [1, 1] (32 x 32) or [1, {N}] (1 x 32)"
)

SCALED = {
    "a: rank": (
        {"a": lambda c: torch.ones(1, M, K, dtype=torch.int8)},
        f"a has 3 dimensions [1, {M}, {K}], expected 2",
    ),
    "b: rank": ({"b": lambda c: torch.ones(K, dtype=torch.int8)}, f"b has 1 dimensions [{K}], expected 2"),
    "out: rank": ({"out": lambda c: torch.ones(M * N)}, f"out has 1 dimensions [{M * N}], expected 2"),
    "K": (
        {"b": lambda c: torch.ones(N, 7, dtype=torch.int8).t()},
        f"a is [M, K] = [{M}, {K}] and b is [K, N] = [7, {N}]: K is {K} in a and 7 in b; pass weight.t() of an [N, K] weight",
    ),
    "out: too few rows": ({"out": lambda c: c["out"][:-1]}, f"out is [3, {N}], expected [M, N] = [{M}, {N}]"),
    "out: too few columns": ({"out": lambda c: c["out"][:, :-1]}, f"out is [{M}, 5], expected [M, N] = [{M}, {N}]"),
    "a: dtype": (
        {"a": lambda c: torch.ones(M, K, dtype=torch.float8_e5m2)},
        "a is float8_e5m2, expected float8_e4m3fn, int8, bfloat16 or float16",
    ),
    "b: dtype": (
        {"b": lambda c: torch.ones(N, K).to(torch.float8_e4m3fn).t()},
        "b is float8_e4m3fn and a is int8: they must have the same dtype, float8_e4m3fn, int8, bfloat16 or float16",
    ),
    "out: dtype": ({"out": lambda c: torch.ones(M, N)}, "out is float32, expected bfloat16 or float16"),
    "out: not the dtype of 16-bit operands": (
        {"a": lambda c: c["a"].half(), "b": lambda c: c["b"].half()},
        "out is bfloat16, expected float16 as a and b are",
    ),
    "b_scales: in groups, for 16-bit operands": (
        {"a": lambda c: c["a"].bfloat16(), "b": lambda c: c["b"].bfloat16(), "b_scales": lambda c: torch.ones(2, N)},
        f"b_scales has shape [2, {N}]: expected one value, or one for each of N = {N} ([1, {N}] or [{N}])",
    ),
    "a: layout": (
        {"a": lambda c: column_major(c["a"])},
        f"a has strides [1, {M}]: it must be row-major (last stride 1); call a.contiguous()",
    ),
    "b: layout": (
        {"b": lambda c: c["b"].contiguous()},
        f"b has strides [{N}, 1] and must be column-major: pass weight.t() of a contiguous [N, K] weight",
    ),
    "out: layout": (
        {"out": lambda c: column_major(c["out"])},
        f"out has strides [1, {M}]: it must be row-major (last stride 1)",
    ),
    "out: rows overlap": (
        {"out": lambda c: c["out"].as_strided((M, N), (N - 1, 1))},
        f"out has row stride {N - 1} for rows of {N}: its rows overlap",
    ),
    "a_scales: dtype": (
        {"a_scales": lambda c: c["a_scales"].half()},
        "a_scales is float16, expected float32",
    ),
    "b_scales: dtype": ({"b_scales": lambda c: c["b_scales"].double()}, "b_scales is float64, expected float32"),
    "a_scales: number": (
        {"a_scales": lambda c: torch.ones(3, 1)},
        f"a_scales is [3, 1] and b_scales is [1, {N}]: {KINDS_OF_SCALES}",
    ),
    "a_scales: along the other dimension": (
        {"a_scales": lambda c: torch.ones(1, M)},
        f"a_scales is [1, {M}] and b_scales is [1, {N}]: {KINDS_OF_SCALES}",
    ),
    "b_scales: in groups": (
        {"b_scales": lambda c: torch.ones(2, N)},
        f"a_scales is [{M}, 1] and b_scales is [2, {N}]: {KINDS_OF_SCALES}",
    ),
    "a_scales: gaps": (
        {"a_scales": lambda c: torch.ones(2 * M)[::2]},
        "a_scales has strides [2]: its values must be contiguous",
    ),
    "a_scales: rows apart, for 16-bit operands": (
        {
            "a": lambda c: c["a"].bfloat16(),
            "b": lambda c: c["b"].bfloat16(),
            "a_scales": lambda c: torch.ones(M, 3)[:, :1],
        },
        "a_scales has strides [3, 1]: its values must be contiguous",
    ),
    "b_scales: gaps": (
        {"b_scales": lambda c: torch.ones(2 * N)[::2]},
        "b_scales has strides [2]: its values must be contiguous",
    ),
    "bias: dtype": ({"bias": lambda c: c["bias"].half()}, "bias is float16, expected bfloat16"),
    "bias: length": ({"bias": lambda c: c["bias"][:-1]}, f"bias has shape [5], expected [N] = [{N}]"),
    "bias: gaps": (
        {"bias": lambda c: torch.ones(2 * N, dtype=torch.bfloat16)[::2]},
        "bias has strides [2]: its values must be contiguous",
    ),
    "bias: of two dimensions": (
        {"bias": lambda c: torch.ones(2, N // 2, dtype=torch.bfloat16)},
        f"bias has shape [2, {N // 2}], expected [N] = [{N}]",
    ),
    "bias: of two dimensions, apart": (
        {"bias": lambda c: torch.ones(2, N, dtype=torch.bfloat16)[:, : N // 2]},
        f"bias has shape [2, {N // 2}], expected [N] = [{N}]",
    ),
    "bias: gaps in a row": (
        {"bias": lambda c: torch.ones(1, 2 * N, dtype=torch.bfloat16)[:, ::2]},
        "bias has strides [12, 2]: its values must be contiguous",
    ),
    "out over a": (
        {"a": lambda c: torch.ones(M * N * 2, dtype=torch.int8)[: M * K].view(M, K), "out": lambda c: None},
        "out overlaps a in memory: results would overwrite operands that are still to be read",
    ),
    "out over the second half of a 16-bit a": (
        {
            "a": lambda c: torch.ones(2 * M * K, dtype=torch.bfloat16)[: M * K].view(M, K),
            "b": lambda c: c["b"].bfloat16(),
            "out": lambda c: c["a"].as_strided((M, N), (N, 1), M * K - 1),
        },
        "out overlaps a in memory: results would overwrite operands that are still to be read",
    ),
    "out over bias": (
        {"bias": lambda c: c["out"][1], "out": lambda c: c["out"]},
        "out overlaps bias in memory: results would overwrite operands that are still to be read",
    ),
}
AZP = {
    "a_scales: number": (
        {"a_scales": lambda c: torch.ones(3, 1)},
        f"a_scales has shape [3, 1]: expected one value, or one for each of M = {M} ([{M}, 1] or [{M}])",
    ),
    "b_scales: in groups": (
        {"b_scales": lambda c: torch.ones(2, N)},
        f"b_scales has shape [2, {N}]: expected one value, or one for each of N = {N} ([1, {N}] or [{N}])",
    ),
    "a: dtype": (
        {"a": lambda c: c["a"].to(torch.float8_e4m3fn), "b": lambda c: c["b"].to(torch.float8_e4m3fn)},
        "a is float8_e4m3fn, expected int8",
    ),
    "azp_adj: dtype": ({"azp_adj": lambda c: c["azp_adj"].long()}, "azp_adj is int64, expected int32"),
    "azp_adj: length": ({"azp_adj": lambda c: c["azp_adj"][1:]}, f"azp_adj has shape [5], expected [N] = [{N}]"),
    "azp: dtype": ({"azp": lambda c: c["azp"].float()}, "azp is float32, expected int32"),
    "azp: length": ({"azp": lambda c: torch.ones(1, dtype=torch.int32)}, f"azp has shape [1], expected [M] = [{M}]"),
    "a_scales: rows apart": (
        {"a_scales": lambda c: torch.ones(M, 3)[:, :1]},
        "a_scales has strides [3, 1]: its values must be contiguous",
    ),
    "azp_adj: of two dimensions": (
        {"azp_adj": lambda c: c["azp_adj"].view(2, N // 2).t()},
        f"azp_adj has shape [{N // 2}, 2], expected [N] = [{N}]",
    ),
    "azp: of two dimensions": (
        {"azp": lambda c: torch.ones(2, M, dtype=torch.int32)[:, : M // 2]},
        f"azp has shape [2, {M // 2}], expected [M] = [{M}]",
    ),
    "azp: gaps": (
        {"azp": lambda c: torch.ones(M, 2, dtype=torch.int32)[:, :1]},
        "azp has strides [2, 1]: its values must be contiguous",
    ),
}
CASES = [(SCALED_MM.name, *case) for case in SCALED.values()] + [(SCALED_MM_AZP.name, *case) for case in AZP.values()]
IDS = [f"{SCALED_MM.name}, {name}" for name in SCALED] + [f"{SCALED_MM_AZP.name}, {name}" for name in AZP]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().clone().view(torch.uint8)


def spoiled(op: str, changes: dict[str, Callable]) -> Arguments:
    call = good_call(op)
    for name, change in changes.items():
        call[name] = change(call)
    if call["out"] is None:
        assert call["a"] is not None
        call["out"] = call["a"].as_strided((M * N * 2,), (1,)).view(torch.bfloat16).view(M, N)
    return call


@pytest.mark.parametrize(("op", "changes", "sentence"), CASES, ids=IDS)
def test_sentence(op: str, changes: dict[str, Callable], sentence: str) -> None:
    call = spoiled(op, changes)
    out = call["out"]
    assert out is not None
    before = bytes_of(out)
    with pytest.raises(RuntimeError) as caught:
        run(op, call)
    assert str(caught.value) == f"{op}: {sentence}"
    assert torch.equal(before, bytes_of(out)), "out was written"


@pytest.mark.parametrize(
    ("op", "dtype"), [(op.name, getattr(torch, dtype.torch_name)) for op in GEMM_OPS for dtype in OPERANDS_OF[op.name]]
)
def test_good_call_is_accepted(op: str, dtype: torch.dtype) -> None:
    call = good_call(op, dtype)
    if dtype is torch.float16:  # as which out and bias are then too
        call |= {name: call[name].to(dtype) for name in ("out", "bias")}
    run(op, call)
    assert not call["out"].isnan().any()
    if op == SCALED_MM_AZP.name:
        assert call["out"].eq(K - 1 + 1).all()
    else:
        assert call["out"].eq(K + 1).all()


ACCEPTED = {
    "one scale for all": {"a_scales": lambda c: torch.ones(()), "b_scales": lambda c: torch.ones(1, 1)},
    "vectors of one dimension": {"a_scales": lambda c: torch.ones(M), "b_scales": lambda c: torch.ones(N)},
    "no bias": {"bias": lambda c: None},
    "rows apart in a, b and out": {
        "a": lambda c: torch.ones(M, 2 * K, dtype=torch.int8)[:, :K],
        "b": lambda c: torch.ones(N, K + 3, dtype=torch.int8)[:, 3:].t(),
        "out": lambda c: torch.ones(M, N + 1, dtype=torch.bfloat16)[:, 1:],
    },
    "rows of a_scales apart at a K of one group": {"a_scales": lambda c: torch.ones(M, 3)[:, :1]},
    "columns of b_scales apart at a K of one group": {"b_scales": lambda c: torch.ones(1, 2 * N)[:, ::2]},
    "any strides of dimensions of one element": {
        "a_scales": lambda c: torch.ones(M).as_strided((M, 1), (1, 77)),
        "b_scales": lambda c: torch.ones(N).as_strided((1, N), (0, 1)),
    },
    "rows of a on one another": {"a": lambda c: c["a"][:1].expand(M, K)},
    "operands that share memory": {"b": lambda c: c["a"].as_strided((K, N), (1, 4))},
    "out beside a": {
        "a": lambda c: torch.ones(M * K + M * N * 2, dtype=torch.int8)[: M * K].view(M, K),
        "out": lambda c: c["a"].as_strided((M * N * 2,), (1,), M * K).view(torch.bfloat16).view(M, N),
    },
}


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_no_fault(changes: dict[str, Callable]) -> None:
    call = spoiled(SCALED_MM.name, {"bias": lambda c: None} | changes)
    run(SCALED_MM.name, call)
    assert call["out"].eq(K).all()


VECTORS = {
    "between dimensions of one element": lambda v: v.as_strided((1, len(v), 1), (0, 1, 77)),
    "as a column": lambda v: v.as_strided((len(v), 1), (1, 1)),
    "as a row": lambda v: v.as_strided((1, len(v)), (3, 1)),
}


@pytest.mark.parametrize("shape", VECTORS.values(), ids=VECTORS)
@pytest.mark.parametrize("name", ["bias", "azp_adj", "azp"])
def test_vectors_of_several_dimensions(name: str, shape: Callable) -> None:
    call = good_call(SCALED_MM_AZP.name)
    expected = call["out"].clone()
    run(SCALED_MM_AZP.name, call | {"out": expected})
    vector = call[name]
    assert vector is not None
    call[name] = shape(vector.flatten())
    run(SCALED_MM_AZP.name, call)
    assert torch.equal(call["out"], expected)


def operands(op: str = SCALED_MM.name, **changes: dict) -> dict[str, Operand | None]:
    call = of_arguments(BY_NAME[op], list(good_call(op).values()))
    return {name: replace(operand, **changes.get(name, {})) for name, operand in call.items()}


@pytest.mark.parametrize("name", [name for name in SCALED_MM_AZP.arguments if name != "out"])
def test_operands_on_two_devices(name: str) -> None:
    call = operands(SCALED_MM_AZP.name, **{name: {"device": "cuda:1"}})
    with pytest.raises(RuntimeError) as caught:
        check(SCALED_MM_AZP, call)
    assert str(caught.value) == (
        f"cutlass_scaled_mm_azp: {name} is on cuda:1 and out is on cpu: all tensors must be on one device"
    )


def test_sizes_that_32_bits_do_not_hold() -> None:
    m = INT32_MAX + 1
    call = operands(out={"shape": (m, N)}, a={"shape": (m, K)}, a_scales={"shape": (1, 1)})
    with pytest.raises(RuntimeError) as caught:
        check(SCALED_MM, call)
    assert str(caught.value) == f"cutlass_scaled_mm: M, N, K = {m}, {N}, {K}: each must be at most {INT32_MAX}"


def test_number_of_arguments() -> None:
    with pytest.raises(TypeError) as caught:
        of_arguments(SCALED_MM, [torch.ones(1)] * 5)
    assert str(caught.value) == "cutlass_scaled_mm takes 6 arguments (out, a, b, a_scales, b_scales, bias), got 5"


def test_missing_operand() -> None:
    with pytest.raises(TypeError) as caught:
        of_arguments(SCALED_MM, [torch.ones(1), None, *[torch.ones(1)] * 4])
    assert str(caught.value) == "cutlass_scaled_mm: a is None, it must be a tensor"


def test_vllms_op_takes_scales_along_either_dimension():
    given = {"a_scales": torch.rand(1, M) + 0.5, "b_scales": torch.rand(N, 1) + 0.5}
    a, b = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((M, K), (N, K)))
    out, expected = (torch.empty(M, N, dtype=torch.bfloat16) for _ in range(2))
    torch.ops.gemmill.vllm_cutlass_scaled_mm(out, a, b.t(), given["a_scales"], given["b_scales"], None)
    scales = given["a_scales"].t().contiguous(), given["b_scales"].t().contiguous()
    torch.ops.gemmill.cutlass_scaled_mm(expected, a, b.t(), *scales, None)
    assert torch.equal(out, expected)
