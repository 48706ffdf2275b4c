"""Quantised GEMM and quantisation kernels for NVIDIA GPUs, as torch ops.

Importing it defines the ops under `torch.ops.gemmill`; the first call on a GPU loads a build. On CPU tensors the same
functions run the reference. The functions below allocate what they return; the ops of the same names write into tensors
that they are given. `explain` says which kernel a call gets and why, `use_variant` pins one.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gemmill.version import __version__

__all__ = [
    "__version__",
    "act_and_mul_per_block_quant",
    "act_and_mul_per_token_quant",
    "act_and_mul_quant",
    "active",
    "assume_constant_weights",
    "cutlass_scaled_mm",
    "cutlass_scaled_mm_azp",
    "dynamic_per_token_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_scaled_int8_quant",
    "dynamic_tensor_scaled_int8_quant",
    "explain",
    "load",
    "per_token_group_fp8_quant",
    "per_token_group_fp8_quant_packed",
    "per_token_group_quant_int8",
    "per_token_group_quant_int8_azp",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
    "silu_and_mul_per_block_quant",
    "silu_and_mul_per_token_quant",
    "silu_and_mul_quant",
    "static_scaled_fp8_quant",
    "static_scaled_int8_quant",
    "stats",
    "supports",
    "table_digest",
    "use_variant",
    "variants",
]


_MODULES = ("runtime.ops", "families.scaled_mm.functions", "families.quant.functions")
"""Where they are, if the command asks for one; the first defines the ops."""


def _runs_own_command() -> bool:
    """Whether this process is the `gemmill` command or one of its workers, which import torch only where they need it."""
    return Path(sys.argv[0] if sys.argv else "").name in ("gemmill", "-m")


if TYPE_CHECKING or not _runs_own_command():
    from gemmill.runtime.ops import (  # defines torch.ops.gemmill, which the families' functions call
        active,
        assume_constant_weights,
        explain,
        load,
        stats,
        supports,
        table_digest,
        use_variant,
        variants,
    )

    # isort: split
    from gemmill.families.quant.functions import (
        act_and_mul_per_block_quant,
        act_and_mul_per_token_quant,
        act_and_mul_quant,
        dynamic_per_token_scaled_fp8_quant,
        dynamic_scaled_fp8_quant,
        dynamic_scaled_int8_quant,
        dynamic_tensor_scaled_int8_quant,
        per_token_group_fp8_quant,
        per_token_group_fp8_quant_packed,
        per_token_group_quant_int8,
        per_token_group_quant_int8_azp,
        rms_norm_dynamic_per_token_quant,
        rms_norm_per_block_quant,
        silu_and_mul_per_block_quant,
        silu_and_mul_per_token_quant,
        silu_and_mul_quant,
        static_scaled_fp8_quant,
        static_scaled_int8_quant,
    )
    from gemmill.families.scaled_mm.functions import cutlass_scaled_mm, cutlass_scaled_mm_azp
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'gemmill' has no attribute {name!r}")
        from importlib import import_module

        modules = (import_module(f"gemmill.{module}") for module in _MODULES)
        return next(getattr(module, name) for module in modules if hasattr(module, name))
