"""Whether a result is right and, if not, where it is wrong first and worst."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A result held against its reference."""

    ok: bool
    wrong: int
    """Elements beyond the tolerance, or NaN or infinite where the reference is not (or the reverse)."""
    elements: int
    worst_fraction: float
    """Largest finite error as a fraction of its tolerance; 0 where the tolerance is zero and nothing is wrong."""
    report: str
    """One sentence; empty if all is right."""
    unwritten: bool = False
    """Whether NaN is where the reference has none: most often elements that were never written."""


def compare_exact(actual: Tensor, expected: Tensor) -> Comparison:
    """Equal to the last bit, with NaN in the same places; +0 equals -0."""
    return _comparison(actual, expected, apart_exact(actual, expected), torch.zeros_like(expected, dtype=torch.float64))


def apart_exact(actual: Tensor, expected: Tensor) -> Tensor:
    """Where compare_exact finds an element wrong; waits for no device."""
    return ~((actual == expected) | (actual.isnan() & expected.isnan()))


def compare_within(actual: Tensor, rounded: Tensor, exact: Tensor, bound: Tensor) -> Comparison:
    """|actual - exact| <= bound where `rounded`, the reference of actual's type, is finite; NaN and infinities as there."""
    error = (actual.to(torch.float64) - exact).abs()
    fraction = torch.where(rounded.isfinite() & error.isfinite(), error / bound, 0.0).nan_to_num(0.0)
    return _comparison(actual, rounded, apart_within(actual, rounded, exact, bound), fraction)


def apart_within(actual: Tensor, rounded: Tensor, exact: Tensor, bound: Tensor) -> Tensor:
    """Where compare_within finds an element wrong; waits for no device."""
    error = (actual.to(torch.float64) - exact).abs()
    return torch.where(rounded.isfinite(), ~(error <= bound), apart_exact(actual, rounded))


def _comparison(actual: Tensor, expected: Tensor, wrong: Tensor, fraction: Tensor) -> Comparison:
    count = int(wrong.sum())
    worst = float(fraction.max()) if fraction.numel() else 0.0
    report = _report(actual, expected, wrong, count) if count else ""
    unwritten = count > 0 and bool((actual.isnan() & ~expected.isnan()).any())
    return Comparison(
        ok=count == 0, wrong=count, elements=wrong.numel(), worst_fraction=worst, report=report, unwritten=unwritten
    )


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
