"""Gated GEMMs that run their parts: a product that another family chooses, then the kernel that activates it."""

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch

from compile.binding.drawn import SMS_OF_NONE
from compile.binding.structs import struct_of
from gemmill.families import gated_mm, grouped_mm, scaled_mm
from gemmill.families.gated_mm.cases.calls import CallSpec, arguments_of, group_shapes, make_given
from gemmill.families.gated_mm.cases.experts import (
    ExpertSpec,
    expert_arguments_of,
    make_expert_given,
    of_counts,
)
from gemmill.families.gated_mm.config import GatedPartsConfig, Operands, Result
from gemmill.families.grouped_mm.classes import CLASSES
from gemmill.families.scaled_mm.classes import Need, class_code, scales_code
from gemmill.family import ShapedCall
from gemmill.runtime.select import select
from gemmill.vocab import DType, scale_groups_of

pytestmark = pytest.mark.compile
DENSE = CallSpec(m=70, hidden=272, k=144, result=Result.BF16)
EXPERTS = ExpertSpec(m=1, hidden=256, k=160, result=Result.GROUP, counts=(1,))
SPECS = [
    DENSE,
    replace(DENSE, result=Result.STATIC, dtype=DType.S8, m=1),
    replace(DENSE, result=Result.GROUP, hidden=384, one_value=True),
    CallSpec(m=72, hidden=384, k=400, result=Result.GROUP, group_size=128, transposed=True),
    CallSpec(m=70, hidden=256, k=400, result=Result.BF16, group_size=128, pad=16),
    CallSpec(m=1, hidden=96, k=144, result=Result.FINE_GROUP, group_size=32),
    CallSpec(m=9, hidden=96, k=144, result=Result.STATIC, group_size=32, rows_scaled=True, transposed=True),
    of_counts(EXPERTS, (5, 0, 9)),
    of_counts(EXPERTS, (5, 0, 3), slot=16),
    of_counts(replace(EXPERTS, dtype=DType.S8), (5, 4, 3), mapped=(1, -1, 0)),
    of_counts(replace(EXPERTS, group_size=128), (5, 4, 3), mapped=(1, -1, 0)),
    of_counts(replace(EXPERTS, group_size=32, result=Result.BF16), (5, 0, 3), slot=16),
]


class Parts(ctypes.Structure):
    """Mirrors `gemmill_gated_parts_args`."""

    _fields_ = (("call", struct_of("gated_mm/abi.h")), ("product", ctypes.c_void_p))


def launches_of(spec: CallSpec, probe) -> tuple[dict[str, Any], list[tuple[str, bytes]], str]:
    """A call's arguments, what it launches by the variant that runs its parts, and that variant's symbol."""
    by_expert = isinstance(spec, ExpertSpec)
    operands = Operands(dtype=spec.dtype, group_size=spec.group_size, rows_scaled=spec.rows_scaled, by_expert=by_expert)
    (entry,) = (
        x
        for x in probe.variants_of(gated_mm.NAME)
        if isinstance(x.config, GatedPartsConfig)
        and (x.config.operands, x.config.epilogue.result) == (operands, spec.result)
    )
    given = (make_expert_given if by_expert else make_given)(spec, torch.device("cpu"))
    dtype = getattr(torch, spec.result.dtype.torch_name)
    rows = (len(spec.counts), spec.slot) if by_expert and spec.slot else (spec.m,)
    given |= {"out": torch.empty(*rows, spec.hidden, dtype=dtype), "out_scales": None}
    if spec.result.group:
        given["out_scales"] = torch.empty(*rows, spec.hidden // spec.result.group)
    op = spec.op if by_expert else "scaled_mm_act_quant"
    row, *_ = probe.build.table.rows_of(entry.name)
    before = probe.build.pin(row)
    try:
        with probe.build.recording() as launches:
            getattr(probe.ops, op).default(*(expert_arguments_of(op, given) if by_expert else arguments_of(given)))
    finally:
        probe.build.pin(before)
    return given, launches, entry.symbol


def asked_of(spec: CallSpec, rows: int) -> ShapedCall:
    """The choice of the product, as its own op would ask for it."""
    n, k, aligned = 2 * spec.hidden, spec.k, (16, 16, 16)
    if isinstance(spec, ExpertSpec):
        kind = CLASSES.number_of(
            dtype=spec.dtype,
            out_dtype=DType.BF16,
            group_size=spec.group_size,
            rows_scaled=False,
            indexed=False,
            format=None,
            biased=False,
        )
        return ShapedCall(
            family=grouped_mm.NAME, call_class=kind, sizes=(rows, n, k, len(spec.counts)), alignments=aligned
        )
    scales = scales_code(scale_groups_of(*group_shapes(spec), rows, n, k), mn_major(spec)) if spec.group_size else 0
    kind = class_code(Need.SCALE, spec.dtype.torch_name, DType.BF16.torch_name, scales)
    return ShapedCall(family=scaled_mm.NAME, call_class=kind, sizes=(rows, n, k), alignments=aligned)


def mn_major(spec: CallSpec) -> bool:
    """Whether TMA could load A's scales: columns of them at multiples of 16 bytes, or one row."""
    return spec.m == 1 or (spec.transposed and spec.m % 4 == 0)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_two_launches_share_a_product(probe, spec: CallSpec) -> None:
    given, ((product, told), (own, data)), symbol = launches_of(spec, probe)
    by_expert = isinstance(spec, ExpertSpec)
    rows = given["out"].numel() // spec.hidden
    chosen = select(probe.build.table, asked_of(spec, rows), SMS_OF_NONE).entry
    assert chosen is not None and (product, own) == (chosen.symbol, symbol)
    x = struct_of("grouped_mm/abi.h" if by_expert else "scaled_mm/abi.h").from_buffer_copy(told)
    parts = Parts.from_buffer_copy(data)
    call = parts.call
    assert parts.product and x.d == parts.product
    assert (x.m, x.n, x.k, x.ldd) == (rows, 2 * spec.hidden, spec.k, 2 * spec.hidden)
    for name in ("a", "b", "a_scales", "b_scales"):
        assert getattr(x, name) == getattr(call, name) == given[name].data_ptr()
    shared = ("lda", "ldb", "a_scale_per_row", "b_scale_per_column")
    if by_expert:
        shared += ("offsets", "offset_words", "expert_map", "experts", "weights", "slot", "tokens", "id_words")
        shared += ("b_stride_expert", "b_scale_stride_expert")
    if spec.group_size:
        shared += ("b_scale_stride_n", "b_scale_stride_k")
        shared += ("a_scale_stride_m", "a_scale_stride_k") if by_expert or spec.m > 1 else ()
    assert {name: getattr(x, name) for name in shared} == {name: getattr(call, name) for name in shared}
    assert call.d == given["out"].data_ptr() and call.activation == 0
    assert (x.a_scale_per_row, x.b_scale_per_column) == (
        given["a_scales"].numel() > 1,
        given["b_scales"].numel() > (x.weights if by_expert else 1),
    )
