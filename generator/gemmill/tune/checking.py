"""A time is worth nothing if the result is wrong: corners of each contender's result are held against the reference."""

import torch
from torch import Tensor

from gemmill.reference import Comparison, compare_exact, compare_within, exact_scaled_mm, scaled_mm, tolerance
from gemmill.tune.operands import Operands
from gemmill.vocab import Accumulation

CORNER_ROWS, CORNER_COLUMNS = 8, 32


class CornerCheck:
    """The reference of the first and last rows and columns of one problem with its first weights, made once."""

    def __init__(self, operands: Operands, scales_per_tensor: bool) -> None:
        x, b = operands, operands.weights[0]
        self._rows = _ends(x.problem.m, CORNER_ROWS, b.device)
        self._columns = _ends(x.problem.n, CORNER_COLUMNS, b.device)
        a, b = _take(x.a, self._rows), _take(b.t(), self._columns).t()
        a_scales, b_scales = (
            (x.a_scale, x.b_scale) if scales_per_tensor else (x.a_scales[self._rows], _of_columns(x, self._columns))
        )
        azp = None if x.azp is None else x.azp[self._rows]
        azp_adj = None if x.azp_adj[0] is None else x.azp_adj[0][self._columns]
        self._rounded = scaled_mm(a, b, a_scales, b_scales, x.out.dtype, azp_adj=azp_adj, azp=azp)
        self._bound = None
        if a.dtype is not torch.int8:
            self._exact = exact_scaled_mm(a, b, a_scales, b_scales)
            self._bound = tolerance(a, b, a_scales, b_scales, x.out.dtype, Accumulation.FAST)

    def compare(self, result: Tensor) -> Comparison:
        """Hold a whole result against the reference's corners."""
        corners = result[self._rows][:, self._columns]
        if self._bound is None:
            return compare_exact(corners, self._rounded)
        return compare_within(corners, self._rounded, self._exact, self._bound)


def _of_columns(x: Operands, columns: Tensor) -> Tensor:
    """B's scales of some columns; of blocks, repeated for each column, which are then rows."""
    groups = x.problem.op.groups
    return x.b_scales[:, columns if groups is None else columns // groups.size]


def _ends(size: int, count: int, device: torch.device) -> Tensor:
    if size <= 2 * count:
        return torch.arange(size, device=device)
    return torch.cat([torch.arange(count, device=device), torch.arange(size - count, size, device=device)])


def _take(matrix: Tensor, rows: Tensor) -> Tensor:
    """matrix[rows]; as bytes, because not every torch can index FP8 tensors."""
    return matrix.view(torch.uint8)[rows].view(matrix.dtype)
