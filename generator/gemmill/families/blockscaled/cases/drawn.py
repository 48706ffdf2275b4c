"""Random calls, and their expected results."""

from typing import Any

import torch
from torch import Tensor

from gemmill.arithmetic import OF_16_BITS, OF_E4M3
from gemmill.families.blockscaled.bounds import any_order_tolerance
from gemmill.families.blockscaled.cases.checked import ROLES_OF
from gemmill.families.blockscaled.config import AnyConfig
from gemmill.families.blockscaled.ops import FP4_WEIGHT_MM, PAIR_BY_OP
from gemmill.families.blockscaled.pairs import (
    FOLDED_PAIRS,
    FP4_PAIRS,
    WEIGHT_PAIRS,
    Pair,
)
from gemmill.families.blockscaled.reference import exact_mm, rounded
from gemmill.families.blockscaled.serving import operands_of
from gemmill.family.operand import TMA_BYTES
from gemmill.formats.layout import BLOCK_COLUMNS, ROW_BYTES, SIDE, STAGE_COLUMNS, swizzled_shape
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.comparison import Wanted
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import TIDY, matrix, one_value, vector
from gemmill.numerics.memory import Memory, Slot
from gemmill.runtime import checks
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.ops import variants
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import Arch, Format
from gemmill.vocab.format import MXFP8


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A call of any of the ops."""
    pair = draw.one_of(WEIGHT_PAIRS) if op == FP4_WEIGHT_MM.name else PAIR_BY_OP[op]
    out_dtype = torch.bfloat16 if draw.chance(0.8) else torch.float16
    exact, tidy = draw.chance(0.6), draw.chance(TIDY)
    m, n, k = _sizes(draw, limits, pair.b_format.group)
    slots, plain = {"out": matrix(draw, out_dtype, m, n, None, written=True, tidy=tidy)}, {}
    if pair in FOLDED_PAIRS:
        slots |= _folded(draw, pair, m, n, k, exact)
    elif pair.a_format is None:
        prepacked = draw.chance(0.8)
        plain = {"format": str(pair.b_format), "prepacked": prepacked}
        values = "integers" if exact else "normal"
        slots["a"] = matrix(draw, out_dtype, m, k, values, tidy=draw.chance(0.9))
        if not prepacked:
            slots |= _plain_weights(pair.b_format, n, k, exact)
        elif pair in FP4_PAIRS and out_dtype is torch.bfloat16:
            slots |= _blocks(pair.b_format, n, k, exact)
        else:
            slots |= {"b": _rows(pair.b_format, n, k, exact), "b_sf": _factors((n,), exact)}
    else:
        slots["a"], a_sf = _codes(draw, pair.a_format, m, k, exact)
        slots["b"], b_sf = _codes(draw, pair.b_format, n, k, exact)
        slots |= {"a_sf": a_sf, "b_sf": b_sf}
    if "alpha" in ROLES_OF[op] and (op != FP4_WEIGHT_MM.name or draw.chance(0.7)):
        slots["alpha"] = one_value(draw, torch.float32, "powers" if exact else "scales")
    if "bias" in ROLES_OF[op] and draw.chance(0.5):
        slots["bias"] = vector(draw, out_dtype, n, "integers" if exact else "normal", ((n,), (1, n)))
    names = dict(zip(ROLES_OF[op], BY_NAME[op].arguments, strict=True))
    ordered = {names[role]: slots[role] for role in ROLES_OF[op] if role in slots}
    return LegalCall(
        op=op,
        slots=ordered,
        plain=plain,
        offsets={name: draw.below(1 << 30) for name in ordered},
        judged=EXACT if exact else WITHIN,
    )


def _sizes(draw: Draw, limits: Limits, group: int) -> tuple[int, int, int]:
    m, n = draw.size(512), draw.size(1024)
    k = group * (1 + draw.log_uniform(2048 // group))
    while max(m * n, m * k, n * k) > limits.elements or m * n * k > limits.products:
        m, n, k = m // 2, n // 2, max(k // 2 // group, 1) * group
    return m, n, k


def _dense(dtype: torch.dtype, shape: tuple[int, ...], values: str) -> Slot:
    rows = shape[0]
    columns = 1
    for size in shape[1:]:
        columns *= size
    strides = tuple(torch.empty(shape, device="meta", dtype=torch.float32).stride())
    return Slot(
        dtype=dtype,
        shape=shape,
        strides=strides,
        rows=rows,
        columns=columns,
        row_stride=columns,
        column_stride=1,
        values=values,
        reference_shape=shape,
    )


def _scale_values(format: Format, exact: bool) -> str:
    if exact:
        return f"{format.scale.name}_powers"
    return "ue4m3" if format.has_global_scale else "ue8m0_near_one"


def _factors(shape: tuple[int, ...], exact: bool) -> Slot:
    return _dense(torch.float32, shape, "powers" if exact else "scales")


def _blocks(format: Format, n: int, k: int, exact: bool) -> dict[str, Slot]:
    """Random bytes in place of packed weights: they are codes and scales."""
    blocks = -(-k // STAGE_COLUMNS) * STAGE_COLUMNS // SIDE
    shape = (-(-n // SIDE), blocks, SIDE * SIDE // 2 + SIDE * SIDE // format.group)
    values = f"{format.name}_blocks{'_powers' if exact else ''}"
    return {"b": _dense(torch.uint8, shape, values), "b_sf": _factors((n,), exact)}


def _rows(format: Format, n: int, k: int, exact: bool) -> Slot:
    """Random bytes in place of weights packed in rows: they are codes and scales."""
    bytes_ = format.code_bytes(k) + format.scale_count(k)
    return _dense(torch.uint8, (n, -(-bytes_ // ROW_BYTES) * ROW_BYTES), _row_values(format, exact))


def _row_values(format: Format, exact: bool) -> str:
    """The values of rows: bytes as scales, and finite codes."""
    return f"{format.name}_rows{'_powers' if exact else ''}" if format == MXFP8 else _scale_values(format, exact)


def _folded(draw: Draw, pair: Pair, m: int, n: int, k: int, exact: bool) -> dict[str, Slot]:
    may_widen, format = pair is Pair.E4M3_MXFP4, pair.b_format
    grouped = may_widen and draw.chance(0.3)
    blocks = -(-k // STAGE_COLUMNS) * STAGE_COLUMNS // BLOCK_COLUMNS
    shape = (-(-n // SIDE), blocks, SIDE * BLOCK_COLUMNS // 2 + SIDE * BLOCK_COLUMNS // format.group)
    b = _dense(torch.uint8, shape, f"{format.name}_folded{'_powers' if exact else ''}")
    columns = (-(-k // BLOCK_COLUMNS),) if grouped else ()
    return {
        "a": matrix(draw, torch.float8_e4m3fn, m, k, "integers" if exact else "normal", tidy=draw.chance(0.9)),
        "b": _rows(format, n, k, exact) if may_widen and draw.chance(0.2) else b,
        "b_sf": _factors((n, *columns), exact),
        "a_sf": _factors((m, *(columns or (1,))), exact),
    }


def _plain_weights(format: Format, n: int, k: int, exact: bool) -> dict[str, Slot]:
    scales = _dense(torch.uint8, (n, format.scale_count(k)), _scale_values(format, exact))
    values = _row_values(format, exact) if format == MXFP8 else "bytes"
    return {"b": _dense(torch.uint8, (n, format.code_bytes(k)), values), "b_sf": scales}


def _codes(draw: Draw, format: Format, rows: int, k: int, exact: bool) -> tuple[Slot, Slot]:
    dtype, values = (
        (torch.float8_e4m3fn, "integers" if exact else "normal") if format.code.bits == 8 else (torch.uint8, "bytes")
    )
    codes = matrix(draw, dtype, rows, k * format.code.bits // 8, values, tidy=draw.chance(0.9))
    scales = _dense(torch.uint8, swizzled_shape(rows, k // format.group), _scale_values(format, exact))
    return codes, scales


class BlockScaledJudge:
    """The expected results of a call, by the reference on operands in dense memory of their own."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._memory, self._call = memory, call
        given: dict[str, Any] = {name: memory.dense(name, before) for name in call.slots}
        op = BY_NAME[call.op]
        values = [(given | dict(call.plain)).get(name) for name in op.arguments]
        judged = checks.check(op, of_arguments(op, values))
        a, b, alpha, bias = operands_of(judged, dict(zip(ROLES_OF[call.op], values, strict=True)))
        exact, dtype = exact_mm(a, b, alpha, bias), call.slots["out"].dtype
        if call.judged == EXACT:
            self._wanted = Wanted(rounded=rounded(exact, dtype))
        else:
            folds = PAIR_BY_OP.get(call.op) in FOLDED_PAIRS and judged["prepacked"]
            promoted_k = BLOCK_COLUMNS if judged.get("grouped") else None
            core = OF_E4M3 if folds else OF_16_BITS
            bound = any_order_tolerance(a, b, dtype, alpha, bias, core=core, promoted_k=promoted_k)
            self._wanted = Wanted(rounded=rounded(exact, dtype), exact=exact, bound=bound)

    def wrong(self) -> Tensor:
        """How many elements are wrong: a count on the device, for which nobody waits."""
        return self._wanted.apart(self._memory.dense("out")).sum()

    def report(self) -> str:
        """The fault in words; empty for a right result."""
        return self._wanted.compare(self._memory.dense("out")).report


_TAKES_NONE = "takes M, N, K = "
"""Words of a refusal where variants are there, and none takes the sizes and alignments."""


def is_lacking(call: LegalCall, text: str) -> bool:
    """Whether the build has no variant of the call's pair, or TMA takes no such operands. Blackwell has variants of TMA alone, of
    results and scales, too."""
    pair = PAIR_BY_OP.get(call.op) or next(p for p in WEIGHT_PAIRS if str(p.b_format) == call.plain["format"])
    serving = [entry.config for entry in variants(op=call.op) if _serves(entry.config, call, pair)]
    if all(config.arch is not Arch.SM90A for config in serving):
        return not serving or _TAKES_NONE in text
    a = [call.slots[name] for name in ("a", "b")]
    return any(not _is_aligned(x) for x in a if len(x.shape) == 2)


def _serves(config: AnyConfig, call: LegalCall, pair: Pair) -> bool:
    out = str(call.slots["out"].dtype).removeprefix("torch.")
    prepacked, grouped = call.plain.get("prepacked", False), False
    if pair in FOLDED_PAIRS:
        prepacked, grouped = len(call.slots["b"].shape) == 3, len(call.slots["b_base"].shape) == 2
        grouped = grouped and call.slots["b_base"].shape[1] > 1
    found = config.pair, config.out_dtype.torch_name, config.prepacked, config.grouped
    return found == (pair, out, prepacked, grouped)


def _is_aligned(x: Slot) -> bool:
    size, (rows, columns) = x.dtype.itemsize, x.shape
    apart = rows > 1 and (x.strides[0] < columns or x.strides[0] * size % TMA_BYTES)
    return not apart and x.shift * size % TMA_BYTES == 0
