"""RoutingConfig: one kernel of a router."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gemmill.family import OfOperands, WithoutSettings
from gemmill.vocab import Arch, DType

HALVES = (DType.BF16, DType.F16)
"""Types of activations, weights and logits."""
MOST_EXPERTS, MOST_TOPK = 512, 32
"""Experts whose logits a CTA has room for; the largest of them that a warp keeps, one a lane."""
MULTIPLE = 8
"""Elements along K that a lane reads at once."""


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands, and the type of logits."""

    dtype: DType
    """Type of x, the weights and the logits."""
    group_size: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.dtype not in HALVES:
            raise ValueError(f"dtype={self.dtype}: routers multiply {' or '.join(HALVES)}")

    @property
    def out_dtype(self) -> DType:
        """Type of logits."""
        return self.dtype


@dataclass(frozen=True, kw_only=True)
class RoutingConfig(OfOperands, WithoutSettings):
    """One variant, for every number of experts."""

    operands: Operands
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "routing"

    @property
    def dtype(self) -> DType:
        """Type of x, the weights and the logits."""
        return self.operands.dtype


def _clusters(c: RoutingConfig) -> Iterator[str]:
    """Eight CTAs exchange logits through one another's shared memory; no other architecture has run it."""
    if c.arch is not Arch.SM90A:
        yield f"routers are written for sm90a, not for {c.arch}"


RULES = (_clusters,)
