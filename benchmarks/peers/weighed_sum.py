"""The sum of each token's experts, weighed, by a Triton kernel: for peers whose own projects have one like it."""

import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 1024


@triton.jit
def _sum(parts, weights, out, hidden, TOP: tl.constexpr, COLUMNS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < hidden
    total = tl.zeros([COLUMNS], tl.float32)
    for i in tl.static_range(TOP):
        part = tl.load(parts + (token * TOP + i) * hidden + columns, mask=inside, other=0.0)
        total += tl.load(weights + token * TOP + i) * part.to(tl.float32)
    tl.store(out + token * hidden + columns, total.to(out.dtype.element_ty), mask=inside)


def weighed_sum(parts: Tensor, weights: Tensor, out: Tensor) -> None:
    """Of parts [tokens, top, hidden] by weights f32 [tokens, top] to out [tokens, hidden]."""
    tokens, top, hidden = parts.shape
    _sum[(tokens, triton.cdiv(hidden, COLUMNS))](parts, weights, out, hidden, TOP=top, COLUMNS=COLUMNS)
