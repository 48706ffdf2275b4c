"""The compressed cache's ops, and the contract of each, in the order of the checks."""

from gemmill.families.kv_cache.classes import CLASSES
from gemmill.families.kv_cache.config import (
    BITS,
    COMMON_HEAD_DIM,
    DECODED_BITS,
    DTYPES,
    FORMATS,
    METHODS,
    KernelKind,
    KvCacheConfig,
    Operands,
    format_of,
    offered_bits,
    offered_head_dims,
    offered_rotary,
    offered_slots,
    offered_tile_rows,
    offered_value_dims,
    settings_of,
    shared_memory,
)
from gemmill.families.kv_cache.formats import HEAD_DIMS, PAGE_SIZES, VALUE_DIMS
from gemmill.families.kv_cache.latent_ops import LATENT, LATENT_OP
from gemmill.families.kv_cache.packed_ops import PACKED_OF, PACKED_OPS, one_of_words
from gemmill.family import Aspect, Check, Layout, Let, Op, OpSchema, OpSet, Require, Same, Step, Tensor
from gemmill.family import any_of as any_word
from gemmill.vocab import Arch, DType

HADAMARD = OpSchema("hadamard_transform(Tensor(a!) out, Tensor x, float scale=1.0) -> ()")
COMPRESS = OpSchema(
    "kv_compress(Tensor(a!) cache, Tensor keys, Tensor values, Tensor slot_mapping, str format, int seed=0, "
    "bool rotated_keys=False, bool rotated_values=False) -> ()"
)
DECODE = OpSchema(
    "kv_decode_attention(Tensor(a!) out, Tensor q, Tensor cache, Tensor block_table, Tensor seq_lens, str format, "
    "float scale, int seed=0, bool causal=True, int window=0, Tensor? sinks=None, Tensor(b!)? lse=None, float softcap=0.0, "
    "bool rotated_out=False) -> ()"
)
DECOMPRESS = OpSchema(
    "kv_decompress(Tensor(a!) keys, Tensor(b!) values, Tensor cache, Tensor slot_mapping, str format, int seed=0) -> ()"
)
SCHEMAS_OF = {
    KernelKind.HADAMARD: (HADAMARD,),
    KernelKind.COMPRESS: (COMPRESS,),
    KernelKind.DECODE: (DECODE,),
    KernelKind.DECOMPRESS: (DECOMPRESS,),
    KernelKind.LATENT: (LATENT,),
    **PACKED_OF,
}
"""The schemas of the ops that kernels of each kind serve."""
STORED = tuple(FORMATS)
DECODED = tuple(format_of(method, *bits).name for method in METHODS for bits in DECODED_BITS)
"""The names of the formats that kernels read."""
_ALIGNMENT = 16
"""Bytes that the address of a cache is a multiple of: bulk copies begin at multiples of it."""


def _any_of(choices: tuple[object, ...]) -> str:
    return any_word(list(map(str, choices)))


def _one_of(name: str, choices: tuple[int, ...], what: str) -> Require:
    return Require(f"{name} in {choices}", f"{what}, expected {_any_of(choices)}")


_HADAMARD_OP = Op(
    schema=HADAMARD,
    fixed={"kind": list(KernelKind).index(KernelKind.HADAMARD)},
    tensors=(
        Tensor("x", "... head_dim", DTYPES, Layout.ROWS),
        Tensor("out", "... head_dim", Same("x"), Layout.ROWS),
    ),
    contract=(
        Check(Aspect.DTYPE, "x out"),
        Check(Aspect.RANK, "x out"),
        Check(Aspect.SHAPE, "x out"),
        _one_of("head_dim", HEAD_DIMS, "{x.name} has {head_dim} columns"),
        Check(Aspect.LAYOUT, "x out"),
        Check(Aspect.DEVICE, "x out"),
        Check(Aspect.APART, "x out"),
        Let("element", "dtype(x)"),
        Let("rows", "rows(x)"),
        Let("works", "rows"),
        CLASSES,
    ),
)


def _cache() -> tuple[Step, ...]:
    """Steps that hold a cache to the sizes of its format. They name kv_heads, the tokens of a page, and strides."""
    return (
        Let("kv_heads", "size(cache, 1)"),
        Let("page", "size(cache, 2)"),
        _one_of("page", PAGE_SIZES, "pages of {cache.name} have {page} tokens"),
        Let("token_bytes", "(head_dim * key_bits + value_dim * value_bits) // 8 + 4"),
        Let("pages", "size(cache, 0)"),
        Require(
            "size(cache, 3) == token_bytes",
            "{cache.name} is {cache.shape}, expected [pages, KV heads, page, {token_bytes}]: so many bytes have a key and a "
            "value of {format}",
        ),
        Let("page_bytes", "kv_heads * page * token_bytes"),
        Require(
            "step(cache, 3) == 1 and step(cache, 2) == token_bytes and (kv_heads <= 1 or step(cache, 1) == page * token_bytes)",
            "{cache.name} of {cache.shape} has strides {cache.strides}: a page must be contiguous",
        ),
        Let("page_stride", "step(cache, 0)"),
        Require(
            f"pages <= 1 or page_stride >= page_bytes and page_stride % {_ALIGNMENT} == 0",
            "{cache.name} has a stride of {page_stride} bytes for pages of {page_bytes}, expected as many or more, and a multiple "
            f"of {_ALIGNMENT}",
        ),
    )


_CACHE = Tensor("cache", "pages kv_heads page token_bytes", (DType.U8,), alignment=_ALIGNMENT)
_HEAD_DIM = _one_of("head_dim", HEAD_DIMS, "vectors have {head_dim} elements")
_BITS_FIT = Require(
    f"head_dim == {COMMON_HEAD_DIM} or key_bits == value_bits",
    f"format is {{format!r}} with vectors of {{head_dim}} elements, expected as many bits of keys as of values: other formats have "
    f"vectors of {COMMON_HEAD_DIM}",
)
_FEWER = [(keys, values) for keys, of_keys in VALUE_DIMS.items() for values in of_keys]
_VALUE_DIM = (
    Require(
        " or ".join(
            ("head_dim == value_dim", *(f"head_dim == {keys} and value_dim == {values}" for keys, values in _FEWER))
        ),
        "keys have {head_dim} elements and values {value_dim}, expected as many of both, or "
        + _any_of(tuple(f"{keys} and {values}" for keys, values in _FEWER)),
    ),
    Let("has_fewer", "(head_dim - value_dim) // 64"),
)
_SEED = Require("seed >= 0", "seed is {seed}, expected 0 or more")


def _vectors(name: str) -> Require:
    return Require(
        f"step({name}, 2) == 1",
        f"{{{name}.name}} has strides {{{name}.strides}}: elements of a vector must be contiguous (last stride 1)",
    )


_STORED_TENSORS = "keys values cache slot_mapping"
_FORMAT_STORED = (
    one_of_words(STORED),
    Let("method", f"format_index // {len(BITS) ** 2}"),
    Let("key_bits", f"format_index // {len(BITS)} % {len(BITS)} + {BITS[0]}"),
    Let("value_bits", f"format_index % {len(BITS)} + {BITS[0]}"),
    Let("unbiased", "1 - method"),
    _BITS_FIT,
)
_FORMAT_READ = (
    one_of_words(DECODED),
    Let("fewer_bits", f"format_index % {len(DECODED_BITS)}"),
    Let("key_bits", "(9 - fewer_bits) // 2"),
    Let("value_bits", "(8 - fewer_bits) // 2"),
    _BITS_FIT,
)


def _of_tokens(schema: OpSchema, kind: KernelKind, format: tuple[Step, ...], strides: tuple[Step, ...]) -> Op:
    """The op between vectors of tokens and their slots."""
    return Op(
        schema=schema,
        fixed={"kind": list(KernelKind).index(kind)},
        tensors=(
            Tensor("keys", "tokens heads head_dim", DTYPES),
            Tensor("values", "tokens heads value_dim", Same("keys")),
            _CACHE,
            Tensor("slot_mapping", "tokens", (DType.S64,), Layout.VECTOR),
        ),
        contract=(
            Check(Aspect.DTYPE, _STORED_TENSORS),
            Check(Aspect.RANK, _STORED_TENSORS),
            Check(Aspect.SHAPE, "keys values"),
            _HEAD_DIM,
            *_VALUE_DIM,
            *format,
            *_cache(),
            Require(
                "heads == kv_heads",
                "{keys.name} is {keys.shape} and {cache.name} is {cache.shape}: {heads} heads do not fit a cache of {kv_heads}",
            ),
            Check(Aspect.SHAPE, "slot_mapping"),
            Check(Aspect.LAYOUT, "slot_mapping"),
            *strides,
            _SEED,
            Check(Aspect.DEVICE, _STORED_TENSORS),
            Check(Aspect.APART, _STORED_TENSORS),
            Let("element", "dtype(keys)"),
            Let("works", "tokens * kv_heads"),
            CLASSES,
        ),
    )


def _of_one_stride(name: str, stride: str, elements: str) -> tuple[Step, ...]:
    return (
        Let(stride, f"row_stride({name})"),
        Require(
            f"{stride} >= {elements}",
            f"{{{name}.name}} of {{{name}.shape}} has strides {{{name}.strides}}: its vectors must follow one another at one "
            "stride, and not overlap",
        ),
    )


_COMPRESS_OP = _of_tokens(
    COMPRESS,
    KernelKind.COMPRESS,
    _FORMAT_STORED,
    (
        _vectors("keys"),
        _vectors("values"),
        Let("key_token", "step(keys, 0)"),
        Let("key_head", "step(keys, 1)"),
        Let("value_token", "step(values, 0)"),
        Let("value_head", "step(values, 1)"),
    ),
)
_DECOMPRESS_OP = _of_tokens(
    DECOMPRESS,
    KernelKind.DECOMPRESS,
    _FORMAT_READ,
    (
        *_of_one_stride("keys", "key_head", "head_dim"),
        *_of_one_stride("values", "value_head", "value_dim"),
    ),
)
_LSE = Require(
    "rank(lse) == 3 and dense(lse) == 1",
    "{lse.name} has shape {lse.shape} and strides {lse.strides}, expected three dimensions without gaps",
)
_DECODE_TENSORS = "q out cache block_table seq_lens sinks lse"
_DECODE_OP = Op(
    schema=DECODE,
    fixed={"kind": list(KernelKind).index(KernelKind.DECODE)},
    tensors=(
        Tensor("q", "batch rows heads head_dim", DTYPES),
        Tensor("out", "batch rows heads value_dim", Same("q")),
        _CACHE,
        Tensor("block_table", "batch table_pages", (DType.S32,), Layout.ROWS),
        Tensor("seq_lens", "batch", (DType.S32,), Layout.VECTOR),
        Tensor("sinks", "heads", (DType.F32,), Layout.VECTOR),
        Tensor("lse", "batch heads rows", (DType.F32,), needs=(_LSE,)),
    ),
    contract=(
        Check(Aspect.DTYPE, "q out cache block_table seq_lens"),
        Check(Aspect.RANK, "q out cache block_table seq_lens"),
        Check(Aspect.SHAPE, "q out"),
        _HEAD_DIM,
        *_VALUE_DIM,
        *_FORMAT_READ,
        *_cache(),
        Require(
            "kv_heads > 0 and heads % most(kv_heads, 1) == 0",
            "{q.name} has {heads} heads and {cache.name} {kv_heads}: query heads are a multiple of KV heads",
        ),
        Check(Aspect.SHAPE, "block_table seq_lens"),
        Check(Aspect.LAYOUT, "block_table seq_lens"),
        Check(Aspect.WHOLE, "sinks lse"),
        Require(
            "step(q, 3) == 1",
            "{q.name} has strides {q.strides}: elements of a vector must be contiguous (last stride 1)",
        ),
        *_of_one_stride("out", "out_stride", "value_dim"),
        Require("window >= 0", "window is {window}, expected a number of keys, or 0 for all"),
        Require("softcap >= 0.0", "softcap is {softcap}, expected a positive number, or 0 for none"),
        Require(
            "seed >= -1",
            "seed is {seed}, expected 0 or more, or -1 for queries that are rotated and an output that stays so",
        ),
        Check(Aspect.DEVICE, _DECODE_TENSORS),
        Check(Aspect.APART, _DECODE_TENSORS),
        Let("q_batch", "step(q, 0)"),
        Let("q_row", "step(q, 1)"),
        Let("q_head", "step(q, 2)"),
        Let("table_stride", "row_stride(block_table)"),
        Let("element", "dtype(q)"),
        Let("works", "batch * rows * heads"),
        CLASSES,
    ),
)


OPS = OpSet(ops=(_HADAMARD_OP, _COMPRESS_OP, _DECODE_OP, _DECOMPRESS_OP, *PACKED_OPS, LATENT_OP))


def configs_of(kind: KernelKind, arch: Arch) -> tuple[KvCacheConfig, ...]:
    """Every config of a kind on an architecture, each once."""
    return tuple(
        KvCacheConfig(
            kind=kind,
            operands=Operands(
                dtype=dtype,
                head_dim=head_dim,
                value_dim=value_dim,
                key_bits=keys,
                value_bits=values,
                slots=slots,
                rotary=rotary,
            ),
            tile_rows=tile_rows,
            half_waves=half_waves,
            slices=slices,
            arch=arch,
        )
        for dtype in DTYPES
        for head_dim in offered_head_dims(kind)
        if shared_memory(kind, head_dim) <= arch.shared_memory_bytes
        for value_dim in offered_value_dims(kind, head_dim)
        for keys, values in offered_bits(kind, head_dim)
        for slots in offered_slots(kind, head_dim)
        for tile_rows in offered_tile_rows(arch, kind, head_dim, (keys, values))
        for rotary in offered_rotary(kind, tile_rows)
        for half_waves, slices in settings_of(kind)
    )
