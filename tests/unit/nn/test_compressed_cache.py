"""Pages of a compressed cache: handed out, shared, copied and given back; what is attended over is what was stored."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from families.kv_cache.rotated import exact
from gemmill.families.kv_cache.formats import RotationKind
from gemmill.families.kv_cache.reference.attention import AttentionOptions, attention
from gemmill.families.kv_cache.reference.rotations import rotate
from gemmill.nn import CompressedKVCache
from gemmill.nn.compressed_cache import Step, attend_by_torch

PAGE = (Path(__file__).parents[3] / "docs/kv_cache.md").read_text()


def small(pages: int = 6, **changes: object) -> CompressedKVCache:
    return CompressedKVCache(**({"pages": pages, "kv_heads": 2, "head_dim": 64, "page": 16, "device": "cpu"} | changes))  # type: ignore[arg-type]


def vectors(tokens: int, seed: int, heads: int = 2) -> Tensor:
    return torch.randn(tokens, heads, 64, generator=torch.Generator().manual_seed(seed)).bfloat16()


def filled(cache: CompressedKVCache, sequence: int, tokens: int, seed: int) -> Step:
    step = cache.append({sequence: tokens})
    cache.store(step, vectors(tokens, seed), vectors(tokens, seed + 1))
    return step


def assert_attends(cache: CompressedKVCache, step: Step, keys: Tensor, values: Tensor) -> None:
    """One row over one sequence of these vectors, as well as 4 bits allow."""
    q = vectors(1, 99, heads=4)[None]
    out, _ = cache.attend(step, q)
    wanted, _ = attention(q[0].float(), keys.float(), values.float(), AttentionOptions(scale=64**-0.5))
    assert (out[0].float() - wanted).norm() < 0.25 * wanted.norm()


def test_rotations_of_the_seed_may_be_left_to_the_caller() -> None:
    """Of keys and values, of queries and the output, of the output alone."""
    kind = RotationKind.RANDOM_HADAMARD
    turned, plain = small(seed=3), small(seed=3)
    steps = [cache.append({cache.allocate(): 20}) for cache in (turned, plain)]
    (k, k_turned), (v, v_turned) = exact(20, 2, torch.bfloat16, kind, 3), exact(20, 2, torch.bfloat16, kind, 3)
    turned.store(steps[0], k_turned, v_turned, rotated_keys=True, rotated_values=True)
    plain.store(steps[1], k, v)
    assert torch.equal(turned.data, plain.data)
    q, q_turned = (x[None] for x in exact(20, 4, torch.bfloat16, kind, 3))
    wanted, _ = plain.attend(steps[1], q)
    rotated = rotate(wanted.float(), kind, 3)
    for found, _ in (plain.attend(steps[1], q_turned, rotated=True), plain.attend(steps[1], q, rotated_out=True)):
        assert (found.float() - rotated).norm() < 0.01 * rotated.norm()


def test_sequences_keep_apart_and_lengths_grow() -> None:
    cache = small()
    first, second = cache.allocate(), cache.allocate()
    filled(cache, first, 20, seed=1), filled(cache, second, 3, seed=3)
    step = cache.append({second: 1, first: 1})
    new = vectors(2, 5), vectors(2, 6)
    cache.store(step, *new)
    assert (cache.length(first), cache.length(second), cache.free_pages) == (21, 4, 3)
    assert step.seq_lens.tolist() == [4, 21] and step.block_table.shape == (2, 2)
    only = cache.append({first: 0})
    assert_attends(
        cache,
        only.__class__(**{**vars(only), "counts": (1,)}),
        torch.cat((vectors(20, 1), new[0][1:])),
        torch.cat((vectors(20, 2), new[1][1:])),
    )


@pytest.mark.parametrize(("past", "causal"), [(0, True), (13, True), (13, False)])
def test_prefilling_restores_and_gives_what_attending_gives(past: int, causal: bool) -> None:
    """Two sequences of other lengths; the last of the new tokens see all, the first only the past and themselves."""
    cache = small()
    first, second = cache.allocate(), cache.allocate()
    if past:
        filled(cache, first, past, seed=1), filled(cache, second, past - 4, seed=3)
    step = cache.append({first: 7, second: 7})
    cache.store(step, vectors(14, 5), vectors(14, 6))
    q = vectors(14, 8, heads=4).unflatten(0, (2, 7))
    wanted, _ = cache.attend(step, q, causal=causal, scale=0.2)
    out = cache.prefill(step, q, causal=causal, scale=0.2)
    assert out.shape == q.shape and (out.float() - wanted.float()).norm() < 0.02 * wanted.float().norm()
    seen = []

    def own(q: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> Tensor:
        seen.append((q.shape, keys.shape, values.shape, scale, causal))
        return attend_by_torch(q, keys, values, scale, causal)

    assert torch.equal(cache.prefill(step, q, causal=causal, scale=0.2, attention=own), out)
    lengths = (past + 7, past + 3 if past else 7)
    assert seen == [((7, 4, 64), (n, 2, 64), (n, 2, 64), 0.2, causal) for n in lengths]
    with pytest.raises(ValueError, match="make a step for sequences of as many"):
        cache.prefill(step, q[:1])


def test_a_fork_shares_pages_until_it_writes() -> None:
    cache = small()
    origin = cache.allocate()
    filled(cache, origin, 20, seed=1)
    fork = cache.fork(origin)
    assert cache.free_pages == 4
    step = cache.append({fork: 1})
    assert cache.free_pages == 3, "a page that is not full is copied"
    cache.store(step, vectors(1, 7), vectors(1, 8))
    assert_attends(cache, step, torch.cat((vectors(20, 1), vectors(1, 7))), torch.cat((vectors(20, 2), vectors(1, 8))))
    step = cache.append({origin: 1})
    assert cache.free_pages == 3, "the page is the origin's alone by now"
    cache.store(step, vectors(1, 9), vectors(1, 10))
    assert_attends(cache, step, torch.cat((vectors(20, 1), vectors(1, 9))), torch.cat((vectors(20, 2), vectors(1, 10))))
    cache.free(origin)
    assert cache.free_pages == 4, "the full page is still the fork's"
    cache.free(fork)
    assert cache.free_pages == 6


def test_pages_are_loaded_by_their_tag() -> None:
    cache, other = small(), small()
    sequence = cache.allocate()
    filled(cache, sequence, 5, seed=1)
    other.load_pages(cache.data, cache.tag)
    assert torch.equal(other.data, cache.data)
    with pytest.raises(ValueError, match=r"was to be read as k_eden4_v_eden4:d64:h2:p16:heads:.*:s5"):
        small(seed=5).load_pages(cache.data, cache.tag)
    with pytest.raises(ValueError, match=r"Pages torch.uint8 \[1, 6, 2, 16, 68\] were to be loaded"):
        small(pages=7).load_pages(cache.data, cache.tag)


@pytest.mark.parametrize(("format", "size"), [("k_eden3_v_eden3", 100), ("k_turboquant_mse3_v_turboquant_mse3", 100)])
def test_three_bits_take_100_bytes_a_token_and_head(format: str, size: int) -> None:
    """Of 4096 tokens and 8 heads of 128 elements, on the allocated tensor: 102 are allowed."""
    cache = CompressedKVCache(pages=64, kv_heads=8, format=format, device="cpu")
    assert cache.data.untyped_storage().nbytes() == 4096 * 8 * size


def test_refusals_change_nothing() -> None:
    cache = small(pages=2)
    sequence = cache.allocate()
    filled(cache, sequence, 17, seed=1)
    with pytest.raises(RuntimeError, match="16 new tokens need 1 pages; 0 of 2 are free: free a sequence"):
        cache.append({sequence: 16})
    assert cache.length(sequence) == 17
    with pytest.raises(ValueError, match=r"Queries \[1, 2, 4, 64\] were given for 1 sequences of 1 new tokens"):
        cache.attend(cache.append({sequence: 1}), vectors(2, 1, heads=4)[None])
    with pytest.raises(ValueError, match="-1 new tokens of sequence 0 were asked for"):
        cache.append({sequence: -1})
    cache.free(sequence)
    with pytest.raises(ValueError, match="Sequence 0 was asked for; this cache has 0 sequences"):
        cache.free(sequence)
    for changes, text in (
        ({"format": "k_fp4"}, "A cache of 'k_fp4' was asked for"),
        (
            {"head_dim": 80},
            "A k_eden4_v_eden4 cache of head dim 80 was asked for; 64, 96, 128, 192 and 256 are offered",
        ),
        ({"page": 48}, "Pages of 48 tokens were asked for; 16, 32, 64 and 128 are offered"),
    ):
        with pytest.raises(ValueError, match=text):
            small(**changes)


def test_programs_of_the_page_run() -> None:
    names: dict[str, object] = {}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(program, "docs/kv_cache.md", "exec"), names)
