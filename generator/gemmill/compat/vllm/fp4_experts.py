"""vLLM's experts of nvfp4 and mxfp4 weights with Marlin: gemmill packs them where vLLM would pack them for Marlin, and
multiplies in its place.

Of release 0.33. nvfp4 experts with plain gates take three launches where the build has kernels for that, dense or, with
GEMMILL_FP4_EXPERTS=2:4, pruned as they load. Marlin took 1.44 to 2.04 times their time from 1 to 256 tokens of
Qwen3-Next's layer (H200, 2026-11-23), so they are gemmill's unless that is 0; others only with 1. vLLM decides whether
Marlin serves; where it chose Humming for nvfp4 experts that gemmill takes, the plugin has it choose Marlin. Layers with LoRA, and experts whose rows other ranks hold, stay with Marlin. Activations, their limits
and biases are vLLM's, whatever they are.
"""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gemmill import settings
from gemmill.compat import fp4_experts, invariance
from gemmill.compat.linear import refusal
from gemmill.compat.vllm import fused_fp4_experts
from gemmill.compat.vllm.blocks import replace
from gemmill.runtime import served

_PACKING = "vllm.model_executor.layers.quantization.utils.marlin_utils_fp4"
PREPARES = _PACKING, "prepare_nvfp4_moe_layer_for_marlin"
PREPARES_MXFP4 = _PACKING, "prepare_moe_mxfp4_layer_for_marlin"
CHOOSES = "vllm.model_executor.layers.fused_moe.oracle.nvfp4", "select_nvfp4_moe_backend"
_HUMMING, _MARLIN, _ANY = "HUMMING", "marlin", "auto"
MULTIPLIES = "vllm.model_executor.layers.fused_moe.experts.marlin_moe", "fused_marlin_moe"


def before_choice(of_vllm: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's choice of a backend for nvfp4 experts, which is Humming's on Hopper where humming-kernels is installed: Marlin's, before
    which gemmill stands, for layers that gemmill takes. A backend that the user named stays.
    """

    @wraps(of_vllm)
    def choose(config: Any, weight_key: Any, activation_key: Any) -> Any:
        found = of_vllm(config, weight_key, activation_key)
        if found[0].name != _HUMMING or config.moe_backend != _ANY or not _takes(config):
            return found
        config.moe_backend = _MARLIN
        try:
            return of_vllm(config, weight_key, activation_key)
        except ValueError as error:  # Marlin's kernels cannot serve the layer
            served.left("layer of experts of 4-bit weights", str(error))
            return found
        finally:
            config.moe_backend = _ANY

    return choose


def _takes(config: Any) -> bool:
    """Whether gemmill takes the nvfp4 experts of a configuration of vLLM's in three launches."""
    if not settings.takes_fp4_experts(measured=True) or config.in_dtype != torch.bfloat16:
        return False
    layer = fused_fp4_experts.Layer(
        experts=config.num_local_experts,
        hidden=config.hidden_dim,
        inner=config.intermediate_size_per_partition,
        format=fused_fp4_experts.SPARSE if settings.prunes_fp4_experts() else "nvfp4",
    )
    return _is_plain(config) and _has_plain_gates(config) and refusal(layer) is None


def before_preparation(of_vllm: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's function that packs w13 [E, 2 N, K / 2] and w2 [E, K, N / 2] with their scales, for gemmill's or Marlin's
    kernel.
    """

    @wraps(of_vllm)
    def prepare(**named: Any) -> Any:
        names = [(name, f"{name}_scale", f"{name}_scale_2") for name in ("w13", "w2")]
        made = None
        if settings.takes_fp4_experts(measured=True) and _is_plain(named["layer"].moe_config):
            parts = tuple((named[w], named[scale], named[scale_2]) for w, scale, scale_2 in names)
            if (whole := _in_one_call(named["layer"], parts)) is not None:
                ones = torch.ones(len(whole[0].base), device=whole[0].base.device, dtype=torch.float32)
                return tuple(tensor for weights in whole for tensor in (weights.blocks, weights.base, ones))
            if fp4_experts.are_asked_for() and not settings.prunes_fp4_experts():
                made = fp4_experts.packed(parts, named["layer"].params_dtype, named["layer"])
        if made is None:
            return of_vllm(**named)
        return tuple(tensor for weights in made for tensor in (weights.blocks, weights.base, weights.alpha))

    return prepare


def before_mxfp4_preparation(of_vllm: Callable[..., Any]) -> Callable[..., Any]:
    """The same of w13 [E, 2 N, K / 2] and w2 [E, K, N / 2] with scales of 32 values and biases, which stay as they are."""

    @wraps(of_vllm)
    def prepare(
        layer: Any, w13: Tensor, w2: Tensor, w13_scale: Tensor, w2_scale: Tensor, *biases: Tensor | None
    ) -> Any:
        made = None
        if fp4_experts.are_asked_for() and _is_plain(layer.moe_config):
            made = fp4_experts.packed(((w13, w13_scale, None), (w2, w2_scale, None)), layer.params_dtype, layer)
        if made is None:
            return of_vllm(layer, w13, w2, w13_scale, w2_scale, *biases)
        of_dtype = [None if bias is None else bias.to(layer.params_dtype) for bias in biases]
        return *(weights.blocks for weights in made), *(weights.base for weights in made), *of_dtype

    return prepare


def before_experts(of_vllm: Callable[..., Any]) -> Callable[..., Any]:
    """Multiply hidden_states [M, K] by experts whose weights the function above packed; others are Marlin's."""

    @wraps(of_vllm)
    def experts(*given: Any, **named: Any) -> Any:
        if given or not fp4_experts.is_packed(named["w1"]):
            return of_vllm(*given, **named)
        if fused_fp4_experts.is_packed(named["w1"], named.get("w1_scale")):
            return _one_call(named)
        first, second = (
            fp4_experts.Weights(
                blocks=named[f"w{i}"],
                base=named[f"w{i}_scale"],
                alpha=named.get(f"global_scale{i}"),
                bias=named.get(f"bias{i}"),
            )
            for i in (1, 2)
        )
        x, ids, expert_map = named["hidden_states"], named["topk_ids"], named.get("expert_map")
        weights, on_input = named["topk_weights"], named.get("apply_router_weight_on_input", False)
        if on_input:  # of one expert a token
            x = (x * weights).to(x.dtype)
        in_the_end = named.get("mul_topk_weights_in_gemm2", True) and not on_input
        activation = _activation(named)
        rows = fp4_experts.multiplied(x, first, second, activation, weights if in_the_end else None, ids, expert_map)
        out = named.get("output")
        out = torch.empty_like(x) if out is None else out
        if (moe_sum := named.get("moe_sum")) is not None:
            return moe_sum(rows, out, ids, expert_map)
        return torch.sum(rows, dim=1, out=out)

    return experts


def _in_one_call(layer: Any, parts: tuple[fp4_experts.Part, ...]) -> tuple[fused_fp4_experts.Weights, ...] | None:
    """Weights for three launches, where gates are plain and the build has variants; else None."""
    if not _has_plain_gates(layer.moe_config):
        return None
    first, second = parts
    return fused_fp4_experts.packed(first, second, layer.params_dtype, settings.prunes_fp4_experts(), layer)


def _has_plain_gates(config: Any) -> bool:
    """Whether gates have a known activation, no limits and no biases."""
    limits = [getattr(config, f"swiglu_{name}", None) for name in ("limit", "alpha", "beta")]
    return (
        getattr(getattr(config, "activation", None), "value", None) in fused_fp4_experts.ACTIVATIONS
        and limits == [None] * 3
        and not getattr(config, "has_bias", False)
        and getattr(config, "is_act_and_mul", True)
    )


def _one_call(named: dict[str, Any]) -> Tensor:
    """The layer in three launches, which weigh and sum rows. A hook that wants rows before that gets each pair as a token of its own."""
    x, weights, ids = named["hidden_states"], named["topk_weights"], named["topk_ids"]
    first, second = (fused_fp4_experts.Weights(blocks=named[f"w{i}"], base=named[f"w{i}_scale"]) for i in (1, 2))
    activation, expert_map = named["activation"].value, named.get("expert_map")
    out = named.get("output")
    out = torch.empty_like(x) if out is None else out
    if named.get("apply_router_weight_on_input", False):  # of one expert a token
        x, weights = (x * weights).to(x.dtype), torch.ones_like(weights)
    if named.get("mul_topk_weights_in_gemm2", True):
        return fused_fp4_experts.multiplied(x, first, second, activation, weights, ids, expert_map, out)
    pairs = x.repeat_interleave(ids.shape[1], dim=0)
    ones, each = torch.ones_like(weights).view(-1, 1), torch.empty_like(pairs)
    fused_fp4_experts.multiplied(pairs, first, second, activation, ones, ids.reshape(-1, 1), expert_map, each)
    rows = each.view(*ids.shape, -1)
    if (moe_sum := named.get("moe_sum")) is not None:
        return moe_sum(rows, out, ids, expert_map)
    return torch.sum(rows, dim=1, out=out)


def _activation(named: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """vLLM's activation of the rows of the first GEMM: gates and ups where it has gates."""

    def activated(rows: Tensor) -> Tensor:
        is_gated = named["activation"].is_gated
        out = rows.new_empty(len(rows), rows.shape[1] // 2 if is_gated else rows.shape[1])
        named["activation_func"](named["activation"], out, rows, topk_ids=None, expert_map=None)
        return out

    return activated


def _is_plain(config: Any) -> bool:
    """Whether nothing around the layer of a configuration keeps it with the engine. The report of served layers has the reason."""
    parallel, why = config.moe_parallel_config, invariance.of_vllm()
    if why is None and (parallel.use_all2all_kernels or parallel.enable_eplb):
        why = "gemmill takes no experts whose rows travel between ranks"
    if why is None and config.is_lora_enabled:
        why = "gemmill takes no layer with LoRA here"
    if why is not None:
        served.left("layer of experts of 4-bit weights", why)
    return why is None


def put_before() -> None:
    """Wrap vLLM's functions, there and wherever vLLM has imported them already; a second call changes nothing."""
    wrapped = (
        (PREPARES, before_preparation),
        (PREPARES_MXFP4, before_mxfp4_preparation),
        (MULTIPLIES, before_experts),
        (CHOOSES, before_choice),
    )
    for (module_name, name), before in wrapped:
        module = import_module(module_name)
        of_vllm = getattr(module, name)
        if not hasattr(of_vllm, "__wrapped__"):
            replace(module, name, before(of_vllm))
