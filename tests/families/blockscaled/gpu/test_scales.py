"""Swizzled scales at any address, and NaN scale bytes, by every variant that takes them."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import gemmill
from gemmill.families.blockscaled.cases.checked import ROLES_OF
from gemmill.families.blockscaled.ops import PAIR_OF
from gemmill.families.blockscaled.pairs import Pair
from gemmill.families.blockscaled.shaped_call import shaped_call_of
from gemmill.fuzz.breakages import draw_call
from gemmill.numerics.call import CPU_LIMITS, LegalCall
from gemmill.numerics.cases import cases_of_op
from gemmill.numerics.draw import Draw
from gemmill.numerics.memory import Memory
from gemmill.numerics.values import Pools
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.ops import variants
from gemmill.runtime.schemas import BY_NAME

OPS = {pair: schema.name for schema, pair in PAIR_OF.items() if "bias" in schema.arguments}
ROWS = (4, 16, 64, 256)
CALLS = 8


def call_of(op: str, rows: int, index: int, shifts: tuple[int, int]) -> LegalCall:
    """A call of so many rows, whose scales lie behind aligned addresses by these bytes, and all else lies well."""
    cases, index = cases_of_op(op), index * 1000
    while True:
        call = cases.drawn(op, Draw(op, 11, index), CPU_LIMITS)
        index += 1
        slots = {name: replace(slot, shift=0) for name, slot in call.slots.items()}
        role_of = dict(zip(BY_NAME[op].arguments, ROLES_OF[op], strict=True))
        a, b = (next(slot for name, slot in slots.items() if role_of[name] == role) for role in ("a", "b"))
        if a.rows < min(rows, 40) or not b.rows or any(x.row_stride * x.dtype.itemsize % 16 for x in (a, b)):
            continue
        for role, shift in zip(("a_sf", "b_sf"), shifts, strict=True):
            name = next(name for name in slots if role_of[name] == role)
            slots[name] = replace(slots[name], shift=shift)
        return replace(call, slots=slots)


@pytest.mark.parametrize("shifts", [(0, 1), (1, 0), (2, 2), (0, 2), (3, 4), (8, 0), (16, 32)], ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("pair", OPS, ids=str)
def test_scales_at_any_address(pair: Pair, rows: int, shifts: tuple[int, int], device: torch.device) -> None:
    """The op's own choice, and each variant whose row says that it takes the call."""
    op, pools = OPS[pair], Pools(device)
    if device.type == "cuda" and not variants(op=op):
        pytest.skip("the build lacks the variants")
    for index in range(CALLS if device.type == "cuda" else 1):
        call = call_of(op, rows, index, shifts)
        memory = Memory(call.slots, device)
        pools.fill(memory, call.offsets)
        before = memory.bytes.clone()
        given = [memory.tensor(name) if name in call.slots else None for name in BY_NAME[op].arguments]
        for variant in (None, *taking(op, given, device)):
            with nullcontext() if variant is None else gemmill.use_variant(variant):
                getattr(torch.ops.gemmill, op).default(*given)
            assert not memory.changed(before, written=True).any(), variant
            report = cases_of_op(op).judge(call, memory, before).report()
            assert not report, f"{variant}: {report}"


def taking(op: str, given: list[torch.Tensor | None], device: torch.device) -> list[str]:
    """Names of variants that take a call."""
    if device.type != "cuda":
        return []
    asked = shaped_call_of(check(BY_NAME[op], of_arguments(BY_NAME[op], given)))
    table = gemmill.load().table
    return [
        table.entries[i].name
        for i, row, _ in table.of(asked.family)
        if row.call_class == asked.call_class
        and all(found % needed == 0 for found, needed in zip(asked.alignments, row.alignments, strict=True))
        and asked.sizes[2] % row.facts.k_multiple == 0
    ]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("pair", [Pair.NVFP4, Pair.MXFP4], ids=str)
def test_a_scale_that_is_no_number_makes_nan(pair: Pair, rows: int, device: torch.device) -> None:
    """Of its row alone: whether its code is 0 or not, and in the first and the last group of K."""
    op, byte, one = OPS[pair], 127 if pair is Pair.NVFP4 else 255, 0x38 if pair is Pair.NVFP4 else 127
    if device.type == "cuda" and not variants(op=op):
        pytest.skip("the build lacks the variants")
    n, k, group = 192, 512, pair.b_format.group
    a, b = (torch.full((x, k // 2), 0x22, dtype=torch.uint8, device=device) for x in (rows, n))
    a_sf, b_sf = (
        torch.full((-(-x // 128) * 128, k // group), one, dtype=torch.uint8, device=device) for x in (rows, n)
    )
    a[1] = 0
    a_sf.view(-1, 32, 4, 4)[0, 1, 0, 0] = byte  # row 1, group 0
    b_sf.view(-1, k // group // 4, 32, 4, 4)[1, -1, 3, 1, 3] = byte  # row 128 + 35, the last group
    alpha = torch.ones(1, device=device, dtype=torch.float32)
    arguments = [a, b, a_sf, b_sf, alpha, None]
    wanted = torch.full((rows, n), float(k), device=device, dtype=torch.bfloat16)
    wanted[1], wanted[:, 163] = torch.nan, torch.nan
    out = torch.empty_like(wanted)
    for variant in (None, *taking(op, [out, *arguments], device)):
        out.fill_(7)
        with nullcontext() if variant is None else gemmill.use_variant(variant):
            getattr(torch.ops.gemmill, op).default(out, *arguments)
        assert torch.equal(out.nan_to_num(-1), wanted.nan_to_num(-1)), variant


def test_drawn_calls_shift_scales() -> None:
    found = [draw_call(OPS[Pair.NVFP4], 1, index, CPU_LIMITS)[0].slots["b_sf"].shift % 4 for index in range(60)]
    assert len(set(found)) > 2
