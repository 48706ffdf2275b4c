"""Values of operands, cut from pools filled once. A call takes a piece of one, which costs a copy and no
generator.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor

from gemmill.numerics.memory import Memory, bits_of

POOL_ELEMENTS = {"cpu": 65_521, "cuda": 4_194_301}
"""Sizes of pools, which are primes. Where an operand is larger than its pool, no two rows are alike."""
Maker = Callable[[int, Generator], Tensor]
EXTREMES = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 65504.0, 2.0**-24, 1e-30)


def _whole(least: int, end: int) -> Maker:
    return lambda count, g: torch.randint(least, end, (count,), generator=g, device=g.device, dtype=torch.int64)


def _uniform(width: float, least: float) -> Maker:
    return lambda count, g: torch.rand(count, generator=g, device=g.device, dtype=torch.float32) * width + least


def _powers(one: int, step: int) -> Maker:
    """Bytes of scales: a half, one, and two."""
    return lambda count, g: one + step * _whole(-1, 2)(count, g)


def _normal(count: int, g: Generator) -> Tensor:
    return torch.randn(count, generator=g, device=g.device, dtype=torch.float32)


def _wide(count: int, g: Generator) -> Tensor:
    exponents = _whole(-12, 9)(count, g)
    return _normal(count, g) * torch.exp2(exponents.float())


def _extreme(count: int, g: Generator) -> Tensor:
    values = _wide(count, g)
    which = _whole(0, 100 * len(EXTREMES))(count, g)
    for i, extreme in enumerate(EXTREMES):
        values[which == i] = extreme
    return values


_TWO_OF_FOUR = (4, 8, 9, 12, 13, 14)
"""Codes of the places of two values of four, two bits each."""


def _two_to_four(count: int, g: Generator) -> Tensor:
    """Bytes of the places of two groups."""
    legal = torch.tensor(_TWO_OF_FOUR, device=g.device, dtype=torch.int64)
    low, high = (legal[_whole(0, len(_TWO_OF_FOUR))(count, g)] for _ in range(2))
    return low + 16 * high


_LAST_SCALE = 150
"""The largest byte of a packed nvfp4 scale, 448. Kernels read larger bytes as infinity or NaN, and nothing packs them."""
_SPARSE_BYTES = tuple(
    low + 16 * high for high in _TWO_OF_FOUR for low in _TWO_OF_FOUR if low + 16 * high <= _LAST_SCALE
)


def _sparse_blocks(count: int, g: Generator) -> Tensor:
    """Bytes with the places of two groups, two codes, and a scale."""
    return torch.tensor(_SPARSE_BYTES, device=g.device, dtype=torch.int64)[_whole(0, len(_SPARSE_BYTES))(count, g)]


_MAKERS: dict[str, Maker] = {
    "integers": lambda count, g: _whole(-2, 3)(count, g).float(),
    "normal": _normal,
    "wide": _wide,
    "extreme": _extreme,
    "codes": _whole(-128, 128),
    "scales": _uniform(0.02, 0.005),
    "powers": lambda count, g: torch.exp2(_whole(-2, 1)(count, g).float()),
    "bounds": _uniform(2, 0.001),
    "places": lambda count, g: torch.arange(-8, count - 8, device=g.device, dtype=torch.int64),
    "ue8m0": _whole(0, 255),
    "ue4m3": _whole(0, 127),
    "sums": _whole(-(1 << 15), 1 << 15),
    "bytes": _whole(0, 256),
    "ue8m0_near_one": _whole(120, 134),
    "ue4m3_powers": _powers(56, 8),
    "ue8m0_powers": _powers(127, 1),
    "nvfp4_blocks": _whole(32, 151),
    "mxfp4_blocks": _whole(96, 129),
    "sparse_blocks": _sparse_blocks,
    "nvfp4_blocks_powers": _powers(80, 8),
    "mxfp4_blocks_powers": _powers(127, 1),
    "mxfp4_folded": lambda count, g: 8 * _whole(3, 15)(count, g),
    "nvfp4_folded": _whole(150, 200),
    "mxfp4_folded_powers": _powers(64, 8),
    "nvfp4_folded_powers": _powers(176, 8),
    "mxfp8_rows": _whole(120, 127),
    "mxfp8_rows_powers": _whole(125, 127),
    "two_to_four": _two_to_four,
}


class Pools:
    """Values of every kind and dtype on one device, by their bits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pools: dict[tuple[str, torch.dtype], Tensor] = {}

    def fill(self, memory: Memory, offsets: Mapping[str, int]) -> None:
        """Give every operand of a call its values, each from its offset in its pool on."""
        for name, slot in memory.slots.items():
            if slot.values is None or not slot.numel:
                continue
            if isinstance(slot.values, tuple):
                given = torch.tensor(slot.values, dtype=slot.dtype, device=self._device)
                memory.bits(name).copy_(bits_of(given).view(slot.rows, slot.columns))
            elif slot.is_overlapping:
                flat = memory.flat(name).view(slot.dtype).view(memory.bits(name).dtype)
                flat.copy_(self._piece(slot.values, slot.dtype, slot.span, offsets[name]))
            else:
                piece = self._piece(slot.values, slot.dtype, slot.numel, offsets[name])
                memory.bits(name).copy_(piece.view(slot.rows, slot.columns))

    def _piece(self, kind: str, dtype: torch.dtype, count: int, offset: int) -> Tensor:
        pool = self._pool(kind, dtype)
        start = offset % pool.numel()
        if start + count > pool.numel():
            pool = pool.repeat(-(-(start + count) // pool.numel()))
        return pool[start : start + count]

    def _pool(self, kind: str, dtype: torch.dtype) -> Tensor:
        key = (kind, dtype)
        if key not in self._pools:
            generator = torch.Generator(self._device).manual_seed(1)
            values = _MAKERS[kind](POOL_ELEMENTS[self._device.type], generator)
            if dtype is torch.float8_e4m3fn:
                values = values.clamp(-448, 448)  # else NaN
            self._pools[key] = bits_of(values.to(dtype))
        return self._pools[key]
