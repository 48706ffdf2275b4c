"""The extension's checks, choices and launches of block-scaled GEMMs against Python's, on CPU tensors."""

import random

import pytest
import torch

from compile.binding.drawn import compare
from gemmill.families import blockscaled
from gemmill.families.blockscaled.cases.checked import ROLES_OF
from gemmill.families.blockscaled.ops import SCHEMAS
from gemmill.families.blockscaled.shaped_call import shaped_call_of
from gemmill.family import Judged, Row, ShapedCall
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import model_ns
from gemmill.runtime.select import select

pytestmark = pytest.mark.compile
SMS = 132
"""Multiprocessors of a device."""
ROUNDS = 250


def wanted_of(call: Judged, row: Row) -> dict[str, int | None]:
    """Every field of a kernel's arguments, from the call."""

    def data(role: str) -> int | None:
        operand = call.program.values.get(role)
        return None if operand is None or call.get(role) is None else call.tensor(role).data or None

    def stride(role: str) -> int:
        x = call.tensor(role)
        return x.strides[0] if len(x.shape) == 2 and x.shape[0] > 1 else -(-x.shape[-1] // 16) * 16

    pointers = {name: data({"d": "out"}.get(name, name)) for name in "a b a_sf b_sf alpha bias d".split()}
    strides = {name: stride(role) for name, role in (("lda", "a"), ("ldb", "b"), ("ldd", "out"))}
    return pointers | strides | {"m": call["M"], "n": call["N"], "k": call["K"], "splits": row.facts.splits}


@pytest.mark.parametrize("op", [op.name for op in SCHEMAS])
def test_both_refuse_the_same_calls_and_launch_the_same_kernels(op: str, probe) -> None:
    found = compare(probe, op, shaped_call_of, wanted_of, rounds=ROUNDS)
    assert len(found.refused) > 5
    assert len(found.lacking) > 5
    assert len(found.launched) > 50


@pytest.mark.parametrize("rows", [4, 64, 256])
@pytest.mark.parametrize("op", ["cutlass_scaled_nvfp4_mm", "cutlass_scaled_mxfp4_mm"])
def test_scales_choose_a_kernel_that_can_read_them_where_they_lie(op: str, rows: int, probe) -> None:
    group, n, k, needed = 16 if "nv" in op else 32, 128, 512, {}
    a, b, out = (
        torch.zeros(shape, dtype=dtype)
        for shape, dtype in (((rows, k // 2), torch.uint8), ((n, k // 2), torch.uint8), ((rows, n), torch.bfloat16))
    )
    alpha = torch.ones(1, dtype=torch.float32)
    for shift in (0, 1, 2, 4):
        for side in range(2):
            scales = [torch.zeros(-(-x // 128) * 128 * k // group + 16, dtype=torch.uint8) for x in (rows, n)]
            scales = [x[shift * (i == side) :][: len(x) - 16].view(-1, k // group) for i, x in enumerate(scales)]
            symbol, _ = probe.run(op, out, a, b, *scales, alpha, None)
            found = [row for _, row, entry in probe.build.table.of(blockscaled.NAME) if entry.symbol == symbol]
            assert {(shift or 16) % row.alignments[3] for row in found} == {0}, symbol
            needed[shift] = found[0].alignments[3]
    assert needed[1] == 1
    assert "nv" not in op or rows > 4 or needed[0] > 1  # of few rows words of codes are read


def test_models_agree(probe) -> None:
    rng = random.Random(1)
    rows = [(i, row) for i, row, _ in probe.build.table.of(blockscaled.NAME)]
    assert {row.facts.splits for _, row in rows} == {1, 2, 3, 4, 5, 7, 8}
    for _ in range(500):
        i, row = rng.choice(rows)
        sizes = tuple(rng.choice((1, 16, 17, rng.randrange(1, 300), rng.randrange(1, 40_000))) for _ in range(3))
        call = ShapedCall(family=blockscaled.NAME, call_class=row.call_class, sizes=sizes, alignments=(16, 16, 16, 16))
        sms = rng.choice((SMS, 114, 16))
        assert probe.nanoseconds(i, call, sms) == model_ns(row, call, sms)


def test_so_many_ctas_are_refused(probe) -> None:
    _, row, _ = next(iter(probe.build.table.of(blockscaled.NAME)))
    sizes = (2**31 - 2**16, 2**31 - 2**16, 32)
    call = ShapedCall(family=blockscaled.NAME, call_class=row.call_class, sizes=sizes, alignments=(16, 16, 16, 16))
    assert probe.build.choose(call, SMS)[0] == -1
    choice = select(probe.build.table, call, SMS)
    assert choice.row < 0
    assert any("and counts up to 1073741824" in rejected.reason for rejected in choice.trace)


def test_every_role_has_an_argument(probe) -> None:
    assert {role for roles in ROLES_OF.values() for role in roles} - {"format", "prepacked"} == {
        "out", "a", "b", "a_sf", "b_sf", "alpha", "bias"
    }  # fmt: skip
    assert REGISTRY.named(blockscaled.NAME).tuning.sizes == ("m", "n", "k")
