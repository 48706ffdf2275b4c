"""Weights packed for Hopper: exact folding, refusals, and the loss where the caller allows it."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gemmill.families.blockscaled.bounds import rounded_fold_error
from gemmill.formats.codes import pack, unpack
from gemmill.formats.quantise import BlockScaled, dequantise, global_scale_of, quantise
from gemmill.quantize import prepack as module
from gemmill.quantize.folding import exact_shifts
from gemmill.quantize.prepack import prepack
from gemmill.vocab.float_type import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, UE4M3, FloatType
from gemmill.vocab.format import BLOCK_SCALED, MXFP4, MXFP6, MXFP8, MXFP8_E5M2, NVFP4, Format

u8 = torch.uint8


def weights_of(exponents: list[list[int]], *, format: Format = MXFP4, codes: torch.Tensor | None = None) -> BlockScaled:
    """Rows of all codes but NaN, one group for each exponent."""
    scales = (torch.tensor(exponents) + 127).to(u8)
    rows, groups = scales.shape
    if codes is None:
        finite = [c for c, value in enumerate(format.code.values) if math.isfinite(value)]
        codes = torch.tensor(finite, dtype=u8).repeat(rows, -(-groups * 32 // len(finite)))[:, : groups * 32]
    return BlockScaled(format=format, codes=pack(codes, format.code.bits), scales=scales)


@pytest.mark.parametrize(
    ("code", "operand", "normal", "all_numbers"),
    [
        (E2M1, E4M3, range(-5, 7), range(-8, 7)),
        (E3M2, E4M3, range(-2, 5), range(-5, 5)),
        (E2M3, E4M3, range(-3, 6), range(-6, 6)),
        (E4M3, E4M3, range(0), range(1)),
        (E5M2, E4M3, range(0), range(0)),
        (E2M1, F16, range(-13, 14), range(-23, 14)),
        (E5M2, F16, range(0), range(-8, 1)),
        (E2M1, BF16, range(-125, 126), range(-132, 126)),
        (E4M3, BF16, range(-117, 120), range(-124, 120)),
    ],
    ids=str,
)
def test_shifts_that_are_exact(code: FloatType, operand: FloatType, normal: range, all_numbers: range) -> None:
    """By hand: 6 * 2^6 is 384, 6 * 2^7 is above 448; 1.5 * 2^-8 is 3 * 2^-9; 0.5 * 2^-5 is 2^-6, the smallest normal."""
    assert exact_shifts(code, operand, normal=True) == normal
    assert exact_shifts(code, operand) == all_numbers


@pytest.mark.parametrize(("operand", "dtype"), [(F16, torch.float16), (BF16, torch.bfloat16)], ids=str)
def test_every_nvfp4_product_is_exact_in_sixteen_bits(operand: FloatType, dtype: torch.dtype) -> None:
    products = [code * scale for code in E2M1.values for scale in UE4M3.values[:127]]
    assert all(operand.holds(product, normal=True) for product in products)
    values = torch.tensor(products, dtype=torch.float64)
    assert torch.equal(values.to(dtype).double(), values)
    assert not all(E4M3.holds(product / 8) for product in products), "then folding would need no rounding"


@pytest.mark.parametrize("format", BLOCK_SCALED, ids=str)
def test_every_finite_normal_product_is_exact_in_bf16(format: Format) -> None:
    limits = torch.finfo(torch.bfloat16)
    for byte in range(format.scale.last_code + 1):
        scale = format.scale.value(byte)
        products = torch.tensor([c * scale for c in format.code.values if math.isfinite(c)], dtype=torch.float64)
        normal = (products.abs() >= limits.tiny) & (products.abs() <= limits.max)
        assert torch.equal(products[normal].bfloat16().double(), products[normal])


def test_mxfp4_is_nvfp4_within_17_binary_orders() -> None:
    """Of a ue4m3 scale: powers of two from 2^-9 to 2^8."""
    powers = [exponent for exponent in range(-40, 40) if UE4M3.holds(2.0**exponent)]
    assert powers == list(range(-9, 9))


@pytest.mark.parametrize("base", range(-119, 121, 12))
@pytest.mark.parametrize("spread", [0, 1, 11, 12, 13, 14])
def test_mxfp4_folds_exactly_up_to_14_orders(spread: int, base: int) -> None:
    weights = weights_of([[base - 8, base - 8 + spread, base - 8 + spread // 2]])
    packed = prepack(weights, for_op="mxfp4_fp8_mm")
    assert torch.equal(packed.values(), dequantise(weights, dtype=torch.float64))
    operand = packed.operand_values()
    assert torch.equal(operand.float().to(torch.float8_e4m3fn).double(), operand)
    assert packed.operand is E4M3 and packed.weights.codes is weights.codes
    report = packed.report
    assert report.exact and report.added_error == 0 and report.spread.tolist() == [[spread]]
    assert report.subnormal_bases == (1 if spread > 11 else 0)
    smallest = operand[operand != 0].abs().min()
    assert (smallest < 2.0**-6) == (spread > 11), "a base was taken that makes subnormal numbers without need"


def test_bases_of_the_lowest_and_highest_scales_are_normal_numbers() -> None:
    weights = weights_of([[-127, -113], [127, 113], [-127, -127], [0, 3]])
    packed = prepack(weights, for_op="mxfp4_fp8_mm")
    assert torch.equal(packed.values(), dequantise(weights, dtype=torch.float64))
    assert (packed.base >= torch.finfo(torch.float32).tiny).all()
    assert packed.base.tolist() == [2.0**-119, 2.0**121, 2.0**-122, 1.0], "of all bases the one nearest to 1"


def test_one_order_more_is_refused_by_row_and_spread() -> None:
    exponents = [[0, 14, 3, 3, 3]] * 5
    exponents[3] = [0, 15, 3, 3, 3]
    with pytest.raises(ValueError) as caught:
        prepack(weights_of(exponents), for_op="mxfp4_fp8_mm")
    assert str(caught.value) == (
        "mxfp4_fp8_mm folds scales of mxfp4 into e4m3 exactly where those that share a base spread over at most 14 binary "
        "orders, and row 3 has 15 in columns 0 to 159: pass fallback='bf16' to widen activations instead, or "
        "allow_requant=True to clamp the smallest and have the error reported"
    )


def test_groups_of_zeros_take_no_part() -> None:
    codes = torch.randint(1, 8, (2, 96), dtype=u8)
    codes[0, 32:64] = torch.tensor([0, 8], dtype=u8).repeat(16)
    codes[1] = 8
    weights = weights_of([[3, -120, 4], [100, -100, 0]], codes=codes)
    packed = prepack(weights, for_op="mxfp4_fp8_mm")
    assert torch.equal(packed.values(), dequantise(weights, dtype=torch.float64))
    assert packed.report.spread.tolist() == [[1], [0]] and packed.base.tolist() == [1.0, 1.0]
    shifts = packed.weights.scales.int() - 127
    assert ((shifts >= -8) & (shifts <= 6)).all(), "a kernel's table has no entry for others"


def test_a_base_for_each_128_columns() -> None:
    exponents = [[0, 1, 2, 3, 40, 41, 42, 43, 90, 104]]
    weights = weights_of(exponents)
    with pytest.raises(ValueError, match="row 0 has 104 in columns 0 to 319"):
        prepack(weights, for_op="mxfp4_fp8_mm")
    packed = prepack(weights, for_op="mxfp4_fp8_mm", base_per_group=True)
    assert packed.base.shape == (1, 3) and packed.report.spread.tolist() == [[3, 3, 14]]
    assert torch.equal(packed.values(), dequantise(weights, dtype=torch.float64))
    exponents[0][9] = 105
    with pytest.raises(ValueError, match="row 0 has 15 in columns 256 to 319"):
        prepack(weights_of(exponents), for_op="mxfp4_fp8_mm", base_per_group=True)


def test_fallback_widens_all_of_a_tensor_that_does_not_fold() -> None:
    weights = weights_of([[0, 0], [0, 15]])
    packed = prepack(weights, for_op="mxfp4_fp8_mm", fallback="bf16")
    assert packed.operand is BF16 and packed.op == "mxfp4_fp8_mm" and packed.report.exact
    assert torch.equal(packed.values(), dequantise(weights, dtype=torch.float64))
    assert torch.equal(packed.operand_values().bfloat16().double(), packed.operand_values())
    assert prepack(weights_of([[0, 14]]), for_op="mxfp4_fp8_mm", fallback="bf16").operand is E4M3


def test_requantisation_clamps_the_smallest_scales_and_says_what_it_cost() -> None:
    """Scales 2^0 and 2^16: the first becomes 2^2, on which 0.5, 1, 1.5, 2, 3, 4, 6 are .125 to 1.5: 0, 0, .5, .5, 1, 1, 1.5
    times four, to nearest and even."""
    codes = torch.arange(16, dtype=u8).repeat(2, 4)
    weights = weights_of([[0, 16], [1, 2]], codes=codes)
    packed = prepack(weights, for_op="mxfp4_fp8_mm", allow_requant=True)
    values = packed.values()
    assert values[0, :8].tolist() == [0.0, 0.0, 0.0, 2.0, 2.0, 4.0, 4.0, 6.0]
    wanted = dequantise(weights, dtype=torch.float64)
    assert torch.equal(values[0, 32:], wanted[0, 32:]) and torch.equal(values[1], wanted[1])
    assert torch.equal(unpack(weights.codes, 4), codes), "the input was changed"
    report = packed.report
    changes = [0.5, 1.0, 0.5, 1.0]
    assert (report.requantised_rows, report.changed) == (1, 2 * 2 * len(changes))
    squared = 4 * sum(change**2 for change in changes)
    assert math.isclose(report.added_error, squared / float(wanted.square().sum()), rel_tol=1e-12)
    assert math.isclose(report.largest_change, 1.0 / (6 * 2.0**16), rel_tol=1e-12)
    assert torch.equal(packed.operand_values().float().to(torch.float8_e4m3fn).double(), packed.operand_values())
    assert str(report) == (
        "16 of 2 x 64 weights changed, which adds a relative squared error of 8.50e-12 and moves none by more than 2.54e-06 "
        "of its row's largest; scales spread over 16 binary orders at most, in row 0"
    )


@pytest.mark.parametrize("per_group", [False, True])
def test_requantisation_of_scales_that_spread_over_everything(per_group: bool) -> None:
    weights = weights_of([[-127, 127, 0, 1, 60, -60], [0] * 6])
    packed = prepack(weights, for_op="mxfp4_fp8_mm", allow_requant=True, base_per_group=per_group)
    before, after = dequantise(weights, dtype=torch.float64), packed.values()
    step = 0.25 * 2.0**-8 * packed.base.double().reshape(2, -1).repeat_interleave(128 if per_group else 192, 1)[:, :192]
    assert ((after - before).abs() <= step).all() and packed.report.changed == int((after != before).sum())
    assert torch.equal(after[0, 32:64], before[0, 32:64]) and torch.equal(after[1], before[1])


def test_requantisation_keeps_groups_of_zeros() -> None:
    codes = torch.full((2, 96), 7, dtype=u8)
    codes[:, :32] = torch.tensor([0, 8], dtype=u8).repeat(16)
    weights = weights_of([[127, -127, -60], [-127, 0, 0]], codes=codes)
    packed = prepack(weights, for_op="mxfp4_fp8_mm", allow_requant=True)
    assert torch.equal(unpack(packed.weights.codes, 4)[:, :32], codes[:, :32]) and packed.report.requantised_rows == 1
    assert packed.values()[0, 32:].tolist() == [0.0] * 32 + [6.0 * 2.0**-60] * 32


WIDENED = [
    (format, activations)
    for format in BLOCK_SCALED
    for activations in ("bf16", "f16")
    if (format, activations) != (MXFP8_E5M2, "f16")  # has no base: see the sentences
]


@pytest.mark.parametrize(("format", "activations"), WIDENED, ids=str)
def test_widened_weights_are_exact(format: Format, activations: str) -> None:
    x = torch.randn(64, 192) * torch.exp2(torch.randint(-3, 3, (64, 6)).float()).repeat_interleave(32, 1)
    x[5] *= 2.0**100 if not format.has_global_scale else 1.0
    x[6] *= 2.0**-80 if not format.has_global_scale else 1.0
    factor = global_scale_of(x) if format.has_global_scale else None
    weights = quantise(x, format, global_scale=factor)
    packed = prepack(weights, for_op="fp4_weight_mm", activations=activations)
    assert torch.equal(packed.values(), dequantise(weights, dtype=torch.float64))
    operand = packed.operand_values()
    dtype = torch.bfloat16 if activations == "bf16" else torch.float16
    assert torch.equal(operand.to(dtype).double(), operand)
    assert (operand[operand != 0].abs() >= torch.finfo(dtype).tiny).all()
    assert packed.report.exact
    if activations == "bf16":
        assert (packed.base == 1).all(), "a base that bf16 does not need"


def test_f16_refuses_what_does_not_fit() -> None:
    assert prepack(weights_of([[-60, -34]]), for_op="fp4_weight_mm", activations="f16").report.exact
    with pytest.raises(ValueError, match=r"row 0 has 27 in columns 0 to 63: pass allow_requant=True to clamp"):
        prepack(weights_of([[-60, -33]]), for_op="fp4_weight_mm", activations="f16")


def test_nvfp4_rounded_on_a_base_for_each_row() -> None:
    """Of Gaussian weights 76 to 78 % stay exact, and their relative squared error goes from .0090 to .0094."""
    x = torch.randn(256, 4096)
    factor = global_scale_of(x)
    weights = quantise(x, NVFP4, global_scale=factor)
    packed = prepack(weights, for_op="nvfp4_fp8_mm_rounded", global_scale=factor)
    products, folded = weights.values(), packed.operand_values() * packed.fold.double().unsqueeze(1)
    assert torch.equal(packed.operand_values().float().to(torch.float8_e4m3fn).double(), packed.operand_values())
    assert ((folded - products).abs() <= rounded_fold_error(products, packed.fold.double().unsqueeze(1))).all()
    largest = packed.operand_values().abs().amax(dim=1)
    assert ((largest <= 448) & (largest > 208)).all(), "the base is not the smallest"
    report = packed.report
    assert report.changed == int((folded != products).sum())
    assert 0.76 <= 1 - report.changed / x.numel() <= 0.785
    error = [float((v - x).square().sum() / x.square().sum()) for v in (products / factor.double(), packed.values())]
    assert 0.0090 <= error[0] <= 0.0091 and 0.0093 <= error[1] <= 0.0095
    added = float((folded - products).square().sum() / products.square().sum())
    assert math.isclose(added, report.added_error, rel_tol=1e-9)
    assert torch.equal(packed.base, packed.fold / factor)
    assert "weights changed, which adds a relative squared error of" in str(report)


def test_nvfp4_on_a_base_of_zeros_and_of_the_limit() -> None:
    scales = torch.tensor([[0, 0], [126, 1], [0x3E, 0x3E]], dtype=u8)  # 0; 448 and 2^-9; 1.75
    weights = BlockScaled(format=NVFP4, codes=torch.full((3, 16), 0x77, dtype=u8), scales=scales)
    weights.codes[2, :] = 0x66
    packed = prepack(weights, for_op="nvfp4_fp8_mm_rounded", global_scale=torch.ones(1))
    assert packed.fold.tolist() == [1.0, 8.0, 2.0**-6]
    assert packed.operand_values()[:, 0].tolist() == [0.0, 320.0, 448.0]


@pytest.mark.parametrize("format", [MXFP4, MXFP6, NVFP4], ids=str)
def test_chunks_do_not_show(format: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(37, 96) * torch.exp2(torch.randint(-8, 8, (37, 3)).float()).repeat_interleave(32, 1)
    factor = global_scale_of(x) if format.has_global_scale else None
    weights = quantise(x, format, global_scale=factor)
    op = {"mxfp4": "mxfp4_fp8_mm", "mxfp6": "fp4_weight_mm", "nvfp4": "nvfp4_fp8_mm_rounded"}[format.name]
    whole = prepack(weights, for_op=op, global_scale=factor, allow_requant=True)
    monkeypatch.setattr(module, "_CHUNK", 96 * 5)
    parts = prepack(weights, for_op=op, global_scale=factor, allow_requant=True)
    assert torch.equal(whole.values(), parts.values()) and torch.equal(whole.base, parts.base)
    assert str(whole.report) == str(parts.report)
    fields = {"spread": None, "added_error": 0.0}
    assert replace(whole.report, **fields) == replace(parts.report, **fields)


@pytest.mark.parametrize("op", ["mxfp4_fp8_mm", "fp4_weight_mm"])
@pytest.mark.parametrize("shape", [(0, 64), (3, 0)])
def test_nothing_to_pack(op: str, shape: tuple[int, int]) -> None:
    packed = prepack(quantise(torch.zeros(shape), MXFP4), for_op=op)
    assert packed.values().shape == shape and packed.base.shape == (shape[0],)
    assert str(packed.report).startswith(f"{shape[0]} x {shape[1]} weights are packed exactly")


def nan_weights(format: Format, code: int) -> BlockScaled:
    codes = torch.zeros(3, 64, dtype=u8)
    codes[2, 33] = code
    return BlockScaled(format=format, codes=codes, scales=torch.full((3, 2), 127, dtype=u8))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            lambda: prepack(weights_of([[0]]), for_op="scaled_mm"),
            "there is nothing to prepack for 'scaled_mm': the ops are fp4_weight_mm, mxfp4_fp8_mm, nvfp4_fp8_mm_rounded",
        ),
        (
            lambda: prepack(weights_of([[0]], format=MXFP6), for_op="mxfp4_fp8_mm"),
            "mxfp4_fp8_mm takes mxfp4 weights, got mxfp6",
        ),
        (
            lambda: prepack(weights_of([[0]]), for_op="fp4_weight_mm", activations="f32"),
            "activations are 'f32', expected bf16 or f16",
        ),
        (
            lambda: prepack(weights_of([[0]]), for_op="fp4_weight_mm", global_scale=torch.ones(1)),
            "prepack for fp4_weight_mm got a global scale, which only nvfp4_fp8_mm_rounded has in its base: elsewhere it is "
            "part of alpha",
        ),
        (
            lambda: prepack(
                BlockScaled(format=NVFP4, codes=torch.zeros(1, 8, dtype=u8), scales=torch.zeros(1, 1, dtype=u8)),
                for_op="nvfp4_fp8_mm_rounded",
            ),
            "prepack for nvfp4_fp8_mm_rounded got no global scale, which it has in its base: elsewhere it is part of alpha",
        ),
        (
            lambda: prepack(
                BlockScaled(format=NVFP4, codes=torch.zeros(1, 8, dtype=u8), scales=torch.zeros(1, 1, dtype=u8)),
                for_op="nvfp4_fp8_mm_rounded",
                global_scale=torch.zeros(1),
            ),
            "global scale 0 is 0.0, expected a finite number above zero: it is 2688 / largest absolute value, and 1 for a "
            "tensor of zeros",
        ),
        (
            lambda: prepack(weights_of([[0]]), for_op="fp4_weight_mm", fallback="bf16"),
            "prepack for fp4_weight_mm got fallback='bf16': mxfp4_fp8_mm has one, 'bf16', other ops have none",
        ),
        (
            lambda: prepack(weights_of([[0]]), for_op="mxfp4_fp8_mm", fallback="f16"),
            "prepack for mxfp4_fp8_mm got fallback='f16': mxfp4_fp8_mm has one, 'bf16', other ops have none",
        ),
        (
            lambda: prepack(weights_of([[0]]), for_op="mxfp4_fp8_mm", fallback="bf16", allow_requant=True),
            "prepack got fallback='bf16' and allow_requant=True, two answers to one question: pass one",
        ),
        (
            lambda: prepack(weights_of([[0]]), for_op="fp4_weight_mm", base_per_group=True),
            "prepack for fp4_weight_mm got base_per_group=True: only mxfp4_fp8_mm adds sums of 128 columns",
        ),
        (
            lambda: prepack(nan_weights(MXFP8, 0xFF), for_op="fp4_weight_mm"),
            "weight [2, 33] of mxfp8 is NaN or infinite: a checkpoint's weights are finite",
        ),
        (
            lambda: prepack(nan_weights(MXFP8_E5M2, 0x7C), for_op="fp4_weight_mm"),
            "weight [2, 33] of mxfp8_e5m2 is NaN or infinite: a checkpoint's weights are finite",
        ),
        (
            lambda: prepack(nan_weights(MXFP8_E5M2, 0), for_op="fp4_weight_mm", activations="f16"),
            "f16 does not hold all e5m2 codes of mxfp8_e5m2 as normal numbers, whatever the base: pack for bf16",
        ),
    ],
)
def test_sentences(wrong: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        wrong()
    assert str(caught.value) == sentence
