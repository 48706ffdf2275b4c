"""Scales of a wrong block, of 32 and 128 in one call, and ue8m0 of 255: one sentence names the shapes, and those that are offered."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gemmill

E4M3 = torch.float8_e4m3fn
M, N, K, E = 4, 256, 512, 2


def ones(*shape: int) -> Tensor:
    return torch.ones(shape).to(E4M3)


def scaled_mm(a: int, rows: int, columns: int) -> Tensor:
    scales = torch.ones(M, K // a), torch.ones(N // rows, K // columns).t()
    return gemmill.cutlass_scaled_mm(ones(M, K), ones(N, K).t(), *scales, torch.bfloat16)


def grouped(a: int, rows: int, columns: int) -> Tensor:
    offsets, scales = torch.tensor([0, 2, M], dtype=torch.int32), torch.ones(E, N // rows, K // columns)
    return gemmill.grouped_mm(
        ones(M, K), ones(E, N, K), torch.ones(M, K // a), scales, offsets, out_dtype=torch.bfloat16
    )


def fused(first: int, second: int, columns: int) -> Tensor:
    ids, weights = torch.zeros(M, 1, dtype=torch.int32), torch.ones(M, 1)
    scales = torch.ones(E, 2 * N // first, K // first), torch.ones(E, K // second, N // columns)
    x = torch.ones(M, K, dtype=torch.bfloat16)
    return gemmill.fused_experts(x, ones(E, 2 * N, K), ones(E, K, N), *scales, ids, weights)


OFFERED = (
    "for M, N, K = 4, 256, 512 expected one value or [4, 1] for a, with one value or [1, 256] for b; or along K in groups of 128, [4, 4] "
    "with [4, 2] (128 x 128) or [4, 256] (1 x 128); of 64, [4, 8] with [8, 4] (64 x 64) or [8, 256] (1 x 64); of 32, [4, 16] with [16, 8] "
    "(32 x 32) or [16, 256] (1 x 32)"
)
OF_EACH = "for weights of [2, 256, 512] there are scales of each expert ([2]), of each column ([2, 256], contiguous), or of each "
WRONG: dict[str, tuple[Callable[..., Tensor], tuple[int, int, int], str]] = {
    "a of 32, b of 128": (
        scaled_mm,
        (32, 128, 128),
        f"cutlass_scaled_mm: a_scales is [4, 16] and b_scales is [4, 2]: {OFFERED}",
    ),
    "a of 128, b of 32": (
        scaled_mm,
        (128, 32, 32),
        f"cutlass_scaled_mm: a_scales is [4, 4] and b_scales is [16, 8]: {OFFERED}",
    ),
    "oblong blocks": (
        scaled_mm,
        (32, 64, 32),
        f"cutlass_scaled_mm: a_scales is [4, 16] and b_scales is [16, 4]: {OFFERED}",
    ),
    "experts: a of 32, b of 128": (
        grouped,
        (32, 128, 128),
        "grouped_mm: a_scales has shape [4, 16], expected [4, 4]: a scale of each row for each 128 along K, as b_scales of [2, 2, 4] has them",
    ),
    "experts: a of 128, b of 32": (
        grouped,
        (128, 32, 32),
        "grouped_mm: a_scales has shape [4, 4], expected [4, 16]: a scale of each row for each 32 along K, as b_scales of [2, 8, 16] has them",
    ),
    "experts: blocks of 16": (
        grouped,
        (16, 16, 16),
        f"grouped_mm: b_scales has shape [2, 16, 32]: {OF_EACH}128 x 128 ([2, 2, 4]), 32 x 32 ([2, 8, 16]) or 1 x 32 ([2, 256, 16])",
    ),
    "a layer of experts: w13 of 32, w2 of 128": (
        fused,
        (32, 128, 128),
        "fused_experts: w2_scales has shape [2, 4, 2], expected [2, 16, 8]: a scale for each 32 x 32 of w2, as w13_scales are of blocks",
    ),
    "a layer of experts: blocks of 16": (
        fused,
        (16, 16, 16),
        "fused_experts: w13 is float8_e4m3fn of [2, 512, 512]: weights of x's type have no scales; float8_e4m3fn has w13_scales and w2_scales, "
        "of experts, rows, or blocks of 128 x 128 ([2, 4, 4]) or 32 x 32 ([2, 16, 16])",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_scales_that_do_not_go_together(case: str) -> None:
    call, sizes, text = WRONG[case]
    with pytest.raises(RuntimeError, match="scales") as error:
        call(*sizes)
    assert str(error.value) == text


@pytest.mark.parametrize(("whose", "place"), [("a", "a_scales[2, 5]"), ("b", "b_scales[5, 3]")])
def test_ue8m0_of_255_is_told_by_its_place(whose: str, place: str) -> None:
    a_scales = torch.full((M, K // 32), 127, dtype=torch.uint8)
    b_scales = torch.full((N // 32, K // 32), 127, dtype=torch.uint8).t()
    (a_scales if whose == "a" else b_scales)[(2, 5) if whose == "a" else (5, 3)] = 255
    operands = ones(M, K), ones(N, K).t(), a_scales, b_scales, torch.bfloat16
    with pytest.raises(RuntimeError, match="ue8m0") as error:
        gemmill.cutlass_scaled_mm(*operands, check=True)
    assert str(error.value) == (
        f"cutlass_scaled_mm: {place} is ue8m0 byte 255, which is NaN: scales are bytes of 0 to 254, for 2^-127 to 2^127"
    )
    out = gemmill.cutlass_scaled_mm(*operands)
    nan = torch.zeros(M, N, dtype=torch.bool)
    nan[2 if whose == "a" else slice(None), slice(None) if whose == "a" else slice(96, 128)] = True
    assert torch.equal(out.isnan(), nan), "without the check it is NaN where it counts, and nowhere else"
