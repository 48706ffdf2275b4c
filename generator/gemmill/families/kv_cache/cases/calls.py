"""Calls of the compressed cache's ops by their sizes and options. Outputs hold poison before a call; the reference
checks them after it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from gemmill.families.kv_cache.cases.latent_calls import LatentCase, of_latent_config
from gemmill.families.kv_cache.cases.made import POISON, SEED, MadeCall, normal, stored
from gemmill.families.kv_cache.cases.packed_calls import (
    MANY,
    AttendCase,
    PackCase,
    ScoresCase,
    UnpackCase,
    cache_format_of,
    common_of,
    is_common,
    of_packed_config,
)
from gemmill.families.kv_cache.config import (
    FORMATS,
    MANY_ROWS,
    OF_ANY_FORMAT,
    OF_PAGES,
    KernelKind,
    KvCacheConfig,
    Slots,
    format_of,
)
from gemmill.families.kv_cache.formats import PAGE_SIZES, CacheSpec, Method
from gemmill.families.kv_cache.ops import COMPRESS, DECODE, DECOMPRESS, HADAMARD
from gemmill.families.kv_cache.packed_ops import MOST_SLOT_ROWS
from gemmill.families.kv_cache.reference.cache import NO_SLOT, write
from gemmill.families.kv_cache.selections import smoke
from gemmill.vocab import Arch, DType


@dataclass(frozen=True, kw_only=True)
class HadamardCase(MadeCall):
    """A call that transforms rows."""

    rows: int
    columns: int
    dtype: DType = DType.BF16
    padding: int = 0
    """Elements between rows."""
    schema = HADAMARD

    def arguments(self, device: torch.device | str) -> list[Any]:
        """Arguments of normally distributed data, in the order of the op's schema."""
        x = normal((self.rows, self.columns + self.padding), self.dtype, device)[:, : self.columns]
        out = torch.full((self.rows, self.columns + self.padding), torch.nan, device=device, dtype=torch.float32).to(
            x.dtype
        )
        return [out[:, : self.columns], x, self.columns**-0.5]


class OfPages(MadeCall):
    """A call whose cache has pages of heads."""

    format: str
    head_dim: int
    value_dim: int
    kv_heads: int
    page: int

    @property
    def spec(self) -> CacheSpec:
        """The spec of the cache."""
        return CacheSpec(
            format=format_of(*FORMATS[self.format]),
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            kv_heads=self.kv_heads,
            page_size=self.page,
            seed=SEED,
        )


@dataclass(frozen=True, kw_only=True)
class CompressCase(OfPages):
    """A call that stores keys and values of tokens."""

    tokens: int
    format: str
    dtype: DType = DType.BF16
    head_dim: int = 128
    value_dim: int = 0
    """Elements of a value; 0: as many as a key has."""
    kv_heads: int = 8
    page: int = 64
    padding: int = 0
    """Elements between the vectors of two tokens."""
    is_odd: bool = False
    """Whether some vectors are zero or have no finite norm, and some slots are none of the cache's."""
    rotated_keys: bool = False
    """Whether keys come rotated."""
    rotated_values: bool = False
    is_apart: bool = False
    """Whether keys and values are in memory of their own. Else they are neighbours, as a layer's matrix product has
    them.
    """
    schema = COMPRESS

    def arguments(self, device: torch.device | str) -> list[Any]:
        """Arguments of normally distributed data, with slots in any order."""
        return [*self.told(device), self.format, SEED, self.rotated_keys, self.rotated_values]

    def told(self, device: torch.device | str) -> list[Any]:
        """The tensor arguments: cache, keys, values and slot mapping."""
        elements = [vectors.head_dim for vectors in (self.spec.keys, self.spec.values)]
        widths = [self.kv_heads * each for each in elements]
        both = normal((self.tokens, sum(widths) + self.padding), self.dtype, device)
        keys, values = (
            side.unflatten(1, (self.kv_heads, each))
            for side, each in zip(both[:, : sum(widths)].split(widths, 1), elements, strict=True)
        )
        pages = -(-self.tokens // self.page) + 1
        cache = empty_cache(self.spec, pages, device)
        if self.is_apart or str(device) == "meta":  # where offsets alone distinguish tensors
            keys, values = (torch.empty(x.shape, dtype=x.dtype, device=device).copy_(x) for x in (keys, values))
        if str(device) == "meta":
            return [cache, keys, values, torch.empty(self.tokens, dtype=torch.int64, device=device)]
        order = torch.randperm(
            pages * self.page, generator=torch.Generator().manual_seed(self.tokens), dtype=torch.int64, device="cpu"
        )
        slots = order[: self.tokens].to(device)
        if self.is_odd:
            slots[::5], slots[1::7] = -1, pages * self.page
            keys[2::9], values[3::11] = 0.0, torch.nan
            keys[4::13, :, 5] = torch.inf
        return [cache, keys, values, slots]


@dataclass(frozen=True, kw_only=True)
class DecompressCase(CompressCase):
    """A call that restores keys and values of slots."""

    schema = DECOMPRESS

    def arguments(self, device: torch.device | str) -> list[Any]:
        """Arguments of normally distributed data, with slots in any order. Outputs have `padding` elements behind each
        vector."""
        cache, keys, values, slots = self.told(device)
        out = []
        for like in (keys, values):
            shape = (self.tokens, self.kv_heads, like.shape[-1] + self.padding)
            wide = torch.full(shape, torch.nan, device=device, dtype=torch.float32).to(like.dtype)
            out.append(wide[..., : like.shape[-1]])
        if str(device) != "meta":
            exists = (slots >= 0) & (slots < cache.shape[0] * self.page)
            write(cache, self.spec, keys, values, torch.where(exists, slots, NO_SLOT), torch.float32)
        return [*out, cache, slots, self.format, SEED]


@dataclass(frozen=True, kw_only=True)
class DecodeCase(OfPages):
    """A call whose queries attend over a cache."""

    lengths: Sequence[int]
    """Tokens of each sequence."""
    rows: int = 1
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    value_dim: int = 0
    """Elements of a value; 0: as many as a key has."""
    page: int = 64
    dtype: DType = DType.BF16
    format: str = "k_eden4_v_eden4"
    causal: bool = True
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    is_rotated: bool = False
    """Whether queries come rotated."""
    stays_rotated: bool = False
    """Whether the output stays rotated."""
    schema = DECODE

    @property
    def seed(self) -> int:
        """The seed of the call: -1 where queries come rotated."""
        return -1 if self.is_rotated else SEED

    def arguments(self, device: torch.device | str) -> list[Any]:
        """Arguments of normally distributed data, in pages of any order.

        Bytes without a token are NaN, and the table names no page beyond a sequence.
        """
        batch, widest = len(self.lengths), max([1, *(-(-length // self.page) for length in self.lengths)])
        q = normal((batch, self.rows, self.heads + 1, self.head_dim), self.dtype, device)[:, :, : self.heads]
        shape = (*q.shape[:3], self.spec.values.head_dim)
        out = torch.full(shape, torch.nan, device=device, dtype=torch.float32).to(q.dtype)
        lse = torch.full((batch, self.heads, self.rows), torch.nan, device=device, dtype=torch.float32)
        sinks = normal((1, self.heads), DType.F32, device)[0] if self.has_sinks else None
        cache = empty_cache(self.spec, batch * widest, device).fill_(0xFF)
        table = torch.empty((batch, widest), dtype=torch.int32, device=device)
        lengths = torch.empty(batch, dtype=torch.int32, device=device)
        if str(device) != "meta":
            lengths.copy_(torch.tensor(self.lengths, dtype=torch.int64, device="cpu"))
            table.copy_(self._fill(cache, batch, widest))
        options = [self.format, self.head_dim**-0.5, self.seed, self.causal, self.window, sinks, lse, self.softcap]
        options.append(self.stays_rotated)
        return [out, q, cache, table, lengths, *options]

    def _fill(self, cache: Tensor, batch: int, widest: int) -> Tensor:
        """Store tokens of normally distributed keys and values. Return the page table."""
        random = torch.Generator().manual_seed(sum(self.lengths))
        table = torch.randperm(batch * widest, generator=random, dtype=torch.int64, device="cpu").reshape(batch, widest)
        vector = self.kv_heads, self.head_dim
        for slots, (keys, values) in stored(self.lengths, table, self.page, (2,), vector, cache.device):
            values = values[..., : self.spec.values.head_dim]
            write(cache, self.spec, keys, values, slots.to(cache.device), torch.float32)
        for row, length in enumerate(self.lengths):
            table[row, -(-length // self.page) :] = 10**6
        return table


def empty_cache(spec: CacheSpec, pages: int, device: torch.device | str) -> Tensor:
    """A poisoned cache as ops take it: u8 [pages, KV heads, page, bytes of a key and a value]."""
    size = sum(vectors.format.size(vectors.head_dim) for vectors in (spec.keys, spec.values))
    return torch.full((pages, spec.kv_heads, spec.page_size, size), POISON, dtype=torch.uint8, device=device)


def of_config(config: KvCacheConfig) -> Iterator[MadeCall]:
    """Calls of the op that a config serves: below, at and across the kernels' own limits.

    Where a config differs from its compiled one in launch settings alone, only calls with several slices remain.
    """
    if config == config.compiled:
        yield from _of_compiled(config)
        return
    for case in _of_compiled(config.compiled):
        if isinstance(case, DecodeCase | AttendCase | LatentCase) and max(case.lengths, default=0) >= _SLICED:
            yield case


_SLICED = 300
"""Tokens from which a sequence is dealt out in several slices."""


def _of_compiled(config: KvCacheConfig) -> Iterator[MadeCall]:
    x, common = config.operands, common_of(config)
    if config.kind in OF_PAGES:
        common["value_dim"] = x.value_dim
    if config.kind in OF_ANY_FORMAT:
        yield from of_packed_config(config)
    match config.kind:
        case KernelKind.HADAMARD:
            for rows, padding in ((1, 0), (7, 8), (64, 3), (65, 0), (1027, 1), (0, 0), (70_000, 16)):
                yield HadamardCase(rows=rows, columns=x.head_dim, dtype=x.dtype, padding=padding)
        case KernelKind.COMPRESS | KernelKind.DECOMPRESS:
            kind_of_case = CompressCase if config.kind is KernelKind.COMPRESS else DecompressCase
            for tokens, heads, page, padding, method in (
                (1, 1, 16, 0, Method.EDEN),
                (9, 3, 32, 8, Method.EDEN),
                (67, 8, 128, 3, Method.TURBOQUANT_MSE),
                (1000, 17, 64, 0, Method.EDEN),
                (0, 2, 64, 0, Method.EDEN),
            ):
                yield kind_of_case(
                    tokens=tokens,
                    format=format_of(method, x.key_bits, x.value_bits).name,
                    kv_heads=heads,
                    page=page,
                    padding=padding,
                    is_odd=tokens > 16,
                    **common,
                )
            if config.kind is KernelKind.COMPRESS:
                for rotated_keys, rotated_values in ((True, True), (False, True)):
                    yield CompressCase(
                        tokens=35,
                        format=_eden(config),
                        kv_heads=3,
                        page=32,
                        is_odd=True,
                        rotated_keys=rotated_keys,
                        rotated_values=rotated_values,
                        **common,
                    )
        case KernelKind.LATENT:
            yield from of_latent_config(config)
        case KernelKind.DECODE:
            common["format"] = _eden(config)
            for page, sizes in zip(cycle(PAGE_SIZES), _attended()):
                yield DecodeCase(page=page, **common, **sizes)
            if config.tile_rows == MANY_ROWS:
                yield DecodeCase(page=128, lengths=(700, 300), rows=200, heads=4, kv_heads=2, has_sinks=True, **common)
                yield DecodeCase(page=16, lengths=(640, 90), rows=300, heads=3, kv_heads=1, window=200, **common)
            elif is_common(config) and not config.tile_rows:
                yield DecodeCase(**common, **MANY)


def _eden(config: KvCacheConfig) -> str:
    return format_of(Method.EDEN, config.operands.key_bits, config.operands.value_bits).name


def _attended() -> Iterator[dict[str, Any]]:
    yield {"lengths": (37,), "heads": 4, "kv_heads": 1}
    yield {"lengths": (70, 0, 1), "heads": 8, "kv_heads": 2}
    yield {"lengths": (1000, 0, 1, 129), "heads": 8, "kv_heads": 2}
    yield {"lengths": (300, 2), "rows": 4, "heads": 8, "kv_heads": 2, "has_sinks": True, "softcap": 1.5}
    yield {"lengths": (300, 129, 2), "rows": 5, "heads": 6, "kv_heads": 1, "window": 40}
    yield {"lengths": (3, 200), "rows": 3, "heads": 20, "kv_heads": 1, "window": 40, "causal": False}
    yield {"lengths": (64, 500), "rows": 8, "heads": 2, "kv_heads": 2, "is_rotated": True}
    yield {"lengths": (2100,), "heads": 2, "kv_heads": 1}
    yield {"lengths": (333, 64), "rows": 2, "heads": 16, "kv_heads": 1, "stays_rotated": True}
    yield {"lengths": (400,), "rows": 1, "heads": 5, "kv_heads": 5, "softcap": 30.0}
    yield {"lengths": (), "heads": 2, "kv_heads": 1}


def sized(config: KvCacheConfig, sizes: Mapping[str, int]) -> MadeCall:
    """A call with `sizes["m"]` rows, tokens or query rows, and all else small. Where `sizes["sequences"]` is given, an attention has
    one query row of each of so many sequences."""
    count, x = sizes["m"], config.operands
    lengths: tuple[int, ...] = (70,)
    if config.attends and "sequences" in sizes:
        count, lengths = 1, tuple(1 + 97 * i % 640 for i in range(sizes["sequences"]))
    if config.kind is KernelKind.HADAMARD:
        return HadamardCase(rows=count, columns=x.head_dim, dtype=x.dtype)
    if config.kind in OF_ANY_FORMAT:
        return _sized_packed(config, count, lengths)
    if config.kind is KernelKind.LATENT:
        return LatentCase(lengths=lengths, rows=count, heads=2, dtype=x.dtype, rotary=x.rotary)
    common = common_of(config) | {"format": _eden(config), "value_dim": x.value_dim}
    if config.kind is KernelKind.COMPRESS:
        return CompressCase(tokens=count, **common, kv_heads=2, is_apart=True)
    if config.kind is KernelKind.DECOMPRESS:
        return DecompressCase(tokens=count, **common, kv_heads=2)
    return DecodeCase(rows=count, **common, lengths=lengths, heads=2, kv_heads=1)


def _sized_packed(config: KvCacheConfig, count: int, lengths: tuple[int, ...]) -> MadeCall:
    common = common_of(config)
    match config.kind:
        case KernelKind.PACK:
            return PackCase(tokens=count, format="eden4", heads=2, **common)
        case KernelKind.UNPACK:
            return UnpackCase(tokens=count, format="eden4", heads=2, **common)
        case KernelKind.SCORES:
            return ScoresCase(length=70, rows=count, heads=2, kv_heads=1, **common)
        case _:
            if config.operands.slots is not Slots.ANY:
                common["format"] = cache_format_of(config.operands.slots)
                count = min(count, MOST_SLOT_ROWS // 2)  # of two heads each
            return AttendCase(lengths=lengths, rows=count, heads=2, kv_heads=1, **common)


def once() -> Iterator[tuple[str, MadeCall]]:
    """Each op's name, with one call of it."""
    for config in smoke(Arch.SM90A):
        cases = list(of_config(config))[1:]
        where = "" if config.operands.slots is Slots.ANY else " in slots"
        yield from {f"{case.schema.name}{where}": case for case in reversed(cases)}.items()
