"""vLLM's quantisation ops with gemmill's kernels, wherever vLLM's code, its fusion passes and compiled graphs call them.

With GEMMILL_VLLM_OPS=1. NAMES have the ops whose kernels took less time than vLLM's at every shape of the grid
(docs/quant.md, H200, 2026-11-21). After vLLM has processed the weights, the plugin replaces kernels in torch's
dispatcher. A call that gemmill refuses goes on to vLLM's kernel, as do those like it. Outside graphs a call takes more
of the host's time than vLLM's, for it passes through Python.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemmill import settings
from gemmill.family import VLLM_PREFIX
from gemmill.runtime import ops, served
from gemmill.runtime.schemas import NAMESPACE

VLLM, KEY = "_C", "CUDA"
"""vLLM's namespace of ops, and the key of torch's dispatcher under which their kernels are."""
NAMES = (
    "silu_and_mul_quant",
    "silu_and_mul_per_block_quant",
    "per_token_group_fp8_quant",
    "per_token_group_fp8_quant_packed",
    "dynamic_per_token_scaled_fp8_quant",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
)
_libraries: dict[str, torch.library.Library] = {}
"""The replacement of each op's kernel."""


def put_before() -> None:
    """Replace the kernels of vLLM's ops, if the settings ask for it; a second call changes nothing. Raises
    ManifestError without a build.
    """
    if not settings.quantises("vLLM"):
        return
    build = ops.active()
    for name in NAMES:
        if name in _libraries or not hasattr(getattr(torch.ops, VLLM), name):
            continue
        theirs = torch.library.get_kernel(f"{VLLM}::{name}", KEY)
        _libraries[name] = torch.library.Library(VLLM, "IMPL")
        _libraries[name].impl(name, _before(name, theirs.call_boxed), KEY, with_keyset=True, allow_override=True)
        served.took(
            served.ServedLayers(
                layer=f"call of vLLM's {name}", by=VLLM_PREFIX + name, variants=f"of build {build.build_id}"
            )
        )


def _before(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    ours = getattr(getattr(torch.ops, NAMESPACE), VLLM_PREFIX + name).default
    refused: set[tuple[object, ...]] = set()

    def quantise(keys: object, *given: Any) -> Any:
        if refused and _kind(given) in refused:
            return theirs(keys, *given)
        try:
            return ours(*given)
        except RuntimeError as error:  # before any launch
            refused.add(_kind(given))
            served.left(f"call of vLLM's {name}", " ".join(str(error).split()), level=logging.WARNING)
            return theirs(keys, *given)

    return quantise


def _kind(given: tuple[Any, ...]) -> tuple[object, ...]:
    """Arguments by which calls are alike: dtypes and widths of tensors, and the others."""
    return tuple((x.dtype, x.shape[-1:]) if isinstance(x, Tensor) else x for x in given)
