"""The ops under the names and schemas that vLLM calls: `torch.ops._C.cutlass_scaled_mm` and its kin.

Importing this module is enough, before vLLM's library is loaded or after it: vLLM's own callers (`vllm._custom_ops`) and tests
then reach gemmill's kernels. Nothing is defined under vLLM's names, or its library could not define them any more: its
namespace hands gemmill's ops out, and what else the library has stays its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gemmill.families.scaled_mm.accepts import SCALED_MM
from gemmill.family import VLLM_PREFIX
from gemmill.manifest import ManifestError
from gemmill.runtime import ops
from gemmill.runtime.schemas import NAMESPACE, OPS
from gemmill.vocab import DType, ScaleGranularity

VLLM = "_C"
_OWN = f"{NAMESPACE}_vllm"

_SERVED_BY = {op.name.removeprefix(VLLM_PREFIX): op.name for op in OPS}
"""The op of gemmill for each name of vLLM's: one with another name where ours does something else."""


def _supports(b_scale: ScaleGranularity, group_size: int, capability: int) -> bool:
    try:
        entries = ops.variants(op=SCALED_MM, arch=f"sm{capability}a")
    except ManifestError:
        return False  # no build: nothing is compiled in
    predicates = (entry.predicate for entry in entries)
    return any((p.a_dtype, p.b_scale, p.group_size) == (DType.E4M3, b_scale, group_size) for p in predicates)


def _group_gemm_supported(capability: int) -> bool:
    """gemmill has no grouped GEMM; vLLM's library, where it is loaded, answers for its own."""
    of_vllm, _ = torch._C._jit_get_operation(f"{VLLM}::cutlass_group_gemm_supported")
    return of_vllm is not None and bool(of_vllm(capability))


_QUERIES = {
    "cutlass_scaled_mm_supports_fp8": partial(_supports, ScaleGranularity.CHANNEL, 0),
    "cutlass_scaled_mm_supports_block_fp8": partial(_supports, ScaleGranularity.BLOCK, 128),
}
"""vLLM's capability queries, answered from the manifest: what is not compiled in is not claimed."""

_library = torch.library.Library(_OWN, "FRAGMENT")
_overrides = torch.library.Library(VLLM, "FRAGMENT")


def _define_query(name: str, answer: Callable[[int], bool]) -> Any:
    _library.define(f"{name}(int cuda_device_capability) -> bool")
    _library.impl(name, answer, "CompositeExplicitAutograd")
    return getattr(getattr(torch.ops, _OWN), name)


def _hand_out(name: str, op: Any, *keys: str) -> None:
    """Make vLLM's name stand for an op. Where vLLM's library is loaded, callers may hold its op: that comes to ours too."""
    names = getattr(torch.ops, VLLM)
    if hasattr(names, name):
        for key in keys:
            _overrides.impl(name, lambda *given, **named: op(*given, **named), key)
    setattr(names, name, op)


def _register() -> None:
    for name, own in _SERVED_BY.items():
        _hand_out(name, getattr(getattr(torch.ops, NAMESPACE), own), "CPU", "CUDA")
    for name, answer in _QUERIES.items():
        _hand_out(name, _define_query(name, answer), "CompositeExplicitAutograd")
    _hand_out("cutlass_group_gemm_supported", _define_query("cutlass_group_gemm_supported", _group_gemm_supported))


_register()
