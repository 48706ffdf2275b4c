"""The common part of all calls by their sizes."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gemmill.families.kv_cache.cases.held import Held
from gemmill.families.kv_cache.cases.judging import held, parts_of, report, worst_part
from gemmill.numerics.cases import CaseOutcome
from gemmill.runtime.schemas import NAMESPACE, OpSchema
from gemmill.vocab import DType

SEED = 3
POISON = 0xA5
_TOKENS_AT_A_TIME = 8192


class Kept(NamedTuple):
    """A call whose variants, which differ in the settings of a launch, share its data and its reference."""

    after: dict[str, Any]
    before: dict[str, Any]
    results: dict[str, Held]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, one side."""
        of_results = (x for each in self.results.values() for x in (each.wanted, each.limit))
        return sum(x.nbytes for x in (*self.before.values(), *of_results) if isinstance(x, Tensor))


_KEPT: OrderedDict[tuple["MadeCall", str], Kept] = OrderedDict()
"""The latest calls with their expected results, by case and device."""
MOST_KEPT, _MOST_BYTES = 64, 2**23


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
        """Make the call, and compare it with the reference on the same device.

        A repeated call gets its poisoned arguments back, and the same expected values.
        """
        kept = _KEPT.pop((self, device), None)
        if kept is None:
            after = dict(zip(self.schema.arguments, self.arguments(device), strict=True))
            before = {name: copied(value) if isinstance(value, Tensor) else value for name, value in after.items()}
        else:
            after, before = kept.after, kept.before
            for name, value in before.items():
                if isinstance(value, Tensor):
                    after[name].copy_(value)
        self.make(after)
        results = held(self.schema.name, before, after) if kept is None else kept.results
        found = parts_of(results)
        now = {name: x for name, x in results.items() if isinstance(x, Held) and x.got is after.get(name)}
        if results and len(now) == len(results):
            kept = Kept(after, before, now)
            if kept.nbytes <= _MOST_BYTES:
                _KEPT[self, device] = kept
            while len(_KEPT) > MOST_KEPT:
                _KEPT.popitem(last=False)
        return CaseOutcome(report=report(found), worst_fraction=max(map(worst_part, found.values()), default=0.0))

    def make(self, arguments: dict[str, Any]) -> None:
        """Make the call by torch's dispatcher."""
        getattr(getattr(torch.ops, NAMESPACE), self.schema.name).default(*arguments.values())


def normal(shape: tuple[int, ...], dtype: DType, device: torch.device | str, seed: int = 0) -> Tensor:
    """Normally distributed values. The same seed and sizes give the same values."""
    as_torch: torch.dtype = getattr(torch, dtype.torch_name)
    if str(device) == "meta":
        return torch.empty(shape, dtype=as_torch, device=device)
    random = torch.Generator(device).manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=random, device=device, dtype=torch.float32).to(as_torch)


def stored(
    lengths: Sequence[int],
    table: Tensor,
    page: int,
    before: tuple[int, ...],
    after: tuple[int, ...],
    device: torch.device | str,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The slots, whole numbers [tokens] in CPU memory, and values f32 [*before, tokens, *after], normally distributed, of
    sequences: of many at a time, since compression of a few tokens takes as long. `table` has their pages, whole numbers
    [sequences, pages]."""
    first = 0
    while first < len(lengths):
        end, tokens = first + 1, lengths[first]
        while end < len(lengths) and tokens + lengths[end] <= _TOKENS_AT_A_TIME:
            tokens += lengths[end]
            end += 1
        rows = range(first, end)
        places = [torch.arange(lengths[row], dtype=torch.int64, device="cpu") for row in rows]
        slots = [table[row, at // page] * page + at % page for row, at in zip(rows, places, strict=True)]
        values = [normal((*before, lengths[row], *after), DType.F32, device, seed=row) for row in rows]
        yield torch.cat(slots), torch.cat(values, len(before))
        first = end


def copied(value: Tensor) -> Tensor:
    """A copy of a value, with the strides and padding of a tensor."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
