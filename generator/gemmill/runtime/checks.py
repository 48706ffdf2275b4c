"""The checks of every call, with their sentences. The extension makes the same checks and comes here for the text."""

from collections.abc import Iterator, Sequence
from itertools import chain

from gemmill.families.scaled_mm.accepts import INT32_MAX
from gemmill.families.scaled_mm.config import RESULTS_OF
from gemmill.runtime import quant_checks
from gemmill.runtime.operands import Call, Operand
from gemmill.runtime.quant_call import quant_call
from gemmill.runtime.scales import fits_vector, group_strides, groups_of_call
from gemmill.runtime.schemas import GEMM_OPS, SCALED_MM, SCALED_MM_AZP, OpSchema
from gemmill.vocab import SCALE_GROUPS, ScaleGranularity, ScaleGroups, scale_groups_of

OUT_DTYPES = {operand.torch_name: tuple(out.torch_name for out in outs) for operand, outs in RESULTS_OF.items()}
"""Of results, by the operands'."""
OPERAND_DTYPES = {SCALED_MM.name: tuple(OUT_DTYPES), SCALED_MM_AZP.name: ("int8",)}


def check(op: OpSchema, call: Call) -> None:
    """Raise RuntimeError with one sentence for the first thing that is wrong with a call; touch no data."""
    problems = _problems(op, call) if op in GEMM_OPS else quant_checks.problems(quant_call(op, call))
    for problem in chain(_gradients(call), problems):
        raise RuntimeError(f"{op.name}: {problem}")


def _gradients(call: Call) -> Iterator[str]:
    for name, value in call.items():
        if isinstance(value, Operand) and value.is_differentiated:
            yield (
                f"{name} requires grad while grad mode is enabled, and the op has no gradient: call it under torch.no_grad(), "
                f"or with {name}.detach()"
            )


def _problems(op: OpSchema, call: Call) -> Iterator[str]:
    out, a, b = (_given(call, name) for name in ("out", "a", "b"))
    for name, operand in (("out", out), ("a", a), ("b", b)):
        if len(operand.shape) != 2:
            yield f"{name} has {len(operand.shape)} dimensions {list(operand.shape)}, expected 2"
    m, k, n = a.shape[0], a.shape[1], b.shape[1]
    if b.shape[0] != k:
        yield f"a is [M, K] = {list(a.shape)} and b is [K, N] = {list(b.shape)}: K is {k} in a and {b.shape[0]} in b"
    if out.shape != (m, n):
        yield f"out is {list(out.shape)}, expected [M, N] = [{m}, {n}]"
    if max(m, n, k) > INT32_MAX:
        yield f"M, N, K = {m}, {n}, {k}: each must be at most {INT32_MAX}"
    yield from _dtypes(op, out, a, b)
    yield from _strides(out, a, b)
    a_scales, b_scales = _given(call, "a_scales"), _given(call, "b_scales")
    yield from _float32("a_scales", a_scales)
    yield from _float32("b_scales", b_scales)
    groupable = op is SCALED_MM and a.element_bytes == 1
    vectors = fits_vector(a_scales, m, 0) and fits_vector(b_scales, n, 1)
    if groupable and (not vectors or groups_of_call(call) is not None):
        yield from _group_scales(a_scales, b_scales, m, n, k)
    else:
        yield from _scales("a_scales", a_scales, m, 0)
        yield from _scales("b_scales", b_scales, n, 1)
    if (bias := call["bias"]) is not None:
        yield from _vector("bias", bias, n, "N", out.dtype)
    if op is SCALED_MM_AZP:
        yield from _vector("azp_adj", _given(call, "azp_adj"), n, "N", "int32")
        if (azp := call["azp"]) is not None:
            yield from _vector("azp", azp, m, "M", "int32")
    yield from _places(call, out)


def _dtypes(op: OpSchema, out: Operand, a: Operand, b: Operand) -> Iterator[str]:
    allowed = OPERAND_DTYPES[op.name]
    if a.dtype not in allowed:
        yield f"a is {a.dtype}, expected {_any_of(allowed)}"
    if b.dtype != a.dtype:
        yield f"b is {b.dtype} and a is {a.dtype}: both must have one dtype, {_any_of(allowed)}"
    outs = OUT_DTYPES[a.dtype]
    if out.dtype not in outs:
        yield f"out is {out.dtype}, expected {_any_of(outs)}{' as a and b are' if outs == (a.dtype,) else ''}"


def _any_of(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _strides(out: Operand, a: Operand, b: Operand) -> Iterator[str]:
    (m, k), n = a.shape, b.shape[1]
    if k > 1 and a.strides[1] != 1:
        yield f"a has strides {list(a.strides)}: it must be row-major (last stride 1); call a.contiguous()"
    if k > 1 and b.strides[0] != 1:
        yield (
            f"b has strides {list(b.strides)}: it must be column-major (first stride 1), "
            "as the transpose of a contiguous [N, K] weight is"
        )
    if n > 1 and out.strides[1] != 1:
        yield f"out has strides {list(out.strides)}: it must be row-major (last stride 1)"
    if m > 1 and n and out.strides[0] < n:
        yield f"out has row stride {out.strides[0]} for rows of {n}: its rows overlap"


def _scales(name: str, scales: Operand, length: int, dim: int) -> Iterator[str]:
    letter = "MN"[dim]
    vector = f"[{length}, 1]" if dim == 0 else f"[1, {length}]"
    if not fits_vector(scales, length, dim):
        yield (
            f"{name} has shape {list(scales.shape)}: expected one value, or one for each of {letter} = {length} "
            f"({vector} or [{length}])"
        )
    yield from _dense(name, scales)


def _float32(name: str, scales: Operand) -> Iterator[str]:
    if scales.dtype != "float32":
        yield f"{name} is {scales.dtype}, expected float32"


def _group_scales(a_scales: Operand, b_scales: Operand, m: int, n: int, k: int) -> Iterator[str]:
    if scale_groups_of(a_scales.shape, b_scales.shape, m, n, k) is None:
        kinds = [
            f"1 x {groups.size} of a with {_b_part(groups)} of b ({list(groups.a_shape(m, k))} and {list(groups.b_shape(n, k))})"
            for groups in SCALE_GROUPS
        ]
        yield (
            f"a_scales has shape {list(a_scales.shape)} and b_scales {list(b_scales.shape)}: for M, N, K = {m}, {n}, {k} "
            f"there are scales per tensor (one value) or per row and column ([{m}, 1] and [1, {n}]) in any mix, and in "
            f"groups of {'; '.join(kinds)}"
        )
    for name, scales in (("a_scales", a_scales), ("b_scales", b_scales)):
        if 1 not in group_strides(scales):
            yield f"{name} has strides {list(scales.strides)}: scales in groups must have stride 1 along one dimension"


def _b_part(groups: ScaleGroups) -> str:
    return f"{groups.size} x {groups.size}" if groups.b_scale is ScaleGranularity.BLOCK else f"1 x {groups.size}"


def _vector(name: str, vector: Operand, length: int, letter: str, dtype: str) -> Iterator[str]:
    if vector.dtype != dtype:
        yield f"{name} is {vector.dtype}, expected {dtype}"
    if vector.numel != length or (length and sum(size > 1 for size in vector.shape) > 1):
        yield f"{name} has shape {list(vector.shape)}, expected [{letter}] = [{length}]"
    yield from _dense(name, vector)


def _dense(name: str, vector: Operand) -> Iterator[str]:
    if not vector.is_vector:
        yield f"{name} has strides {list(vector.strides)}: its values must be contiguous"


def _places(call: Call, out: Operand) -> Iterator[str]:
    for name, operand in call.items():
        if operand is None or name == "out":
            continue
        if operand.device != out.device:
            yield f"{name} is on {operand.device} and out is on {out.device}: all tensors must be on one device"
        if out.data and out.data < operand.end and operand.data < out.end:
            yield f"out overlaps {name} in memory: results would overwrite operands that are still to be read"


def _given(call: Call, name: str) -> Operand:
    operand = call[name]
    if operand is None:
        raise TypeError(f"{name} is None, it must be a tensor")
    return operand
