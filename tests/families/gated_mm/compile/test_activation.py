"""The kernel that activates a product, whole, on the CPU against the reference: threads are fibers (families/kv_cache/compile/host)."""

import ctypes
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from compile.binding.structs import struct_of
from families.kv_cache.compile.structs import Launch
from gemmill.build.toolchain import ToolchainPaths
from gemmill.emit import emit
from gemmill.families.gated_mm.cases.calls import CallSpec, make_given, report_of, wrong_of
from gemmill.families.gated_mm.cases.experts import (
    ExpertSpec,
    expert_arguments_of,
    make_expert_given,
    of_counts,
    wrong_of_experts,
)
from gemmill.families.gated_mm.config import Activation, Epilogue, GatedPartsConfig, Operands, Result
from gemmill.families.gated_mm.reference import rounded_mm
from gemmill.families.gated_mm.serving import parts_of
from gemmill.locations import kernels_dir
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.space.names import symbol_of
from gemmill.vocab import DType

pytestmark = pytest.mark.compile
HOST = Path(__file__).parents[2] / "kv_cache" / "compile" / "host"
E4M3 = "inline uint32_t code_of(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }\n"
INSTRUCTIONS = {
    r'asm\("\{\\n \.reg \.b16 low, high;.*?"f"\(d\)\);': "word = code_of(a) | code_of(b) << 8 | code_of(c) << 16 | code_of(d) << 24;",
    r'asm\("rcp\.approx[^;]*;[^;]*;': "y = 1.0f / x;",
    r'asm volatile\("griddepcontrol[^;]*;[^;]*;': "",
    r'asm volatile\("ld\.global[^;]*;[^;]*;': "value = __ldcg(static_cast<uint4 const*>(address));",
}
"""Instructions that a CPU has not, and how it does the same."""
MISSING = """
template <class T> T __ldcg(T const* x) { if (reinterpret_cast<uintptr_t>(x) % sizeof(T)) abort(); return *x; }
template <class T> T __ldg(T const* x) { return *x; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int_as_float(int bits) { return __uint_as_float(bits); }
inline int __dp4a(int, int, int) { abort(); }
#define __noinline__
"""
GELU, SWIGLU = {"activation": Activation.GELU}, {"activation": Activation.SWIGLU, "numbers": (1.702, 7.0, 1.0)}
DENSE = CallSpec(m=5, hidden=272, k=64, result=Result.BF16)
EXPERTS = ExpertSpec(m=1, hidden=384, k=64, result=Result.GROUP, counts=(1,))
SPECS = [
    DENSE,
    replace(DENSE, m=300, hidden=16, pad=16, **GELU),
    replace(DENSE, result=Result.STATIC, **SWIGLU),
    replace(DENSE, result=Result.GROUP, hidden=640, transposed=True),
    replace(DENSE, result=Result.GROUP, hidden=640, m=30),
    replace(DENSE, result=Result.GROUP, hidden=128, m=1, data="large"),
    replace(DENSE, result=Result.FINE_GROUP, group_size=32, hidden=96, m=7, transposed=True, pad=16),
    replace(DENSE, result=Result.FINE_GROUP, group_size=32, hidden=640, m=30, data="integers"),
    replace(DENSE, result=Result.FINE_GROUP, group_size=32, rows_scaled=True, hidden=96, m=7),
    replace(DENSE, group_size=128, hidden=256, m=3, k=160, pad=16),
    replace(DENSE, result=Result.GROUP, group_size=128, hidden=384, m=30, k=160, **SWIGLU),
    replace(DENSE, result=Result.STATIC, group_size=32, hidden=96, m=9, k=96, **GELU),
    of_counts(EXPERTS, (3, 0, 6, 0), spare=5, wide_offsets=True),
    of_counts(EXPERTS, (3, 0, 6), slot=8),
    of_counts(replace(EXPERTS, result=Result.BF16), (2, 4, 3), mapped=(1, -1, 0)),
    of_counts(replace(EXPERTS, hidden=128), (1,) * 70 + (0,) * 70 + (2,)),
    of_counts(replace(EXPERTS, group_size=128), (3, 0, 6), slot=8),
    of_counts(replace(EXPERTS, group_size=32, result=Result.BF16), (2, 4, 3), mapped=(1, -1, 0)),
]


class Args(ctypes.Structure):
    _fields_ = (("call", struct_of("gated_mm/abi.h")), ("product", ctypes.c_void_p))


def config_of(spec: CallSpec) -> GatedPartsConfig:
    operands = Operands(
        dtype=DType.E4M3,
        group_size=spec.group_size,
        rows_scaled=spec.rows_scaled,
        by_expert=isinstance(spec, ExpertSpec),
    )
    return GatedPartsConfig(operands=operands, epilogue=Epilogue(result=spec.result))


@pytest.fixture(scope="module")
def kernels(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("kernels")
    for path in ("coding/code.cuh", "coding/memory.cuh", "core/programmatic.cuh", "gated_mm/activate_packed.cuh"):
        text = (kernels_dir() / path).read_text()
        for instruction, instead in INSTRUCTIONS.items():
            text = re.sub(instruction, instead, text, flags=re.DOTALL)
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    sources = [emit(config).text for config in dict.fromkeys(map(config_of, SPECS))]
    begin = f'#include "block.h"\n#include <cfloat>\n#include <cuda_fp8.h>\n{MISSING}{E4M3}'
    (folder / "kernels.cpp").write_text("\n".join([begin, *sources]))
    includes = [
        *(f"-I{path}" for path in (folder, HOST, kernels_dir())),
        *(f"-isystem{x}" for x in toolchain.include_dirs),
    ]
    options = ["-std=c++20", "-O0", "-ffp-contract=off", "-w", "-fPIC", "-shared"]
    subprocess.run(
        [str(toolchain.gxx), *options, *includes, str(folder / "kernels.cpp"), "-o", str(folder / "kernels.so")],
        check=True,
    )
    return ctypes.CDLL(str(folder / "kernels.so"))


def product_of(spec: CallSpec, given: dict[str, Any]) -> Tensor:
    """The product in bf16, NaN where no expert has rows."""
    names = ("a", "b", "a_scales", "b_scales")
    if not isinstance(spec, ExpertSpec):
        return rounded_mm(*(given[name] for name in names))
    judged = check(BY_NAME[spec.op], of_arguments(BY_NAME[spec.op], expert_arguments_of(spec.op, given)))
    by_role = {"expert_offsets": given.get("rows"), **given}
    product = torch.full((spec.m, 2 * spec.hidden), torch.nan, dtype=torch.bfloat16)
    for part in parts_of(judged, by_role):
        product[part.rows] = rounded_mm(*(part.operands[name] for name in names))
    return product


@pytest.mark.parametrize("sm_count", [2, 0], ids=["few pieces a thread", "many"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_results_are_the_references(kernels: ctypes.CDLL, spec: CallSpec, sm_count: int) -> None:
    """The product is the reference's, so results differ by the functions of the activation alone. Other memory stays poison.

    How many pieces a thread has follows from their number and that of multiprocessors."""
    by_expert = isinstance(spec, ExpertSpec)
    given = (make_expert_given if by_expert else make_given)(spec, torch.device("cpu"))
    dtype = getattr(torch, spec.result.dtype.torch_name)
    whole = torch.full((spec.m, (spec.hidden + spec.pad) * dtype.itemsize), 0x7E, dtype=torch.uint8).view(dtype)
    written = {"out": whole[:, : spec.hidden]}
    if spec.result.group:
        scales = torch.full((spec.m, spec.hidden // spec.result.group), -7.0)
        written["out_scales"] = scales.t().contiguous().t() if spec.transposed else scales
    if by_expert and spec.slot:
        written = {name: x.unflatten(0, (len(spec.counts), spec.slot)) for name, x in written.items()}
    given |= {"out_scales": None} | written
    product = product_of(spec, given)
    before = {name: x.clone() for name, x in written.items()}

    scales = given["out_scales"]
    alpha, limit, beta = spec.numbers
    call = Args._fields_[0][1](m=spec.m, n=2 * spec.hidden, k=spec.k, alpha=alpha, limit=limit, beta=beta)
    call.activation = [*Activation].index(spec.activation)
    call.d, call.ldd = given["out"].data_ptr(), given["out"].stride(-2)
    if given["static_scale"] is not None:
        call.static_scale = given["static_scale"].data_ptr()
    if scales is not None:
        call.out_scales, call.out_scale_stride_m, call.out_scale_stride_g = (
            scales.data_ptr(),
            scales.stride(-2),
            scales.stride(-1),
        )
    if by_expert:
        offsets = given["rows" if spec.slot else "expert_offsets"]
        call.offsets, call.offset_words, call.slot = offsets.data_ptr(), offsets.element_size() // 4, spec.slot
        call.experts = len(spec.counts)
        if given["expert_map"] is not None:
            call.expert_map = given["expert_map"].data_ptr()
    args, how = Args(call, product.data_ptr()), Launch(sm_count=sm_count)
    assert getattr(kernels, symbol_of(config_of(spec)))(ctypes.byref(args), ctypes.byref(how)) == 0

    if by_expert:
        wrong = wrong_of_experts(spec.op, given, written, before, exactly=True)
    else:
        wrong = wrong_of(given, written, exactly=True)
    assert not report_of(wrong)
    assert bool((whole[:, spec.hidden :].view(torch.uint8) == 0x7E).all()), "rows lie apart"
