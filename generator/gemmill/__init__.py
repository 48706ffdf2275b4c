"""gemmill: a generator of quantised GEMM kernels for NVIDIA GPUs.

Importing it defines the ops under `torch.ops.gemmill`; the first call on a GPU loads the newest build.
"""

import sys
from pathlib import Path
from typing import Any

from gemmill.version import __version__

_RUNTIME = (
    "active",
    "assume_constant_weights",
    "cutlass_scaled_mm",
    "cutlass_scaled_mm_azp",
    "explain",
    "load",
    "supports",
    "table_digest",
    "use_variant",
    "variants",
)
_QUANT = (
    "act_and_mul_per_block_quant",
    "act_and_mul_per_token_quant",
    "act_and_mul_quant",
    "dynamic_per_token_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_scaled_int8_quant",
    "dynamic_tensor_scaled_int8_quant",
    "per_token_group_fp8_quant",
    "per_token_group_fp8_quant_packed",
    "per_token_group_quant_int8",
    "per_token_group_quant_int8_azp",
    "per_token_group_quant_int8_truncated",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
    "silu_and_mul_per_block_quant",
    "silu_and_mul_per_token_quant",
    "silu_and_mul_quant",
    "static_scaled_fp8_quant",
    "static_scaled_int8_quant",
)
__all__ = ["__version__", *_QUANT, *_RUNTIME]


def __getattr__(name: str) -> Any:
    if name in _RUNTIME:
        from gemmill.runtime import ops

        return getattr(ops, name)
    if name in _QUANT:
        from gemmill.runtime import ops as _defined  # noqa: F401  (the functions call its ops)
        from gemmill.runtime import quant_functions

        return getattr(quant_functions, name)
    raise AttributeError(f"module 'gemmill' has no attribute {name!r}")


def _runs_own_command() -> bool:
    """Whether this process is the `gemmill` command or one of its workers, which import torch only where they need it."""
    return Path(sys.argv[0] if sys.argv else "").name in ("gemmill", "-m")


if not _runs_own_command():
    from gemmill.runtime import ops as _ops  # noqa: F401  (defines torch.ops.gemmill)
