"""Gated endings of experts' rows with every routing. A captured CUDA graph serves all of them."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

import gemmill
from gemmill.families.gated_mm.cases.calls import report_of
from gemmill.families.gated_mm.cases.checked import OF_SWIGLU
from gemmill.families.gated_mm.cases.experts import (
    ExpertSpec,
    expert_arguments_of,
    make_expert_given,
    of_counts,
    wrong_of_experts,
)
from gemmill.families.gated_mm.config import Activation, Result
from gemmill.runtime.ops import variants
from gemmill.vocab import DType
from gpu.routings import EXPERTS, ROWS, once, told

FIRST = of_counts(
    ExpertSpec(m=1, hidden=256, k=160, result=Result.GROUP, counts=(1,), data="integers"), (ROWS // EXPERTS,) * EXPERTS
)
SWIGLU = {"activation": Activation.SWIGLU, "numbers": OF_SWIGLU}
SPECS = {
    "groups": FIRST,
    "bf16 of swiglu": replace(FIRST, result=Result.BF16, **SWIGLU),
    "gathered": replace(FIRST, indexed=True),
    "gathered bf16 of swiglu": replace(FIRST, result=Result.BF16, indexed=True, **SWIGLU),
    "slots": of_counts(FIRST, FIRST.counts, slot=ROWS),
    "static": replace(FIRST, result=Result.STATIC),
    "int8": replace(FIRST, dtype=DType.S8),
    "int8, slots": of_counts(replace(FIRST, dtype=DType.S8), FIRST.counts, slot=ROWS),
    "int8, gathered bf16 of swiglu": replace(FIRST, dtype=DType.S8, result=Result.BF16, indexed=True, **SWIGLU),
    "scales in groups": replace(FIRST, group_size=128, k=288),
    "gathered, scales in groups": replace(FIRST, group_size=128, k=288, indexed=True),
}


@pytest.fixture(autouse=True)
def _left_out_where_the_build_lacks_the_variants(name: str, device: torch.device) -> None:
    if device.type != "cuda":
        return
    p = SPECS[name]
    known = {
        (
            entry.config.operands.dtype,
            entry.config.epilogue.result,
            entry.config.group_size,
            entry.config.operands.indexed,
            activation,
        )
        for entry in variants(op=p.op)
        for activation in entry.config.epilogue.activations
    }
    if (p.dtype, p.result, p.group_size, p.indexed, p.activation) not in known:
        pytest.skip("the build lacks the variants")


def written_of(p: ExpertSpec, rows: int, device: torch.device) -> dict[str, Any]:
    """Poisoned outputs of a call of so many rows."""
    out = torch.empty((rows, p.hidden), dtype=getattr(torch, p.result.dtype.torch_name), device=device)
    scales = torch.empty((rows, p.hidden // 128), device=device) if p.result is Result.GROUP else None
    return {name: x for name, x in (("out", poisoned(out)), ("out_scales", poisoned(scales))) if x is not None}


def poisoned(x: torch.Tensor | None) -> torch.Tensor | None:
    if x is not None:
        x.view(torch.uint8).fill_(0x7F)
    return x


def shaped(p: ExpertSpec, written: dict[str, Any]) -> dict[str, Any]:
    return {name: x.unflatten(0, (EXPERTS, p.slot)) if p.slot else x for name, x in written.items()}


@pytest.mark.parametrize("name", SPECS)
def test_a_graph_serves_every_routing(name: str, device: torch.device) -> None:
    p = SPECS[name]
    given = make_expert_given(p, device) | {"expert_map": torch.zeros(EXPERTS, dtype=torch.int32, device=device)}
    written = shaped(p, written_of(p, p.m, device))
    where, op = "rows" if p.slot else "expert_offsets", getattr(torch.ops.gemmill, p.op).default
    replay = once(lambda: op(*expert_arguments_of(p.op, {"out_scales": None} | given | written)), device)
    for segments, mapped in told(slots=bool(p.slot)):
        given[where].copy_(segments)
        given["expert_map"].copy_(mapped)
        before = {key: poisoned(x).clone() for key, x in written.items()}
        replay()
        report = report_of(wrong_of_experts(p.op, given, written, before, exactly=True))
        assert not report, f"{segments.tolist()}, {mapped.tolist()}: {report}"


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", [name for name, p in SPECS.items() if p.indexed])
def test_row_0_does_not_reach_a_row_that_is_not_there(name: str, poison: float, device: torch.device) -> None:
    p = SPECS[name]
    given = make_expert_given(p, device)
    given["token_ids"].clamp_(min=1)
    given["token_ids"][::3], given["token_ids"][1::3] = -1, len(given["a"])
    given["a_scales"][0] = poison
    known = variants(op=p.op) if device.type == "cuda" else []
    fitting = [
        entry.name
        for entry in known
        for x, epilogue in [(entry.config.operands, entry.config.epilogue)]
        if (x.dtype, epilogue.result, x.group_size, x.indexed) == (p.dtype, p.result, p.group_size, True)
        and p.activation in epilogue.activations
    ]
    for variant in (None, *fitting):
        written = written_of(p, p.m, device)
        before = {key: x.clone() for key, x in written.items()}
        with nullcontext() if variant is None else gemmill.use_variant(variant):
            getattr(torch.ops.gemmill, p.op).default(*expert_arguments_of(p.op, {"out_scales": None} | given | written))
        report = report_of(wrong_of_experts(p.op, given, written, before, exactly=True))
        assert not report, f"{variant}: {report}"


@pytest.mark.needs_cuda
@pytest.mark.parametrize("name", ["groups", "bf16 of swiglu", "gathered"])
@pytest.mark.parametrize("offsets", [(0, 90, 40, 300, 299, 300, 280), (-5, 20, 900, 40, 41, 2**31 - 1, -(2**31))])
def test_whatever_offsets_are_nothing_else_is_touched(name: str, offsets: tuple[int, ...]) -> None:
    """Rows before and behind the result: offsets that decrease, and such as lie outside of all rows."""
    p, device = SPECS[name], torch.device("cuda")
    given = make_expert_given(p, device) | {"expert_offsets": torch.tensor(offsets, dtype=torch.int32, device=device)}
    whole = written_of(p, ROWS + 400, device)
    inside = {key: x[200:-200] for key, x in whole.items()}
    getattr(torch.ops.gemmill, p.op).default(*expert_arguments_of(p.op, {"out_scales": None} | given | inside))
    owned = {row for begin, end in pairwise(offsets) for row in range(max(begin, 0), min(end, ROWS))}
    for x in whole.values():
        touched = (x.view(torch.uint8) != 0x7F).any(dim=1).nonzero().flatten().tolist()
        assert {row - 200 for row in touched} == owned
