"""The report on packing weights: their range, and the changes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.formats.quantise import BlockScaled
from gemmill.quantize.weights import QuantizedWeight


@dataclass(frozen=True, kw_only=True)
class PrepackReport:
    """The facts of a packed tensor, and the changes to it."""

    rows: int
    k: int
    spread: Tensor | None
    """Binary orders between the largest and the smallest scale that share a base, int32 [N, bases]; None where scales
    are not powers of two."""
    subnormal_bases: int
    """Bases on which scales are exact, but only with subnormal numbers of the operand."""
    requantised_rows: int
    """Rows whose smallest scales were clamped."""
    changed: int
    """How many weights have a new value."""
    added_error: float
    """Sum of the squared changes over the sum of the squared weights."""
    largest_change: float
    """The largest change of a weight, relative to the largest weight of its row."""

    @property
    def exact(self) -> bool:
        """Whether every weight has its old value."""
        return self.changed == 0

    @property
    def widest(self) -> tuple[int, int]:
        """The row whose scales spread furthest, and how far; (0, 0) where there is none."""
        if self.spread is None or self.spread.numel() == 0:
            return 0, 0
        of_row = self.spread.amax(dim=1)
        return int(of_row.argmax()), int(of_row.max())

    def __str__(self) -> str:
        row, spread = self.widest
        spreads = "" if self.spread is None else f"; scales spread over {spread} binary orders at most, in row {row}"
        if self.exact:
            return f"{self.rows} x {self.k} weights are packed exactly{spreads}"
        return (
            f"{self.changed} of {self.rows} x {self.k} weights changed, which adds a relative squared error of "
            f"{self.added_error:.2e} and moves none by more than {self.largest_change:.2e} of its row's largest{spreads}"
        )


@dataclass(kw_only=True)
class Tally:
    """Sums of changes, over chunks of rows."""

    requantised_rows: int = 0
    changed: int = 0
    squared: float = 0.0
    squared_change: float = 0.0
    largest_change: float = 0.0

    def add(self, before: Tensor, after: Tensor) -> None:
        """Count some rows, float64 [rows, K], before and after."""
        if before.numel() == 0:
            return
        change = (after - before).abs()
        self.changed += int((change > 0).sum())
        self.squared += float(before.square().sum())
        self.squared_change += float(change.square().sum())
        relative = change.amax(dim=1) / before.abs().amax(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
        self.largest_change = max(self.largest_change, float(relative.max()))

    def report(
        self,
        weights: BlockScaled | QuantizedWeight,
        *,
        spread: Tensor | None = None,
        subnormal: Tensor | None = None,
    ) -> PrepackReport:
        """The report on all the rows counted."""
        return PrepackReport(
            rows=weights.codes.shape[0],
            k=weights.k,
            spread=spread,
            subnormal_bases=0 if subnormal is None else int(subnormal.sum()),
            requantised_rows=self.requantised_rows,
            changed=self.changed,
            added_error=self.squared_change / self.squared if self.squared else 0.0,
            largest_change=self.largest_change,
        )
