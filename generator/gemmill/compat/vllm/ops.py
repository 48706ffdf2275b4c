"""The ops under the names and schemas that vLLM calls: `torch.ops._C.cutlass_scaled_mm` and its kin.

Importing this module suffices, before or after vLLM's library is loaded: vLLM's own callers (`vllm._custom_ops`) and
tests then reach gemmill's kernels. Calls that an op with vLLM's arithmetic refuses go to the library's own, if there is
one. The module defines nothing under vLLM's names, or its library could not define them any more. Its namespace hands
gemmill's ops out, and the library's other ops stay its own. There is one exception, where no such library is to come.
vLLM's Python gives `scaled_fp4_quant` a fake by its full name as soon as the namespace has it.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gemmill.compat.vllm import fp4_groups, hadamard, library, moe_mm
from gemmill.compat.vllm.library import NAMESPACE as _OWN
from gemmill.compat.vllm.library import VLLM
from gemmill.families.blockscaled.ops import FP4_MM
from gemmill.families.grouped_mm.ops import GROUPED_MM
from gemmill.families.scaled_mm.accepts import SCALED_MM
from gemmill.families.sparse_mm.functions import COMPRESS
from gemmill.families.sparse_mm.ops import SPARSE_MM
from gemmill.family import VLLM_PREFIX
from gemmill.formats.layout import swizzled_shape
from gemmill.manifest import ManifestError
from gemmill.runtime import ops
from gemmill.runtime.schemas import BY_NAME, NAMESPACE, OPS
from gemmill.runtime.sizes import sizes
from gemmill.vocab import DType, ScaleGranularity, arch_of
from gemmill.vocab.format import NVFP4

_SERVED_BY = {op.name.removeprefix(VLLM_PREFIX): op.name for op in OPS}
"""The op of gemmill for each name of vLLM's: one with another name where ours does something else."""


def _supports(b_scale: ScaleGranularity, group_size: int, capability: int) -> bool:
    try:
        entries = ops.variants(op=SCALED_MM, arch=arch_of(divmod(capability, 10)))
    except ManifestError:
        return False  # no build: no variants
    found = (entry.config.operands for entry in entries)
    return any((x.a_dtype, x.b_scale, x.group_size) == (DType.E4M3, b_scale, group_size) for x in found)


def _supports_fp4(capability: int) -> bool:
    try:
        return bool(ops.variants(op=FP4_MM, arch=arch_of(divmod(capability, 10))))
    except ManifestError:
        return False


def _group_gemm_supported(capability: int) -> bool:
    """Whether there are variants of e4m3 with scales of tokens and channels."""
    try:
        entries = ops.variants(op=GROUPED_MM.name, arch=arch_of(divmod(capability, 10)))
    except ManifestError:
        return False
    return any(
        (x.operand_dtype, x.group_size) == (DType.E4M3, 0) and False in x.gathers for x in (y.config for y in entries)
    )


def _supports_sparse(capability: int) -> bool:
    try:
        return bool(ops.variants(op=SPARSE_MM.name, arch=arch_of(divmod(capability, 10))))
    except ManifestError:
        return False


_QUERIES: dict[str, Callable[[int], bool]] = {
    "cutlass_scaled_mm_supports_fp8": partial(_supports, ScaleGranularity.CHANNEL, 0),
    "cutlass_scaled_mm_supports_block_fp8": partial(_supports, ScaleGranularity.BLOCK, 128),
    "cutlass_scaled_mm_supports_fp4": _supports_fp4,
    "cutlass_group_gemm_supported": _group_gemm_supported,
    "cutlass_sparse_scaled_mm_supported": _supports_sparse,
}
"""vLLM's capability queries, answered from the manifest: they claim only compiled variants."""

_library = torch.library.Library(_OWN, "FRAGMENT")
_overrides = torch.library.Library(VLLM, "FRAGMENT")


def _define_query(name: str, answer: Callable[[int], bool]) -> Any:
    _library.define(f"{name}(int cuda_device_capability) -> bool")
    _library.impl(name, answer, "CompositeExplicitAutograd")
    return getattr(getattr(torch.ops, _OWN), name)


def _hand_out(name: str, op: Any, *keys: str) -> None:
    """Make vLLM's name stand for an op. Where vLLM's library is loaded, callers may hold its op: its calls come to ours
    too.
    """
    names = getattr(torch.ops, VLLM)
    if hasattr(names, name):
        for key in keys:
            library.keep(name, key)
            _overrides.impl(name, lambda *given, **named: op(*given, **named), key)
    setattr(names, name, op)


def _library_may_come() -> bool:
    """Whether vLLM is installed with its compiled ops, with or without an import."""
    vllm = find_spec("vllm")
    folders = (vllm and vllm.submodule_search_locations) or ()
    return any(True for folder in folders for _ in Path(folder).glob("_C*.so"))


_FP4 = "scaled_fp4_quant"
_FP4_ARGUMENTS = "Tensor input, Tensor input_scale, bool is_sf_swizzled_layout"


def _fp4_out(
    input: torch.Tensor,
    input_scale: torch.Tensor,
    is_sf_swizzled_layout: bool,
    *,
    output: torch.Tensor,
    output_scale: torch.Tensor,
) -> None:
    quantise = getattr(torch.ops, NAMESPACE).vllm_scaled_nvfp4_quant.default
    quantise(output, output_scale, input, input_scale, is_sf_swizzled_layout)


def _fp4_empty(
    input: torch.Tensor, input_scale: torch.Tensor, is_sf_swizzled_layout: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of input [rows, hidden], as vLLM allocates them: swizzled scales are words of four."""
    rows, hidden = sizes(input, 2)
    codes = input.new_empty((rows, hidden // 2), dtype=torch.uint8)
    if not is_sf_swizzled_layout:
        return codes, input.new_empty((rows, hidden // NVFP4.group), dtype=torch.uint8)
    padded, scales = swizzled_shape(rows, hidden // NVFP4.group)
    return codes, input.new_empty((padded, scales // 4), dtype=torch.int32)


def _fp4(
    input: torch.Tensor, input_scale: torch.Tensor, is_sf_swizzled_layout: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    output, output_scale = _fp4_empty(input, input_scale, is_sf_swizzled_layout)
    _fp4_out(input, input_scale, is_sf_swizzled_layout, output=output, output_scale=output_scale)
    return output, output_scale


def _define_fp4() -> Any:
    """vLLM's op with both of its overloads, which its library refuses on sm_90. Codes are those of
    vllm_scaled_nvfp4_quant; zeros fill the columns of an output beyond the input's.
    """
    of_vllm = hasattr(getattr(torch.ops, VLLM), _FP4) or _library_may_come()
    for names in (_library,) if of_vllm else (_library, _overrides):
        names.define(f"{_FP4}({_FP4_ARGUMENTS}) -> (Tensor, Tensor)")
        names.define(f"{_FP4}.out({_FP4_ARGUMENTS}, *, Tensor(a!) output, Tensor(b!) output_scale) -> ()")
    for name, answer in ((_FP4, _fp4), (f"{_FP4}.out", _fp4_out)):
        for key in ("CPU", "CUDA"):
            _library.impl(name, answer, key)
    _library._register_fake(_FP4, _fp4_empty)
    _library._register_fake(f"{_FP4}.out", lambda *given, **named: None)
    return getattr(getattr(torch.ops, _OWN), _FP4)


def _define_of_experts(name: str) -> Any:
    """A grouped GEMM, or an op that prepares its calls."""
    answer = moe_mm.cutlass_moe_mm if name == moe_mm.MOE_MM else partial(moe_mm.prepare, VLLM, name)
    _library.define(name + moe_mm.SCHEMAS[name])
    for key in ("CPU", "CUDA"):
        _library.impl(name, answer, key)
    _library._register_fake(name, lambda *given, **named: None)
    return getattr(getattr(torch.ops, _OWN), name)


def _define_fp4_groups(name: str) -> Any:
    _library.define(name + fp4_groups.SCHEMAS[name])
    for key in ("CPU", "CUDA"):
        _library.impl(name, partial(fp4_groups.answer, VLLM, name), key)
    _library._register_fake(name, lambda *given, **named: None)
    return getattr(getattr(torch.ops, _OWN), name)


def _hand_out_hadamard() -> None:
    """Where the library has the op it stays: it rounds otherwise."""
    name = hadamard.HADACORE
    _library.define(name + hadamard.SCHEMA)
    for key in ("CPU", "CUDA"):
        _library.impl(name, hadamard.hadacore_transform, key)
    _library._register_fake(name, lambda x, inplace: x if inplace else torch.empty_like(x))
    if not (hasattr(getattr(torch.ops, VLLM), name) or _library_may_come()):
        _hand_out(name, getattr(getattr(torch.ops, _OWN), name))


def _register() -> None:
    for name, own in _SERVED_BY.items():
        _hand_out(name, getattr(getattr(torch.ops, NAMESPACE), own), "CPU", "CUDA")
        if own.startswith(VLLM_PREFIX):
            library.hand_on(BY_NAME[own], name)
    _hand_out(COMPRESS, getattr(getattr(torch.ops, NAMESPACE), COMPRESS), "CPU", "CUDA")
    fp4 = _define_fp4()
    if hasattr(getattr(torch.ops, VLLM), _FP4):
        _overrides.impl(f"{_FP4}.out", _fp4_out, "CUDA")
    _hand_out(_FP4, fp4, "CUDA")
    for name, answer in _QUERIES.items():
        _hand_out(name, _define_query(name, answer), "CompositeExplicitAutograd")
    for name in moe_mm.SCHEMAS:
        _hand_out(name, _define_of_experts(name), *(("CUDA",) if name == moe_mm.MOE_MM else ()))
    for name in fp4_groups.SCHEMAS:
        _hand_out(name, _define_fp4_groups(name))
    _hand_out_hadamard()


_register()
