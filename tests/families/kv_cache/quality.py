"""Inputs on which the quality of a cache is measured, and its measures.

Every draw has one sequence of 1,024 tokens, 2 KV heads of 128 and 8 query heads, four query rows, all rounded to bf16.

| case | keys and values | why |
| --- | --- | --- |
| gaussian | independent, unit variance | weights nearly equal: errors of values dominate |
| outlier | four channels of each key at 10 +- 2, two channels of values five times as large | as in trained models' keys |
| peaked | Gaussian; each query is one key and a little noise | one weight near 1: errors of keys dominate |
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from gemmill.families.kv_cache.formats import CacheFormat, CacheSpec
from gemmill.families.kv_cache.pages import bytes_of_token_and_head
from gemmill.families.kv_cache.reference.attention import AttentionOptions, attention, decode_attention
from gemmill.families.kv_cache.reference.cache import allocate, write
from gemmill.families.kv_cache.reference.vectors import compress, decompress

LENGTH, KV_HEADS, HEADS, ROWS, HEAD_DIM, PAGE = 1024, 2, 8, 4, 128, 16
OPTIONS = AttentionOptions(scale=HEAD_DIM**-0.5)
DRAWS = 4
"""Over which errors are averaged: seeds of data and of rotations."""
_VECTORS = 4000
"""For bias and variance of inner products."""


class Case(StrEnum):
    """A distribution of queries, keys and values."""

    GAUSSIAN = "gaussian"
    OUTLIER = "outlier"
    PEAKED = "peaked"


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The size and the errors of a format."""

    bits: float
    """Bits a value: bytes of a page over its keys' and values' elements."""
    bias: float
    """Of the inner product of a key with itself, relative: <k, k~> / |k|^2 - 1 on average."""
    variance: float
    """Of <q, k~> - <q, k> for random q, times d / (|q| |k|)^2."""
    errors: dict[Case, float]
    """|out - exact| / |exact| of attention's output."""


def draw(case: Case, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """q [rows, heads, d], k and v [length, kv_heads, d], float64 of bf16 values."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, v = normal(ROWS, HEADS, HEAD_DIM), normal(LENGTH, KV_HEADS, HEAD_DIM), normal(LENGTH, KV_HEADS, HEAD_DIM)
    if case is Case.OUTLIER:
        channels = torch.randperm(HEAD_DIM, generator=generator)
        k[..., channels[:4]] = 10 + 2 * k[..., channels[:4]]
        v[..., channels[4:6]] *= 5
    if case is Case.PEAKED:
        target = torch.randint(LENGTH - ROWS, (ROWS, HEADS), generator=generator)
        q = k[target, torch.arange(HEADS) // (HEADS // KV_HEADS)] + 0.2 * q
    return q.bfloat16().double(), k.bfloat16().double(), v.bfloat16().double()


def quality(format: CacheFormat) -> Quality:
    """Bits, bias, variance and errors of a format."""
    spec = _spec(format, 0)
    generator = torch.Generator().manual_seed(100)
    q, k = (torch.randn(_VECTORS, HEAD_DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    stored = decompress(compress(k, spec.keys), spec.keys)
    norms = k.square().sum(-1) * q.square().sum(-1)
    return Quality(
        bits=bytes_of_token_and_head(spec) * 8 / (2 * HEAD_DIM),
        bias=float(((stored * k).sum(-1) / k.square().sum(-1)).mean() - 1),
        variance=float(((q * (stored - k)).sum(-1).square() / norms).mean() * HEAD_DIM),
        errors={case: sum(_error(case, format, seed) for seed in range(DRAWS)) / DRAWS for case in Case},
    )


def _error(case: Case, format: CacheFormat, seed: int) -> float:
    spec = _spec(format, seed)
    q, k, v = draw(case, seed)
    cache = allocate(spec, LENGTH // PAGE)
    write(cache, spec, k, v, torch.arange(LENGTH))
    table, lengths = torch.arange(LENGTH // PAGE)[None], torch.tensor([LENGTH])
    found, _ = decode_attention(q[None], cache, spec, table, lengths, OPTIONS)
    exact, _ = attention(q, k, v, OPTIONS)
    return float((found[0] - exact).norm() / exact.norm())


def _spec(format: CacheFormat, seed: int) -> CacheSpec:
    return CacheSpec(format=format, head_dim=HEAD_DIM, kv_heads=KV_HEADS, page_size=PAGE, seed=seed)
