"""Stands before the grouped GEMMs that vLLM's experts with scales in blocks call: DeepGEMM's, of vllm.utils.deep_gemm.

vLLM decides whether they serve. A call that a build has a variant for comes to gemmill, others to DeepGEMM.
"""

import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor

from gemmill.compat import deep_gemm, invariance
from gemmill.compat.experts import Scaled, experts_called
from gemmill.runtime import served

MODULE = "vllm.utils.deep_gemm"
_CONTIGUOUS, _MASKED = "m_grouped_fp8_gemm_nt_contiguous", "fp8_m_grouped_gemm_nt_masked"
Gemm = Callable[..., Any]


def _before_contiguous(of_vllm: Gemm) -> Gemm:
    @wraps(of_vllm)
    def contiguous(a: Scaled, b: Scaled, d: Tensor, grouped_layout: Tensor, **named: Any) -> Any:
        by_ends = named.get("use_psum_layout", False)

        def ours() -> Any:
            alignment = import_module(MODULE).get_mk_alignment_for_contiguous_layout()[0] if by_ends else 1
            multiply = partial(deep_gemm.m_grouped_fp8_gemm_nt_contiguous, use_psum_layout=by_ends, alignment=alignment)
            return multiply(a, b, d, grouped_layout, ensure_zero_padding=False)  # vLLM reads no row of nobody

        def theirs() -> Any:
            return of_vllm(a, b, d, grouped_layout, **named)

        if len(named) > ("use_psum_layout" in named):
            return theirs()
        return experts_called(a, b, d, _CONTIGUOUS, ours, theirs, _stays)

    return contiguous


def _before_masked(of_vllm: Gemm) -> Gemm:
    @wraps(of_vllm)
    def masked(a: Scaled, b: Scaled, d: Tensor, masked_m: Tensor, expected_m: int, **named: Any) -> Any:
        def ours() -> Any:
            return deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, masked_m, expected_m)

        def theirs() -> Any:
            return of_vllm(a, b, d, masked_m, expected_m, **named)

        return theirs() if named else experts_called(a, b, d, _MASKED, ours, theirs, _stays)

    return masked


BEFORE = {
    _CONTIGUOUS: _before_contiguous,
    _MASKED: _before_masked,
}
"""The functions before vLLM's."""


def _stays() -> bool:
    """Whether vLLM requires batch invariance, and the build cannot hold it."""
    if (why := invariance.of_vllm()) is not None:
        served.left("layer of experts with scales in blocks", why)
    return why is not None


def put_before(deep_gemm: ModuleType) -> None:
    """Wrap the functions of vLLM's module, there and wherever vLLM has imported them already; a second call changes nothing."""
    for name, before in BEFORE.items():
        of_vllm = getattr(deep_gemm, name)
        if hasattr(of_vllm, "__wrapped__"):
            continue
        replace(deep_gemm, name, before(of_vllm))


def replace(module: ModuleType, name: str, ours: Any) -> None:
    """Put a function in the place of a module's, and wherever vLLM has imported that."""
    of_vllm = getattr(module, name)
    for other in [module, *(m for known, m in list(sys.modules.items()) if known.startswith("vllm."))]:
        if isinstance(other, ModuleType) and vars(other).get(name) is of_vllm:
            setattr(other, name, ours)
