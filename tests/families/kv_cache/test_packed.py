"""The ops of packed vectors on CPU tensors: the references, sentences for bad input, vLLM's pages, rotations in weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from families.kv_cache.rotated import exact
from families.kv_cache.test_ops import given, sentence
from gemmill.families.kv_cache import seeds
from gemmill.families.kv_cache.cases.packed_bounds import wrong_bytes
from gemmill.families.kv_cache.cases.packed_calls import AttendCase, PackCase, ScoresCase, UnpackCase, key_formats
from gemmill.families.kv_cache.formats import HEAD_DIMS, CacheSpec, preset
from gemmill.families.kv_cache.packed import KEY_FORMATS, VALUE_FORMATS, preset_format, slot_sizes
from gemmill.families.kv_cache.reference.attention import AttentionOptions, attention, decode_attention
from gemmill.families.kv_cache.reference.cache import allocate, write
from gemmill.families.kv_cache.reference.vectors import compress
from gemmill.quantize import fold_rotation

PACK = PackCase(tokens=5, format="eden4", heads=2)
MAPPED = PackCase(tokens=5, format="eden4", heads=2, is_mapped=True)
UNPACK = UnpackCase(tokens=5, format="uniform3", heads=2, of_values=True)
SCORES = ScoresCase(length=9, heads=4, kv_heads=2)
ATTEND = AttendCase(lengths=(20, 3), rows=2, heads=4, kv_heads=2, page=16)
PLAIN = AttendCase(lengths=(20, 3), heads=4, kv_heads=2, is_plain=True)
PRESETS = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "ultraquant_4bit")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_bytes_of_a_packed_vector_are_those_of_its_format(head_dim: int) -> None:
    """The contract computes them from a format's place; a byte more or fewer is refused."""
    x = normal(3, 2, head_dim).bfloat16()
    for formats, op in ((key_formats(head_dim), gemmill.kv_compress_keys), (VALUE_FORMATS, gemmill.kv_compress_values)):
        for name in formats:
            size = (KEY_FORMATS | VALUE_FORMATS)[name].size(head_dim)
            op(torch.zeros(3, 2, size, dtype=torch.uint8), x, None, name)
            for off in (-1, 1):
                with pytest.raises(RuntimeError, match=f"expected .slots, heads, {size}.: so many bytes has a"):
                    op(torch.zeros(3, 2, size + off, dtype=torch.uint8), x, None, name)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("name", PRESETS)
def test_pages_of_vllm_are_written_and_read_as_they_are(name: str, head_dim: int) -> None:
    """Bytes equal those of the reference's page layout, which other tests hold to vLLM's own; attention reads them in place.
    Keys that vLLM rotates have 64, 128, 256 or 512 elements, and others are refused."""
    heads, page = 2, 16
    cache = torch.zeros(3, page, heads, slot_sizes(preset(name), head_dim)[2], dtype=torch.uint8)
    keys, values = gemmill.vllm_cache(cache, name, head_dim)
    key_format, _, value_format = preset_format(name).removeprefix("k_").rpartition("_v_")
    if head_dim in (96, 192) and name != "turboquant_k8v4":
        new = torch.zeros(1, heads, head_dim, dtype=torch.bfloat16)
        with pytest.raises(
            RuntimeError, match=f"vectors of {head_dim} elements, expected 64, 128, 256 or 512: so many have"
        ):
            gemmill.kv_compress_keys(keys.flatten(0, 1), new, torch.tensor([0]), key_format)
        with pytest.raises(
            RuntimeError, match=f"vectors of {head_dim} elements, expected 64, 128, 256 or 512: so many have"
        ):
            gemmill.kv_attention(new[None], keys, values, torch.tensor([1], dtype=torch.int32), format=name)
        return
    spec = CacheSpec(format=preset(name), head_dim=head_dim, kv_heads=heads, page_size=page)
    k, v = (
        torch.tensor(seeds.normals(seed, seeds.Purpose.PROJECTION, 21 * heads * head_dim)).reshape(21, heads, head_dim)
        for seed in (7, 8)
    )
    slots = torch.randperm(48, generator=torch.Generator().manual_seed(5))[:21]
    wanted = allocate(spec, 3)
    write(wanted, spec, k.bfloat16(), v.bfloat16(), slots)

    gemmill.kv_compress_keys(keys.flatten(0, 1), k.bfloat16(), slots, key_format)
    gemmill.kv_compress_values(values.flatten(0, 1), v.bfloat16(), slots, value_format)
    assert torch.equal(cache.flatten(), wanted.flatten())

    q = normal(1, 2, 4, head_dim).bfloat16()
    table, lengths = torch.tensor([[2, 0, 1]], dtype=torch.int32), torch.tensor([40], dtype=torch.int32)
    out, _ = gemmill.kv_attention(q, keys, values, lengths, table, name)
    options = AttentionOptions(scale=head_dim**-0.5)
    exact, _ = decode_attention(q.double(), wanted, spec, table, lengths, options)
    assert torch.equal(out, exact.bfloat16())


def test_a_cache_that_is_not_vllms_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"turboquant_4bit_nc with head dim 64 is torch.uint8 \[pages, page, KV heads, 70\]: pass"
    ):
        gemmill.vllm_cache(torch.zeros(2, 16, 2, 71, dtype=torch.uint8), "turboquant_4bit_nc", 64)
    with pytest.raises(ValueError, match="Preset turboquant_4bit_nc_split was asked for; there are turboquant_k8v4, "):
        gemmill.vllm_cache(torch.zeros(2, 16, 2, 70, dtype=torch.uint8), "turboquant_4bit_nc_split", 64)


def test_plain_and_paged_caches_give_the_same() -> None:
    k, v, q = normal(2, 30, 2, 128, seed=1), normal(2, 30, 2, 128, seed=2), normal(2, 3, 4, 128, seed=3).bfloat16()
    packed = []
    for x, op in ((k, gemmill.kv_compress_keys), (v, gemmill.kv_compress_values)):
        to = torch.zeros(60, 2, 66, dtype=torch.uint8)
        op(to, x.flatten(0, 1).bfloat16(), seed=4)
        packed.append(to.unflatten(0, (2, 30)))
    lengths = torch.tensor([30, 17], dtype=torch.int32)
    plain = gemmill.kv_attention(q, *packed, lengths, seed=4)
    pages = [x.reshape(6, 10, 2, 66) for x in packed]
    table = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    for found, wanted in zip(gemmill.kv_attention(q, *pages, lengths, table, seed=4), plain, strict=True):
        assert torch.equal(found, wanted)
    exact, _ = attention(q[0].double(), k[0].double(), v[0].double(), AttentionOptions(scale=128**-0.5))
    assert (plain[0][0].double() - exact).norm() < 0.2 * exact.norm()


def test_scores_are_inner_products_of_what_was_packed() -> None:
    k, q = normal(1, 9, 2, 96), normal(1, 2, 4, 96, seed=1).half()
    packed = torch.zeros(9, 2, 38, dtype=torch.uint8)
    gemmill.kv_compress_keys(packed, k[0].half(), None, "turboquant_mse3", 2)
    restored = gemmill.kv_decompress_keys(packed, 96, None, "turboquant_mse3", 2, torch.float16)
    wanted = torch.einsum("brhd,nhd->bhrn", q.float(), restored.float().repeat_interleave(2, dim=1))
    found = gemmill.kv_attention_scores(q, packed[None], "turboquant_mse3", 2)
    assert torch.allclose(found, wanted, atol=0.02)


@pytest.mark.parametrize("format", ["eden4", "turboquant_mse2", "unit_centroids3", "e2m1"])
def test_keys_that_come_rotated_are_packed_alike(format: str) -> None:
    spec = PackCase(tokens=9, format=format, head_dim=64).spec
    x, rotated = exact(9, 2, torch.float16, spec.rotation)
    plain, other = (torch.zeros(9, 2, spec.format.size(64), dtype=torch.uint8) for _ in range(2))
    gemmill.kv_compress_keys(plain, x, None, format, spec.seed)
    gemmill.kv_compress_keys(other, rotated, None, format, spec.seed, rotated=True)
    assert torch.equal(plain, other)
    gemmill.kv_compress_keys(other, rotated, None, format, spec.seed)
    assert not torch.equal(plain, other)


@pytest.mark.parametrize("is_rotary", [False, True])
def test_rotations_in_weights_give_the_same_block(is_rotary: bool) -> None:
    """Where something stands behind W_q, here a rotary embedding's stand-in, W_o alone takes the rotation."""
    heads, head_dim, hidden, seed = 4, 64, 96, 11
    w_q, w_o = (normal(heads * head_dim, hidden, seed=i).double() / hidden**0.5 for i in (1, 2))
    x = normal(1, 2, hidden, seed=3).double()
    keys, values = (torch.zeros(20, 2, 34, dtype=torch.uint8) for _ in range(2))
    for to, op, i in ((keys, gemmill.kv_compress_keys, 4), (values, gemmill.kv_compress_values, 5)):
        op(to, normal(20, 2, head_dim, seed=i).half(), seed=seed)
    lengths = torch.tensor([20], dtype=torch.int32)

    def block(w_q: Tensor, w_o: Tensor, **how: Any) -> Tensor:
        q = (x @ w_q.T).unflatten(-1, (heads, head_dim))
        q = torch.cat((-q[..., 32:], q[..., :32]), dim=-1) if is_rotary else q
        out, _ = gemmill.kv_attention(q.half(), keys[None], values[None], lengths, **how)
        return out.flatten(-2).double() @ w_o

    told = {"head_dim": head_dim, "seed": seed}
    w_o_folded = fold_rotation(w_o.T, side="in", **told).T
    if is_rotary:
        found = block(w_q, w_o_folded, seed=seed, rotated_out=True)
    else:
        found = block(fold_rotation(w_q, side="out", **told), w_o_folded, seed=-1)
    wanted = block(w_q, w_o, seed=seed)
    assert (found - wanted).norm() < 4e-3 * wanted.norm()
    bias = normal(heads * head_dim, seed=6).double()
    assert torch.allclose(
        fold_rotation(bias, side="out", **told), fold_rotation(bias[:, None], side="out", **told)[:, 0]
    )


@pytest.mark.parametrize("seed", [None, 11])
def test_rotations_in_all_weights_of_a_block_leave_none_to_the_kernels(seed: int | None) -> None:
    """W_q, W_k, W_v and W_o; of vLLM's keys, whose rotation has no signs, W_q and W_k. Roundings move some codes by one."""
    heads, head_dim, hidden, tokens = 2, 64, 96, 40
    w_q, w_k, w_v, w_o = (normal(heads * head_dim, hidden, seed=i) / hidden**0.5 for i in (1, 2, 3, 4))
    x = normal(1, tokens, hidden, seed=5)
    key, value = ("eden4", "eden4") if seed is not None else ("unit_centroids4", "uniform4")
    lengths = torch.tensor([tokens], dtype=torch.int32)

    def block(w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, rotated: bool) -> Tensor:
        q, k, v = ((x @ w.T).unflatten(-1, (heads, head_dim)).half() for w in (w_q, w_k, w_v))
        packed = [torch.zeros(tokens, heads, size, dtype=torch.uint8) for size in (34, 34 if seed is not None else 36)]
        gemmill.kv_compress_keys(packed[0], k[0], None, key, seed or 0, rotated=rotated)
        gemmill.kv_compress_values(packed[1], v[0], None, value, seed or 0, rotated=rotated and seed is not None)
        told = -1 if rotated else seed or 0
        out, _ = gemmill.kv_attention(q, *(y[None] for y in packed), lengths, format=f"k_{key}_v_{value}", seed=told)
        return out.flatten(-2).float() @ w_o

    told: dict[str, Any] = {"head_dim": head_dim, "seed": seed}
    folded = [fold_rotation(w, side="out", **told) for w in (w_q, w_k, w_v)]
    into_output = fold_rotation(w_o.T, side="in", **told).T
    if seed is None:
        folded[2], into_output = w_v, w_o
    wanted, found = block(w_q, w_k, w_v, w_o, rotated=False), block(*folded, into_output, rotated=True)
    assert (found - wanted).norm() < 0.04 * wanted.norm()
    assert (block(w_q, *folded[1:], into_output, rotated=True) - wanted).norm() > 0.2 * wanted.norm()


@pytest.mark.parametrize(
    ("weight", "side", "text"),
    [
        (torch.zeros(128, 8), "up", "side 'up' with head_dim 64 was asked for; sides are out and in"),
        (torch.zeros(96, 8), "out", r"torch.float32 \[96, 8\] was given for side 'out'; it is of a float type, with a multiple of 64 in "),
        (torch.zeros(128, dtype=torch.int8), "out", "pass the plain weight, before it is quantised"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit(weight: Tensor, side: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        fold_rotation(weight, head_dim=64, seed=0, side=side)


@pytest.mark.parametrize(
    ("case", "change", "text"),
    [
        (PACK, {"format": lambda _: "uniform4"}, "format is 'uniform4', expected 'eden2', "),
        (PACK, {"packed": lambda p: p[:4]}, "keys has 5 tokens and packed 4 slots: without a slot_mapping they are as many"),
        (PACK, {"packed": lambda p: p[:, :1]}, "keys is [5, 2, 128] and packed is [5, 1, 66]: 2 heads do not fit"),
        (PACK, {"packed": lambda p: p[:1].expand(5, 2, 66)}, "packed of [5, 2, 66] has strides [0, 66, 1]: its vectors must not overlap"),
        (PACK, {"keys": lambda k: k.transpose(1, 2).contiguous().transpose(1, 2)}, "the elements of a vector must be contiguous"),
        (PACK, {"seed": lambda _: -1}, "seed is -1, expected 0 or more"),
        (PackCase(tokens=2, format="turboquant_prod3", heads=1), {"rotated": lambda _: True}, "rotated with turboquant_prod3: signs are of vectors that are not rotated, so pass those"),
        (PackCase(tokens=2, format="e4m3", heads=1), {"rotated": lambda _: True}, "rotated with e4m3: vectors of this format are not rotated, so leave it out"),
        (PackCase(tokens=2, format="e2m1", heads=1, of_values=True), {"rotated": lambda _: True}, "rotated with e2m1: vectors of this format are not rotated, so leave it out"),
        (MAPPED, {"slot_mapping": Tensor.int}, "slot_mapping is int32, expected int64"),
        (PackCase(tokens=2, format="unit_centroids4", heads=1), {"keys": lambda k: k[..., :96]}, "format is 'unit_centroids4' with vectors of 96 elements, expected 64, 128, 256 or 512: so many"),
        (UNPACK, {"values": lambda v: v[:1].expand(5, 2, 128)}, "values of [5, 2, 128] has strides [0, 128, 1]: its vectors must follow"),
        (SCORES, {"q": lambda q: q[:, :, :3], "scores": lambda s: s[:, :3]}, "q has 3 heads and keys 2: query heads are a multiple of KV heads"),
        (SCORES, {"keys": lambda k: k[..., :65]}, "keys is [1, 9, 2, 65], expected [1, length, KV heads, 66]: so many bytes has a key"),
        (SCORES, {"scores": lambda s: s[..., ::2].expand(1, 4, 1, 9) if s.shape[-1] == 1 else s.transpose(1, 3).contiguous().transpose(1, 3)}, "expected no gaps"),
        (ATTEND, {"format": lambda _: "k_uniform4_v_eden4"}, "format is 'k_uniform4_v_eden4', expected k_K_v_V of a K of eden2, "),
        (ATTEND, {"values": lambda v: v[:, :8]}, "values is [4, 8, 2, 66], expected [4, 16, 2, 66]: so many bytes has a value"),
        (ATTEND, {"block_table": Tensor.long}, "block_table is int64, expected int32"),
        (ATTEND, {"block_table": lambda _: None}, "keys has 4 pages for 2 sequences: without a block_table each sequence has one"),
        (PLAIN, {"softcap": lambda _: -1.0}, "softcap is -1.0, expected a positive number, or 0 for none"),
        (PLAIN, {"window": lambda _: -1}, "window is -1, expected a number of keys, or 0 for all"),
        (AttendCase(lengths=(3,), format="k_turboquant_prod3_v_eden4"), {"seed": lambda _: -1}, "seed is -1 with k_turboquant_prod3_v_eden4: signs are of projected queries"),
        (AttendCase(lengths=(3,), format="k_eden4_v_turboquant_prod2"), {"rotated_out": lambda _: True}, "rotated_out with k_eden4_v_turboquant_prod2: sums of signs are not"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_bad_input_is_one_sentence(case: Any, change: dict[str, Callable[[Any], Any]], text: str) -> None:
    arguments = given(case)
    found = sentence(case, **{name: how(arguments[name]) for name, how in change.items()})
    assert found.startswith(f"{case.schema.name}: ") and text in found, found


@pytest.mark.parametrize("format", ["eden3", "turboquant_prod3", "unit_centroids4", "e2m1", "e4m3", "uniform4"])
def test_a_wrong_byte_is_seen(format: str) -> None:
    """Of codes, signs and scalars alike: the comparison with kernels accepts no wrong byte."""
    of_values = format == "uniform4"
    case = PackCase(tokens=3, format=format, heads=1, of_values=of_values, head_dim=64)
    x = normal(3, 1, 64).bfloat16()
    fields = compress(x.double(), case.spec)
    assert wrong_bytes(fields, x, case.spec) == 0
    for name, field in fields.items():
        spoiled = field.clone()
        spoiled[1, 0, -1] ^= 0x40
        assert wrong_bytes(fields | {name: spoiled}, x, case.spec) > 0, name


def test_a_page_table_is_checked_on_request() -> None:
    """Entries behind a length are nobody's: they may name anything."""
    table = torch.tensor([[0, 3, 99], [2, -7, 1]], dtype=torch.int32)
    lengths = torch.tensor([32, 16], dtype=torch.int32)
    gemmill.check_page_table(table, lengths, pages=4, page=16)
    gemmill.check_page_table(table, torch.tensor([0, 0], dtype=torch.int32), pages=0, page=16)
    for wrong, text in (
        (
            (33, 16),
            "Page 2 of sequence 0 is 99; the cache has pages 0 to 3: correct block_table, of which so many entries are read",
        ),
        ((32, 17), "Page 1 of sequence 1 is -7; the cache has pages 0 to 3: "),
        (
            (49, 16),
            "Sequence 0 is told to have 49 tokens; its row of the page table has 3 pages of 16, room for 0 to 48: widen",
        ),
        ((32, -1), "Sequence 1 is told to have -1 tokens; "),
    ):
        with pytest.raises(ValueError) as caught:
            gemmill.check_page_table(table, torch.tensor(wrong, dtype=torch.int32), pages=4, page=16)
        assert str(caught.value).startswith(text)


def test_e4m3_pages_have_a_scale_for_each_head() -> None:
    """As vLLM's fp8 cache: codes of x over the scale, saturated; attention is that over the decoded vectors."""
    k, v, q = normal(40, 2, 96, seed=1), normal(40, 2, 96, seed=2), normal(1, 3, 4, 96, seed=3).bfloat16()
    scales = torch.tensor([0.3, 0.001]), torch.tensor([1.7, 0.25])
    packed, restored = [], []
    for x, own, pack, unpack in (
        (k, scales[0], gemmill.kv_compress_keys, gemmill.kv_decompress_keys),
        (v, scales[1], gemmill.kv_compress_values, gemmill.kv_decompress_values),
    ):
        to = torch.zeros(40, 2, 96, dtype=torch.uint8)
        pack(to, x.bfloat16(), format="e4m3", scales=own)
        codes = (x.bfloat16().float() / own[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(to, codes.view(torch.uint8))
        back = codes.double() * own.double()[:, None]
        assert torch.equal(unpack(to, 96, format="e4m3", scales=own), back.bfloat16())
        packed.append(to[None]), restored.append(back)
    lengths = torch.tensor([40], dtype=torch.int32)
    out, lse = gemmill.kv_attention(q, *packed, lengths, format="fp8", key_scales=scales[0], value_scales=scales[1])
    wanted, wanted_lse = attention(q[0].double(), *restored, AttentionOptions(scale=96**-0.5))
    assert (out[0].double() - wanted).abs().max() < 2.0**-8 * wanted.abs().max()
    assert torch.allclose(lse[0], wanted_lse.float(), rtol=1e-5)
    scores = gemmill.kv_attention_scores(q, packed[0], "e4m3", key_scales=scales[0])
    products = torch.einsum("rhd,nhd->hrn", q[0].double(), restored[0].repeat_interleave(2, 1))
    assert torch.allclose(scores[0], products.float(), rtol=1e-5, atol=1e-6)
    plain, _ = gemmill.kv_attention(q, *packed, lengths, format="k_e4m3_v_e4m3")
    ones, _ = gemmill.kv_attention(q, *packed, lengths, format="fp8_e4m3", key_scales=torch.ones(2))
    assert torch.equal(plain, ones) and not torch.equal(plain, out)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"format": "k_eden4_v_eden4"},
            "key_scales with k_eden4_v_eden4: a scale for each head is e4m3's alone, so leave it out",
        ),
        ({"key_scales": torch.ones(3)}, "key_scales has shape [3], expected [kv_heads] = [2]"),
        ({"value_scales": torch.ones(2).double()}, "value_scales is float64, expected float32"),
    ],
)
def test_scales_that_do_not_fit_are_a_sentence(changed: dict[str, Any], text: str) -> None:
    size = 66 if "format" in changed else 128
    packed = torch.zeros(1, 16, 2, size, dtype=torch.uint8)
    told = {"format": "fp8", "key_scales": torch.ones(2)} | changed
    with pytest.raises(RuntimeError) as caught:
        gemmill.kv_attention(normal(1, 1, 4, 128).bfloat16(), packed, packed.clone(), torch.tensor([3]).int(), **told)
    assert text in str(caught.value)


def test_scales_of_other_formats_are_refused_where_they_are_packed() -> None:
    x, packed = normal(3, 2, 128).bfloat16(), torch.zeros(3, 2, 66, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="scales with eden4: a scale for each head is e4m3's alone, so leave it out"):
        gemmill.kv_compress_values(packed, x, format="eden4", scales=torch.ones(2))
