"""A result next to its expected value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Given = Mapping[str, Any]
"""Arguments by role."""


@dataclass(frozen=True)
class Held:
    """A result next to its expected value, in f64, and the allowed distance."""

    got: Tensor
    wanted: Tensor
    limit: Tensor
    lost: Tensor | None = None
    """Which elements must not be finite, since no number is right; None where there are none."""

    @property
    def part(self) -> Tensor:
        """The error of each element as a part of the allowed one. Equal results have no error, nor does NaN for an
        expected NaN.

        A limit of NaN allows any.
        """
        same = (self.got == self.wanted) | (self.got.isnan() & self.wanted.isnan())
        error = (self.got.double() - self.wanted).abs() / self.limit.clamp_min(2.0**-1000)
        part = torch.where(same | (self.limit.isnan() & ~self.wanted.isnan()), 0.0, error)
        return part if self.lost is None else torch.where(self.lost, self._of_lost, part)

    @property
    def _of_lost(self) -> Tensor:
        return torch.where(self.got.isfinite(), torch.inf, 0.0)
