"""SGLang's experts of nvfp4 weights with Marlin: gemmill packs them where SGLang would pack them for Marlin, and
multiplies in its place.

Of release 0.5.23. Layers of another activation than SiLU's gates, with a limit, with biases or with LoRA stay with
Marlin.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from gemmill.compat import fp4_experts, invariance
from gemmill.runtime import served

_GROUP = 16
_PREFIXES = ("w13", "w2")
_UNSUPPORTED = ("gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit")


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
