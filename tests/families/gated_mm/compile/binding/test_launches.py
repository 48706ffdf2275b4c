"""The arguments of kernels of gated GEMMs, field by field, for random calls."""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from compile.binding.structs import struct_of
from gemmill.families import gated_mm
from gemmill.families.gated_mm.expert_ops import EXPERT_NAMES
from gemmill.families.gated_mm.ops import SCALED_MM_ACT_QUANT
from gemmill.family import Judged
from gemmill.fuzz.breakages import draw_call
from gemmill.locations import kernels_dir
from gemmill.numerics.call import Limits
from gemmill.numerics.memory import Memory
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.wheel.reproducer import read_arguments

pytestmark = pytest.mark.compile
HEADER = (kernels_dir() / "gated_mm" / "abi.h").read_text()
BYTES = ctypes.sizeof(struct_of("gated_mm/abi.h"))
"""Of these arguments. A kernel that activates a product has its address behind them."""
ROUNDS = 150
LIMITS = Limits(elements=1 << 16, products=1 << 23, large=1 << 16)
"""K is large enough for several groups of scales."""
POINTERS = ("a", "b", "a_scales", "b_scales", "static_scale", "out_scales")


def launches_of(op: str, probe) -> Iterator[tuple[dict[str, Any], Judged, dict[str, Any]]]:
    """Arguments of legal calls, the sizes that the checks derive, and a kernel's arguments."""
    own = {entry.symbol for entry in probe.variants_of(gated_mm.NAME)}
    for index in range(ROUNDS):
        call, breakage = draw_call(op, 7, index, LIMITS)
        if breakage is not None:
            continue
        memory = Memory(call.slots, torch.device("cpu"))
        given = {
            name: memory.tensor(name) if name in call.slots else call.plain.get(name) for name in BY_NAME[op].arguments
        }
        with probe.build.recording() as launches:
            try:
                getattr(probe.ops, op).default(*given.values())
            except RuntimeError as error:
                assert "--select sweep` builds" in str(error)
        judged = check(BY_NAME[op], of_arguments(BY_NAME[op], [*given.values()]))
        for symbol, told in launches:
            if symbol in own:  # and not the product that another kernel activates
                yield given, judged, {field.name: field.value for field in read_arguments(HEADER, told[:BYTES])[1]}


def strides(x: Tensor | None, *names: str) -> dict[str, int]:
    """Of a tensor's dimensions, where it has so many and more than one element in each."""
    if x is None or x.dim() != len(names):
        return {}
    found = zip(names, x.shape, x.stride(), strict=True)
    return {name: stride for name, size, stride in found if name and size > 1}


def row_strides(x: Tensor | None, row: str, column: str) -> dict[str, int]:
    """Of scales of rows; in slots of one they go from one expert's row to the next one's."""
    if x is not None and x.dim() == 3 and x.shape[1] == 1:
        return strides(x, row, "", column)
    return strides(x, *[""] * (x.dim() - 2), row, column) if x is not None else {}


def address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def wanted_of(given: dict[str, Any], judged: Judged) -> dict[str, Any]:
    """The fields that layers and experts share."""
    wanted = {name: address(given[name]) for name in POINTERS} | {"d": given["out"].data_ptr()}
    wanted |= {name: pytest.approx(given[name]) for name in ("alpha", "limit", "beta")}
    wanted |= {"m": judged["M"], "n": judged["N"], "k": judged["K"], "activation": judged["activation_index"]}
    return wanted | {"a_scale_per_row": int(given["a_scales"].numel() > 1)}


def test_every_field_of_a_layer(probe) -> None:
    seen = set()
    for given, judged, found in launches_of(SCALED_MM_ACT_QUANT.name, probe):
        m, n, k = (judged[size] for size in "MNK")
        wanted = wanted_of(given, judged) | {"b_scale_per_column": int(given["b_scales"].numel() > 1)}
        wanted |= strides(given["a"], "lda", "") | strides(given["out"], "ldd", "") | strides(given["b"], "", "ldb")
        if m == 1:  # whose stride is never used, but in a descriptor
            wanted |= {"lda": -(-k // 16) * 16, "ldd": -(-n // 32) * 16}
        wanted |= row_strides(given["out_scales"], "out_scale_stride_m", "out_scale_stride_g")
        if judged["in_groups"]:
            wanted |= row_strides(given["a_scales"], "a_scale_stride_m", "a_scale_stride_k")
            wanted |= strides(given["b_scales"], "b_scale_stride_k", "b_scale_stride_n")
        wanted = {name: value for name, value in wanted.items() if k or name not in ("lda", "ldb")}
        assert {name: found[name] for name in wanted} == wanted
        seen |= {*wanted, f"{m == 1=}"}
    assert {"b_scale_stride_n", "b_scale_stride_k", "out_scale_stride_g", "lda", "ldb", "ldd", "m == 1=True"} <= seen


@pytest.mark.parametrize("op", EXPERT_NAMES)
def test_every_field_of_experts(op: str, probe) -> None:
    seen = set()
    for given, judged, found in launches_of(op, probe):
        weights, n, _ = given["b"].shape
        in_slots, ids = given["out"].dim() == 3, given.get("token_ids")
        offsets = given["rows" if in_slots else "expert_offsets"]
        wanted = wanted_of(given, judged) | {
            "offsets": offsets.data_ptr(),
            "offset_words": offsets.element_size() // 4,
            "expert_map": address(given["expert_map"]),
            "token_ids": address(ids),
            "id_words": 1 if ids is None else ids.element_size() // 4,
            "tokens": judged["tokens"],
            "experts": offsets.numel() - (not in_slots),
            "weights": weights,
            "slot": given["out"].shape[1] if in_slots else 0,
            "b_scale_per_column": int(given["b_scales"].numel() > weights),
            "b_stride_expert": n * judged.tensor("b").row_stride,
        }
        wanted |= {f"ld{x}": judged.tensor(role).row_stride for x, role in (("a", "a"), ("b", "b"), ("d", "out"))}
        wanted |= row_strides(given["out_scales"], "out_scale_stride_m", "out_scale_stride_g")
        if judged["in_groups"]:
            wanted |= strides(given["b_scales"], "b_scale_stride_expert", "b_scale_stride_n", "b_scale_stride_k")
            wanted |= row_strides(given["a_scales"], "a_scale_stride_m", "a_scale_stride_k")
        else:
            wanted["b_scale_stride_expert"] = n if wanted["b_scale_per_column"] else 1
        assert {name: found[name] for name in wanted} == wanted
        seen |= {name for name in wanted if found[name]}
    in_order = {"token_ids", "tokens"} if op == EXPERT_NAMES[0] else {"slot"}
    of_scales = {"b_scale_stride_n", "a_scale_stride_m", "out_scale_stride_g", "b_scale_per_column"}
    assert {"alpha", "expert_map", *in_order, *of_scales} <= seen


def launch_of_three_weights(op: str, probe, slot: int = 4, experts: int = 3, **changes: Any) -> dict[str, Any]:
    """A kernel's arguments for rows of experts, 128 results and K of 256."""
    rows = (experts, slot) if op == EXPERT_NAMES[1] else (experts * slot,)
    call = dict.fromkeys(BY_NAME[op].arguments) | {
        "out": torch.zeros(*rows, 128, dtype=torch.bfloat16),
        "a": torch.zeros(*rows, 256).to(torch.float8_e4m3fn),
        "b": torch.zeros(3, 256, 256).to(torch.float8_e4m3fn),
        "rows": torch.ones(experts, dtype=torch.int32),
        "expert_offsets": torch.arange(experts + 1, dtype=torch.int32) * slot,
        "activation": "swiglu",
        "alpha": 1.702,
        "limit": 7.0,
        "beta": 1.0,
        "expected_rows": 0,
        **changes,
    }
    with probe.build.recording() as launches:
        getattr(probe.ops, op).default(*(call[name] for name in BY_NAME[op].arguments))
    _, told = launches[-1]
    return {field.name: field.value for field in read_arguments(HEADER, told[:BYTES])[1]}


@pytest.mark.parametrize("op", EXPERT_NAMES)
def test_a_scale_of_each_expert_is_none_of_columns(op: str, probe) -> None:
    found = launch_of_three_weights(op, probe, a_scales=torch.ones(1), b_scales=torch.ones(3))
    assert (found["b_scale_per_column"], found["b_scale_stride_expert"], found["a_scale_per_row"]) == (0, 1, 0)


@pytest.mark.parametrize("op", EXPERT_NAMES)
def test_experts_may_be_more_than_weights(op: str, probe) -> None:
    expert_map = torch.tensor([0, 2, -1, 1, 0], dtype=torch.int32)
    scales = {"a_scales": torch.ones(1), "b_scales": torch.ones(3)}
    found = launch_of_three_weights(op, probe, experts=5, expert_map=expert_map, **scales)
    assert (found["experts"], found["weights"], found["expert_map"]) == (5, 3, expert_map.data_ptr())


def test_the_stride_of_a_slot_of_one_is_never_used(probe) -> None:
    a_scales = torch.ones(16).as_strided((3, 1, 2), (5, 77, 1))
    found = launch_of_three_weights(EXPERT_NAMES[1], probe, slot=1, a_scales=a_scales, b_scales=torch.ones(3, 2, 2))
    assert (found["a_scale_stride_m"], found["a_scale_stride_k"]) == (5, 1)
