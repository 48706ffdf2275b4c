"""A result compared with its reference: whether it is right and, if not, its first and its worst wrong element."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A result compared with its reference."""

    ok: bool
    wrong: int
    """The number of elements beyond the tolerance, or NaN or infinite where the reference is not (or the reverse)."""
    elements: int
    worst_fraction: float
    """Largest finite error as a fraction of its tolerance; 0 where the tolerance is zero and nothing is wrong."""
    report: str
    """One sentence; empty if all is right."""
    unwritten: bool = False
    """Whether NaN is where the reference has none: most often the kernel never wrote these elements."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The demand on a result: `rounded` to the last bit, +0 equal to -0.

    Where there is a bound, |result - exact| <= bound where `rounded` is finite. NaN and infinities are where
    `rounded` has them.
    """

    rounded: Tensor
    """The reference of the result's type."""
    exact: Tensor | None = None
    bound: Tensor | None = None

    def apart(self, actual: Tensor) -> Tensor:
        """The mask of wrong elements. It waits for no device."""
        unequal = ~((actual == self.rounded) | (actual.isnan() & self.rounded.isnan()))
        if self.bound is None:
            return unequal
        return torch.where(self.rounded.isfinite(), ~(self._error(actual) <= self.bound), unequal)

    def compare(self, actual: Tensor) -> Comparison:
        """Hold a result against the demand."""
        wrong, worst = self.apart(actual), 0.0
        if self.bound is not None and wrong.numel():
            error = self._error(actual)
            fraction = torch.where(self.rounded.isfinite() & error.isfinite(), error / self.bound, 0.0).nan_to_num(0.0)
            worst = float(fraction.max())
        count = int(wrong.sum())
        return Comparison(
            ok=count == 0,
            wrong=count,
            elements=wrong.numel(),
            worst_fraction=worst,
            report=_report(actual, self.rounded, wrong, count) if count else "",
            unwritten=count > 0 and bool((actual.isnan() & ~self.rounded.isnan()).any()),
        )

    def _error(self, actual: Tensor) -> Tensor:
        assert self.exact is not None  # next to the bound
        return (actual.to(torch.float64) - self.exact).abs()


def _report(actual: Tensor, expected: Tensor, wrong: Tensor, count: int) -> str:
    places = wrong.nonzero()
    low, high = places.min(dim=0).values.tolist(), places.max(dim=0).values.tolist()
    distance = (actual.to(torch.float64) - expected.to(torch.float64)).abs().nan_to_num(torch.inf)
    worst = torch.where(wrong, distance, -1.0).argmax().item()
    row, column = divmod(worst, actual.shape[1])
    return (
        f"{count} of {wrong.numel()} elements are wrong, in rows {low[0]}..{high[0]} and columns {low[1]}..{high[1]}; "
        f"worst at [{row}, {column}]: {actual[row, column].item()!r}, expected {expected[row, column].item()!r}"
    )
