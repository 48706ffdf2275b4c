"""Scales as ue8m0 bytes and as DeepSeek's words, in scaled and in grouped GEMMs."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gemmill
from gemmill.formats.ue8m0_scales import Scales, as_float32
from gemmill.vocab import SCALE_GROUPS, ScaleGroups

M, N, K = 5, 200, 600
E4M3 = torch.float8_e4m3fn


def whole(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).float()


def exponents(*shape: int) -> Tensor:
    """Bytes of 2^-3 to 2^3."""
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    return torch.randint(124, 131, shape, generator=generator, dtype=torch.int64).to(torch.uint8)


def words_of(bytes_: Tensor, along_k: int) -> Tensor:
    """Four bytes along K an int32, the first in its low bits, made byte by byte."""
    rows = bytes_.movedim(along_k, -1)
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % 4)).unflatten(-1, (-1, 4)).to(torch.int64)
    word = sum(padded[..., i] << 8 * i for i in range(4))
    return word.to(torch.int32).movedim(-1, along_k)


def scaled(groups: ScaleGroups) -> tuple[Tensor, ...]:
    a, b = whole(M, K).to(E4M3), whole(N, K).to(E4M3).t()
    return a, b, exponents(*groups.a_shape(M, K)), exponents(*groups.b_shape(N, K))


def values(bytes_: Tensor) -> Tensor:
    return torch.exp2(bytes_.float() - 127)


@pytest.mark.parametrize("groups", SCALE_GROUPS, ids=lambda groups: f"{groups.size}-{groups.b_scale}")
def test_scaled_mm_takes_bytes_and_words(groups: ScaleGroups) -> None:
    a, b, of_a, of_b = scaled(groups)
    wanted = gemmill.cutlass_scaled_mm(a, b, values(of_a), values(of_b), torch.bfloat16)
    e8m0 = [x.view(torch.float8_e8m0fnu) for x in (of_a, of_b)]
    m_major = of_a.t().contiguous().t()
    words = words_of(of_a, -1).t().contiguous().t(), words_of(of_b, -2)
    for pair in ((of_a, of_b), e8m0, (m_major, values(of_b)), words, (words[0], of_b), (values(of_a), words[1])):
        assert torch.equal(gemmill.cutlass_scaled_mm(a, b, *pair, torch.bfloat16, check=True), wanted)


@pytest.mark.parametrize("groups", [g for g in SCALE_GROUPS if g.size == 32 or g.of_b == "128 x 128"])
def test_grouped_mm_takes_bytes_and_words(groups: ScaleGroups) -> None:
    a, b = whole(2 * M, K).to(E4M3), whole(2, N, K).to(E4M3)
    of_a, of_b = exponents(*groups.a_shape(2 * M, K)), exponents(2, *groups.b_shape(N, K)[::-1])
    offsets = torch.tensor([0, 3, 10])
    wanted = gemmill.grouped_mm(a, b, values(of_a), values(of_b), offsets)
    slots, rows = a.unflatten(0, (2, M)), torch.tensor([5, 5])
    in_slots = gemmill.grouped_mm_masked(slots, b, values(of_a).unflatten(0, (2, M)), values(of_b), rows)
    for pair in (
        (of_a, of_b),
        (words_of(of_a, -1), words_of(of_b, -1)),
        (values(of_a), of_b.view(torch.float8_e8m0fnu)),
    ):
        assert torch.equal(gemmill.grouped_mm(a, b, *pair, offsets, check=True), wanted)
        masked = pair[0].unflatten(0, (2, M)), pair[1]
        assert torch.equal(gemmill.grouped_mm_masked(slots, b, *masked, rows, check=True), in_slots)


def test_bytes_at_both_ends() -> None:
    """2^-127 is subnormal, and byte 255 is NaN where nobody looks."""
    a, b, of_a, of_b = scaled(SCALE_GROUPS[4])
    of_a.zero_(), of_b.fill_(254)
    a, b = torch.ones(M, K).to(E4M3), torch.ones(N, K).to(E4M3).t()
    assert torch.equal(gemmill.cutlass_scaled_mm(a, b, of_a, of_b, torch.bfloat16), torch.full((M, N), K).bfloat16())
    of_a[2, 3] = 255
    found = gemmill.cutlass_scaled_mm(a, b, of_a, of_b, torch.bfloat16)
    assert bool(found[2].isnan().all()) and not found[[0, 1, 3, 4]].isnan().any()


def test_255_is_refused_where_values_are_looked_at() -> None:
    a, b, of_a, of_b = scaled(SCALE_GROUPS[4])
    of_b[7, 1] = 255
    said = "cutlass_scaled_mm: b_scales[7, 1] is ue8m0 byte 255, which is NaN: scales are bytes of 0 to 254, for 2^-127 to 2^127"
    for pair in ((of_a, of_b), (of_a, of_b.view(torch.float8_e8m0fnu)), (of_a, words_of(of_b, -2))):
        with pytest.raises(RuntimeError) as error:
            gemmill.cutlass_scaled_mm(a, b, *pair, torch.bfloat16, check=True)
        assert str(error.value) == said
    with pytest.raises(RuntimeError, match=r"^grouped_mm: a_scales\[0, 2\] is ue8m0 byte 255, which is NaN"):
        of_rows = torch.full((M, 19), 127, dtype=torch.uint8)
        of_rows[0, 2] = 255
        of_weights = torch.full((1, 7, 19), 127, dtype=torch.uint8)
        gemmill.grouped_mm(a, b.t()[None].contiguous(), of_rows, of_weights, torch.tensor([0, M]), check=True)


def test_words_of_groups_that_there_are_not() -> None:
    a, b, _, of_b = scaled(SCALE_GROUPS[4])
    with pytest.raises(RuntimeError) as error:
        gemmill.cutlass_scaled_mm(a, b, torch.ones(M, 4, dtype=torch.int32), of_b, torch.bfloat16)
    assert str(error.value) == (
        "cutlass_scaled_mm: a_scales is [5, 4] and b_scales [19, 7]: a_scales are int32, words of 4 ue8m0 bytes along K, and for K = 600 "
        "there are 2 of groups of 128 or 3 of groups of 64 or 5 of groups of 32; both operands have groups of one size"
    )
    mixed = torch.ones(M, 5, dtype=torch.int32), torch.ones(5, 2)
    with pytest.raises(
        RuntimeError, match=r"^cutlass_scaled_mm: a_scales is \[5, 5\] and b_scales \[5, 2\]: a_scales are int32"
    ):
        gemmill.cutlass_scaled_mm(a, b, *mixed, torch.bfloat16)


def test_words_that_could_be_of_several_groups() -> None:
    """A word of four bytes is one group of 128 with three bytes to spare, or four of 32."""
    a, b = torch.ones(M, 128).to(E4M3), torch.ones(N, 128).to(E4M3).t()
    words = torch.full((M, 1), 127, dtype=torch.int32), torch.full((1, N), 127, dtype=torch.int32)
    with pytest.raises(RuntimeError) as error:
        gemmill.cutlass_scaled_mm(a, b, *words, torch.bfloat16)
    assert str(error.value) == (
        "cutlass_scaled_mm: a_scales is [5, 1] and b_scales [1, 200], of int32 words: for K = 128 groups of 128 or 64 or 32 have as many; "
        "give bytes, as words.view(torch.uint8) has them"
    )


def test_what_is_no_scale_is_left_to_the_op() -> None:
    a, b, of_a, of_b = scaled(SCALE_GROUPS[4])
    with pytest.raises(RuntimeError, match=r"^cutlass_scaled_mm: a_scales is float64, expected float32"):
        gemmill.cutlass_scaled_mm(a, b, values(of_a).double(), of_b, torch.bfloat16)


class Passes(TorchDispatchMode):
    """Counts the ops that read or write elements: views launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.made.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("along_k", [-1, -2])
@pytest.mark.parametrize("transposed", [False, True])
def test_words_are_converted_by_one_pass_whatever_their_layout(along_k: int, transposed: bool) -> None:
    """A kernel for each step of the conversion took longer than a small GEMM."""
    rows, groups, k = 5, 7, 7 * 32
    codes = torch.randint(0, 255, (rows, 8), dtype=torch.uint8)
    words = codes.view(torch.int32) if along_k == -1 else codes.view(torch.int32).t()
    if transposed:
        words = words.t().contiguous().t()
    a = Scales(name="a_scales", values=words, along_k=along_k, rows=rows, k=k)
    with Passes() as passes:
        found, _ = as_float32("an_op", a, a, (32,), check=False)
    assert len(passes.made) == 2, "one for each operand"
    expected = torch.exp2(codes[:, :groups].double() - 127).float()
    assert torch.equal(found if along_k == -1 else found.t(), expected)
    assert found.stride(-3 - along_k) == 1
