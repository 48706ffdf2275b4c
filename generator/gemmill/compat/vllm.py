"""The ops under the names and schemas that vLLM calls: `torch.ops._C.cutlass_scaled_mm` and its kin.

Importing this module is enough: vLLM's own callers (`vllm._custom_ops`) and tests then reach gemmill's kernels. Where
vLLM's library is loaded in the same process, whichever registers later serves the CUDA calls.
"""

import torch

from gemmill.manifest import ManifestError
from gemmill.runtime import ops

NAMESPACE = "_C"


def _supports_fp8(capability: int) -> bool:
    try:
        return capability >= 90 and ops.supports("cutlass_scaled_mm", dtype="e4m3")
    except ManifestError:
        return False  # no build: nothing is compiled in


_QUERIES = {
    "cutlass_scaled_mm_supports_fp8": _supports_fp8,
    "cutlass_scaled_mm_supports_block_fp8": lambda capability: False,
    "cutlass_group_gemm_supported": lambda capability: False,
}
"""vLLM's capability queries, answered from the manifest: what is not compiled in is not claimed."""

_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def _register() -> None:
    ops.serve(NAMESPACE)
    for name, answer in _QUERIES.items():
        if hasattr(getattr(torch.ops, NAMESPACE), name):
            continue
        _library.define(f"{name}(int cuda_device_capability) -> bool")
        _library.impl(name, answer, "CompositeExplicitAutograd")


_register()
