"""Results that the fuzzer compares with the reference to the last bit, and those within a bound."""

import pytest
import torch

from gemmill.families.scaled_mm.cases.drawn import GemmJudge
from gemmill.numerics.call import WITHIN, LegalCall
from gemmill.numerics.memory import Memory, Slot

M, N, K = 1024, 1024, 32


def matrix(dtype: torch.dtype, rows: int, columns: int, strides: tuple[int, int], values: str | None) -> Slot:
    return Slot.matrix(dtype, (rows, columns), strides, values=values, written=values is None)


@pytest.mark.parametrize("apart", [False, True], ids=["per channel", "in one group"])
def test_s8_is_exact_unless_its_scales_lie_apart(apart: bool) -> None:
    """Scales of one group of K whose values lie apart are in groups: both are multiplied first, which rounds otherwise."""
    slots = {
        "out": matrix(torch.bfloat16, M, N, (N, 1), None),
        "a": matrix(torch.int8, M, K, (K, 1), "codes"),
        "b": matrix(torch.int8, K, N, (1, K), "codes"),
        "a_scales": matrix(torch.float32, M, 1, (1, 1), "scales"),
        "b_scales": matrix(torch.float32, 1, N, (N, 4 if apart else 1), "scales"),
    }
    call = LegalCall(op="cutlass_scaled_mm", slots=slots, plain={}, offsets=dict.fromkeys(slots, 0), judged=WITHIN)
    memory = Memory(slots, torch.device("cpu"))
    g = torch.Generator().manual_seed(0)
    for name in "ab":
        memory.tensor(name).copy_(torch.randint(-127, 128, slots[name].shape, generator=g))
    for name in ("a_scales", "b_scales"):
        memory.tensor(name).copy_(torch.rand(slots[name].shape, generator=g) + 0.1)
    sums = memory.tensor("a").float() @ memory.tensor("b").float()
    memory.tensor("out").copy_(memory.tensor("a_scales") * memory.tensor("b_scales") * sums)
    judge = GemmJudge(call, memory, memory.bytes.clone())
    assert (judge.wrong().item() == 0) is apart and (judge.report() == "") is apart
