"""Attention over pages: against plain Python, against decompression, behind masks, with poisoned padding, refused."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from gemmill.families.kv_cache.bounds import BF16, F16, F32, WEIGHT_SHARE, Arithmetic, attention_bound
from gemmill.families.kv_cache.formats import (
    PRESETS,
    CacheFormat,
    CacheSpec,
    Method,
    RotationKind,
    VectorFormat,
    cache_format,
)
from gemmill.families.kv_cache.pages import KEYS, VALUES
from gemmill.families.kv_cache.reference.attention import (
    AttentionOptions,
    attention,
    attention_scores,
    decode_attention,
    merge,
    visible,
)
from gemmill.families.kv_cache.reference.cache import allocate, read, write
from gemmill.families.kv_cache.reference.rotations import rotate
from gemmill.families.kv_cache.reference.vectors import (
    Decoded,
    assemble,
    compress,
    decode,
    decompress,
    transformed_queries,
)
from gemmill.locations import kernels_dir

OWN = [
    cache_format(VectorFormat(method=k, bits=kb), VectorFormat(method=v, bits=vb))
    for k, v, kb, vb in (
        (Method.TURBOQUANT_MSE, Method.TURBOQUANT_MSE, 4, 2),
        (Method.TURBOQUANT_PROD, Method.TURBOQUANT_MSE, 3, 2),
        (Method.EDEN, Method.TURBOQUANT_PROD, 2, 4),
        (Method.EDEN, Method.EDEN, 4, 4),
    )
]
FORMATS = [*OWN, *PRESETS.values()]
LENGTHS = (37, 0, 1, 64, 16)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(format: CacheFormat, page_size: int = 16, head_dim: int = 64, kv_heads: int = 2, poison: int = 0xFF):
    """A cache of five sequences in shuffled pages, all bytes that no token owns poisoned (float16 0xffff is NaN)."""
    spec = CacheSpec(format=format, head_dim=head_dim, kv_heads=kv_heads, page_size=page_size, seed=2)
    widest = -(-max(LENGTHS) // page_size)
    pages = len(LENGTHS) * widest
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(1))
    table = order.reshape(len(LENGTHS), widest)
    cache = allocate(spec, pages)
    cache.fill_(poison)
    k, v = (gaussian(len(LENGTHS), max(LENGTHS), kv_heads, head_dim, seed=s) for s in (3, 4))
    for row, length in enumerate(LENGTHS):
        tokens = torch.arange(length)
        slots = table[row, tokens // page_size] * page_size + tokens % page_size
        write(cache, spec, k[row, :length], v[row, :length], slots)
        table[row, -(-length // page_size) :] = 10**6
    return spec, cache, table, torch.tensor(LENGTHS), k, v


def by_hand(q, k, v, options: AttentionOptions, sinks):
    """One sequence in plain Python: lists of floats, one row, head and key at a time."""
    rows, heads, _ = q.shape
    length, kv_heads = k.shape[0], k.shape[1]
    out, lse = torch.zeros_like(q), torch.zeros(heads, rows, dtype=q.dtype)
    for r, h in itertools.product(range(rows), range(heads)):
        kv, position = h // (heads // kv_heads), length - rows + r
        terms = []
        for j in range(length):
            if options.causal and j > position:
                continue
            if options.window is not None and position - j >= options.window and j >= options.sink_tokens:
                continue
            score = options.scale * math.fsum((q[r, h] * k[j, kv]).tolist())
            if options.soft_cap is not None:
                score = options.soft_cap * math.tanh(score / options.soft_cap)
            terms.append((math.exp(score), j))
        total = math.fsum(t for t, _ in terms) + (math.exp(float(sinks[h])) if sinks is not None else 0.0)
        lse[h, r] = math.log(total) if total else -math.inf
        for weight, j in terms:
            out[r, h] += weight / total * v[j, kv]
    return out, lse


OPTIONS = [
    AttentionOptions(scale=0.125),
    AttentionOptions(scale=0.3, causal=False),
    AttentionOptions(scale=0.3, window=5),
    AttentionOptions(scale=0.3, window=5, sink_tokens=2),
    AttentionOptions(scale=0.3, window=7, causal=False, soft_cap=0.8),
    AttentionOptions(scale=2.0, soft_cap=1.5),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_against_plain_python(options: AttentionOptions) -> None:
    for rows, length, heads in ((1, 9, 4), (3, 9, 2), (4, 2, 2), (2, 0, 2)):
        q, k, v = gaussian(rows, heads, 8), gaussian(length, 2, 8, seed=1), gaussian(length, 2, 8, seed=2)
        for sinks in (None, torch.tensor([-1.0, 0.5, 2.0, -torch.inf], dtype=torch.float64)[:heads]):
            out, lse = attention(q, k, v, options, sinks)
            wanted, wanted_lse = by_hand(q, k, v, options, sinks)
            assert torch.allclose(out, wanted, atol=1e-13)
            assert torch.allclose(lse, wanted_lse, atol=1e-13)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("rows", [1, 3])
def test_fused_attention_equals_attention_over_decompressed_pages(format: CacheFormat, rows: int) -> None:
    """Queries rotated and the output rotated back once, against rotating every key and value; padding is poisoned."""
    spec, cache, table, lengths, _, _ = filled(format)
    q = gaussian(len(LENGTHS), rows, 8, 64, seed=5)
    sinks = gaussian(8, seed=6)
    for options in (OPTIONS[0], OPTIONS[3]):
        out, lse = decode_attention(q, cache, spec, table, lengths, options, sinks)
        for row, length in enumerate(LENGTHS):
            k = decompress(read(cache, spec, KEYS, table[row], length), spec.keys)
            v = decompress(read(cache, spec, VALUES, table[row], length), spec.values)
            wanted, wanted_lse = attention(q[row], k, v, options, sinks)
            assert torch.allclose(out[row], wanted, atol=1e-12)
            assert torch.allclose(lse[row], wanted_lse, atol=1e-12)
    assert torch.isfinite(out).all()


def test_a_sequence_of_no_tokens_is_zero() -> None:
    spec, cache, table, lengths, _, _ = filled(OWN[0])
    q = gaussian(len(LENGTHS), 1, 2, 64)
    out, lse = decode_attention(q, cache, spec, table, lengths, OPTIONS[0])
    assert bool((out[1] == 0).all())
    assert bool(torch.isneginf(lse[1]).all())
    _, with_sink = decode_attention(q, cache, spec, table, lengths, OPTIONS[0], torch.tensor([1.5, -0.5]))
    assert with_sink[1].flatten().tolist() == [1.5, -0.5]


@pytest.mark.parametrize("page_size", [16, 32, 64, 128])
def test_results_do_not_depend_on_pages(page_size: int) -> None:
    q = gaussian(len(LENGTHS), 2, 4, 64, seed=7)
    results = []
    for size in (16, page_size):
        spec, cache, table, lengths, _, _ = filled(OWN[3], page_size=size)
        results.append(decode_attention(q, cache, spec, table, lengths, OPTIONS[0]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_poison_in_padding_changes_nothing(format: CacheFormat) -> None:
    q = gaussian(len(LENGTHS), 2, 4, 64, seed=7)
    results = []
    for poison in (0x00, 0xFF):
        spec, cache, table, lengths, _, _ = filled(format, poison=poison)
        results.append(decode_attention(q, cache, spec, table, lengths, OPTIONS[2]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("format", [f for f in FORMATS if f.layout.value != "split"], ids=lambda format: format.name)
@pytest.mark.parametrize("side", [KEYS, VALUES])
def test_nan_shows_in_the_rows_that_see_it_and_in_no_other(format: CacheFormat, side: str) -> None:
    """Key 10 of 12, three query rows, so rows 1 and 2 see it; a window of 1 hides it from row 2."""
    spec = CacheSpec(format=format, head_dim=64, kv_heads=2, page_size=16)
    cache, k, v = allocate(spec, 1), gaussian(12, 2, 64), gaussian(12, 2, 64, seed=1)
    (k if side == KEYS else v)[10, 1, 3] = torch.nan
    write(cache, spec, k, v, torch.arange(12))
    q, table, lengths = gaussian(1, 3, 4, 64, seed=2), torch.tensor([[0]]), torch.tensor([12])
    for options, rows in ((OPTIONS[0], [1, 2]), (AttentionOptions(scale=0.1, window=1), [1])):
        out, lse = decode_attention(q, cache, spec, table, lengths, options)
        bad = torch.isnan(out[0]).any(-1)
        assert bad[:, 2:].all(-1).nonzero().flatten().tolist() == rows
        assert not bad[:, :2].any(), "the other KV head"
        if side == KEYS:
            assert torch.isnan(lse[0]).any(0).nonzero().flatten().tolist() == rows
        else:
            assert torch.isfinite(lse).all()


@pytest.mark.parametrize("format", OWN, ids=lambda format: format.name)
def test_scores(format: CacheFormat) -> None:
    spec = CacheSpec(format=format, head_dim=128, kv_heads=2, page_size=16).keys
    q, k = gaussian(2, 3, 8, 128), gaussian(2, 5, 2, 128, seed=1)
    fields = compress(k, spec)
    found = attention_scores(q, fields, spec)
    stored = decompress(fields, spec)
    wanted = torch.einsum("brgjd,bngd->bgjrn", q.reshape(2, 3, 2, 4, 128), stored).flatten(1, 2)
    assert found.shape == (2, 8, 3, 5)
    assert torch.allclose(found, wanted, atol=1e-11)


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.3, -0.2], dtype=torch.float64)])
def test_merging_parts_is_attention_over_all(sinks: torch.Tensor | None) -> None:
    """One row, keys in three parts of which one is empty; the sink is counted in the first alone."""
    q, k, v = gaussian(1, 2, 16), gaussian(11, 1, 16, seed=1), gaussian(11, 1, 16, seed=2)
    whole = attention(q, k, v, OPTIONS[0], sinks)
    cuts = (slice(0, 4), slice(4, 4), slice(4, 11))
    parts = [attention(q, k[c], v[c], OPTIONS[0], sinks if i == 0 else None) for i, c in enumerate(cuts)]
    found = merge(parts)
    assert torch.allclose(found[0], whole[0], atol=1e-14)
    assert torch.allclose(found[1], whole[1], atol=1e-14)


def test_visible_keys() -> None:
    rows = visible(2, 6, AttentionOptions(scale=1.0, window=2, sink_tokens=1)).int().tolist()
    assert rows == [[1, 0, 0, 1, 1, 0], [1, 0, 0, 0, 1, 1]]
    assert visible(4, 2, AttentionOptions(scale=1.0)).int().tolist() == [[0, 0], [0, 0], [1, 0], [1, 1]]


def emulated(q, cache, spec: CacheSpec, pages, length: int, options: AttentionOptions, how: Arithmetic) -> torch.Tensor:
    """A kernel's arithmetic: float32, operands and weights rounded as `how` says, output rotated back in float32."""

    def rounded(x: torch.Tensor, unit: float) -> torch.Tensor:
        return x.to(
            {BF16.operand_unit: torch.bfloat16, F16.operand_unit: torch.float16}.get(unit, torch.float32)
        ).float()

    keys, values = (read(cache, spec, side, pages, length) for side in (KEYS, VALUES))
    query, stored = transformed_queries(q.float(), spec.keys), decode(keys, spec.keys, torch.float32)
    group = q.shape[1] // spec.kv_heads
    scores = torch.zeros(q.shape[1], q.shape[0], length)
    for a, b in ((query.rotated, stored.rotated), (query.projected, stored.projected)):
        if a is not None and b is not None:
            b = b.repeat_interleave(group, dim=1)
            scores += torch.einsum("rhd,nhd->hrn", rounded(a, how.operand_unit), rounded(b, how.operand_unit))
    scores = torch.where(visible(q.shape[0], length, options), scores * options.scale, -torch.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    total = weights.sum(-1, keepdim=True)
    value = decode(values, spec.values, torch.float32)

    def weigh(part: torch.Tensor) -> torch.Tensor:
        part = rounded(part.repeat_interleave(group, dim=1), how.operand_unit)
        return torch.einsum("hrn,nhd->rhd", rounded(weights, how.weight_unit), part) / total.permute(1, 0, 2)

    parts = Decoded(rotated=weigh(value.rotated), projected=None if value.projected is None else weigh(value.projected))
    return assemble(parts, spec.values).double()


@pytest.mark.parametrize("how", [F32, F16, BF16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("format", FORMATS[:9], ids=lambda format: format.name)
def test_attention_bound(format: CacheFormat, how: Arithmetic) -> None:
    """Rounded arithmetic lies within; a page in another's place does not; with half the bits the bound is within 50 errors."""
    spec, cache, table, lengths, _, _ = filled(format, kv_heads=2)
    q, options = gaussian(len(LENGTHS), 2, 4, 64, seed=8), AttentionOptions(scale=0.125)
    wanted, _ = decode_attention(q, cache, spec, table, lengths, options)
    for row in (0, 3):
        pages, length = table[row], LENGTHS[row]
        bound = attention_bound(q[row], cache, spec, pages, length, options, how)
        error = (emulated(q[row], cache, spec, pages, length, options, how) - wanted[row]).abs()
        assert bool((error <= bound).all())
        assert how is F32 or float(bound.mean()) < 50 * float(error.mean())
    if how is BF16:
        swapped = table.clone()
        swapped[0, 0], swapped[0, 1] = table[0, 1], table[3, 0]
        wrong, _ = decode_attention(q, cache, spec, swapped, lengths, options)
        bound = attention_bound(q[0], cache, spec, table[0], LENGTHS[0], options, how)
        assert bool(((wrong[0] - wanted[0]).abs() > bound).any())


def test_attention_bound_of_a_rotated_output() -> None:
    """Limits are the rotated elements' own: those of the output rotated back would be too narrow where it is flat."""
    spec, cache, table, lengths, _, _ = filled(OWN[3], kv_heads=2)
    q, options, length = gaussian(len(LENGTHS), 2, 4, 64, seed=8)[0], AttentionOptions(scale=8.0), LENGTHS[0]
    given = q, cache, spec, table[0], length, options, F16
    wanted, _ = decode_attention(q[None], cache, spec, table[:1], lengths[:1], options)
    rotation = spec.values.rotation, spec.values.seed
    error = rotate(emulated(*given), *rotation) - rotate(wanted[0], *rotation)
    bound = attention_bound(*given, rotated_out=True)
    assert bool((error.abs() <= bound).all())
    plain = attention_bound(*given)
    assert float((bound / plain).max()) > 1.5 and float((bound / plain).min()) < 1 / 1.5


def test_refused_calls() -> None:
    spec, cache, table, lengths, k, v = filled(OWN[3])
    q = gaussian(len(LENGTHS), 1, 4, 64)

    def call(**changes):
        given = {"q": q, "cache": cache, "spec": spec, "block_table": table, "seq_lens": lengths}
        return decode_attention(**(given | changes), options=OPTIONS[0])

    outside = table.clone()
    outside[3, 1] = 20
    with pytest.raises(
        ValueError, match=r"^The page table of sequence 3 names page 20; the cache has pages 0 to 19: correct"
    ):
        call(block_table=outside)
    with pytest.raises(
        ValueError, match=r"^Sequence 0 has 65 tokens; the page table's 4 pages of 16 reach from 0 to 64: wid"
    ):
        call(seq_lens=lengths + torch.tensor([28, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match=r"^Sequence 0 has -1 tokens; .* widen the table or correct the length\.$"):
        call(seq_lens=lengths - 38)
    with pytest.raises(
        ValueError, match=r"^A page table \[4, 4\] was given for 5 sequences; it is \[sequences, pages of the l"
    ):
        call(block_table=table[:4])
    with pytest.raises(
        ValueError, match=r"^Queries \[5, 1, 3, 64\] were given for 5 sequences of 2 KV heads of 64; they are \["
    ):
        call(q=q[:, :, :3])
    with pytest.raises(
        ValueError, match=r"^A cache torch.uint8 \[20, 99\] .* is contiguous torch.uint8 of 2176 bytes a page, "
    ):
        call(cache=torch.zeros(20, 99, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"^A cache torch.int8 .* the page first: allocate it so\.$"):
        call(cache=cache.view(torch.int8))
    before = cache.clone()
    with pytest.raises(
        ValueError, match=r"^Slots from -1 to 320 were given; 20 pages of 16 tokens have 0 to 319, and -1 store"
    ):
        write(cache, spec, k[0, :3], v[0, :3], torch.tensor([-1, 0, 320]))
    with pytest.raises(
        ValueError, match=r"^Values \[2, 2, 64\] were to be stored at 3 slots; the cache takes \[3, 2, 64\]: \[to"
    ):
        write(cache, spec, k[0, :3], v[0, :2], torch.tensor([0, 1, 2]))
    assert torch.equal(cache, before)
    with pytest.raises(
        ValueError, match=r"^A window of 0 keys was asked for; it has at least one: give None for no window\.$"
    ):
        AttentionOptions(scale=1.0, window=0)
    with pytest.raises(
        ValueError, match=r"^2 sink tokens without a window were asked for; .* in addition to one: give a window\.$"
    ):
        AttentionOptions(scale=1.0, sink_tokens=2)
    with pytest.raises(ValueError, match=r"^A soft cap of 0.0 was asked for; it is positive: give None for no cap\.$"):
        AttentionOptions(scale=1.0, soft_cap=0.0)


def test_a_cache_may_be_a_slice_in_the_shape_of_vllm() -> None:
    """[pages, page size, KV heads, slot], behind a page of another layer."""
    spec, cache, table, lengths, _, _ = filled(PRESETS["turboquant_3bit_nc"])
    q = gaussian(len(LENGTHS), 1, 4, 64)
    shaped = torch.cat((cache[:1], cache)).reshape(len(cache) + 1, 16, 2, 54)[1:]
    found, _ = decode_attention(q, shaped, spec, table, lengths, OPTIONS[0])
    wanted, _ = decode_attention(q, cache, spec, table, lengths, OPTIONS[0])
    assert torch.equal(found, wanted)
    with pytest.raises(
        ValueError, match=r"^A cache torch.uint8 \[20, 1728\] with strides \[3456, 1\] was given; turboquant_3"
    ):
        decode_attention(q, torch.cat((cache, cache), 1)[:, :1728], spec, table, lengths, OPTIONS[0])


def test_skipped_slots_and_dense_rotations() -> None:
    dense = cache_format(OWN[3].keys, OWN[3].values, rotation=RotationKind.DENSE)
    spec = CacheSpec(format=dense, head_dim=64, kv_heads=2, page_size=16)
    cache, k = allocate(spec, 2), gaussian(3, 2, 64)
    write(cache, spec, k, k, torch.tensor([-1, 17, -1]))
    assert not cache[0].any()
    found = decompress(read(cache, spec, KEYS, torch.tensor([1]), 2), spec.keys)
    assert float((found[1] - k[1]).norm() / k[1].norm()) < 0.13
    assert bool((found[0] == 0).all())
    other = replace(spec, seed=1)
    assert float((decompress(read(cache, other, KEYS, torch.tensor([1]), 2), other.keys)[1] - k[1]).norm()) > 5


def test_bounds_and_kernels_have_the_same_headroom_of_maxima() -> None:
    header = (kernels_dir() / "kv_cache/shared/decode_tiles.cuh").read_text()
    assert f"constexpr float kHeadroom = {-math.log2(WEIGHT_SHARE):.1f}f;" in header
