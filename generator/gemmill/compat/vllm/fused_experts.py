"""vLLM's modular interface of experts: FP8 experts in one call, few tokens in three launches and many by grouped GEMMs.

Of release 0.33. A class of gemmill's stands before TritonExperts and derives from it, where vLLM chooses Triton by
itself. So vLLM's prepare, finalize and shared experts stay, and so do weights: both read them as checkpoints have them.
Layers with LoRA, with biases or limits, and those whose tokens travel between ranks stay vLLM's. Under
VLLM_BATCH_INVARIANT a layer is gemmill's for every number of tokens, or vLLM's for all.
"""

import math
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gemmill.compat import invariance
from gemmill.compat.fused_experts import ACTIVATIONS, Experts, experts_of, in_pieces
from gemmill.compat.linear import BLOCK, FINE_BLOCK, block_of, called, refusal
from gemmill.compat.vllm.blocks import replace
from gemmill.runtime import served

CHOOSES = "vllm.model_executor.layers.fused_moe.oracle.fp8", "backend_to_kernel_cls"
"""vLLM's function that names the classes of a backend, of which it takes the first that supports a layer."""
BACKEND = "TRITON"
_CODES = torch.float8_e4m3fn
_GROUPS = {
    ((BLOCK, BLOCK), (1, BLOCK)): BLOCK,
    ((FINE_BLOCK, FINE_BLOCK), (1, BLOCK)): FINE_BLOCK,
    ((FINE_BLOCK, FINE_BLOCK), (1, FINE_BLOCK)): FINE_BLOCK,
    ((-1, 1), (1, -1)): 0,
}
"""Blocks, by groups that share a scale, of weights and of activations; 0 for whole rows of both. vLLM says 128 of activations whatever the
weights' blocks are, and quantises in groups as wide as those."""


def refusal_of(moe_config: Any, weight_key: Any, activation_key: Any) -> str | None:
    """The reason why a layer stays vLLM's, in one sentence; None where gemmill takes it. Raises nothing."""
    config, parallel = moe_config, moe_config.moe_parallel_config
    if (asked := getattr(config, "moe_backend", "auto")) != "auto":
        return f"gemmill takes layers of which vLLM chooses the backend, and moe_backend is {asked!r}"
    if parallel.use_all2all_kernels or parallel.enable_eplb:
        return "gemmill takes no layer whose tokens or experts travel between ranks"
    if config.is_lora_enabled or config.has_bias:
        return "gemmill takes no layer with LoRA or biases here"
    numbers = [getattr(config, f"swiglu_{name}", None) for name in ("limit", "alpha", "beta")]
    if not config.is_act_and_mul or config.activation.value not in ACTIVATIONS or numbers != [None] * 3:
        return f"gemmill takes gates of {', '.join(ACTIVATIONS)} without limits here"
    if (blocks := _blocks_of(weight_key, activation_key)) is None:
        return "gemmill takes float8_e4m3fn with float32 scales of channels and tokens, or of blocks of 128 or 32"
    experts = Experts(
        experts=config.num_local_experts,
        hidden=config.hidden_dim,
        inner=config.intermediate_size_per_partition,
        topk=config.experts_per_token,
        dtype=config.in_dtype,
        blocks=blocks,
    )
    return invariance.of_vllm() or refusal(experts)


def _blocks_of(weight: Any, activation: Any) -> int | None:
    """The blocks of scales, by vLLM's keys of both operands; None where gemmill does not have them."""
    if weight is None or activation is None or activation.scale.static or not weight.scale.static:
        return None
    kinds = [(key.dtype, key.scale.dtype, key.symmetric) for key in (weight, activation)]
    groups = tuple((key.scale.group_shape.row, key.scale.group_shape.col) for key in (weight, activation))
    return _GROUPS.get(groups) if kinds == [(_CODES, torch.float32, True)] * 2 else None


def _blocks_in(w13: torch.Size, scales: Tensor) -> int:
    """The blocks of scales of w13 [E, 2 I, K]; 0 where they are of rows, [E, 2 I] or [E, 2 I, 1]."""
    return 0 if scales.shape[1] == w13[1] else block_of(w13, scales.shape)


def _or_left(moe_config: Any, weight_key: Any, activation_key: Any) -> tuple[bool, str | None]:
    """Whether gemmill serves a layer that vLLM's class supports, and the reason where not, which goes to the log."""
    reason = refusal_of(moe_config, weight_key, activation_key)
    if reason is not None:
        served.left(f"layer of {moe_config.num_local_experts} experts of FP8", reason)
    return reason is None, reason


def _workspace_of(tokens: int, rows: int, hidden: int, topk: int, experts: int, *, blocks: int) -> int:
    """Elements of 16 bits that gemmill's calls of so many tokens need, w13 being [experts, rows, hidden]."""
    from gemmill import fused_experts_workspace

    sizes = {"experts": experts, "hidden": hidden, "inner": rows // 2, "topk": topk}
    layer = Experts(**sizes, dtype=torch.bfloat16, blocks=blocks)
    return -(-fused_experts_workspace(layer.most_at_once(tokens), **sizes) // 2)


@cache
def before(theirs: type) -> type:
    """vLLM's TritonExperts, of which calls of few tokens are gemmill's."""
    vllms: Any = theirs

    class GemmillExperts(vllms):  # type: ignore[misc]  # of a package that is not here
        """x [M, K] of 16 bits comes as it is: gemmill codes it in its first launch, vLLM's kernel before its own."""

        @staticmethod
        def is_supported_config(
            cls: Any, moe_config: Any, weight_key: Any, activation_key: Any, activation_format: Any
        ) -> tuple[bool, str | None]:
            """As vLLM asks."""
            supports, reason = vllms.is_supported_config(cls, moe_config, weight_key, activation_key, activation_format)
            return _or_left(moe_config, weight_key, activation_key) if supports else (False, reason)

        @staticmethod
        def _supports_batch_invariance() -> bool:
            return True  # of a layer the build answers, for all numbers of tokens

        @property
        def expects_unquantized_inputs(self) -> bool:
            """Whether prepare leaves x as it is."""
            return True

        def workspace_shapes(
            self,
            M: int,
            N: int,
            K: int,
            topk: int,
            global_num_experts: int,
            local_num_experts: int,
            expert_tokens_meta: Any,
            activation: Any,
        ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
            """vLLM's, the second with room for gemmill's: more tokens need no less, for vLLM locks the room that most had."""
            given = M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation
            first, second, out = super().workspace_shapes(*given)
            blocks = _blocks_in(torch.Size((local_num_experts, N, K)), self.w1_scale)
            needed = _workspace_of(M, N, K, topk, local_num_experts, blocks=blocks)
            return first, second if math.prod(second) >= needed else (needed,), out

        def apply(
            self,
            output: Tensor,
            hidden_states: Tensor,
            w1: Tensor,
            w2: Tensor,
            topk_weights: Tensor,
            topk_ids: Tensor,
            activation: Any,
            global_num_experts: int,
            expert_map: Tensor | None,
            a1q_scale: Tensor | None,
            a2_scale: Tensor | None,
            workspace13: Tensor,
            workspace2: Tensor,
            expert_tokens_meta: Any,
            apply_router_weight_on_input: bool,
        ) -> Any:
            """Write the weighted sum of each token's experts into output [M, K]."""

            def theirs() -> Any:
                return super(GemmillExperts, self).apply(
                    output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map, a1q_scale,
                    a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input,
                )  # fmt: skip

            def ours() -> None:
                # Where the router's weights are on the input, prepare has multiplied x.
                weights = torch.ones_like(topk_weights) if apply_router_weight_on_input else topk_weights
                layer = w1, w2, self.w1_scale, self.w2_scale
                in_pieces(output, hidden_states, layer, topk_ids, weights, activation.value, expert_map, workspace2)

            layer = experts_of(w1.shape, topk_ids.shape[1], hidden_states.dtype, _blocks_in(w1.shape, self.w1_scale))
            if not layer.takes(hidden_states.shape[0]):
                return theirs()
            return called(("GemmillExperts", id(layer)), lambda: layer, "GemmillExperts", ours, theirs)

    return GemmillExperts


def before_classes(of_vllm: Callable[..., list[type]]) -> Callable[..., list[type]]:
    """vLLM's classes of a backend, gemmill's before Triton's."""

    @wraps(of_vllm)
    def classes(backend: Any) -> list[type]:
        found = of_vllm(backend)
        return [before(found[0]), *found] if backend.name == BACKEND else found

    return classes


def put_before() -> None:
    """Wrap vLLM's function, there and wherever vLLM has imported it already; a second call changes nothing."""
    module_name, name = CHOOSES
    module = import_module(module_name)
    of_vllm = getattr(module, name)
    if not hasattr(of_vllm, "__wrapped__"):
        replace(module, name, before_classes(of_vllm))
