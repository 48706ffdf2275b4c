"""One row, one result, where engines and layers call ops: experts as plugins give them, gated GEMMs of any activation, layers, a cache.

`gemmill verify --batch-invariant` draws calls of single ops.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.compat.fused_experts import AT_ONCE, Experts, in_pieces
from gemmill.nn import CompressedKVCache, QuantLinear
from gemmill.nn.recipes import RECIPES
from gemmill.quantize import prepack_gate_up_experts, quantize_weight
from gemmill.vocab.activation import Activation

E4M3 = torch.float8_e4m3fn
POOL, DRY_POOL = 67, 7
"""Rows whose results alone are compared with those in batches."""
COUNTS = (2, 17, 255, 257, 511, 513, AT_ONCE + 300)
"""Of a batch, on both sides of the numbers of tokens at which plugins choose freely, and more than one piece."""


def sizes_on(device: torch.device) -> tuple[int, tuple[int, ...]]:
    """Of the pool, and of batches."""
    return (POOL, COUNTS) if device.type == "cuda" else (DRY_POOL, COUNTS[:2])


def drawn(*shape: int, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=torch.Generator(device).manual_seed(sum(shape)), device=device)


def taken(x: Tensor, at: Tensor) -> Tensor:
    return x.view(torch.uint8)[at].view(x.dtype)


def check(rows: Tensor, called: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`called` gets rows and their numbers in the pool. A row's bits are those that it has alone, beside NaN and infinity too.

    Every third row of a batch is not finite."""
    with gemmill.batch_invariant():
        pool, counts = sizes_on(rows.device)
        numbers = torch.arange(pool, device=rows.device)
        alone = torch.cat([called(rows[i : i + 1], numbers[i : i + 1]) for i in range(pool)])
        assert bool(alone.float().isfinite().all()) and alone.float().abs().max() > 0
        for count in counts:
            picked = torch.randint(pool, (count,), generator=torch.Generator("cpu").manual_seed(count)).to(rows.device)
            batch = rows[picked]
            batch[::3] = torch.nan
            batch[::6] = torch.inf
            found = called(batch, picked)
            kept = torch.arange(count, device=rows.device) % 3 != 0
            same = bits_of(found)[kept] == bits_of(alone)[picked[kept]]
            assert bool(same.all()), f"{count} rows: {int((~same).flatten(1).any(1).sum())} have other bits than alone"


def bits_of(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8 if x.element_size() == 1 else torch.int16)


@pytest.mark.parametrize("blocks", [128, 32, 0])
def test_experts_of_fp8_as_plugins_call_them(blocks: int, device: torch.device) -> None:
    sizes = (64, 2048, 768, 8) if device.type == "cuda" else (4, 256, 128, 2)
    layer = Experts(
        **dict(zip(("experts", "hidden", "inner", "topk"), sizes, strict=True)), dtype=torch.bfloat16, blocks=blocks
    )
    experts, hidden, inner, top = sizes
    with gemmill.batch_invariant():
        if device.type == "cuda" and (why := gemmill.explain(*layer.call(AT_ONCE)).refused) is not None:
            pytest.skip(why)
        assert layer.takes(AT_ONCE) and layer.takes(300)
    shapes = (2 * inner, hidden), (hidden, inner)
    weights = [drawn(experts, *shape, device=device).to(E4M3) for shape in shapes]
    of = [(-(-n // blocks), -(-k // blocks)) if blocks else (n,) for n, k in shapes]
    scales = [drawn(experts, *shape, device=device).abs() * 0.01 + 0.001 for shape in of]
    ids = torch.rand(POOL, experts, generator=torch.Generator().manual_seed(1)).topk(top).indices.int().to(device)
    by = drawn(POOL, top, device=device).softmax(1)

    def called(x: Tensor, numbers: Tensor) -> Tensor:
        out = torch.full_like(x, torch.nan)
        in_pieces(out, x, (*weights, *scales), ids[numbers], by[numbers], "silu")
        return out

    check(drawn(POOL, hidden, device=device).bfloat16(), called)


@pytest.mark.parametrize("activation", [a.spelled for a in Activation])
@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("group_size", [None, 128])
def test_gated_gemms_of_every_activation(
    activation: str, experts: int, group_size: int | None, device: torch.device
) -> None:
    """Of experts' rows some have no kernel but the parts."""
    hidden, k = (768, 1024) if device.type == "cuda" else (128, 64)
    kinds = experts or 1
    weights, of_rows = drawn(kinds, 2 * hidden, k, device=device).to(E4M3), drawn(kinds, 2 * hidden, device=device)
    packed = prepack_gate_up_experts(weights, of_rows.abs() * 0.01 + 0.001)
    b, b_scales = packed.b, packed.scales

    def called(x: Tensor, numbers: Tensor) -> Tensor:
        codes, scales = x.to(E4M3), x.float().abs().amax(1, keepdim=True)
        if experts:
            order = (numbers % experts).sort(stable=True)
            ends = torch.searchsorted(order.values, torch.arange(experts + 1, device=device)).int()
            given = taken(codes, order.indices), b, scales[order.indices], b_scales, ends, activation
            found, _ = gemmill.grouped_mm_act_quant(*given, group_size=group_size)
            return taken(found, order.indices.argsort())
        return gemmill.scaled_mm_act_quant(codes, b[0].t(), scales, b_scales, activation, group_size=group_size)[0]

    check(drawn(POOL, k, device=device).bfloat16(), called)


@pytest.mark.parametrize(("format", "activations"), list(RECIPES))
def test_layers_of_quantised_weights(format: str, activations: str, device: torch.device) -> None:
    absmax = 5.0 if activations == "nvfp4" else None
    weight = quantize_weight(drawn(256, 1024, device=torch.device("cpu")).bfloat16(), format)
    layer = QuantLinear(weight, None, activations=activations, input_absmax=absmax).to(device)

    def called(x: Tensor, numbers: Tensor) -> Tensor:
        try:
            return layer(x)
        except RuntimeError as error:
            if " lacks " not in str(error):
                raise
            pytest.skip(str(error))

    check(drawn(POOL, 1024, device=device).bfloat16(), called)


@pytest.mark.parametrize("bits", [4, 3])
def test_sequences_of_a_cache(bits: int, device: torch.device) -> None:
    """A decode step of a sequence alone, and in a batch whose other sequences are longer, shorter and of NaN."""
    kv_heads, heads = 8, 32
    lengths = (16, 700, 5000, 30_000) if device.type == "cuda" else (16, 70)
    others = (100, 33, 2000, 20_000) * 14 if device.type == "cuda" else (5, 90)

    def step(sequences: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """The last token of sequences, each of a length and with values of a seed; those of seed 0 are NaN."""
        pages = sum(-(-length // 64) for length, _ in sequences)
        cache = CompressedKVCache(
            pages=pages, kv_heads=kv_heads, format=f"k_eden{bits}_v_eden{bits}", seed=5, device=device
        )
        made = [cache.allocate() for _ in sequences]
        queries, last = [], []
        for number, (length, seed) in zip(made, sequences, strict=True):
            random = torch.Generator("cpu").manual_seed(seed)
            keys, values = torch.randn(2, length, kv_heads, 128, generator=random).bfloat16().to(device)
            q = torch.randn(1, heads, 128, generator=random).bfloat16().to(device)
            queries.append(q if seed else torch.full_like(q, torch.nan))
            cache.store(cache.append({number: length - 1}), keys[:-1], values[:-1])
            last.append((keys[-1:], values[-1:]))
        together = cache.append(dict.fromkeys(made, 1))
        cache.store(together, *(torch.cat(part) for part in zip(*last, strict=True)))
        return cache.attend(together, torch.stack(queries))

    with gemmill.batch_invariant():
        batch = [*((length, 0) for length in others), *((length, 1 + i) for i, length in enumerate(lengths))]
        batch = batch[::2] + batch[1::2]
        out, lse = step(batch)
        for length, seed in ((length, seed) for length, seed in batch if seed):
            place = batch.index((length, seed))
            alone, alone_lse = step([(length, seed)])
            assert bool(alone.isfinite().all()) and torch.equal(bits_of(out[place]), bits_of(alone[0])), length
            assert torch.equal(lse[place], alone_lse[0]), length
