"""Every routing and size by the ops' own choice. A captured CUDA graph serves all routings: its grid depends on sizes that the host knows."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import gemmill
from gemmill.families.grouped_mm.cases.calls import CallSpec, arguments_of, make_given, wanted_of
from gemmill.families.grouped_mm.config import SCALE_GROUPS
from gemmill.runtime.ops import variants
from gemmill.vocab import DType
from gemmill.vocab.format import MXFP4, NVFP4
from gpu.routings import EXPERTS, ROWS, once, told

BLOCKS_128, BLOCKS_32, ROWS_32 = SCALE_GROUPS
FIRST = CallSpec(counts=(50,) * EXPERTS, n=96, k=160, data="integers")
SPECS = {
    "channel": FIRST,
    "groups": replace(FIRST, groups=BLOCKS_128),
    "groups of 32": replace(FIRST, groups=BLOCKS_32),
    "rows in groups of 32": replace(FIRST, groups=ROWS_32),
    "integers": replace(FIRST, dtype=DType.S8),
    "bf16": replace(FIRST, dtype=DType.BF16),
    "gathered": replace(FIRST, indexed=True),
    "gathered in groups": replace(FIRST, groups=BLOCKS_128, indexed=True),
    "gathered in groups of 32": replace(FIRST, groups=BLOCKS_32, indexed=True),
    "gathered, rows in groups of 32": replace(FIRST, groups=ROWS_32, indexed=True),
    "gathered bf16": replace(FIRST, dtype=DType.BF16, indexed=True),
    "slots": replace(FIRST, slot=ROWS, counts=(50,) * EXPERTS),
    "slots in groups of 32": replace(FIRST, groups=BLOCKS_32, slot=ROWS, counts=(50,) * EXPERTS),
    "slots of bf16": replace(FIRST, slot=ROWS, dtype=DType.BF16),
    "nvfp4": replace(FIRST, dtype=DType.BF16, format=NVFP4, alpha=True, bias=True),
    "mxfp4": replace(FIRST, dtype=DType.BF16, format=MXFP4),
    "folded": replace(FIRST, format=MXFP4),
    "gathered nvfp4": replace(FIRST, dtype=DType.BF16, format=NVFP4, indexed=True),
    "gathered folded": replace(FIRST, format=MXFP4, indexed=True, alpha=True, bias=True),
    "slots of nvfp4": replace(FIRST, slot=ROWS, dtype=DType.BF16, format=NVFP4),
    "slots of folded": replace(FIRST, slot=ROWS, format=MXFP4),
    "channel, alpha and bias": replace(FIRST, alpha=True, bias=True),
    "groups, alpha and bias": replace(FIRST, groups=BLOCKS_128, alpha=True, bias=True),
    "integers, alpha and bias": replace(FIRST, dtype=DType.S8, alpha=True, bias=True),
    "bf16, alpha": replace(FIRST, dtype=DType.BF16, alpha=True),
    "gathered, bias": replace(FIRST, indexed=True, bias=True),
    "gathered in groups, bias": replace(FIRST, groups=BLOCKS_128, indexed=True, bias=True),
    "slots, bias": replace(FIRST, slot=ROWS, counts=(50,) * EXPERTS, bias=True),
    "slots of bf16, alpha and bias": replace(FIRST, slot=ROWS, dtype=DType.BF16, alpha=True, bias=True),
}


@pytest.fixture(autouse=True)
def _left_out_where_the_build_lacks_the_variants(name: str, device: torch.device) -> None:
    if device.type != "cuda":
        return
    spec = SPECS[name]
    known = {
        (x.operand_dtype, x.format, x.scale_groups, x.biased) for entry in variants(op=spec.op) for x in [entry.config]
    }
    ends = spec.format is None and (spec.alpha or spec.bias)
    if (spec.dtype, spec.format, spec.groups, ends) not in known:
        pytest.skip("the build lacks the variants")


@pytest.mark.parametrize("name", SPECS)
def test_a_graph_serves_every_routing(name: str, device: torch.device) -> None:
    spec = SPECS[name]
    given = make_given(spec, device) | {"expert_map": torch.zeros(EXPERTS, dtype=torch.int32, device=device)}
    shape = (EXPERTS, spec.slot, spec.n) if spec.slot else (spec.rows, spec.n)
    out = torch.empty(shape, dtype=torch.bfloat16, device=device)
    where = "rows" if spec.slot else "expert_offsets"
    op = getattr(torch.ops.gemmill, spec.op).default
    replay = once(lambda: op(*arguments_of(spec.op, given, out)), device)
    for segments, mapped in told(slots=bool(spec.slot)):
        given[where].copy_(segments)
        given["expert_map"].copy_(mapped)
        out.fill_(torch.nan)
        wanted = wanted_of(spec.op, given, out, exactly=True, promoted=False)
        replay()
        comparison = wanted.compare(out.reshape(-1, spec.n))
        assert comparison.ok, f"{segments.tolist()}, {mapped.tolist()}: {comparison.report}"


def _gathering(spec: CallSpec, device: torch.device) -> list[str | None]:
    """Names of all variants that gather such rows; None for the op's own choice."""
    if device.type != "cuda":
        return [None]
    biased = spec.format is None and (spec.alpha or spec.bias)
    wanted = (spec.dtype, spec.format, spec.groups, biased, DType.BF16)
    known = ((entry.name, entry.config) for entry in variants(op=spec.op))
    return [None] + [
        name
        for name, x in known
        if True in x.gathers and (x.operand_dtype, x.format, x.scale_groups, x.biased, x.out_dtype) == wanted
    ]


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.indexed])
def test_row_0_does_not_reach_a_row_that_is_not_there(name: str, poison: float, device: torch.device) -> None:
    spec = SPECS[name]
    given = make_given(spec, device)
    tokens, ids = given["a"].shape[0], given["token_ids"]
    ids.clamp_(min=1)
    ids[::3], ids[1::3] = -1, tokens
    if given["a_scales"] is not None:
        given["a_scales"][0] = poison
    given["a"][0] = torch.nan
    for variant in _gathering(spec, device):
        out = torch.full((spec.rows, spec.n), torch.nan, dtype=torch.bfloat16, device=device)
        wanted = wanted_of(spec.op, given, out, exactly=True, promoted=False)
        with nullcontext() if variant is None else gemmill.use_variant(variant):
            getattr(torch.ops.gemmill, spec.op).default(*arguments_of(spec.op, given, out))
        comparison = wanted.compare(out)
        assert comparison.ok, f"{variant}: {comparison.report}"


@pytest.mark.parametrize("name", SPECS)
def test_all_multiples_of_32(name: str, device: torch.device) -> None:
    for n, k in ((32, 32), (96, 544), (160, 64), (416, 96), (224, 160), (64, 288)):
        first = SPECS[name]
        spec = replace(first, n=n, k=k, counts=(0, 1, 70, 0, 9, 40), slot=min(first.slot, 70))
        given = make_given(spec, device)
        shape = (EXPERTS, spec.slot, n) if spec.slot else (spec.rows, n)
        out = torch.full(shape, torch.nan, dtype=torch.bfloat16, device=device)
        wanted = wanted_of(spec.op, given, out, exactly=True, promoted=False)
        getattr(torch.ops.gemmill, spec.op).default(*arguments_of(spec.op, given, out))
        comparison = wanted.compare(out.reshape(-1, n))
        assert comparison.ok, f"{spec}: {comparison.report}"


@pytest.mark.needs_cuda
@pytest.mark.parametrize("name", ["channel", "groups", "bf16", "gathered", "nvfp4", "gathered folded", "bf16, alpha"])
@pytest.mark.parametrize("offsets", [(0, 90, 40, 300, 299, 300, 280), (-5, 20, 900, 40, 41, 2**31 - 1, -(2**31))])
def test_whatever_offsets_are_nothing_else_is_touched(name: str, offsets: tuple[int, ...]) -> None:
    """Rows before and behind the result, and the device: offsets that decrease, and such as lie outside of all rows."""
    spec, device = SPECS[name], torch.device("cuda")
    given = make_given(spec, device) | {"expert_offsets": torch.tensor(offsets, dtype=torch.int32, device=device)}
    whole = torch.full((ROWS + 400, spec.n), torch.nan, dtype=torch.bfloat16, device=device)
    getattr(torch.ops.gemmill, spec.op).default(*arguments_of(spec.op, given, whole[200:-200]))
    assert bool(whole[:200].isnan().all() and whole[-200:].isnan().all())
    owned = {row for begin, end in pairwise(offsets) for row in range(max(begin, 0), min(end, ROWS))}
    written = (~whole[200:-200].isnan()).any(dim=1).nonzero().flatten().tolist()
    assert set(written) == owned
