"""Random calls of the sparse GEMMs, and their expected results."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gemmill.families.sparse_mm.cases.calls import wanted_of
from gemmill.families.sparse_mm.config import OPERANDS
from gemmill.families.sparse_mm.ops import SPARSE_MM_AZP
from gemmill.family.operand import TMA_BYTES
from gemmill.formats.two_to_four import GROUP, kept_columns, meta_shape
from gemmill.gemm.config import RESULTS_OF
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.layouts import TIDY, matrix, one_value, torch_dtype, vector
from gemmill.numerics.memory import Memory, Slot
from gemmill.runtime.ops import supports
from gemmill.vocab import DType

_MOST_JUDGED_K = 512
"""The largest K that random operands have. Beyond it they are small integers, whose sums are exact.

A bound would follow a long K step by step.
"""


def drawn(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A random call of one of the ops."""
    with_azp = op == SPARSE_MM_AZP.name
    operand = DType.S8 if with_azp else draw.one_of(OPERANDS)
    dtype, out_dtype = (torch_dtype(t) for t in (operand, draw.one_of(RESULTS_OF[operand])))
    tidy = draw.chance(TIDY)
    m, n, k = _sizes(draw, limits, tidy)
    exact = k > _MOST_JUDGED_K or draw.chance(0.6)
    data = "integers" if exact else "codes" if operand is DType.S8 else draw.one_of(("normal", "wide"))
    scales = "powers" if exact else "scales"
    kept = draw.one_of((k // 2, kept_columns(k, dtype.itemsize)))
    meta_rows, meta_columns = meta_shape(n, k)
    slots = {
        "out": matrix(draw, out_dtype, m, n, None, written=True, tidy=tidy),
        "a": matrix(draw, dtype, m, k, data, tidy=tidy),
        "bt_nzs": matrix(draw, dtype, n, kept, data, tidy=tidy),
        "bt_meta": _dense(draw, meta_rows, meta_columns, tidy),
        "a_scales": _scales(draw, m, scales),
        "b_scales": _scales(draw, n, scales),
    }
    if with_azp:
        slots["azp_adj"] = vector(draw, torch.int32, n, "sums", ((n,), (1, n)))
        if draw.chance(0.5):
            slots["azp"] = vector(draw, torch.int32, m, "codes", ((m,), (m, 1)))
    if draw.chance(0.5):
        slots["bias"] = vector(draw, out_dtype, n, "integers" if exact else "normal", ((n,), (1, n)))
    return LegalCall(
        op=op,
        slots=slots,
        plain={},
        offsets={name: draw.below(1 << 30) for name in slots},
        judged=EXACT if exact or operand is DType.S8 else WITHIN,
    )


def _sizes(draw: Draw, limits: Limits, tidy: bool) -> tuple[int, int, int]:
    m, n, k = draw.size(1024), draw.size(1024), GROUP * draw.size(512)
    if tidy:
        n, k = 8 * -(-n // 8), 32 * -(-k // 32)
    while max(m * n, m * k, n * k) > limits.elements or m * n * k > limits.products:
        largest = max(m, n, k)
        m, n, k = (size // 2 // 32 * 32 if size == largest else size for size in (m, n, k))
    return m, n, k


def _dense(draw: Draw, rows: int, columns: int, tidy: bool) -> Slot:
    drawn_like = matrix(draw, torch.uint8, rows, columns, "two_to_four", tidy=tidy, packed=True)
    return drawn_like if draw.chance(0.3) else replace(drawn_like, shift=0)


def _scales(draw: Draw, count: int, values: str) -> Slot:
    if draw.chance(0.3):
        return one_value(draw, torch.float32, values)
    return vector(draw, torch.float32, count, values, ((count,), (count, 1), (1, count)))


class SparseJudge:
    """The judge of one random call, by the reference's result for operands in dense memory of their own."""

    def __init__(self, call: LegalCall, memory: Memory, before: Tensor) -> None:
        self._memory = memory
        given: dict[str, Any] = {name: memory.dense(name, before) for name in call.slots if name != "out"}
        self._wanted = wanted_of(given, call.slots["out"].dtype, exactly=call.judged == EXACT, promoted=False)

    def wrong(self) -> Tensor:
        """How many elements are wrong: a tensor on the device, which nothing waits for."""
        return self._wanted.apart(self._memory.dense("out")).sum()

    def report(self) -> str:
        """The fault in words; empty for right results."""
        return self._wanted.compare(self._memory.dense("out")).report


def is_lacking(call: LegalCall, _text: str) -> bool:
    """Whether the build has no variant of these types, or TMA takes no such operands."""
    dtype, out_dtype = (call.slots[name].dtype for name in ("a", "out"))
    if not supports(call.op, dtype=dtype, out_dtype=out_dtype) or call.slots["a"].columns == 0:
        return True
    return any(not _is_aligned(call.slots[role]) for role in ("a", "bt_nzs", "bt_meta", "out"))


def _is_aligned(x: Slot) -> bool:
    size = x.dtype.itemsize
    apart = x.rows > 1 and (x.row_stride < x.columns or x.row_stride * size % TMA_BYTES)
    return not apart and (x.shift * size) % TMA_BYTES == 0 and not (x.written and x.columns * size % TMA_BYTES)
