"""SGLang's plugin: the entry point `gemmill` of `sglang.srt.plugins`, which SGLang calls in each of its processes.

It puts itself around SGLang's GEMMs for FP8 per token and channel, FP8 in blocks, and INT8, of release 0.5.23: a call that a
build has a variant for comes to gemmill, others to SGLang's own. GEMMILL_SGLANG=0 leaves SGLang as it is.
"""

from collections.abc import Callable, Sequence
from importlib import import_module

import torch

from gemmill import settings
from gemmill.compat.linear import BLOCK, Linear, guarded, refusal, row_of

Gemm = Callable[..., torch.Tensor]


def register() -> None:
    """Put the hooks there; a second call changes nothing. Raises nothing: SGLang goes on without them."""
    if settings.serves("SGLang"):
        guarded("SGLang", _register)


def _register() -> None:
    hooks = import_module("sglang.srt.plugins.hook_registry")
    for target, hook in HOOKS.items():
        known = [other for _, other, *_ in getattr(hooks.HookRegistry, "_hooks", {}).get(target, ())]
        if any(other.__name__ == hook.__name__ and other is not hook for other in known):
            raise RuntimeError("another gemmill has registered its hooks already: uninstall one of the two")
        if hook not in known:
            hooks.HookRegistry.register(target, hook, hooks.HookType.AROUND)


def around_scaled_mm(
    original: Gemm,
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scales_a: torch.Tensor,
    scales_b: torch.Tensor,
    out_dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """mat_a [M, K] and mat_b [K, N], both e4m3 or s8, with scales per token or one, and per channel or one; [M, N]."""
    linear = Linear(n=mat_b.shape[1], k=mat_b.shape[0], codes=mat_a.dtype, out_dtype=out_dtype)
    if mat_b.stride(0) != 1 or _refused(linear):
        return original(mat_a, mat_b, scales_a, scales_b, out_dtype=out_dtype, bias=bias)
    return _scaled_mm(mat_a, mat_b, scales_a, row_of(scales_b), out_dtype, bias)


def around_block_scaled_mm(
    original: Gemm,
    A: torch.Tensor,
    B: torch.Tensor,
    As: torch.Tensor,
    Bs: torch.Tensor,
    block_size: Sequence[int],
    output_dtype: torch.dtype,
) -> torch.Tensor:
    """A [M, K] and B [N, K] of e4m3, with scales [M, K/128] and [N/128, K/128] of float32; [M, N]."""
    linear = Linear(n=B.shape[0], k=B.shape[1], codes=A.dtype, out_dtype=output_dtype, blocks=True)
    plain = list(block_size) == [BLOCK, BLOCK] and As.dtype == Bs.dtype == torch.float32
    if not plain or _refused(linear):
        return original(A, B, As, Bs, block_size, output_dtype=output_dtype)
    return _scaled_mm(A, B.t(), As, Bs.t(), output_dtype, None)


HOOKS = {
    "sglang.srt.layers.quantization.fp8_utils.fp8_scaled_mm": around_scaled_mm,
    "sglang.srt.layers.quantization.w8a8_int8.int8_scaled_mm": around_scaled_mm,
    "sglang.kernels.ops.gemm.fp8_kernel.w8a8_block_fp8_matmul_deepgemm": around_block_scaled_mm,
}
"""By the function that each is put around."""

_known: dict[Linear, bool] = {}


def _refused(linear: Linear) -> bool:
    """Remembered, since it is asked at each call."""
    if linear not in _known:
        _known[linear] = refusal(linear) is not None
    return _known[linear]


def _scaled_mm(*operands: object) -> torch.Tensor:
    from gemmill import cutlass_scaled_mm

    return cutlass_scaled_mm(*operands)  # type: ignore[arg-type]
