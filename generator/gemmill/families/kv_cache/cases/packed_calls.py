"""Calls of the ops of packed vectors by their sizes and options. Outputs hold poison before a call; the reference
checks them after it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from gemmill.families.kv_cache.cases.made import POISON, SEED, MadeCall, normal, stored
from gemmill.families.kv_cache.config import COMMON_HEAD_DIM, COMPILED, KernelKind, KvCacheConfig, Slots
from gemmill.families.kv_cache.formats import RotationKind, VectorSpec
from gemmill.families.kv_cache.packed import (
    CACHE_FORMATS,
    KEY_FORMATS,
    POWERS_OF_TWO,
    SEEDED,
    VALUE_FORMATS,
    spec_of_place,
)
from gemmill.families.kv_cache.packed_ops import (
    ATTENTION,
    COMPRESS_KEYS,
    COMPRESS_VALUES,
    DECOMPRESS_KEYS,
    DECOMPRESS_VALUES,
    SCORES,
)
from gemmill.families.kv_cache.reference.vectors import compress, to_bytes
from gemmill.runtime.schemas import OpSchema
from gemmill.vocab import DType


def specs_of(format: str, head_dim: int) -> tuple[VectorSpec, VectorSpec]:
    """The specs of keys and of values of a cache's format."""
    key, value = divmod(CACHE_FORMATS.index(format), len(VALUE_FORMATS))
    return spec_of_place(key, False, head_dim, SEED), spec_of_place(value, True, head_dim, SEED)


def key_formats(head_dim: int) -> tuple[str, ...]:
    """The formats of keys with a head dim."""
    return tuple(
        name
        for place, name in enumerate(KEY_FORMATS)
        if head_dim in POWERS_OF_TWO or place < SEEDED or place == len(KEY_FORMATS) - 1
    )


def takes_rotated(of_values: bool, format: str) -> bool:
    """Whether a format takes vectors that come rotated: it must rotate, and have no signs."""
    place = list(VALUE_FORMATS if of_values else KEY_FORMATS).index(format)
    rotates = spec_of_place(place, of_values, COMMON_HEAD_DIM, SEED).rotation is not RotationKind.NONE
    return rotates and "prod" not in format


@dataclass(frozen=True, kw_only=True)
class PackCase(MadeCall):
    """A call that packs vectors."""

    tokens: int
    format: str
    of_values: bool = False
    dtype: DType = DType.BF16
    head_dim: int = 128
    heads: int = 8
    is_mapped: bool = False
    """Whether there is a slot mapping: slots are in any order, and some are none."""
    gap: int = 0
    """Bytes behind each packed vector: with them it begins at any byte."""
    is_odd: bool = False
    """Whether some vectors are zero or not finite."""
    is_rotated: bool = False
    """Whether vectors come rotated."""
    has_scales: bool = False
    """Whether each head has a scale."""

    @property
    def schema(self) -> OpSchema:
        """The schema of the op of its side."""
        return COMPRESS_VALUES if self.of_values else COMPRESS_KEYS

    @property
    def spec(self) -> VectorSpec:
        """The spec of the vectors."""
        place = list(VALUE_FORMATS if self.of_values else KEY_FORMATS).index(self.format)
        return spec_of_place(place, self.of_values, self.head_dim, SEED)

    def arguments(self, device: torch.device | str) -> list[Any]:
        """Arguments of normally distributed data, in the order of the op's schema."""
        return [*self.told(device), self.format, SEED, self.is_rotated, self.scales(device)]

    def scales(self, device: torch.device | str) -> Tensor | None:
        """The scales of heads, where they have some."""
        return scales_of(self.heads, device) if self.has_scales else None

    def told(self, device: torch.device | str) -> list[Any]:
        """The tensor arguments: packed vectors, plain vectors and slot mapping."""
        x = normal((self.tokens, self.heads, self.head_dim), self.dtype, device)
        size = self.spec.format.size(self.head_dim)
        slots = self.tokens + 3 if self.is_mapped else self.tokens
        memory = torch.full((slots, self.heads, size + self.gap), POISON, dtype=torch.uint8, device=device)
        if self.is_odd and str(device) != "meta":
            x[2::9], x[3::11, :, 1], x[4::13, :, 5] = 0.0, torch.nan, torch.inf
        mapping = None
        if self.is_mapped:
            order = torch.randperm(
                slots, generator=torch.Generator().manual_seed(self.tokens), dtype=torch.int64, device="cpu"
            )[: self.tokens]
            mapping = order.to(device)
            if str(device) != "meta":
                mapping[::5], mapping[1::7] = -1, slots
        return [memory[..., :size], x, mapping]


@dataclass(frozen=True, kw_only=True)
class UnpackCase(PackCase):
    """A call that restores packed vectors."""

    @property
    def schema(self) -> OpSchema:
        """The schema of the op of its side."""
        return DECOMPRESS_VALUES if self.of_values else DECOMPRESS_KEYS

    def arguments(self, device: torch.device | str) -> list[Any]:
        """Arguments of normally distributed data. Slots that no vector went to hold zeros."""
        packed, x, mapping = self.told(device)
        out = torch.full(
            (self.tokens, self.heads, self.head_dim + self.gap), torch.nan, device=device, dtype=torch.float32
        ).to(x.dtype)
        if str(device) != "meta":
            places = torch.arange(self.tokens, dtype=torch.int64, device="cpu") if mapping is None else mapping
            exists = (places >= 0) & (places < packed.shape[0])
            packed.zero_()
            packed[places[exists]] = to_bytes(compress(x[exists].float(), self.spec), self.spec)
        return [out[..., : self.head_dim], packed, mapping, self.format, SEED, self.scales(device)]


@dataclass(frozen=True, kw_only=True)
class ScoresCase(MadeCall):
    """A call that multiplies queries and packed keys."""

    length: int
    format: str = "eden4"
    batch: int = 1
    rows: int = 1
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: DType = DType.BF16
    has_scales: bool = False
    """Whether keys of each head have a scale."""
    schema = SCORES

    def arguments(self, device: torch.device | str) -> list[Any]:
        """Arguments of normally distributed data, in the order of the op's schema."""
        q = normal((self.batch, self.rows, self.heads + 1, self.head_dim), self.dtype, device)[:, :, : self.heads]
        spec = spec_of_place(list(KEY_FORMATS).index(self.format), False, self.head_dim, SEED)
        keys = packed_vectors((self.batch, self.length, self.kv_heads), spec, device)
        scores = torch.full(
            (self.batch, self.heads, self.rows, self.length), torch.nan, device=device, dtype=torch.float32
        )
        return [scores, q, keys, self.format, SEED, scales_of(self.kv_heads, device) if self.has_scales else None]


@dataclass(frozen=True, kw_only=True)
class AttendCase(MadeCall):
    """A call whose queries attend over packed keys and values."""

    lengths: Sequence[int]
    """Tokens of each sequence."""
    format: str = "k_eden4_v_eden4"
    rows: int = 1
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page: int = 64
    is_plain: bool = False
    """Whether each sequence has one page, and there is no table."""
    are_apart: bool = False
    """Whether keys and values have a tensor each, instead of slots in common."""
    gap: int = 0
    """Bytes behind each slot. An odd number of them keeps kernels of slots away."""
    dtype: DType = DType.BF16
    causal: bool = True
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    is_rotated: bool = False
    """Whether queries come rotated."""
    stays_rotated: bool = False
    """Whether the output stays rotated."""
    has_scales: bool = False
    """Whether keys and values of each head have a scale."""
    schema = ATTENTION

    @property
    def seed(self) -> int:
        """The seed of the call: -1 where queries come rotated."""
        return -1 if self.is_rotated else SEED

    def arguments(self, device: torch.device | str) -> list[Any]:
        """Arguments of normally distributed data. Keys and values of a page lie in slots, and bytes without a token are
        0xFF.
        """
        batch, is_meta = len(self.lengths), str(device) == "meta"
        longest = max([1, *self.lengths])
        page, widest = (longest + 5, 1) if self.is_plain else (self.page, -(-longest // self.page))
        q = normal((batch, self.rows, self.heads + 1, self.head_dim), self.dtype, device)[:, :, : self.heads]
        out = torch.full(q.shape, torch.nan, device=device, dtype=torch.float32).to(q.dtype)
        lse = torch.full((batch, self.heads, self.rows), torch.nan, device=device, dtype=torch.float32)
        sinks = normal((1, self.heads), DType.F32, device)[0] if self.has_sinks else None
        specs = specs_of(self.format, self.head_dim)
        key, value = (spec.format.size(self.head_dim) for spec in specs)
        size = key + value + self.gap
        cache = torch.full((batch * widest, page, self.kv_heads, size), 0xFF, dtype=torch.uint8, device=device)
        random = torch.Generator().manual_seed(sum(self.lengths))
        table = (
            torch.arange(batch * widest, dtype=torch.int64, device="cpu")
            if self.is_plain
            else torch.randperm(batch * widest, generator=random, dtype=torch.int64, device="cpu")
        )
        table = table.reshape(batch, widest)
        if not is_meta:
            self._fill(cache, table, page, specs)
            for row, length in enumerate(self.lengths):
                table[row, -(-length // page) :] = 10**6
        given = None if self.is_plain else table.int().to(device)
        lengths = torch.tensor(self.lengths, dtype=torch.int32, device=device)
        options = [self.format, self.head_dim**-0.5, self.seed, self.causal, self.window, sinks, lse, self.softcap]
        options.append(self.stays_rotated)
        options += [scales_of(self.kv_heads, device, seed) if self.has_scales else None for seed in (1, 2)]
        keys, values = cache[..., :key], cache[..., key : key + value]
        if self.are_apart:
            keys, values = keys.contiguous(), values.contiguous()
        if is_meta:  # whose addresses are their offsets, and would meet others
            values = torch.empty_strided(values.shape, values.stride(), dtype=torch.uint8, device=device)
        return [out, q, keys, values, given, lengths, *options]

    def _fill(self, cache: Tensor, table: Tensor, page: int, specs: Sequence[VectorSpec]) -> None:
        key = specs[0].format.size(self.head_dim)
        vector = self.kv_heads, self.head_dim
        for slots, (keys, values) in stored(self.lengths, table, page, (2,), vector, cache.device):
            where = (slots // page).to(cache.device), (slots % page).to(cache.device)
            cache[(*where, slice(None), slice(None, key))] = to_bytes(compress(keys, specs[0]), specs[0])
            end = key + specs[1].format.size(self.head_dim)
            cache[(*where, slice(None), slice(key, end))] = to_bytes(compress(values, specs[1]), specs[1])


def scales_of(heads: int, device: torch.device | str, seed: int = 1) -> Tensor:
    """Scales f32 [heads] from an eighth to eight, no powers of two."""
    return torch.exp2(3 * torch.sin(normal((heads,), DType.F32, device, seed=seed) + 0.1))


def cache_format_of(slots: Slots) -> str:
    """The name by which `kv_attention` knows a compile-time format."""
    keys, values = slots.sides
    return f"k_{keys}_v_{values}"


def packed_vectors(shape: tuple[int, ...], spec: VectorSpec, device: torch.device | str) -> Tensor:
    """Packed vectors of normally distributed data, u8 [..., bytes]."""
    x = normal((*shape, spec.head_dim), DType.F32, device)
    if str(device) == "meta":
        return torch.empty((*shape, spec.format.size(spec.head_dim)), dtype=torch.uint8, device=device)
    return to_bytes(compress(x, spec), spec)


def common_of(config: KvCacheConfig) -> dict[str, Any]:
    """The fields that all of a config's cases have, but those of transforms."""
    return {"dtype": config.operands.dtype, "head_dim": config.operands.head_dim}


def of_packed_config(config: KvCacheConfig) -> Iterator[MadeCall]:
    """Calls of the ops that a config of packed vectors serves: every format of each side, below, at and across the
    kernels' limits."""
    x, common = config.operands, common_of(config)
    keys = key_formats(x.head_dim)
    match config.kind:
        case KernelKind.PACK | KernelKind.UNPACK:
            kind_of_case = PackCase if config.kind is KernelKind.PACK else UnpackCase
            sides = [(False, keys), (True, tuple(VALUE_FORMATS))]
            for of_values, formats in sides:
                for format, (tokens, heads, gap) in zip(
                    formats, cycle(((1, 1, 0), (67, 3, 5), (300, 8, 66))), strict=False
                ):
                    case: dict[str, Any] = {"tokens": tokens, "heads": heads, "gap": gap, "is_mapped": tokens == 67}
                    yield kind_of_case(format=format, of_values=of_values, is_odd=tokens > 1, **case, **common)
                yield kind_of_case(format="e4m3", of_values=of_values, tokens=67, heads=3, has_scales=True, **common)
            if config.kind is KernelKind.PACK:
                for of_values, formats in sides:
                    for format in filter(partial(takes_rotated, of_values), formats):
                        yield PackCase(
                            format=format,
                            of_values=of_values,
                            tokens=30,
                            heads=2,
                            is_rotated=True,
                            is_odd=True,
                            **common,
                        )
            yield kind_of_case(format=keys[0], tokens=0, heads=2, **common)
        case KernelKind.SCORES:
            sizes = cycle(((1, 1, 3, 1), (130, 2, 20, 2), (64, 3, 8, 8), (300, 17, 2, 1)))
            for format, (length, rows, heads, kv_heads) in zip(keys, sizes, strict=False):
                yield ScoresCase(
                    length=length, rows=rows, heads=heads, kv_heads=kv_heads, batch=2, format=format, **common
                )
            yield ScoresCase(length=130, kv_heads=2, heads=6, format="e4m3", has_scales=True, **common)
            yield ScoresCase(length=0, **common)
        case _ if x.slots is not Slots.ANY:
            for i, options in enumerate(_in_slots()):
                has_scales = x.slots is Slots.FP8 and i % 3 < 2
                yield AttendCase(format=cache_format_of(x.slots), has_scales=has_scales, **(common | options))
            if is_common(config):
                yield AttendCase(format=cache_format_of(x.slots), **common, **MANY)
        case _:
            compiled = {cache_format_of(slots) for slots in COMPILED}
            pairs = [
                f"k_{keys[i % len(keys)]}_v_{name}" for i, name in enumerate((*VALUE_FORMATS, "uniform4", "eden3"))
            ]
            for format, options in zip(pairs, cycle(_attended()), strict=False):
                yield AttendCase(format=format, gap=int(format in compiled), **(common | options))
            for options in _attended():
                yield AttendCase(**(common | options))
            for options in islice(_attended(), 1, 6):
                yield AttendCase(format=cache_format_of(Slots.FP8), has_scales=True, gap=1, **(common | options))
            if is_common(config):
                yield AttendCase(**common, **MANY)


MANY: dict[str, Any] = {"lengths": tuple(i * 37 % 90 for i in range(512)), "heads": 2, "kv_heads": 1, "page": 16}
"""The most sequences of a call, some short and some empty. One kernel of a kind has them: the check goes through
sequences one by one.
"""


def is_common(config: KvCacheConfig) -> bool:
    """Whether a config is the commonest of its kind: bf16, 128 elements, in 4 bits with compile-time formats."""
    x = config.operands
    is_of_4_bits = x.slots is Slots.NC4 if x.slots is not Slots.ANY else {x.key_bits, x.value_bits} <= {0, 4}
    return x.dtype is DType.BF16 and x.head_dim == COMMON_HEAD_DIM and is_of_4_bits


def _attended() -> Iterator[dict[str, Any]]:
    yield {"lengths": (37,), "heads": 4, "kv_heads": 1}
    yield {"lengths": (1000, 0, 1, 129), "heads": 8, "kv_heads": 2, "is_plain": True}
    yield {"lengths": (300, 2), "rows": 4, "heads": 8, "kv_heads": 2, "has_sinks": True, "softcap": 1.5, "page": 48}
    yield {"lengths": (300, 129, 2), "rows": 35, "heads": 6, "kv_heads": 1, "window": 40, "page": 16}
    yield {"lengths": (3, 200), "rows": 3, "heads": 20, "kv_heads": 1, "window": 40, "causal": False, "page": 7}
    yield {"lengths": (500, 64), "rows": 150, "heads": 2, "kv_heads": 2, "has_sinks": True, "page": 128}
    yield {"lengths": (2100,), "heads": 2, "kv_heads": 1, "is_plain": True}
    yield {"lengths": (), "heads": 2, "kv_heads": 1}


def _in_slots() -> Iterator[dict[str, Any]]:
    """Options of calls whose vectors lie in slots.

    They have one, two, four, eight and more heads a block, slots in common and apart, and several tiles of rows.
    """
    yield {"lengths": (37,), "heads": 4, "kv_heads": 1}
    yield {"lengths": (1003, 0, 1, 129), "heads": 16, "kv_heads": 2, "is_plain": True}
    yield {"lengths": (1000, 0, 129), "heads": 32, "kv_heads": 8, "page": 16}
    yield {"lengths": (300, 2), "rows": 2, "heads": 16, "kv_heads": 8, "has_sinks": True, "softcap": 1.5, "page": 48}
    yield {"lengths": (300, 129, 2), "rows": 5, "heads": 32, "kv_heads": 16, "window": 40}
    yield {
        "lengths": (333, 200),
        "rows": 3,
        "heads": 40,
        "kv_heads": 4,
        "window": 40,
        "causal": False,
        "are_apart": True,
    }
    yield {"lengths": (500, 64), "rows": 4, "heads": 64, "kv_heads": 8, "are_apart": True, "page": 128}
    yield {"lengths": (2100,), "heads": 8, "kv_heads": 8, "gap": 4}
    yield {"lengths": (), "heads": 2, "kv_heads": 1}
