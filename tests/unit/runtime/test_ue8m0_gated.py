"""Scales as ue8m0 bytes and words, which the functions of gated GEMMs and of fused experts make float32."""

import pytest
import torch
from torch import Tensor

import gemmill

E4M3 = torch.float8_e4m3fn
M, HIDDEN, K, E = 6, 64, 288, 2


def codes(*shape: int) -> Tensor:
    return torch.randint(-4, 5, shape).to(E4M3)


def exponents(*shape: int) -> Tensor:
    return torch.randint(120, 130, shape, dtype=torch.uint8)


def values(of: Tensor) -> Tensor:
    return torch.exp2(of.float() - 127)


def words_of(of: Tensor) -> Tensor:
    """Four bytes along the last dimension make a word, rounded up with bytes of 255 that nobody reads."""
    padded = torch.nn.functional.pad(of, (0, -of.shape[-1] % 4), value=255)
    return padded.contiguous().view(torch.int32)


@pytest.mark.parametrize("rows", [2 * HIDDEN // 32, 2 * HIDDEN], ids=["32 x 32", "1 x 32"])
def test_a_gated_gemm_takes_bytes_and_words(rows: int) -> None:
    a, b, of_a, of_b = codes(M, K), codes(2 * HIDDEN, K), exponents(M, K // 32), exponents(rows, K // 32)
    wanted = gemmill.scaled_mm_act_quant(a, b.t(), values(of_a), values(of_b).t(), group_size=32)
    given = (of_a, of_b.t()), (words_of(of_a), words_of(of_b).t()), (of_a.view(torch.float8_e8m0fnu), values(of_b).t())
    for pair in given:
        found = gemmill.scaled_mm_act_quant(a, b.t(), *pair, group_size=32)
        assert [torch.equal(x.float(), y.float()) for x, y in zip(found, wanted, strict=True)] == [True, True]


def test_a_gated_gemm_of_experts_takes_bytes_and_words() -> None:
    a, b, of_a, of_b = (
        codes(M, K),
        codes(E, 2 * HIDDEN, K),
        exponents(M, K // 32),
        exponents(E, 2 * HIDDEN // 32, K // 32),
    )
    offsets, rows = torch.tensor([0, 2, M]), torch.tensor([3, 2])
    slots = a.unflatten(0, (E, 3))
    wanted, _ = gemmill.grouped_mm_act_quant(a, b, values(of_a), values(of_b), offsets)
    in_slots, _ = gemmill.grouped_mm_act_quant_masked(slots, b, values(of_a).unflatten(0, (E, 3)), values(of_b), rows)
    used = torch.arange(3) < rows.unsqueeze(1)
    for x, y in ((of_a, of_b), (words_of(of_a), words_of(of_b))):
        assert torch.equal(gemmill.grouped_mm_act_quant(a, b, x, y, offsets, check=True)[0], wanted)
        found, _ = gemmill.grouped_mm_act_quant_masked(slots, b, x.unflatten(0, (E, 3)), y, rows, check=True)
        assert torch.equal(found[used], in_slots[used])
    of_b[1, 3, 2] = 255
    said = "grouped_mm_act_quant: b_scales[1, 3, 2] is ue8m0 byte 255, which is NaN: scales are bytes of 0 to 254, for 2^-127 to 2^127"
    with pytest.raises(RuntimeError) as error:
        gemmill.grouped_mm_act_quant(a, b, of_a, of_b, offsets, check=True)
    assert str(error.value) == said


@pytest.mark.parametrize("block", [32, 128])
def test_fused_experts_take_bytes_and_words(block: int) -> None:
    hidden, inner = 288, 256
    x, w13, w2 = torch.randn(M, hidden).bfloat16(), codes(E, 2 * inner, hidden), codes(E, hidden, inner)
    of_13 = exponents(E, 2 * inner // block, -(-hidden // block))
    of_2 = exponents(E, -(-hidden // block), inner // block)
    ids, weights = torch.tensor([[i % E] for i in range(M)]), torch.ones(M, 1)
    wanted = gemmill.fused_experts(x, w13, w2, values(of_13), values(of_2), ids, weights)
    assert wanted.abs().max() > 0
    for pair in ((of_13, of_2), (words_of(of_13), words_of(of_2)), (of_13.view(torch.float8_e8m0fnu), values(of_2))):
        assert torch.equal(gemmill.fused_experts(x, w13, w2, *pair, ids, weights, check=True), wanted)
    of_2[0, 1, 1] = 255
    with pytest.raises(
        RuntimeError, match=r"^fused_experts: w2_scales\[0, 1, 1\] is ue8m0 byte 255, which is NaN: scales are bytes"
    ):
        gemmill.fused_experts(x, w13, w2, of_13, of_2, ids, weights, check=True)
