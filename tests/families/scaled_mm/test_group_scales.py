"""Scales in groups: which kinds there are, in which layouts, and the CPU op's results with them."""

from dataclasses import replace

import pytest
import torch

import gemmill
from gemmill.families.scaled_mm.classes import class_code, describe_class, scales_code, scales_codes_of
from gemmill.families.scaled_mm.ops import SCALED_MM
from gemmill.families.scaled_mm.scales import groups_of_call
from gemmill.families.scaled_mm.shaped_call import shaped_call_of
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.vocab import GROUP_SIZES, SCALE_GROUPS, ScaleGranularity, ScaleGroups, ScaleLayout

BLOCKS_128, ROWS_128, BLOCKS_64, ROWS_64, BLOCKS_32, ROWS_32 = SCALE_GROUPS
M, N, K = 5, 200, 300


def arguments(
    groups: ScaleGroups, m: int = M, n: int = N, k: int = K, *, m_major: bool = False, dtype: torch.dtype = torch.int8
) -> list[torch.Tensor | None]:
    """A call whose scales and operands are small integers."""
    generator = torch.Generator().manual_seed(m * 31 + n * 7 + k)

    def whole(*shape: int) -> torch.Tensor:
        return torch.randint(1, 4, shape, generator=generator).float()

    a, b = whole(m, k).to(dtype), whole(n, k).to(dtype).t()
    a_scales, b_scales = whole(*groups.a_shape(m, k)), whole(*groups.b_shape(n, k))
    if m_major:
        a_scales = a_scales.t().contiguous().t()
    return [torch.full((m, n), torch.nan, dtype=torch.bfloat16), a, b, a_scales, b_scales, None]


def call_of(arguments: list) -> dict:
    return of_arguments(SCALED_MM, arguments)


def written_out(a, b, a_scales, b_scales, groups: ScaleGroups) -> torch.Tensor:
    """Every scale repeated over the elements that share it, then one product."""
    k, n = b.shape
    of_a = a_scales.repeat_interleave(groups.size, 1)[:, :k]
    of_b = b_scales.repeat_interleave(groups.size, 0)[:k]
    if groups.b_scale is ScaleGranularity.BLOCK:
        of_b = of_b.repeat_interleave(groups.size, 1)[:, :n]
    return (a.float() * of_a) @ (b.float() * of_b)


def test_there_are_six_kinds() -> None:
    assert GROUP_SIZES == (128, 64, 32)
    assert [(g.size, g.b_scale) for g in SCALE_GROUPS] == [
        (size, b_scale) for size in (128, 64, 32) for b_scale in (ScaleGranularity.BLOCK, ScaleGranularity.GROUP)
    ]


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("groups", SCALE_GROUPS)
def test_cpu_op(groups: ScaleGroups, dtype: torch.dtype) -> None:
    for m, n, k in ((M, N, K), (1, 129, 65), (3, 64, 128), (2, 1, 1000), (4, 300, 64)):
        _, a, b, a_scales, b_scales, _ = arguments(groups, m, n, k, dtype=dtype)
        bias = torch.arange(n).to(torch.bfloat16)
        result = gemmill.cutlass_scaled_mm(a, b, a_scales, b_scales, torch.bfloat16, bias)
        expected = written_out(a, b, a_scales, b_scales, groups) + bias.float()
        assert torch.equal(result, expected.to(torch.bfloat16)), (m, n, k)


@pytest.mark.parametrize("sizes", [(0, 200, 300), (5, 0, 300), (5, 200, 0)])
def test_zero_sizes(sizes: tuple[int, int, int]) -> None:
    out, *rest = arguments(BLOCKS_128, *sizes)
    torch.ops.gemmill.cutlass_scaled_mm.default(out, *rest)
    assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("groups", SCALE_GROUPS)
def test_kind_of_a_call_is_told_by_its_shapes(groups: ScaleGroups) -> None:
    assert groups_of_call(call_of(arguments(groups))) == groups


def test_one_group_of_one_block_is_a_scale_for_each_row() -> None:
    """K and N of one group: [M, 1] and [1, 1] mean the same either way."""
    assert groups_of_call(call_of(arguments(BLOCKS_128, 5, 100, 128))) is None
    assert groups_of_call(call_of(arguments(ROWS_128, 5, 100, 128))) is None
    assert groups_of_call(call_of(arguments(BLOCKS_128, 5, 200, 128))) == BLOCKS_128


def test_one_group_whose_values_lie_apart_is_in_groups() -> None:
    """As at any larger K: only scales in groups have strides."""
    for groups, n in ((BLOCKS_128, 100), (ROWS_128, 200)):
        call = arguments(groups, 5, n, 100)
        dense = call[3]
        call[3] = torch.stack([dense, dense * 7], -1)[..., 0]
        assert call[3].stride() == (2, 2)
        assert groups_of_call(call_of(call)) == groups
        check(SCALED_MM, call_of(call))
        torch.ops.gemmill.cutlass_scaled_mm.default(*call)
        assert torch.equal(call[0], written_out(*call[1:3], dense, call[4], groups).to(torch.bfloat16))


@pytest.mark.parametrize("stride", [0, 1, 3, 4, 10**12])
def test_stride_of_a_single_group_says_nothing(stride: int) -> None:
    for m in (1, 5):
        call = arguments(BLOCKS_128, m, 200, 100)
        call[3] = torch.ones(8)[:m].as_strided((m, 1), (stride if m == 1 else 1, stride))
        call[4] = call[4].as_strided((1, 2), (stride, 1))
        expected = class_code(0, "int8", "bfloat16", scales_code(BLOCKS_128, mn_major=True))
        assert shaped_call_of(SCALED_MM, call_of(call)).call_class == expected


@pytest.mark.parametrize("name", ["a_scales", "b_scales"])
def test_scales_too_far_apart_for_32_bits_are_not_for_cutlass(name: str) -> None:
    call = call_of(arguments(BLOCKS_128, m_major=True, m=4))
    assert shaped_call_of(SCALED_MM, call).call_class == class_code(
        0, "int8", "bfloat16", scales_code(BLOCKS_128, mn_major=True)
    )
    call[name] = replace(call[name], strides=(1, 2**31))
    assert shaped_call_of(SCALED_MM, call).call_class == class_code(0, "int8", "bfloat16", scales_code(BLOCKS_128))


@pytest.mark.parametrize(
    ("layout", "mn_major"),
    [
        (lambda s: s, False),  # K-major
        (lambda s: torch.zeros(3, 8).t()[:5], True),  # M-major, columns padded to a multiple of 16 bytes
        (lambda s: s.t().contiguous().t(), False),  # M-major with columns of 20 bytes
        (lambda s: torch.zeros(40).as_strided((5, 3), (1, 8), 1), False),  # begins 4 bytes after a multiple of 16
        (lambda s: torch.zeros(5).as_strided((5, 3), (1, 0)), False),  # one column for all groups
    ],
)
def test_layout_of_a_call(layout, mn_major: bool) -> None:
    call = arguments(BLOCKS_128)
    call[3] = layout(call[3])
    check(SCALED_MM, call_of(call))
    expected = class_code(0, "int8", "bfloat16", scales_code(BLOCKS_128, mn_major=mn_major))
    assert shaped_call_of(SCALED_MM, call_of(call)).call_class == expected


def test_classes_are_distinct_and_in_words() -> None:
    kinds = {code for groups in SCALE_GROUPS for code in scales_codes_of(groups, ScaleLayout.STRIDED)}
    assert kinds == set(range(1, 13))
    assert scales_codes_of(None, ScaleLayout.VECTOR) == (0,)
    assert scales_codes_of(ROWS_64, ScaleLayout.MN_MAJOR) == (7,)
    assert scales_codes_of(BLOCKS_32, ScaleLayout.STRIDED) == (9, 10)
    assert describe_class(class_code(1, "float8_e4m3fn", "bfloat16", 1)) == (
        "e4m3 x e4m3 to bf16 with scales of 1 x 128 and 128 x 128, a's M-major at multiples of 16 bytes, and a bias"
    )
    assert describe_class(class_code(0, "int8", "float16", 8)) == (
        "s8 x s8 to f16 with scales of 1 x 64 and 1 x 64, a's by their strides, and no bias"
    )


@pytest.mark.parametrize("name", ["a_scales", "b_scales"])
def test_strides_of_which_none_is_one(name: str) -> None:
    call = arguments(ROWS_64)
    place = SCALED_MM.arguments.index(name)
    call[place] = call[place].repeat(2, 2)[::2, ::2]
    with pytest.raises(RuntimeError) as caught:
        torch.ops.gemmill.cutlass_scaled_mm.default(*call)
    strides = list(call[place].stride())
    assert str(caught.value) == (
        f"cutlass_scaled_mm: {name} has strides {strides}: scales in groups must have stride 1 along one dimension"
    )
    assert call[0].isnan().all()


@pytest.mark.parametrize(("of_a", "of_b"), [(BLOCKS_128, BLOCKS_64), (BLOCKS_32, BLOCKS_128), (BLOCKS_128, ROWS_32)])
def test_scales_of_two_kinds(of_a: ScaleGroups, of_b: ScaleGroups) -> None:
    call = arguments(of_a)
    call[4] = torch.ones(of_b.b_shape(N, K))
    with pytest.raises(RuntimeError) as caught:
        torch.ops.gemmill.cutlass_scaled_mm.default(*call)
    assert str(caught.value) == (
        f"cutlass_scaled_mm: a_scales is {list(of_a.a_shape(M, K))} and b_scales is {list(of_b.b_shape(N, K))}: "
        "for M, N, K = 5, 200, 300 expected one value or [5, 1] "
        "for a, with one value or [1, 200] for b; or along K in groups of 128, [5, 3] with [3, 2] (128 x 128) or [3, 200] "
        "(1 x 128); of 64, [5, 5] with [5, 4] (64 x 64) or [5, 200] (1 x 64); of 32, [5, 10] with [10, 7] (32 x 32) or "
        "[10, 200] (1 x 32)"
    )
