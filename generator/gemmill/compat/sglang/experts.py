"""SGLang's experts of nvfp4 weights with Marlin: gemmill packs them where SGLang would pack them for Marlin, and
multiplies in its place. SGLang's experts of FP8 in blocks of 32 x 32 with Triton: gemmill computes the whole layer.

Of release 0.5.23. Layers of another activation than SiLU's gates, with a limit, with biases or with LoRA stay with
Marlin; those of FP8 stay with Triton, where gates may be GELU's too.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from gemmill.compat import fp4_experts, invariance
from gemmill.compat.fused_experts import ACTIVATIONS, experts_of, in_pieces
from gemmill.compat.linear import FINE_BLOCK, block_of, called
from gemmill.runtime import served

_GROUP = 16
_PREFIXES = ("w13", "w2")
_UNSUPPORTED = ("gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit")
_NOT_GIVEN = ("b1", "b2", "a1_scale", "a2_scale", "a1_q", "fuse_swiglu_interleaved", "per_channel_quant")
"""Arguments of SGLang's layers with Triton, of which gemmill takes none: biases, scales and codes of x made before."""


def around_fp4_experts_preparation(original: Callable[..., None], layer: Any, group_size: int | None = None) -> None:
    """Pack w13_weight [E, 2 N, K / 2] and w2_weight [E, K, N / 2] with their scales where variants fit, else as SGLang's Marlin."""
    if group_size is None:
        group_size = getattr(getattr(layer, "quant_config", None), "group_size", _GROUP)
    made = None
    if (why := invariance.of_sglang()) is not None:
        served.left("layer of experts of 4-bit weights", why)
    elif group_size == _GROUP and fp4_experts.are_asked_for() and _is_plain(layer):
        parts = tuple(
            tuple(getattr(layer, f"{prefix}_{name}").data for name in ("weight", "weight_scale", "weight_scale_2"))
            for prefix in _PREFIXES
        )
        made = fp4_experts.packed(parts, layer.params_dtype, layer)  # type: ignore[arg-type]
    if made is None:
        return original(layer, group_size=group_size)
    for prefix, weights in zip(_PREFIXES, made, strict=True):
        of_layer = {"weight": weights.blocks, "weight_scale": weights.base, "weight_scale_2": weights.alpha}
        for name, tensor in of_layer.items():
            setattr(layer, f"{prefix}_{name}", torch.nn.Parameter(tensor, requires_grad=False))
    layer.workspace = made[0].alpha.new_empty(0)  # of Marlin, which nothing reads
    return None


def around_marlin_experts(original: Callable[..., torch.Tensor], *given: Any, **named: Any) -> torch.Tensor:
    """Multiply hidden_states [M, K] by experts whose weights the function above packed; others are Marlin's. All is given by name."""
    if given or not fp4_experts.is_packed(named["w1"]):
        return original(*given, **named)
    first, second = (
        fp4_experts.Weights(blocks=named[name], base=named[f"{name}_scale"], alpha=named[f"{name}_global_scale"])
        for name in ("w1", "w2")
    )
    rows = fp4_experts.multiplied(
        named["hidden_states"],
        first,
        second,
        _gated,
        named["topk_weights"],
        named["topk_ids"],
        named.get("expert_map"),
    )
    if named.get("no_combine"):
        return rows
    factor = named.get("routed_scaling_factor")
    return (rows.sum(1, dtype=torch.float32) * (1.0 if factor is None else factor)).to(rows.dtype)


def around_triton_experts(original: Callable[..., torch.Tensor], *given: Any, **named: Any) -> torch.Tensor:
    """The sum [M, K] over each token's experts of FP8 in blocks of 32 x 32; other layers are Triton's. All is given by name.

    hidden_states is [M, K] of 16 bits, w1 [E, 2 N, K], w2 [E, K, N], and their scales w1_scale and w2_scale are
    float32, a number a block. topk_output begins with the router's weights and ids, both [M, topk].
    """
    if given or not _is_fine(named):
        return original(*given, **named)
    x, w1, config = named["hidden_states"], named["w1"], named["moe_runner_config"]
    weights, ids = named["topk_output"][:2]

    def ours() -> torch.Tensor:
        factor = config.routed_scaling_factor
        by = weights if factor is None or factor == 1.0 else weights * factor
        out = torch.empty_like(x)
        in_pieces(out, x, (w1, named["w2"], named["w1_scale"], named["w2_scale"]), ids, by, config.activation)
        return out

    def theirs() -> torch.Tensor:
        return original(**named)

    if (why := invariance.of_sglang()) is not None:
        served.left("layer of experts of FP8", why)
        return theirs()
    experts = experts_of(w1.shape, ids.shape[1], x.dtype, FINE_BLOCK)
    if not experts.takes(x.shape[0]):  # under SGLang's flag it takes all, or none
        return theirs()
    key = "triton_experts", id(experts), config.activation
    return called(key, lambda: experts, "fused_experts", ours, theirs)


def _is_fine(named: dict[str, Any]) -> bool:
    """Whether a call is of plain gates, and of e4m3 in blocks of 32 x 32 with float32 scales."""
    config = named["moe_runner_config"]
    if not named.get("use_fp8_w8a8") or list(named.get("block_shape") or ()) != [FINE_BLOCK, FINE_BLOCK]:
        return False
    scaled = [(named[name], named[f"{name}_scale"]) for name in ("w1", "w2")]
    return (
        all(not torch.is_tensor(named.get(name)) and not named.get(name) for name in _NOT_GIVEN)
        and config.is_gated
        and config.activation in ACTIVATIONS
        and not config.apply_router_weight_on_input
        and not config.no_combine
        and all(getattr(config, name, None) is None for name in _UNSUPPORTED)
        and all(w.dtype is torch.float8_e4m3fn and scale.dtype is torch.float32 for w, scale in scaled)
        and all(block_of(w.shape, scale.shape) == FINE_BLOCK for w, scale in scaled)
    )


def _gated(rows: torch.Tensor) -> torch.Tensor:
    gates, ups = rows.chunk(2, dim=1)
    return torch.nn.functional.silu(gates) * ups


def _is_plain(layer: Any) -> bool:
    runner = layer.moe_runner_config
    biases = [getattr(layer, f"{prefix}_bias", None) for prefix in _PREFIXES]
    return (
        runner.is_gated
        and runner.activation == "silu"
        and all(getattr(runner, name, None) is None for name in _UNSUPPORTED)
        and biases == [None, None]
        and not import_module("sglang.srt.runtime_context").get_lora().enable_lora
    )
