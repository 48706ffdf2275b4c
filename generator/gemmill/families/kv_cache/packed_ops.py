"""The ops of packed vectors, one side of a cache at a time or both, and the contract of each."""

from gemmill.families.kv_cache.classes import CLASSES
from gemmill.families.kv_cache.config import (
    COMPILED,
    DTYPES,
    MOST_OF_ANY,
    SLOT_FORMATS,
    KernelKind,
    Slots,
    offered_head_dims,
)
from gemmill.families.kv_cache.formats import E2M1_GROUP
from gemmill.families.kv_cache.packed import CACHE_FORMATS, KEY_FORMATS, POWERS_OF_TWO, SEEDED, VALUE_FORMATS
from gemmill.family import Aspect, Check, Layout, Let, OneOf, Op, OpSchema, Require, Same, Tensor, When
from gemmill.family import any_of as any_word
from gemmill.vocab import DType

COMPRESS_KEYS = OpSchema(
    "kv_compress_keys(Tensor(a!) packed, Tensor keys, Tensor? slot_mapping, str format, int seed=0, "
    "bool rotated=False, Tensor? scales=None) -> ()"
)
COMPRESS_VALUES = OpSchema(
    "kv_compress_values(Tensor(a!) packed, Tensor values, Tensor? slot_mapping, str format, int seed=0, "
    "bool rotated=False, Tensor? scales=None) -> ()"
)
DECOMPRESS_KEYS = OpSchema(
    "kv_decompress_keys(Tensor(a!) keys, Tensor packed, Tensor? slot_mapping, str format, int seed=0, "
    "Tensor? scales=None) -> ()"
)
DECOMPRESS_VALUES = OpSchema(
    "kv_decompress_values(Tensor(a!) values, Tensor packed, Tensor? slot_mapping, str format, int seed=0, "
    "Tensor? scales=None) -> ()"
)
SCORES = OpSchema(
    "kv_attention_scores(Tensor(a!) scores, Tensor q, Tensor keys, str format, int seed=0, "
    "Tensor? key_scales=None) -> ()"
)
ATTENTION = OpSchema(
    "kv_attention(Tensor(a!) out, Tensor q, Tensor keys, Tensor values, Tensor? block_table, Tensor seq_lens, str format, "
    "float scale, int seed=0, bool causal=True, int window=0, Tensor? sinks=None, Tensor(b!)? lse=None, float softcap=0.0, "
    "bool rotated_out=False, Tensor? key_scales=None, Tensor? value_scales=None) -> ()"
)
PACKED_OF = {
    KernelKind.PACK: (COMPRESS_KEYS, COMPRESS_VALUES),
    KernelKind.UNPACK: (DECOMPRESS_KEYS, DECOMPRESS_VALUES),
    KernelKind.SCORES: (SCORES,),
    KernelKind.ATTEND: (ATTENTION,),
}
_E2M1_PLACE = list(VALUE_FORMATS).index("e2m1")
_E4M3_PLACE = list(KEY_FORMATS).index("e4m3")


def one_of_words(offered: tuple[str, ...]) -> Require:
    """The step that requires one of the possible names of a format."""
    return Require(
        f"format in {offered}", f"format is {{format!r}}, expected {any_word([repr(name) for name in offered])}"
    )


def _size(side: str, place: str, scalars: int) -> tuple[Let, ...]:
    """Steps that name the bytes of a packed vector: its elements' bits over 8, and its scalars.

    Scalars are float16, or a byte for each group of 32.
    """
    foreign, group, last = f"{side}_is_foreign", f"{side}_is_grouped", f"{side}_is_e4m3"
    own = f"(1 - {foreign}) * (head_dim * ({place} % 3 + 2) // 8 + 2 + 2 * ({place} // 6))"
    bits = f"(3 + ({place} - {SEEDED - 1}) // 2 + 3 * {last})"
    rest = f"({foreign} - {group}) * {scalars} + ({group} - {last}) * (head_dim // {E2M1_GROUP})"
    return (
        Let(foreign, f"{place} // {SEEDED}"),
        Let(group, f"{place} // {_E2M1_PLACE}"),
        Let(last, f"{place} // {_E4M3_PLACE}"),
        Let(f"{side}_bytes", f"{own} + {foreign} * (head_dim * {bits} // 8) + {rest}"),
    )


_KEY_SCALARS, _VALUE_SCALARS = 2, 4


def _rotatable(place: str) -> Require:
    return Require(
        f"head_dim in {POWERS_OF_TWO} or {place} < {SEEDED} or {place} == {_E4M3_PLACE}",
        f"format is {{format!r}} with vectors of {{head_dim}} elements, expected {any_word(list(map(str, POWERS_OF_TWO)))}: so many "
        "have the keys that vLLM rotates",
    )


def _head_dim(kind: KernelKind) -> Require:
    offered = offered_head_dims(kind)
    return Require(
        f"head_dim in {offered}", f"vectors have {{head_dim}} elements, expected {any_word(list(map(str, offered)))}"
    )


def _beside(name: str, dims: int) -> Require:
    return Require(
        f"step({name}, {dims - 1}) == 1",
        f"{{{name}.name}} has strides {{{name}.strides}}: the elements of a vector must be contiguous (last stride 1)",
    )


def _holds(name: str, dims: int, side: str) -> Require:
    shape = "[slots, heads, {%s_bytes}]" if dims == 3 else "[pages, page, KV heads, {%s_bytes}]"
    return Require(
        f"size({name}, {dims - 1}) == {side}_bytes",
        f"{{{name}.name}} is {{{name}.shape}}, expected {shape % side}: so many bytes has a {side} of {{format}}",
    )


def _scales(name: str, place: str) -> tuple[Check | When, ...]:
    """Steps that require scales of heads to belong to the format that has them."""
    return (
        Check(Aspect.WHOLE, name),
        When(
            name,
            (
                Require(
                    f"{place} == {_E4M3_PLACE}",
                    f"{name} with {{format}}: a scale for each head is e4m3's alone, so leave it out",
                ),
            ),
        ),
    )


_ROTATED = (
    Require(
        "rotated == 0 or format_index // 3 != 2",
        "rotated with {format}: signs are of vectors that are not rotated, so pass those",
    ),
    Require(
        f"rotated == 0 or format_index < {SEEDED} or of_values == 0 and format_index != {_E4M3_PLACE}",
        "rotated with {format}: vectors of this format are not rotated, so leave it out",
    ),
)
_WRITTEN_PACKED = Require(
    "step(packed, 1) >= packed_bytes and step(packed, 0) >= heads * step(packed, 1) or slot_count * heads <= 1 or "
    "slot_count == 1 and step(packed, 1) >= packed_bytes or heads == 1 and step(packed, 0) >= packed_bytes",
    "{packed.name} of {packed.shape} has strides {packed.strides}: its vectors must not overlap, and those of a token must be neighbours",
)
_WRITTEN_VECTORS = Require(
    "row_stride(vectors) >= head_dim",
    "{vectors.name} of {vectors.shape} has strides {vectors.strides}: its vectors must follow one another at one stride, and not "
    "overlap",
)


def _of_vectors(schema: OpSchema, kind: KernelKind, side: str) -> Op:
    """The op between vectors of one side and packed ones. Slots of pages may have keys and values in turn, so vectors
    may be apart."""
    of_keys, stores = side == "key", kind is KernelKind.PACK
    formats = KEY_FORMATS if of_keys else VALUE_FORMATS
    every = "vectors packed slot_mapping scales"
    return Op(
        schema=schema,
        fixed={"kind": list(KernelKind).index(kind), "of_values": int(not of_keys)},
        roles={"keys" if of_keys else "values": "vectors"},
        tensors=(
            Tensor("vectors", "tokens heads head_dim", DTYPES),
            Tensor("packed", "slot_count heads packed_bytes", (DType.U8,)),
            Tensor("slot_mapping", "tokens", (DType.S64,), Layout.VECTOR),
            Tensor("scales", "heads", (DType.F32,), Layout.VECTOR),
        ),
        contract=(
            Check(Aspect.DTYPE, "vectors packed"),
            Check(Aspect.RANK, "vectors packed"),
            Check(Aspect.SHAPE, "vectors"),
            _head_dim(kind),
            one_of_words(tuple(formats)),
            *((_rotatable("format_index"),) if of_keys else ()),
            *_size(side, "format_index", _KEY_SCALARS if of_keys else _VALUE_SCALARS),
            Let("packed_bytes", f"{side}_bytes"),
            Let("slot_count", "size(packed, 0)"),
            _holds("packed", 3, side),
            Require(
                "size(packed, 1) == heads",
                "{vectors.name} is {vectors.shape} and {packed.name} is {packed.shape}: {heads} heads do not fit",
            ),
            Check(Aspect.WHOLE, "slot_mapping"),
            OneOf(
                "is_plain",
                {"mapped": "slot_mapping", "plain": "slot_count == tokens"},
                "{vectors.name} has {tokens} tokens and {packed.name} {slot_count} slots: without a slot_mapping they are as many",
            ),
            _beside("packed", 3),
            _beside("vectors", 3),
            _WRITTEN_PACKED if stores else _WRITTEN_VECTORS,
            Require("seed >= 0", "seed is {seed}, expected 0 or more"),
            *(_ROTATED if stores else ()),
            *_scales("scales", "format_index"),
            Check(Aspect.DEVICE, every),
            Check(Aspect.APART, every),
            Let("packed_slot", "step(packed, 0)"),
            Let("packed_head", "step(packed, 1)"),
            Let("vector_head", "step(vectors, 1)" if stores else "row_stride(vectors)"),
            Let("vector_token", "step(vectors, 0)" if stores else "vector_head * heads"),
            Let("element", "dtype(vectors)"),
            Let("works", "tokens * heads"),
            CLASSES,
        ),
    )


def _heads_fit(cache: str) -> Require:
    return Require(
        "kv_heads > 0 and heads % most(kv_heads, 1) == 0",
        f"{{q.name}} has {{heads}} heads and {{{cache}.name}} {{kv_heads}}: query heads are a multiple of KV heads",
    )


def _strides(side: str, cache: str) -> tuple[Let, ...]:
    return (
        Let(f"{side}_page_stride", f"step({cache}, 0)"),
        Let(f"{side}_token_stride", f"step({cache}, 1)"),
        Let(f"{side}_head_stride", f"step({cache}, 2)"),
    )


MOST_SLOT_ROWS = 32
"""The most flat rows that kernels of slots take. Each eight of them read the cache again."""
_MOST_SLOT, _MOST_SLOT_MORE, _MOST_LONE_SLOT, _MOST_LONE_SLOT_MORE = 208, 64, 248, 8
"""The most bytes from head to head of a slot of up to 128 elements, and how many more with values in e4m3, whose kernel has no table;
the same from token to token where there is one head.

Longer vectors have as many times more. Two stages of more bytes would not fit where keys and values lie apart.
"""


def _lie_in_slots(side: str) -> str:
    """The test that tokens and heads of a side follow one another, and that copies begin at multiples of 16 bytes."""
    token, head = f"{side}_token_stride", f"{side}_head_stride"
    most = "* most(head_dim, 128) // 128"
    of_heads = f"({_MOST_SLOT} + {_MOST_SLOT_MORE} * (value_format // {_E4M3_PLACE}))"
    together = f"{head} <= {of_heads} {most} and {token} == kv_heads * {head} and {head} % 2 == 0"
    of_one = f"({_MOST_LONE_SLOT} + {_MOST_LONE_SLOT_MORE} * (value_format // {_E4M3_PLACE}))"
    alone = f"kv_heads == 1 and {token} <= {of_one} {most} and {token} % 2 == 0"
    return f"({alone} or {together}) and (pages <= 1 or {side}_page_stride % 16 == 0)"


def _is_of(slots: Slots) -> str:
    keys, values = slots.sides
    words = "".join(
        f"{side}_token_stride % 4 == 0 and (kv_heads == 1 or {side}_head_stride % 4 == 0) and "
        for side, format in (("key", keys), ("value", values))
        if format == "e4m3"
    )
    head_dims = tuple(head_dim for head_dim, formats in SLOT_FORMATS.items() if slots in formats)
    own = f"head_dim in {head_dims}" if len(head_dims) > 1 else f"head_dim == {head_dims[0]}"
    return (
        f"{words}{own} and key_format == {list(KEY_FORMATS).index(keys)} and "
        f"value_format == {list(VALUE_FORMATS).index(values)}"
    )


_ALWAYS = "head_dim > 0"
_NAMES_OF_LONG = ", ".join(f"k_{keys}_v_{values}" for keys, values in (x.sides for x in SLOT_FORMATS[512]))
_SLOTS = (
    Let("flat_rows", "rows * (heads // most(kv_heads, 1))"),
    OneOf(
        "scaled",
        {"plain": "key_scales == 0 and value_scales == 0", "scaled": _ALWAYS},
        "{keys.name} have scales or none",
    ),
    OneOf(
        "lie_apart",
        {
            "slots": f"(scaled == 0 or value_format == {_E4M3_PLACE}) and flat_rows <= {MOST_SLOT_ROWS} and (kv_heads in (1, 2, 4) or kv_heads % 8 == 0) and "
            f"(is_plain == 1 or page % 16 == 0 and page > 0) and {_lie_in_slots('key')} and {_lie_in_slots('value')}",
            "apart": _ALWAYS,
        },
        "{keys.name} lie neither in slots nor otherwise",
    ),
    OneOf(
        "places_from_last",
        {slots.value: _is_of(slots) for slots in reversed(COMPILED)} | {Slots.ANY.value: _ALWAYS},
        "{format} is none",
    ),
    Let("slots", f"({len(COMPILED)} - places_from_last) * (1 - lie_apart)"),
    Require(
        f"head_dim <= {MOST_OF_ANY} or slots > 0",
        f"vectors have {{head_dim}} elements in {{format}} with {{flat_rows}} query rows times heads of a KV head; of so many elements there are "
        f"kernels for {_NAMES_OF_LONG} alone, in slots of vLLM's pages and up to {MOST_SLOT_ROWS} rows: restore keys and values, then attend",
    ),
    Require(
        f"head_dim <= {MOST_OF_ANY} or aligned(4, keys) and aligned(2, values)",
        "{keys.name} and {values.name} of vectors of {head_dim} elements begin at other bytes than multiples of 4 and of 2: allocate "
        "the cache anew",
    ),
    Let("value_alignment", f"2 + 2 * (value_format // {_E4M3_PLACE})"),
)
"""Steps that name the number of the compile-time format, where keys and values lie in slots; 0 otherwise."""
_Q_STRIDES = (Let("q_batch", "step(q, 0)"), Let("q_row", "step(q, 1)"), Let("q_head", "step(q, 2)"))
_SCORES_TENSORS = "q keys scores key_scales"
_SCORES_OP = Op(
    schema=SCORES,
    fixed={"kind": list(KernelKind).index(KernelKind.SCORES)},
    tensors=(
        Tensor("q", "batch rows heads head_dim", DTYPES),
        Tensor("keys", "batch length kv_heads key_bytes", (DType.U8,)),
        Tensor("scores", "batch heads rows length", (DType.F32,)),
        Tensor("key_scales", "kv_heads", (DType.F32,), Layout.VECTOR),
    ),
    contract=(
        Check(Aspect.DTYPE, "q keys scores"),
        Check(Aspect.RANK, "q keys scores"),
        Check(Aspect.SHAPE, "q"),
        _head_dim(KernelKind.SCORES),
        one_of_words(tuple(KEY_FORMATS)),
        _rotatable("format_index"),
        *_size("key", "format_index", _KEY_SCALARS),
        Let("length", "size(keys, 1)"),
        Let("kv_heads", "size(keys, 2)"),
        Require(
            "size(keys, 0) == batch and size(keys, 3) == key_bytes",
            "{keys.name} is {keys.shape}, expected [{batch}, length, KV heads, {key_bytes}]: so many bytes has a key of {format}",
        ),
        _heads_fit("keys"),
        Check(Aspect.SHAPE, "scores"),
        _beside("q", 4),
        _beside("keys", 4),
        Require("dense(scores) == 1", "{scores.name} of {scores.shape} has strides {scores.strides}, expected no gaps"),
        Require("seed >= 0", "seed is {seed}, expected 0 or more"),
        *_scales("key_scales", "format_index"),
        Check(Aspect.DEVICE, _SCORES_TENSORS),
        Check(Aspect.APART, _SCORES_TENSORS),
        *_strides("key", "keys"),
        *_Q_STRIDES,
        Let("key_format", "format_index"),
        Let("element", "dtype(q)"),
        Let("works", "batch * rows * heads * length"),
        CLASSES,
    ),
)
_TABLE = (
    Require("rank(block_table) == 2", "{block_table.name} has shape {block_table.shape}, expected [sequences, pages]"),
)
_ATTENTION_TENSORS = "q out keys values block_table seq_lens sinks lse key_scales value_scales"
_ATTENTION_OP = Op(
    schema=ATTENTION,
    fixed={"kind": list(KernelKind).index(KernelKind.ATTEND)},
    tensors=(
        Tensor("q", "batch rows heads head_dim", DTYPES),
        Tensor("out", "batch rows heads head_dim", Same("q")),
        Tensor("keys", "pages page kv_heads key_bytes", (DType.U8,)),
        Tensor("values", "pages page kv_heads value_bytes", (DType.U8,)),
        Tensor("block_table", "batch size(block_table,1)", (DType.S32,), Layout.ROWS, needs=_TABLE),
        Tensor("seq_lens", "batch", (DType.S32,), Layout.VECTOR),
        Tensor("sinks", "heads", (DType.F32,), Layout.VECTOR),
        Tensor(
            "lse",
            "batch heads rows",
            (DType.F32,),
            needs=(
                Require(
                    "rank(lse) == 3 and dense(lse) == 1",
                    "{lse.name} has shape {lse.shape} and strides {lse.strides}, expected three dimensions without gaps",
                ),
            ),
        ),
        Tensor("key_scales", "kv_heads", (DType.F32,), Layout.VECTOR),
        Tensor("value_scales", "kv_heads", (DType.F32,), Layout.VECTOR),
    ),
    contract=(
        Check(Aspect.DTYPE, "q out keys values seq_lens"),
        Check(Aspect.RANK, "q out keys values seq_lens"),
        Check(Aspect.SHAPE, "q out"),
        _head_dim(KernelKind.ATTEND),
        Require(
            f"format in {CACHE_FORMATS}",
            f"format is {{format!r}}, expected k_K_v_V of a K of {', '.join(KEY_FORMATS)} and a V of {', '.join(VALUE_FORMATS)}",
        ),
        Let("key_format", f"format_index // {len(VALUE_FORMATS)}"),
        Let("value_format", f"format_index % {len(VALUE_FORMATS)}"),
        _rotatable("key_format"),
        *_size("key", "key_format", _KEY_SCALARS),
        *_size("value", "value_format", _VALUE_SCALARS),
        Let("pages", "size(keys, 0)"),
        Let("page", "size(keys, 1)"),
        Let("kv_heads", "size(keys, 2)"),
        _holds("keys", 4, "key"),
        Require(
            "size(values, 0) == pages and size(values, 1) == page and size(values, 2) == kv_heads and size(values, 3) == value_bytes",
            "{values.name} is {values.shape}, expected [{pages}, {page}, {kv_heads}, {value_bytes}]: so many bytes has a value of {format}",
        ),
        _heads_fit("keys"),
        Check(Aspect.SHAPE, "seq_lens"),
        Check(Aspect.LAYOUT, "seq_lens"),
        Check(Aspect.WHOLE, "block_table sinks lse"),
        OneOf(
            "is_plain",
            {"paged": "block_table", "plain": "pages == batch"},
            "{keys.name} has {pages} pages for {batch} sequences: without a block_table each sequence has one",
        ),
        _beside("q", 4),
        _beside("keys", 4),
        _beside("values", 4),
        Let("out_stride", "row_stride(out)"),
        Require(
            "out_stride >= head_dim",
            "{out.name} of {out.shape} has strides {out.strides}: its vectors must follow one another at one stride, and not overlap",
        ),
        Require("window >= 0", "window is {window}, expected a number of keys, or 0 for all"),
        Require("softcap >= 0.0", "softcap is {softcap}, expected a positive number, or 0 for none"),
        Require(
            "seed >= -1",
            "seed is {seed}, expected 0 or more, or -1 for queries that are rotated and an output that stays so",
        ),
        Require(
            "seed >= 0 or key_format // 3 != 2 and value_format // 3 != 2",
            "seed is {seed} with {format}: signs are of projected queries, so give the seed and queries that are not rotated",
        ),
        Require(
            "rotated_out == 0 or value_format // 3 != 2",
            "rotated_out with {format}: sums of signs are not of the rotation's basis, so take the output rotated back",
        ),
        *_scales("key_scales", "key_format"),
        *_scales("value_scales", "value_format"),
        Check(Aspect.DEVICE, _ATTENTION_TENSORS),
        Check(Aspect.APART, _ATTENTION_TENSORS),
        *_Q_STRIDES,
        *_strides("key", "keys"),
        *_strides("value", "values"),
        *_SLOTS,
        When(
            "block_table",
            (Let("table_stride", "row_stride(block_table)"), Let("table_pages", "size(block_table, 1)")),
        ),
        Let("element", "dtype(q)"),
        Let("works", "batch * rows * heads"),
        CLASSES,
    ),
)
PACKED_OPS = (
    _of_vectors(COMPRESS_KEYS, KernelKind.PACK, "key"),
    _of_vectors(COMPRESS_VALUES, KernelKind.PACK, "value"),
    _of_vectors(DECOMPRESS_KEYS, KernelKind.UNPACK, "key"),
    _of_vectors(DECOMPRESS_VALUES, KernelKind.UNPACK, "value"),
    _SCORES_OP,
    _ATTENTION_OP,
)
