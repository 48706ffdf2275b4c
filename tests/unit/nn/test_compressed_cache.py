"""Pages of a compressed cache: handed out, shared, copied and given back; attention reads the stored tokens."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from families.kv_cache.rotated import exact
from gemmill.families.kv_cache.formats import RotationKind
from gemmill.families.kv_cache.reference.attention import AttentionOptions, attention
from gemmill.families.kv_cache.reference.rotations import rotate
from gemmill.nn import CompressedKVCache
from gemmill.nn.cache_prefill import attend_by_torch
from gemmill.nn.compressed_cache import Step

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


def test_values_may_have_fewer_elements() -> None:
    random = torch.Generator().manual_seed(1)
    cache = small(head_dim=192, value_dim=128)
    assert cache.data.shape[-1] == (192 + 128) // 2 + 4 and ":d192v128:" in cache.tag
    step = cache.append({cache.allocate(): 20})
    k, v, q = (torch.randn(20, heads, d, generator=random).bfloat16() for heads, d in ((2, 192), (2, 128), (4, 192)))
    cache.store(step, k, v)
    wanted, _ = attention(q.float(), k.float(), v.float(), AttentionOptions(scale=192**-0.5))
    for out in (cache.attend(step, q[None])[0], cache.prefill(step, q[None])):
        assert out.shape == (1, 20, 4, 128) and (out[0].float() - wanted).norm() < 0.25 * wanted.norm()


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
    with pytest.raises(ValueError, match="3 heads were given; this cache has 2 KV heads: give a multiple of 2"):
        cache.prefill(step, q[:, :, :3])


@pytest.mark.parametrize(
    ("rows", "size", "heads"),
    [(1, 1, 1), (14, 1, 1), (15, 1, 2), (1, 7 * 256, 1), (1, 7 * 256 + 1, 2), (1, 1 << 40, 6)],
)
def test_prefilling_restores_few_heads_of_a_long_sequence(
    monkeypatch: pytest.MonkeyPatch, rows: int, size: int, heads: int
) -> None:
    """As few as give a pass so many rows and bytes; of six heads 1, 2, 3 or 6. Each pass has its own heads' queries."""
    monkeypatch.setattr("gemmill.nn.cache_prefill.LEAST_ROWS", rows)
    monkeypatch.setattr("gemmill.nn.cache_prefill.LEAST_BYTES", size)
    cache = small(kv_heads=6)
    step = cache.append({cache.allocate(): 7})
    cache.store(step, vectors(7, 5, heads=6), vectors(7, 6, heads=6))
    q, seen = vectors(7, 8, heads=12)[None], []

    def own(q: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> Tensor:
        seen.append((q.shape[1], keys.shape[1], values.shape[1]))
        return attend_by_torch(q, keys, values, scale, causal)

    out = cache.prefill(step, q, attention=own)
    wanted, _ = cache.attend(step, q)
    assert seen == [(2 * heads, heads, heads)] * (6 // heads)
    assert (out.float() - wanted.float()).norm() < 0.02 * wanted.float().norm()


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


def test_a_copied_page_has_every_layer() -> None:
    cache = small(layers=2)
    origin = cache.allocate()
    step = cache.append({origin: 20})
    for layer in (0, 1):
        cache.store(step, vectors(20, 2 * layer + 1), vectors(20, 2 * layer + 2), layer)
    fork = cache.fork(origin)
    written = cache.append({fork: 1}).block_table[0, 1]
    shared = cache.append({origin: 0}).block_table[0, 1]
    assert written != shared and torch.equal(cache.data[:, written], cache.data[:, shared])
    assert cache.data[:, written].flatten(1).any(dim=1).all()


@pytest.mark.parametrize("count", [torch.tensor(20), np.int64(20), 20])
def test_lengths_are_numbers_of_their_own(count: object) -> None:
    """A tensor that is counted in place is also a fork's."""
    cache = small()
    origin = cache.allocate()
    cache.append({origin: count})  # type: ignore[dict-item]
    fork = cache.fork(origin)
    step = cache.append({fork: count})  # type: ignore[dict-item]
    assert (cache.length(origin), cache.length(fork), step.counts, step.lengths) == (20, 40, (20,), (40,))
    assert {type(number) for number in (*step.counts, *step.lengths, cache.length(origin))} == {int}
    assert int(count) == 20  # type: ignore[call-overload]


@pytest.mark.parametrize("bad", [-1, 1.5, torch.tensor([1, 2]), None, "3"])
def test_no_count_is_taken_where_one_is_none(bad: object) -> None:
    cache = small()
    first, second = cache.allocate(), cache.allocate()
    with pytest.raises(ValueError) as error:
        cache.append({first: 3, second: bad})  # type: ignore[dict-item]
    assert str(error.value) == (
        f"{bad} new tokens of sequence 1 were asked for; a sequence only grows, by whole tokens: give 0 or more, or free it."
    )
    assert (cache.length(first), cache.length(second), cache.free_pages) == (0, 0, 6)


@pytest.mark.parametrize(("forks", "needed"), [(1, 0), (1, 1), (2, 2), (3, 3)])
def test_of_forks_that_write_the_last_keeps_the_page(forks: int, needed: int) -> None:
    """All write in one call, as many pages being free as copies are needed; with one fewer nothing changes."""
    writes = forks + 1 if needed else 1
    for free in range(needed + 1):
        cache = small(pages=2 + free)
        origin = cache.allocate()
        filled(cache, origin, 20, seed=1)
        family = [origin, *(cache.fork(origin) for _ in range(forks))]
        if not needed:
            cache.free(family.pop())
        before = cache.data.clone()
        if free < needed:
            with pytest.raises(RuntimeError) as error:
                cache.append(dict.fromkeys(family, 1))
            assert str(error.value) == (
                f"{writes} new tokens need {needed} pages; {free} of {2 + free} are free: free a sequence, or allocate a larger cache."
            )
            assert {cache.length(each) for each in family} == {20} and torch.equal(cache.data, before)
        else:
            step = cache.append(dict.fromkeys(family, 1))
            assert cache.free_pages == 0 and step.block_table[:, 1].unique().numel() == writes
            cache.store(step, vectors(writes, 7), vectors(writes, 8))
            for i, each in enumerate(family):
                past = torch.cat((vectors(20, 1), vectors(writes, 7)[i : i + 1]))
                values = torch.cat((vectors(20, 2), vectors(writes, 8)[i : i + 1]))
                assert_attends(cache, replace(cache.append({each: 0}), counts=(1,)), past, values)


def test_a_step_ends_with_its_sequence() -> None:
    """Where the sequence is freed, where its page was copied, and in another cache."""
    cache, other = small(), small()
    sequence = cache.allocate()
    other.append({other.allocate(): 1})
    first = filled(cache, sequence, 5, seed=1)
    fork = cache.fork(sequence)
    cache.store(first, vectors(5, 1), vectors(5, 2))
    last = filled(cache, sequence, 1, seed=3)
    of_fork = filled(cache, fork, 1, seed=5)
    freed = cache.allocate()
    of_freed = filled(cache, freed, 1, seed=7)
    cache.free(freed)
    before, q = cache.data.clone(), vectors(5, 9, heads=4)[None]
    for caches, step in ((cache, first), (cache, of_freed), (other, last)):
        for use in (
            partial(caches.store, step, vectors(1, 7), vectors(1, 8)),
            partial(caches.attend, step, q),
            partial(caches.prefill, step, q),
        ):
            with pytest.raises(ValueError) as error:
                use()
            assert str(error.value) == (
                f"A step of sequence {step.sequences[0]} was given, and since it was made the sequence was freed or got a copy of "
                "a page that a fork shares, or it is another cache's: make a step by append for each use."
            )
    assert torch.equal(cache.data, before) and not other.data.any()
    for step, seed in ((last, 3), (of_fork, 5)):
        cache.store(step, vectors(1, seed), vectors(1, seed + 1))
    assert torch.equal(cache.data, before)


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
            "A k_eden4_v_eden4 cache of head dim 80 was asked for; 64, 96, 128, 192, 256 and 512 are offered",
        ),
        ({"page": 48}, "Pages of 48 tokens were asked for; 16, 32, 64 and 128 are offered"),
        *(
            ({name: number}, f"^A cache of {number} {name} was asked for; it has at least one: give a whole number.$")
            for name in ("pages", "layers")
            for number in (-1, 0, 2.5)
        ),
        *(
            (
                {"seed": seed},
                rf"^A cache by seed {seed} was asked for; seeds are whole numbers from 0 to 2\^63 - 1: take one of these.$",
            )
            for seed in (-1, 1.5, 2**63, 2**70)
        ),
    ):
        with pytest.raises(ValueError, match=text):
            small(**changes)


@pytest.mark.parametrize("seed", [0, 2**63 - 1, torch.tensor(7)])
def test_every_seed_that_is_taken_serves(seed: object) -> None:
    cache = small(seed=seed)
    assert_attends(cache, filled(cache, cache.allocate(), 1, seed=1), vectors(1, 1), vectors(1, 2))


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
def test_a_machine_without_a_gpu_is_told_of_the_cpu(device: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError) as error:
        small(device=device)
    assert str(error.value) == (
        f'A cache on {device} was asked for; torch {torch.__version__} finds no GPU here: pass device="cpu" for the reference, or '
        "run where torch finds one."
    )


def test_programs_of_the_page_run() -> None:
    names: dict[str, object] = {}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(program, "docs/kv_cache.md", "exec"), names)
