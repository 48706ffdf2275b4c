"""The cache of latents on CPU tensors: stored by the ops of packed vectors, attended over, refused in one sentence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.kv_cache.cases.drawn import drawn
from gemmill.families.kv_cache.cases.latent_calls import SIZES, LatentCase, of_latent_config
from gemmill.families.kv_cache.config import KernelKind
from gemmill.families.kv_cache.formats import PAGE_SIZES
from gemmill.families.kv_cache.latent_ops import LATENT
from gemmill.families.kv_cache.selections import default
from gemmill.numerics.call import CPU_LIMITS
from gemmill.numerics.draw import Draw
from gemmill.vocab import Arch, DType

CASE = LatentCase(lengths=(20, 3), rows=2, heads=4, page=16)
LENGTH, HEADS = 40, 16


def stored(seed: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """A cache of one sequence in pages 1, 2 and 0, its latents as they are restored, and its rotary parts."""
    random = torch.Generator().manual_seed(seed)
    cache = torch.full((3, 16, 400), 0xFF, dtype=torch.uint8)
    latents, rotary = gemmill.latent_cache(cache)
    slots = torch.cat((torch.arange(16, 48), torch.arange(LENGTH - 32)))
    x = torch.randn(LENGTH, 1, 512, generator=random).bfloat16()
    gemmill.kv_compress_keys(latents, x, slots, "eden4", seed=seed)
    rotary[slots] = torch.randn(LENGTH, 64, generator=random).bfloat16()
    restored = gemmill.kv_decompress_keys(latents, 512, slots, "eden4", seed=seed)
    assert (restored.float() - x.float()).norm() < 0.12 * x.float().norm()
    return cache, restored[:, 0].double(), rotary[slots].double()


def test_latents_are_keys_and_values_and_rotary_parts_keys_alone() -> None:
    cache, latents, rotary = stored()
    q = torch.randn(1, 2, HEADS, 576, generator=torch.Generator().manual_seed(1)).bfloat16()
    table, lengths = torch.tensor([[1, 2, 0]], dtype=torch.int32), torch.tensor([LENGTH], dtype=torch.int32)
    out, lse = gemmill.kv_latent_attention(q, cache, table, lengths, scale=192**-0.5, seed=7)
    scores = torch.einsum("rhd,nd->hrn", q[0].double(), torch.cat((latents, rotary), 1)) * 192**-0.5
    scores[:, 0, -1] = -torch.inf
    wanted = torch.einsum("hrn,nd->rhd", scores.softmax(-1), latents)
    assert out.shape == (1, 2, HEADS, 512) and (out[0].double() - wanted).norm() < 0.01 * wanted.norm()
    assert (lse[0].double() - scores.logsumexp(-1)).abs().max() < 0.02
    moved = cache.clone()
    gemmill.latent_cache(moved)[1][:] = 0
    other, _ = gemmill.kv_latent_attention(q, moved, table, lengths, scale=192**-0.5, seed=7)
    assert (other[0].double() - wanted).norm() > 0.1 * wanted.norm(), "the rotary part counts"


@pytest.mark.parametrize("scale", [None, 0.05])
def test_rotary_parts_in_e4m3_have_a_scale_or_none(scale: float | None) -> None:
    """Stored as keys in e4m3, whose scores are those of the restored ones: saturated at 448 times the scale."""
    random = torch.Generator().manual_seed(3)
    cache = torch.full((3, 16, 336), 0xFF, dtype=torch.uint8)
    latents, rotary = gemmill.latent_cache(cache)
    assert rotary.shape == (48, 1, 64) and rotary.data_ptr() == cache.data_ptr() + 272
    slots, scales = torch.arange(LENGTH), None if scale is None else torch.tensor([scale])
    x = 10 * torch.randn(LENGTH, 1, 576, generator=random).bfloat16()
    gemmill.kv_compress_keys(latents, x[..., :512], slots, "eden4", seed=7)
    gemmill.kv_compress_keys(rotary, x[..., 512:], slots, "e4m3", scales=scales)
    assert bool((cache.flatten(0, 1)[LENGTH:] == 0xFF).all()) and bool((cache[..., 258:272] == 0xFF).all())
    kept = gemmill.kv_decompress_keys(latents, 512, slots, "eden4", seed=7)[:, 0].double()
    of_rotary = gemmill.kv_decompress_keys(rotary, 64, slots, "e4m3", scales=scales)[:, 0].double()
    beyond = x[:, 0, 512:].double().clamp(-448 * (scale or 1), 448 * (scale or 1))
    assert (of_rotary - beyond).norm() < 0.03 * beyond.norm() and (
        scale is None or not torch.equal(beyond, x[:, 0, 512:].double())
    )
    q = torch.randn(1, 1, HEADS, 576, generator=random).bfloat16() / 16
    table, lengths = torch.tensor([[0, 1, 2]], dtype=torch.int32), torch.tensor([LENGTH], dtype=torch.int32)
    out, lse = gemmill.kv_latent_attention(q, cache, table, lengths, scale=192**-0.5, seed=7, key_scales=scales)
    scores = torch.einsum("rhd,nd->hrn", q[0].double(), torch.cat((kept, of_rotary), 1)) * 192**-0.5
    wanted = torch.einsum("hrn,nd->rhd", scores.softmax(-1), kept)
    assert (out[0].double() - wanted).norm() < 0.01 * wanted.norm()
    assert (lse[0].double() - scores.logsumexp(-1)).abs().max() < 0.02


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"q": lambda q: q[..., :512]}, "queries have 512 elements and out 512, expected 576 and 512: a latent of 512, and a rotary"),
        ({"out": lambda o: o[..., :128]}, "queries have 576 elements and out 128, expected 576 and 512"),
        ({"format": lambda _: "eden3"}, "format is 'eden3', expected 'eden4' or 'turboquant_mse4'"),
        ({"cache": lambda c: c[..., :386]}, "cache is [4, 16, 386], expected [pages, page, 400], or 336 with rotary parts in e4m3: so many bytes has a token of eden4"),
        ({"cache": lambda c: c[:, ::2]}, "pages of cache have 8 tokens, expected 16, 32, 64 or 128"),
        ({"cache": lambda c: c.repeat(1, 2, 1)[:, ::2]}, "cache of [4, 16, 400] has strides [12800, 800, 1]: a page must be contiguous"),
        ({"key_scales": lambda _: torch.ones(1)}, "key_scales with cache of [4, 16, 400]: a scale is of rotary parts in e4m3 alone, of tokens of 336 bytes"),
        ({"cache": lambda c: c[..., :336].contiguous(), "key_scales": lambda _: torch.ones(2)}, "key_scales has shape [2], expected [kv_heads] = [1]"),
        ({"seed": lambda _: -2}, "seed is -2, expected 0 or more, or -1 for queries that are rotated"),
        ({"seq_lens": lambda s: s[:1]}, "seq_lens has shape [1], expected [batch] = [2]"),
        ({"q": lambda q: q.float()}, "q is float32, expected bfloat16 or float16"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_bad_input_is_one_sentence(change: dict[str, Callable[[Any], Any]], text: str) -> None:
    """Before anything is written."""
    given = dict(zip(LATENT.arguments, CASE.arguments("cpu"), strict=True))
    given |= {name: how(given[name]) for name, how in change.items()}
    with pytest.raises(RuntimeError) as error:
        torch.ops.gemmill.kv_latent_attention.default(*given.values())
    assert str(error.value).startswith("kv_latent_attention: ") and text in str(error.value), error.value
    assert bool(given["lse"].isnan().all())


def test_a_cache_that_is_none_of_latents_is_not_cut() -> None:
    with pytest.raises(
        ValueError,
        match=r"contiguous torch.uint8 \[pages, page, 400\], or 336 with rotary parts in e4m3: allocate it so\.$",
    ):
        gemmill.latent_cache(torch.zeros(2, 16, 386, dtype=torch.uint8))
    with pytest.raises(
        ValueError, match=r"float32 were asked for; they are bfloat16 or float16: choose the queries' type\.$"
    ):
        gemmill.latent_cache(torch.zeros(2, 16, 400, dtype=torch.uint8), torch.float32)


def test_calls_that_check_kernels_have_all_sizes_and_options() -> None:
    configs = [x for x in default(Arch.SM90A) if x.kind is KernelKind.LATENT and x == x.compiled]
    assert [config.tile_rows for config in configs] == [0, 16, 16, 32, 32, 0, 16, 32]
    assert [config.operands.rotary for config in configs if config.operands.rotary] == 2 * [DType.E4M3]
    cases = [list(of_latent_config(config)) for config in configs]
    assert {case.has_scale for case in cases[2]} == {True, False} == {case.has_scale for case in cases[4]}
    assert not any(case.has_scale for case in cases[1])
    assert {case.page for case in cases[0]} == set(PAGE_SIZES) and {case.format for case in cases[0]} == {
        "eden4",
        "turboquant_mse4",
    }
    rows = {case.rows * case.heads for case in cases[0]}
    assert min(rows) <= 16 and max(rows) > 64 and len(cases[0]) == len(SIZES)
    calls = [drawn(LATENT.name, Draw(LATENT.name, 0, i), CPU_LIMITS) for i in range(100)]
    assert {call.slots["q"].shape[0] for call in calls} == {0, 1, 2, 3}
    assert {(call.slots["cache"].shape[2], "key_scales" in call.slots) for call in calls} == {
        (400, False),
        (336, False),
        (336, True),
    }
    assert (
        {bool(call.plain["causal"]) for call in calls} == {True, False} == {call.plain["seed"] == -1 for call in calls}
    )
