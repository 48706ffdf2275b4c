"""The common part of all calls by their sizes."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from gemmill.families.kv_cache.cases.judging import parts, report, worst_part
from gemmill.numerics.cases import CaseOutcome
from gemmill.runtime.schemas import NAMESPACE, OpSchema
from gemmill.vocab import DType

SEED = 3
POISON = 0xA5


class MadeCall(ABC):
    """A call with a schema, and with arguments on a device."""

    @property
    @abstractmethod
    def schema(self) -> OpSchema:
        """The op's schema."""

    @property
    def op(self) -> str:
        """The op's name."""
        return self.schema.name

    @abstractmethod
    def arguments(self, device: torch.device | str) -> list[Any]:
        """Arguments in the order of the op's schema, outputs poisoned. On the meta device there is no data."""

    def run(self, device: str) -> CaseOutcome:
        """Make the call, and hold it against the reference on the same device."""
        after = dict(zip(self.schema.arguments, self.arguments(device), strict=True))
        before = {name: copied(value) if isinstance(value, Tensor) else value for name, value in after.items()}
        getattr(getattr(torch.ops, NAMESPACE), self.schema.name).default(*after.values())
        found = parts(self.schema.name, before, after)
        return CaseOutcome(report=report(found), worst_fraction=max(map(worst_part, found.values()), default=0.0))


def normal(shape: tuple[int, ...], dtype: DType, device: torch.device | str, seed: int = 0) -> Tensor:
    """Normally distributed values. The same seed and sizes give the same values."""
    as_torch: torch.dtype = getattr(torch, dtype.torch_name)
    if str(device) == "meta":
        return torch.empty(shape, dtype=as_torch, device=device)
    random = torch.Generator(device).manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=random, device=device, dtype=torch.float32).to(as_torch)


def copied(value: Tensor) -> Tensor:
    """A copy of a value, with the strides and padding of a tensor."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
