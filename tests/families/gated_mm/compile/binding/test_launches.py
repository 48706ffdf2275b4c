"""What the binding gives to a kernel of gated GEMMs, field by field, for random calls."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gemmill.families.gated_mm.expert_ops import EXPERT_NAMES
from gemmill.families.gated_mm.ops import SCALED_MM_ACT_QUANT
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
ROUNDS = 150
LIMITS = Limits(elements=1 << 16, products=1 << 23, large=1 << 16)
"""K is large enough for several groups of scales."""
POINTERS = ("a", "b", "a_scales", "b_scales", "static_scale", "out_scales")


def launches_of(op: str, probe) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Arguments of legal calls with what the checks know of them, and what a kernel is given."""
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
        given |= {"in_groups": judged["in_groups"], "activation": judged["activation_index"]}
        for _, told in launches:
            yield given, {field.name: field.value for field in read_arguments(HEADER, told)[1]}


def strides(x: Tensor | None, *names: str) -> dict[str, int]:
    """Of a tensor's dimensions, where it has so many and more than one element in each."""
    if x is None or x.dim() != len(names):
        return {}
    found = zip(names, x.shape, x.stride(), strict=True)
    return {name: stride for name, size, stride in found if name and size > 1}


def wanted_of(given: dict[str, Any]) -> dict[str, Any]:
    """What is alike for layers and experts."""
    wanted = {name: given[name].data_ptr() if given[name] is not None else 0 for name in POINTERS}
    numbers = {name: pytest.approx(given[name]) for name in ("alpha", "limit", "beta")}
    per_row = int(given["a_scales"].numel() > 1)
    return (
        wanted | numbers | {"d": given["out"].data_ptr(), "activation": given["activation"], "a_scale_per_row": per_row}
    )


def test_every_field_of_a_layer(probe) -> None:
    seen = set()
    for given, found in launches_of(SCALED_MM_ACT_QUANT.name, probe):
        (m, k), n = given["a"].shape, given["b"].shape[1]
        wanted = wanted_of(given) | {"m": m, "n": n, "k": k}
        wanted |= strides(given["a"], "lda", "") | strides(given["out"], "ldd", "") | strides(given["b"], "", "ldb")
        wanted |= strides(given["out_scales"], "out_scale_stride_m", "out_scale_stride_g")
        if given["in_groups"]:
            wanted |= strides(given["a_scales"], "a_scale_stride_m", "a_scale_stride_k")
            wanted |= strides(given["b_scales"], "b_scale_stride_k", "b_scale_stride_n")
        wanted = {name: value for name, value in wanted.items() if k or name not in ("lda", "ldb")}
        assert {name: found[name] for name in wanted} == wanted
        seen |= {*wanted}
    assert {"b_scale_stride_n", "b_scale_stride_k", "out_scale_stride_g", "lda", "ldb", "ldd"} <= seen


@pytest.mark.parametrize("op", EXPERT_NAMES)
def test_every_field_of_experts(op: str, probe) -> None:
    seen = set()
    for given, found in launches_of(op, probe):
        weights, n, k = given["b"].shape
        wanted = wanted_of(given) | {"n": n, "k": k, "weights": weights}
        rows = given["out"].dim() == 3
        offsets = given["rows" if rows else "expert_offsets"]
        wanted |= {"offsets": offsets.data_ptr(), "offset_words": offsets.element_size() // 4}
        wanted["slot"] = given["out"].shape[1] if rows else 0
        if given["in_groups"]:
            wanted |= strides(given["b_scales"], "b_scale_stride_expert", "b_scale_stride_n", "b_scale_stride_k")
            if rows and given["a_scales"].shape[1] == 1:  # of slots of one, from one expert's row to the next one's
                wanted |= strides(given["a_scales"], "a_scale_stride_m", "", "a_scale_stride_k")
            else:
                names = ["a_scale_stride_m", "a_scale_stride_k"]
                wanted |= strides(given["a_scales"], *[""] * (given["a_scales"].dim() - 2), *names)
        assert {name: found[name] for name in wanted} == wanted
        seen |= {*wanted}
    assert {"b_scale_stride_n", "a_scale_stride_m", "alpha", "slot"} <= seen
