"""Packers, layers and converters on small weights of the CPU, to be run under other default dtypes and devices of torch."""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gemmill.checkpoints.folder import open_checkpoint
from gemmill.compat import fp4_experts, linear
from gemmill.compat.vllm import fused_fp4_experts
from gemmill.formats.quantise import BlockScaled
from gemmill.nn import CompressedKVCache, QuantLinear, load_linears, quantize_module, recipes
from gemmill.quantize import (
    WEIGHT_FORMATS,
    fold_rotation,
    layer_error,
    prepack_experts,
    prepack_gate_up,
    prepack_gate_up_experts,
    prepack_gated_experts,
    prune_to_fp4,
    pruned,
    quantize_checkpoint,
    quantize_weight,
)
from gemmill.quantize.folded_blocks import to_folded_blocks
from gemmill.quantize.fp4_blocks import to_blocks
from gemmill.quantize.packed_rows import to_rows
from gemmill.quantize.prepack import prepack
from gemmill.quantize.sparse_blocks import to_sparse_blocks
from gemmill.vocab.format import format_named
from stored import save

N, K = 128, 256


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Whatever the defaults are."""
    generator = torch.Generator(device="cpu").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(dtype)


def block_scaled(format: str, n: int = N, k: int = K) -> BlockScaled:
    """A weight as packers take it."""
    made = quantize_weight(drawn(n, k), format)
    return BlockScaled(format=format_named(format), codes=made.codes.view(torch.uint8), scales=made.scales)


def quantised() -> Iterator[Any]:
    """Of all formats and dtypes, with values and errors."""
    for format in WEIGHT_FORMATS:
        for dtype in (torch.bfloat16, torch.float32, torch.float64):
            made = quantize_weight(drawn(N, K, dtype=dtype), format)
            yield made, made.values(), layer_error("x", drawn(N, K), made, drawn(5, K))


def packed() -> Iterator[Any]:
    """By `prepack` and the functions that order its results; by the plugins."""
    for format in ("nvfp4", "mxfp4"):
        of = block_scaled(format)
        yield to_blocks(prepack(of, for_op="fp4_weight_mm")), prepack(of, for_op="fp4_weight_mm", activations="f16")
        yield linear.packed_fp4(format, of.codes, of.scales)
    scale = torch.tensor([3.0], dtype=torch.float32, device="cpu")
    yield to_folded_blocks(prepack(block_scaled("mxfp4"), for_op="mxfp4_fp8_mm"))
    yield to_folded_blocks(prepack(block_scaled("nvfp4"), for_op="nvfp4_fp8_mm_rounded", global_scale=scale))
    yield prepack(block_scaled("mxfp4"), for_op="mxfp4_fp8_mm", base_per_group=True, allow_requant=True)
    for format in ("mxfp6", "mxfp8"):
        yield to_rows(prepack(block_scaled(format), for_op="fp4_weight_mm"))


def packed_gates() -> Iterator[Any]:
    """Gates and ups, of layers and of experts."""
    for format in ("channel", "block128", "int8"):
        made = quantize_weight(drawn(2 * N, K), format)
        for order in ("gate_up", "up_gate"):
            yield prepack_gate_up(made.codes, made.scales, order)
            yield prepack_gate_up_experts(torch.stack([made.codes] * 2), torch.stack([made.scales] * 2), order)
    yield fold_rotation(drawn(N, K), head_dim=64, seed=3, side="out")


def packed_experts() -> Iterator[Any]:
    """Dense and sparse, by functions and by the plugins."""
    experts = [block_scaled("nvfp4") for _ in range(2)]
    yield prepack_experts(experts)
    yield prepack_experts([block_scaled("mxfp4")] * 2, activations="e4m3")
    both = [block_scaled("nvfp4", 2 * N, K)] * 2, [block_scaled("nvfp4", K, N)] * 2
    scales = torch.full((2,), 2.0, dtype=torch.float32, device="cpu")
    yield prepack_gated_experts(*both, w13_global_scales=scales, w2_global_scales=scales)
    for part in (drawn(N, K), quantize_weight(drawn(N, K), "nvfp4")):
        sparse, errors = prune_to_fp4([[part], [part]], inputs=[drawn(5, K), None])
        yield sparse, errors, to_sparse_blocks(sparse, 0), prepack_gated_experts(sparse, sparse_back())
    yield pruned(drawn(N, K))
    parts = [
        (
            torch.stack([of.codes for of in one]),
            torch.stack([of.scales for of in one]).view(torch.float8_e4m3fn),
            scales,
        )
        for one in both
    ]
    layer = fused_fp4_experts.Layer(experts=2, hidden=K, inner=N, format="nvfp4")
    yield [fused_fp4_experts._made(part, gated, layer) for part, gated in zip(parts, (True, False), strict=True)]
    weights = [
        fp4_experts.Weights(blocks=x.blocks.flatten(2), base=x.base, alpha=scales) for x in map(prepack_experts, both)
    ]
    ids = torch.tensor([[0, 1], [1, 0]], dtype=torch.int32, device="cpu")
    yield fp4_experts.multiplied(drawn(2, K), *weights, lambda rows: rows[:, :N].contiguous(), None, ids)


def sparse_back() -> Any:
    """The down projection of the experts above."""
    weights, _ = prune_to_fp4([[drawn(K, N // 2)], [drawn(K, N // 2)]])
    return weights


def layers() -> Iterator[Any]:
    """Of all recipes, with their results."""
    for format, activations in recipes.RECIPES:
        absmax = drawn(5, K).abs().max() if activations == "nvfp4" else None
        layer = QuantLinear(
            quantize_weight(drawn(N, K), format), drawn(N), activations=activations, input_absmax=absmax
        )
        yield layer.state_dict(), layer(drawn(5, K))


def models() -> Iterator[Any]:
    """A module, and a checkpoint in each format and back."""
    with torch.device("cpu"):
        model = nn.Sequential(nn.Linear(K, N, dtype=torch.bfloat16))
    model[0].weight.data, model[0].bias.data = drawn(N, K), drawn(N)
    yield quantize_module(model, "nvfp4"), model.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        source = save(Path(folder) / "in.safetensors", {"0.weight": drawn(N, K), "0.bias": drawn(N)})
        for format in (*WEIGHT_FORMATS, "nvfp4_2to4"):
            out, back = (Path(folder) / f"{format}{end}.safetensors" for end in ("", "-back"))
            yield quantize_checkpoint(source, out, format).layers, out.read_bytes()
            if format != "nvfp4_2to4":
                quantize_checkpoint(out, back, "bf16", source_format=format)
                yield back.read_bytes()
        with torch.device("cpu"):
            empty = nn.Sequential(nn.Linear(K, N, dtype=torch.bfloat16))
        load_linears(empty, open_checkpoint(Path(folder) / "mxfp4.safetensors"))
        yield empty.state_dict()


def caches() -> Iterator[Any]:
    """A compressed cache, stored to and attended over."""
    for seed in (0, 3):
        cache = CompressedKVCache(pages=6, kv_heads=2, head_dim=64, page=16, device="cpu", seed=seed)
        sequence = cache.allocate()
        step = cache.append({sequence: 20})
        cache.store(step, drawn(20, 2, 64), drawn(20, 2, 64))
        yield cache.prefill(step, drawn(1, 20, 4, 64))
        step = cache.append({sequence: 1})
        cache.store(step, drawn(1, 2, 64), drawn(1, 2, 64))
        yield cache.attend(step, drawn(1, 1, 4, 64)), cache.data


CASES: tuple[Callable[[], Iterator[Any]], ...] = (
    quantised,
    packed,
    packed_gates,
    packed_experts,
    layers,
    models,
    caches,
)


def results(found: Any) -> Iterator[Any]:
    """All that a case has made, one after another: tensors as dtype, device, shape and bytes."""
    if isinstance(found, Tensor):
        codes = found.detach().contiguous().reshape(-1)
        yield found.dtype, str(found.device), tuple(found.shape), bytes(codes.view(torch.uint8).numpy())
    elif dataclasses.is_dataclass(found):
        yield from results([getattr(found, field.name) for field in dataclasses.fields(found)])
    elif isinstance(found, dict):
        yield from results([*found.items()])
    elif isinstance(found, (list, tuple, Iterator)):
        for part in found:
            yield from results(part)
    else:
        yield found
