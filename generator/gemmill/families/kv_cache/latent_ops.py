"""The op of attention over a cache of latents, and its contract."""

from gemmill.families.kv_cache.classes import CLASSES
from gemmill.families.kv_cache.config import DTYPES, KernelKind
from gemmill.families.kv_cache.formats import PAGE_SIZES
from gemmill.families.kv_cache.latent import (
    E4M3_TOKEN_BYTES,
    LATENT_BITS,
    LATENT_DIM,
    LATENT_FORMATS,
    ROTARY_DIM,
    TOKEN_BYTES,
)
from gemmill.families.kv_cache.packed_ops import one_of_words
from gemmill.family import Aspect, Check, Layout, Let, Op, OpSchema, Require, Same, Tensor, When, any_of
from gemmill.vocab import DType

LATENT = OpSchema(
    "kv_latent_attention(Tensor(a!) out, Tensor q, Tensor cache, Tensor block_table, Tensor seq_lens, str format, "
    "float scale, int seed=0, bool causal=True, Tensor(b!)? lse=None, bool rotated_out=False, "
    "Tensor? key_scales=None) -> ()"
)
_ALIGNMENT = 16
_TENSORS = "q out cache block_table seq_lens lse key_scales"
LATENT_OP = Op(
    schema=LATENT,
    fixed={"kind": list(KernelKind).index(KernelKind.LATENT)},
    tensors=(
        Tensor("q", "batch rows heads query_dim", DTYPES),
        Tensor("out", "batch rows heads head_dim", Same("q")),
        Tensor("cache", "pages page token_bytes", (DType.U8,), alignment=_ALIGNMENT),
        Tensor("block_table", "batch table_pages", (DType.S32,), Layout.ROWS),
        Tensor("seq_lens", "batch", (DType.S32,), Layout.VECTOR),
        Tensor("key_scales", "kv_heads", (DType.F32,), Layout.VECTOR),
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
    ),
    contract=(
        Check(Aspect.DTYPE, "q out cache block_table seq_lens"),
        Check(Aspect.RANK, "q out cache block_table seq_lens"),
        Check(Aspect.SHAPE, "q out"),
        Require(
            f"query_dim == {LATENT_DIM + ROTARY_DIM} and head_dim == {LATENT_DIM}",
            "queries have {query_dim} elements and {out.name} {head_dim}, expected "
            f"{LATENT_DIM + ROTARY_DIM} and {LATENT_DIM}: a latent of {LATENT_DIM}, and a rotary part of {ROTARY_DIM} behind it in queries",
        ),
        one_of_words(tuple(LATENT_FORMATS)),
        Let("key_bits", str(LATENT_BITS)),
        Let("value_bits", str(LATENT_BITS)),
        Let("kv_heads", "1"),
        Let("window", "0"),
        Let("pages", "size(cache, 0)"),
        Let("page", "size(cache, 1)"),
        Require(
            f"page in {PAGE_SIZES}",
            f"pages of {{cache.name}} have {{page}} tokens, expected {any_of(list(map(str, PAGE_SIZES)))}",
        ),
        Let("token_bytes", "size(cache, 2)"),
        Require(
            f"token_bytes in {(TOKEN_BYTES, E4M3_TOKEN_BYTES)}",
            f"{{cache.name}} is {{cache.shape}}, expected [pages, page, {TOKEN_BYTES}], or {E4M3_TOKEN_BYTES} with rotary parts in e4m3: so "
            "many bytes has a token of {format}",
        ),
        Let("rotary_is_e4m3", f"({TOKEN_BYTES} - token_bytes) // {TOKEN_BYTES - E4M3_TOKEN_BYTES}"),
        Require(
            "step(cache, 2) == 1 and step(cache, 1) == token_bytes",
            "{cache.name} of {cache.shape} has strides {cache.strides}: a page must be contiguous",
        ),
        Let("page_stride", "step(cache, 0)"),
        Require(
            f"pages <= 1 or page_stride >= page * token_bytes and page_stride % {_ALIGNMENT} == 0",
            "{cache.name} has a stride of {page_stride} bytes for pages of {page} tokens of {token_bytes}, expected as many "
            f"bytes or more, and a multiple of {_ALIGNMENT}",
        ),
        Check(Aspect.SHAPE, "block_table seq_lens"),
        Check(Aspect.LAYOUT, "block_table seq_lens"),
        Check(Aspect.WHOLE, "lse key_scales"),
        When(
            "key_scales",
            (
                Require(
                    "rotary_is_e4m3 == 1",
                    "key_scales with {cache.name} of {cache.shape}: a scale is of rotary parts in e4m3 alone, of tokens of "
                    f"{E4M3_TOKEN_BYTES} bytes, so leave it out",
                ),
            ),
        ),
        Require(
            "step(q, 3) == 1",
            "{q.name} has strides {q.strides}: elements of a vector must be contiguous (last stride 1)",
        ),
        Let("out_stride", "row_stride(out)"),
        Require(
            "out_stride >= head_dim",
            "{out.name} of {out.shape} has strides {out.strides}: its vectors must follow one another at one stride, and not overlap",
        ),
        Require(
            "seed >= -1",
            "seed is {seed}, expected 0 or more, or -1 for queries that are rotated and an output that stays so",
        ),
        Check(Aspect.DEVICE, _TENSORS),
        Check(Aspect.APART, _TENSORS),
        Let("q_batch", "step(q, 0)"),
        Let("q_row", "step(q, 1)"),
        Let("q_head", "step(q, 2)"),
        Let("table_stride", "row_stride(block_table)"),
        Let("element", "dtype(q)"),
        Let("works", "batch * rows * heads"),
        CLASSES,
    ),
)
