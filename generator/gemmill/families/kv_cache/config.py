"""KvCacheConfig: one variant of the compressed cache's kernels, and its rules."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import ClassVar, Self

from gemmill.families.kv_cache.formats import HEAD_DIMS, VALUE_DIMS, CacheFormat, Method, VectorFormat, cache_format
from gemmill.families.kv_cache.latent import LATENT_BITS, LATENT_DIM
from gemmill.family import first_rejection
from gemmill.vocab import Arch, DType


class KernelKind(StrEnum):
    """The function of a kernel. The binding knows a kind by its place."""

    HADAMARD = "hadamard"
    """transforms rows"""
    COMPRESS = "compress"
    """stores keys and values of new tokens in pages"""
    DECODE = "decode"
    """attends over pages"""
    DECOMPRESS = "decompress"
    """restores keys and values of slots"""
    PACK = "pack"
    """makes packed vectors of keys or values, in any format"""
    UNPACK = "unpack"
    """restores packed vectors"""
    SCORES = "scores"
    """multiplies queries and packed keys"""
    ATTEND = "attend"
    """attends over packed keys and values, in any format"""
    LATENT = "latent"
    """attends over latents in 4 bits, which are keys and values of all heads (MLA)"""


class Slots(StrEnum):
    """Compile-time formats of packed keys and values in slots."""

    ANY = "any"
    """formats as run-time arguments, wherever vectors lie"""
    K8V4 = "k8v4"
    NC4 = "4bitnc"
    K3V4 = "k3v4nc"
    NC3 = "3bitnc"
    ULTRAQUANT = "ultraquant"
    PROD3 = "prod3mse2"
    FP8 = "fp8"

    @property
    def sides(self) -> tuple[str, str]:
        """The names of the formats of keys and of values. Raises KeyError for ANY."""
        return _SIDES[self]


_SIDES = {
    Slots.K8V4: ("e4m3", "uniform4"),
    Slots.NC4: ("unit_centroids4", "uniform4"),
    Slots.K3V4: ("unit_centroids3", "uniform4"),
    Slots.NC3: ("unit_centroids3", "uniform3"),
    Slots.ULTRAQUANT: ("e2m1", "e2m1"),
    Slots.PROD3: ("turboquant_prod3", "turboquant_mse2"),
    Slots.FP8: ("e4m3", "e4m3"),
}
COMPILED = tuple(_SIDES)
_OF_128 = (Slots.PROD3, Slots.FP8)
"""Formats that vectors of 128 elements alone have: with signs, of which a lane has a word there, and values in e4m3, whose warp has all of a vector."""
SLOT_FORMATS = {
    64: tuple(slots for slots in COMPILED if slots not in (Slots.NC3, *_OF_128)),
    128: COMPILED,
    256: tuple(slots for slots in COMPILED if slots not in _OF_128),
    512: tuple(slots for slots in COMPILED if slots not in _OF_128),
}
"""The compile-time formats of slots in attention, by head dim. Eight codes of 3 bits, which a lane has of values of 64,
are no whole half words.
"""
MOST_OF_ANY = 256
"""The largest head dim of kernels that decode any format to tiles of f16: two tiles of 512 would not fit shared memory, nor a warp's
sums its registers."""
_TEMPLATE = {
    KernelKind.HADAMARD: "hadamard",
    KernelKind.COMPRESS: "compress",
    KernelKind.DECODE: "decode_attention",
    KernelKind.DECOMPRESS: "decompress",
    KernelKind.PACK: "pack",
    KernelKind.UNPACK: "unpack",
    KernelKind.SCORES: "packed_scores",
    KernelKind.ATTEND: "packed_attention",
    KernelKind.LATENT: "latent_attention",
}
OF_ANY_FORMAT = (KernelKind.PACK, KernelKind.UNPACK, KernelKind.SCORES, KernelKind.ATTEND)
"""Kinds of kernels that get formats at run time."""
OF_PAGES = (KernelKind.COMPRESS, KernelKind.DECODE, KernelKind.DECOMPRESS)
"""Kinds of kernels of keys and values in pages."""
ATTENTIONS = (KernelKind.DECODE, KernelKind.ATTEND, KernelKind.LATENT)
HALF_WAVES = (2, 1, 4, 8)
"""How many half waves slices may fill. The first is the default."""
SLICES = (1, 4, 16, 32, 64, 128)
"""How many slices each sequence may have at most, whatever the batch."""
FEW_ROWS, MANY_ROWS = 16, 128
"""Flat rows of a tile: of drafts, by twelve warps; of those of WGMMA, 64 for each of two warpgroups."""
LATENT_ROWS = (16, 32)
"""Flat rows of a tile of latents by WGMMA, whose rows are tokens."""
WITHOUT_BITS = (KernelKind.HADAMARD, *OF_ANY_FORMAT)
DTYPES = (DType.BF16, DType.F16)
METHODS = (Method.EDEN, Method.TURBOQUANT_MSE)
"""Methods whose codes a kernel of pages writes: those that store codes and a norm alone."""
BITS = (2, 3, 4)
DECODED_BITS = ((4, 4), (4, 3), (3, 3), (3, 2), (2, 2))
"""Bits of keys and of values that a kernel reads together. Each pair has one bit fewer than the one before."""
COMMON_HEAD_DIM = 128
"""The head dim with which keys and values may differ in bits. With others both have as many."""


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The cache and the vectors next to it."""

    dtype: DType
    """Type of rows, keys and values, or queries."""
    head_dim: int
    """Elements of a vector, or of a key; columns of a transform."""
    key_bits: int = 0
    """Bits of a key's element; 0 without a stored key."""
    value_bits: int = 0
    value_dim: int = 0
    """Elements of a value in a page; 0: as many as a key has."""
    slots: Slots = Slots.ANY
    """The formats of packed keys and values in slots."""
    rotary: DType | None = None
    """Type of latents' rotary parts; None: `dtype`."""


@dataclass(frozen=True, kw_only=True)
class KvCacheConfig:
    """One variant of the compressed cache's kernels.

    Each kind has one design, and ends in one way. Methods, sizes of pages, strides and the alignment of vectors are
    run-time arguments: one binary serves all.
    """

    kind: KernelKind
    operands: Operands
    tile_rows: int = 0
    """Flat rows (query rows times query heads of a KV head) of a tile of attention over pages.

    0: 8 or 16 of them, as a call has more than 8, by mma.sync, whose other operand are tokens. `FEW_ROWS`: always 16, by more
    warps. `MANY_ROWS`: by WGMMA, which decodes each stage of keys and values once for all of them. Of latents: 0 for 16 or 64 by
    mma.sync, `LATENT_ROWS` by WGMMA.
    """
    half_waves: int = HALF_WAVES[0]
    """How much of a device an attention's slices of tokens are to fill, in halves of the blocks that it holds at a
    time.

    It is a setting of the launch.
    """
    slices: int = 0
    """Slices that an attention deals the tokens of each sequence out in, whatever the batch; 0: as many as `half_waves` says.

    Kernels of pages and of slots make fewer of a short sequence (`model.LEAST_STAGES`). Their blocks take runs of slices.

    It is a setting of the launch.
    """
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "kvcache"
    group_size: ClassVar[int] = 0

    def __post_init__(self) -> None:
        status = first_rejection(RULES, self)
        if not status:
            raise ValueError(f"{status.reason} ({status.rule})")

    @property
    def template(self) -> str:
        """The path of its template below templates/kv_cache/."""
        if self.tile_rows and self.kind is KernelKind.LATENT:
            return "latent_tiles"
        if self.tile_rows:
            return "draft_attention" if self.tile_rows == FEW_ROWS else "prefill_attention"
        return _TEMPLATE[self.kind] if self.operands.slots is Slots.ANY else "slot_attention"

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that identifies a call."""
        return self.operands.dtype

    @property
    def out_dtype(self) -> DType:
        """Dtype of the result."""
        return self.operands.dtype

    @property
    def compiled(self) -> Self:
        """The same machine code with default launch settings."""
        return replace(self, half_waves=HALF_WAVES[0], slices=0)

    @property
    def attends(self) -> bool:
        """Whether it attends, so that its tokens are dealt out in slices."""
        return self.kind in ATTENTIONS


def format_of(method: Method, key_bits: int, value_bits: int) -> CacheFormat:
    """The cache's format with one method for keys and for values."""
    keys, values = (VectorFormat(method=method, bits=bits) for bits in (key_bits, value_bits))
    return cache_format(keys, values)


FORMATS = {
    format_of(method, keys, values).name: (method, keys, values)
    for method in METHODS
    for keys in BITS
    for values in BITS
}
"""Formats that kernels store, by name: method, bits of keys, bits of values.

Formats of a method follow one another. Among these, formats with as many bits of keys follow one another.
"""


def _dtype(c: KvCacheConfig) -> Iterator[str]:
    """Tensor cores multiply only 16-bit operands by exact signs."""
    if (dtype := c.operands.dtype) not in DTYPES:
        yield f"dtype={dtype}: elements are {' or '.join(DTYPES)}, as tensor cores take them"


def offered_head_dims(kind: KernelKind) -> tuple[int, ...]:
    """The head dims that a kind has kernels for."""
    if kind is KernelKind.LATENT:
        return (LATENT_DIM,)
    return tuple(d for d in HEAD_DIMS if kind is not KernelKind.SCORES or d <= MOST_OF_ANY)


def _sizes(c: KvCacheConfig) -> Iterator[str]:
    """A row is 12 or 16 pieces of 8 to 64 bytes."""
    head_dim, offered = c.operands.head_dim, offered_head_dims(c.kind)
    if head_dim not in HEAD_DIMS:
        yield f"head_dim={head_dim}: vectors have {', '.join(map(str, HEAD_DIMS))} elements"
    elif head_dim not in offered:
        yield f"head_dim={head_dim} contradicts kind={c.kind}, which has {', '.join(map(str, offered))}"


def offered_value_dims(kind: KernelKind, head_dim: int) -> tuple[int, ...]:
    """Elements of values that a kind has kernels for; 0 stands for those of keys."""
    return (0, *VALUE_DIMS.get(head_dim, ())) if kind in OF_PAGES else (0,)


def _value_dim(c: KvCacheConfig) -> Iterator[str]:
    """Signs of a value are the first of its key's."""
    x = c.operands
    if x.value_dim not in (offered := offered_value_dims(c.kind, x.head_dim)):
        yield (
            f"value_dim={x.value_dim} contradicts kind={c.kind} of {x.head_dim} elements, which has {', '.join(map(str, offered))}: 0 "
            "is as many as keys have"
        )


def offered_bits(kind: KernelKind, head_dim: int) -> tuple[tuple[int, int], ...]:
    """The pairs (bits of keys, bits of values) that a kind has kernels for."""
    if kind in WITHOUT_BITS:
        return ((0, 0),)
    if kind is KernelKind.LATENT:
        return ((LATENT_BITS, LATENT_BITS),)
    pairs = tuple(product(BITS, BITS)) if kind is KernelKind.COMPRESS else DECODED_BITS
    return pairs if head_dim == COMMON_HEAD_DIM else tuple(pair for pair in pairs if pair[0] == pair[1])


def _bits(c: KvCacheConfig) -> Iterator[str]:
    x = c.operands
    offered = offered_bits(c.kind, x.head_dim)
    if (x.key_bits, x.value_bits) not in offered:
        yield (
            f"key_bits={x.key_bits} value_bits={x.value_bits} contradict kind={c.kind} of {x.head_dim} elements, which has "
            f"{', '.join(f'{keys} and {values}' for keys, values in offered)}"
        )


def offered_slots(kind: KernelKind, head_dim: int) -> tuple[Slots, ...]:
    """The formats of slots for which a kind has kernels: any of them, and the compile-time ones."""
    compiled = SLOT_FORMATS.get(head_dim, ()) if kind is KernelKind.ATTEND else ()
    return compiled if compiled and head_dim > MOST_OF_ANY else (Slots.ANY, *compiled)


def _slots(c: KvCacheConfig) -> Iterator[str]:
    """A lane's part of a vector is whole units of codes."""
    x = c.operands
    offered = offered_slots(c.kind, x.head_dim)
    if x.slots not in offered:
        yield f"slots={x.slots} contradict kind={c.kind} of {x.head_dim} elements, which has {', '.join(offered)}"


def _half_waves(c: KvCacheConfig) -> Iterator[str]:
    """Only attention has a launch that adds up slices."""
    offered = HALF_WAVES if c.attends else HALF_WAVES[:1]
    if c.half_waves not in offered:
        yield f"half_waves={c.half_waves} contradict kind={c.kind}, which has {', '.join(map(str, offered))}"


def _fixed_slices(c: KvCacheConfig) -> Iterator[str]:
    """A config sets the number of slices itself, or the half waves that they fill."""
    if c.slices and (not c.attends or c.half_waves != HALF_WAVES[0] or c.slices not in SLICES):
        yield (
            f"slices={c.slices} contradict kind={c.kind}, half_waves={c.half_waves}: attention with half_waves={HALF_WAVES[0]} has "
            f"{', '.join(map(str, SLICES))}, or 0"
        )


def offered_tile_rows(arch: Arch, kind: KernelKind, head_dim: int, bits: tuple[int, int]) -> tuple[int, ...]:
    """The numbers of a tile's rows for which a kind has kernels."""
    if kind is KernelKind.LATENT:
        return (0, *LATENT_ROWS) if arch is Arch.SM90A else (0,)
    has_wgmma = arch is Arch.SM90A and kind is KernelKind.DECODE and head_dim in _OF_WGMMA and min(bits) > 2
    return (0, FEW_ROWS, MANY_ROWS) if has_wgmma else (0,)


def _tile_rows(c: KvCacheConfig) -> Iterator[str]:
    """WGMMA is sm90a's; a row of shared memory has 64 elements; byte permutations have tables of eight centroids."""
    x = c.operands
    offered = offered_tile_rows(c.arch, c.kind, x.head_dim, (x.key_bits, x.value_bits))
    if c.tile_rows not in offered:
        yield (
            f"tile_rows={c.tile_rows} contradict kind={c.kind} of {x.head_dim} elements in {x.key_bits} and {x.value_bits} bits on "
            f"arch={c.arch}, which has {', '.join(map(str, offered))}"
        )


def offered_rotary(kind: KernelKind, tile_rows: int) -> tuple[DType | None, ...]:
    """The types of rotary parts for which a kind has kernels; None is the queries' own."""
    return (None, DType.E4M3) if kind is KernelKind.LATENT and tile_rows else (None,)


def _rotary(c: KvCacheConfig) -> Iterator[str]:
    """Only attention over latents by WGMMA converts them."""
    if c.operands.rotary not in offered_rotary(c.kind, c.tile_rows):
        yield (
            f"rotary={c.operands.rotary} contradicts kind={c.kind} of tile_rows={c.tile_rows}: {DType.E4M3} is of kind={KernelKind.LATENT} "
            f"with tile_rows={' or '.join(map(str, LATENT_ROWS))}"
        )


def settings_of(kind: KernelKind) -> tuple[tuple[int, int], ...]:
    """The pairs (half_waves, slices) of a kind's launches."""
    if kind not in ATTENTIONS:
        return ((HALF_WAVES[0], 0),)
    return (*((n, 0) for n in HALF_WAVES), *((HALF_WAVES[0], n) for n in SLICES))


def offered_kinds(arch: Arch) -> tuple[KernelKind, ...]:
    """Kinds that an architecture has kernels of."""
    return tuple(kind for kind in KernelKind if _MOST_SHARED.get(kind, 0) <= arch.shared_memory_bytes)


_OF_WGMMA = (64, 128)
"""Head dims of attention by WGMMA: 64 elements are a row of shared memory, and a thread has half a row of sums in registers."""
_MOST_SHARED = {
    KernelKind.DECODE: 227 * 1024,
    KernelKind.ATTEND: 227 * 1024,
    KernelKind.SCORES: 208 * 1024,
    KernelKind.LATENT: 205 * 1024,
}
"""Bytes of shared memory that the largest kernel of a kind takes. Other kinds take less than any architecture has."""
_LONG_STORE = 143 * 1024
"""Bytes of shared memory of a store of 512 elements: eight warps have sixteen vectors each on their way or at hand."""


def shared_memory(kind: KernelKind, head_dim: int) -> int:
    """Bytes of shared memory that kernels of a kind take, at most; 0 where any architecture has enough."""
    return _LONG_STORE if kind is KernelKind.COMPRESS and head_dim > MOST_OF_ANY else _MOST_SHARED.get(kind, 0)


def _shared_memory(c: KvCacheConfig) -> Iterator[str]:
    """Stages, tables and queries of an attention lie in shared memory."""
    if (needed := shared_memory(c.kind, c.operands.head_dim)) > c.arch.shared_memory_bytes:
        yield (
            f"kind={c.kind} on arch={c.arch}: its kernels take up to {needed} bytes of shared memory, a block has "
            f"{c.arch.shared_memory_bytes} there"
        )


RULES = (_dtype, _sizes, _value_dim, _bits, _slots, _tile_rows, _rotary, _half_waves, _fixed_slices, _shared_memory)
