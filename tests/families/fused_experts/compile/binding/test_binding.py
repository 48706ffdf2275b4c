"""The extension's checks, choices, launches and model of fused experts against Python's, on CPU tensors."""

import ctypes
import random
from typing import Any

import pytest
import torch

from compile.binding.drawn import SMS_OF_NONE, compare
from compile.binding.structs import struct_of
from gemmill.families import fused_experts, grouped_mm
from gemmill.families.fused_experts.cases.calls import CallSpec, arguments_of, make_given
from gemmill.families.fused_experts.config import CODED, FINE_GROUP, GROUP, Operands
from gemmill.families.fused_experts.functions import fused_experts_workspace
from gemmill.families.fused_experts.ops import FUSED_EXPERTS
from gemmill.families.fused_experts.packed_ops import FUSED_FP4_EXPERTS
from gemmill.families.fused_experts.shaped_call import shaped_call_of
from gemmill.families.grouped_mm.classes import CLASSES
from gemmill.family import Judged, Row, ShapedCall
from gemmill.runtime.choosing import model_ns
from gemmill.runtime.select import select
from gemmill.vocab import DType
from gemmill.vocab.activation import Activation
from whole_calls import whole_call

pytestmark = pytest.mark.compile
SMS = 132
"""Multiprocessors of a device."""
ROUNDS = 250
FEWEST = {FUSED_EXPERTS.name: 6, FUSED_FP4_EXPERTS.name: 8}
"""Kernels that so many calls launch."""
POINTERS = "x w13 w2 out w13_scales w2_scales w13_bias w2_bias topk_ids topk_weights expert_map workspace".split()
STRIDES = {"ldx": "x", "ldout": "out", "ld_ids": "topk_ids", "ld_weights": "topk_weights"}
WIDE = (
    "w13_stride_row w13_stride_expert w2_stride_row w2_stride_expert w13_scale_stride_expert w13_scale_stride_row "
    "w13_scale_stride_k w2_scale_stride_expert w2_scale_stride_row w2_scale_stride_k"
).split()
REALS = "alpha limit beta".split()


def scale_strides(call: Judged, role: str, rows: int) -> tuple[int, int, int]:
    """From expert to expert, from row or block to the next, and from block to block along K."""
    if call.get(f"{role}_scales") is None:
        return 0, 0, 0
    scales = call.tensor(f"{role}_scales")
    if call.get("groups"):
        first, second, third = scales.strides
        return first, second, third
    by_row = scales.numel > call["weights"]
    return rows if by_row else 1, int(by_row), 0


def wanted_of(call: Judged, row: Row) -> dict[str, Any]:
    """Every field of a kernel's arguments, from the call."""
    inner, hidden, weights = call["inner"], call["K"], call["weights"]
    pointers = {name: None if call.get(name) is None else call.tensor(name).data or None for name in POINTERS}
    w13, w2 = (call.tensor(name).row_stride for name in ("w13", "w2"))
    of_w13, of_w2 = scale_strides(call, "w13", 2 * inner), scale_strides(call, "w2", hidden)
    of_experts = w13 * 2 * inner, w2 * hidden
    if call.get("packed"):  # in bytes, of whole experts
        of_experts = tuple(call.tensor(name).numel // weights for name in ("w13", "w2"))
    wide = (w13, of_experts[0], w2, of_experts[1], *of_w13, *of_w2)
    gate_row, up_row, row_step = ((0, inner, 1), (inner, 0, 1), (0, 1, 2))[call["order"]]
    numbers = {
        "tokens": call["M"],
        "hidden": hidden,
        "inner": inner,
        "topk": call["topk"],
        "experts": weights if call.get("expert_map") is None else call.tensor("expert_map").numel,
        "weights": weights,
        "id_words": call.tensor("topk_ids").element_bytes // 4,
        "gate_row": gate_row,
        "up_row": up_row,
        "row_step": row_step,
        "weight_on_input": int(call["weight_on_input"]),
        "adds": int(call["adds"]),
        "activation": [activation.spelled for activation in Activation].index(call["activation"]),
        "endless_waits": 0,
    }
    strides = {name: call.tensor(role).row_stride for name, role in STRIDES.items()}
    reals = {name: ctypes.c_float(call[name]).value for name in REALS}
    return pointers | strides | dict(zip(WIDE, wide, strict=True)) | numbers | reals


@pytest.mark.parametrize("op", [FUSED_EXPERTS.name, FUSED_FP4_EXPERTS.name])
def test_both_refuse_the_same_calls_and_launch_the_same_kernels(probe, op: str) -> None:
    found = compare(probe, op, shaped_call_of, wanted_of, rounds=ROUNDS, sizes="MK", lacking="fused experts in build")
    configs = [entry.config for entry, _ in found.launched]
    kinds = {(config.dtype, config.format, config.group_size, config.tile_tokens) for config in configs}
    assert len(found.refused) > 5 and len(kinds) >= FEWEST[op], (len(found.refused), kinds)
    assert bool(found.lacking) == (op == FUSED_EXPERTS.name), "of packed weights every legal call has a kernel"


def test_ids_and_weights_have_strides_of_their_own(probe) -> None:
    call = whole_call(FUSED_FP4_EXPERTS)
    tokens, topk = call["topk_ids"].shape
    assert tokens > 1
    call |= {"topk_ids": torch.zeros(tokens, topk + 2, dtype=torch.int32)[:, :topk]}
    call |= {"topk_weights": torch.ones(tokens, topk + 3)[:, :topk]}
    _, recorded = probe.run(FUSED_FP4_EXPERTS.name, *call.values())
    assert (recorded.ld_ids, recorded.ld_weights) == (topk + 2, topk + 3)


@pytest.mark.parametrize("endless", [0, 1])
def test_waits_are_endless_where_the_setting_says_so(probe, endless: int) -> None:
    probe.build._library.gemmill_set_endless_waits(endless)
    try:
        _, recorded = probe.run(FUSED_FP4_EXPERTS.name, *whole_call(FUSED_FP4_EXPERTS).values())
    finally:
        probe.build._library.gemmill_set_endless_waits(0)
    assert recorded.endless_waits == endless


def test_models_agree(probe) -> None:
    rng = random.Random(1)
    rows = [(i, row) for i, row, _ in probe.build.table.of(fused_experts.NAME)]
    for _ in range(500):
        i, row = rng.choice(rows)
        sizes = tuple(rng.choice((1, 16, 17, rng.randrange(1, 300), rng.randrange(1, 40_000))) for _ in range(4))
        call = ShapedCall(family=fused_experts.NAME, call_class=row.call_class, sizes=sizes, alignments=(16, 16, 16))
        sms = rng.choice((SMS, 114, 16))
        assert probe.nanoseconds(i, call, sms) == model_ns(row, call, sms)


SPECS = [
    CallSpec(tokens=300, hidden=400, inner=256, weights=6, topk=2, group_size=GROUP, lent=True),
    CallSpec(tokens=300, hidden=400, inner=224, weights=6, topk=2, group_size=FINE_GROUP, lent=True),
    CallSpec(tokens=3, hidden=16, inner=1024, weights=512, topk=2, group_size=FINE_GROUP, lent=True),
    CallSpec(tokens=3, hidden=16, inner=48, weights=512, topk=2, lent=True),
    CallSpec(tokens=40, hidden=128, inner=48, weights=5, topk=1, of_experts=True, lent=True),
    CallSpec(tokens=70, hidden=144, inner=48, weights=6, topk=2, dtype=DType.BF16, lent=True),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_products_are_grouped_gemms_within_the_callers_workspace(probe, spec: CallSpec) -> None:
    """Five launches: the layer's own kernels before, between and behind the variants that the family grouped_mm chooses."""
    operands = Operands(dtype=spec.dtype, out_dtype=DType.BF16, group_size=spec.group_size)
    (entry,) = (e for e in probe.variants_of(fused_experts.NAME) if e.config.apart and e.config.operands == operands)
    coded = spec.dtype is CODED
    given = make_given(spec, torch.device("cpu"))
    out = torch.empty(spec.tokens, spec.hidden, dtype=torch.bfloat16)
    bytes_ = fused_experts_workspace(spec.tokens, spec.hidden, spec.inner, spec.topk, spec.weights, coded=coded)
    given |= {"out": out, "workspace": torch.empty(bytes_ + 1, dtype=torch.uint8)[1:]}
    (row, *_) = probe.build.table.rows_of(entry.name)
    before = probe.build.pin(row)
    try:
        with probe.build.recording() as launches:
            getattr(probe.ops, spec.op).default(*arguments_of(given))
    finally:
        probe.build.pin(before)
    own, products = launches[::2], launches[1::2]
    stages = [int.from_bytes(data[-8:-4], "little") for _, data in own]
    assert [symbol for symbol, _ in own] == [entry.symbol] * 3 and stages == [0, 1, 2]
    pairs = spec.tokens * spec.topk
    first, last = given["workspace"].data_ptr(), given["workspace"].data_ptr() + bytes_
    for name, n, k, (symbol, data) in zip(
        ("w13", "w2"), (2 * spec.inner, spec.hidden), (spec.hidden, spec.inner), products, strict=True
    ):
        x, scales = struct_of("grouped_mm/abi.h").from_buffer_copy(data), given.get(f"{name}_scales")
        sizes = (pairs, n, k, spec.weights)
        kind = CLASSES.number_of(
            dtype=spec.dtype,
            out_dtype=DType.BF16,
            group_size=spec.group_size,
            rows_scaled=False,
            indexed=False,
            format=None,
            biased=False,
        )
        asked = ShapedCall(family=grouped_mm.NAME, call_class=kind, sizes=sizes, alignments=(16, 16, 16))
        chosen = select(probe.build.table, asked, SMS_OF_NONE).entry
        assert chosen is not None and symbol == chosen.symbol
        assert (x.m, x.n, x.k, x.experts, x.weights, x.tokens) == (pairs, n, k, spec.weights, spec.weights, pairs)
        assert (x.lda, x.ldb, x.ldd, x.b_stride_expert, x.offset_words) == (k, k, n, n * k, 1)
        assert (x.b, x.b_scales) == (given[name].data_ptr(), None if scales is None else scales.data_ptr())
        groups = -(-k // spec.group_size) if spec.group_size else 1
        for address, size in (
            (x.a, pairs * k * spec.dtype.bits // 8),
            *([(x.a_scales, 4 * pairs * groups)] if coded else []),
            (x.d, 2 * pairs * n),
            (x.offsets, 4 * spec.weights + 4),
        ):
            assert first <= address and address + size <= last
        assert x.a % 16 == x.d % 16 == 0
        if not coded:
            assert x.a_scales is None and (x.a_scale_per_row, x.b_scale_per_column) == (0, 0)
        elif spec.group_size:
            assert (x.a_scale_stride_m, x.a_scale_stride_k) == (1, pairs)
            assert (x.b_scale_stride_expert, x.b_scale_stride_n, x.b_scale_stride_k) == scales.stride()
        else:
            assert (x.a_scale_per_row, x.b_scale_per_column) == (1, int(not spec.of_experts))
            assert x.b_scale_stride_expert == (1 if spec.of_experts else n)
