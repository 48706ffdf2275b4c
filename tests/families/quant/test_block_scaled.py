"""The block-scaled ops on the CPU: layouts of scales, padding, activations, sentences."""

import pytest
import torch

import gemmill
from gemmill.families.quant.config import Activation
from gemmill.families.quant.reference import activated, block_quant
from gemmill.formats.quantise import global_scale_of, quantise, swizzle, unswizzle
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4, Format, ScaleRounding

FORMATS = (NVFP4, MXFP4, MXFP6, MXFP8)
SHAPES = ((1, 32), (5, 96), (128, 128), (130, 160))


def _rows(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(dtype)


def _given(format: Format, x: torch.Tensor, rounding: str = "up") -> tuple[object, ...]:
    return (global_scale_of(x),) if format.has_global_scale else (rounding,)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_codes_and_scales_are_the_definitions(format: Format, dtype: torch.dtype) -> None:
    for (rows, hidden), rounding in ((shape, rounding) for shape in SHAPES for rounding in ScaleRounding):
        x = _rows(rows, hidden, dtype)
        given = global_scale_of(x) if format.has_global_scale else None
        wanted = quantise(x, format, global_scale=given, rounding=rounding)
        op = getattr(gemmill, f"scaled_{format}_quant")
        if format.has_global_scale and rounding is ScaleRounding.OCP:
            continue
        codes, scales = op(x, *_given(format, x, rounding))
        assert torch.equal(_bytes(codes), wanted.codes)
        assert torch.equal(_bytes(scales), swizzle(wanted.scales))
        assert torch.equal(_bytes(op(x, *_given(format, x, rounding), False)[1]), wanted.scales)


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_padding_is_zeroed_and_rows_lie_apart(format: Format) -> None:
    """Nothing else is written: what lies between rows stays."""
    group, rows = format.group, 130
    x = _rows(rows, 3 * group + 8)[:, : 3 * group]
    out = torch.full((rows, format.code_bytes(3 * group) + 5), 0x5A, dtype=torch.uint8)
    codes = out[:, :-5]
    scales = torch.full((256, 4), 0x77, dtype=torch.uint8)
    op = getattr(torch.ops.gemmill, f"scaled_{format}_quant")
    op(codes.view(getattr(torch, format.torch_name)), scales, x, *_given(format, x))
    wanted = block_quant(x, format, global_scale=global_scale_of(x) if format.has_global_scale else None)
    assert torch.equal(codes, wanted[0]) and (out[:, -5:] == 0x5A).all()
    assert torch.equal(unswizzle(scales, 256, 4)[:rows, :3], wanted[1])
    assert not unswizzle(scales, 256, 4)[rows:].any() and not unswizzle(scales, 256, 4)[:, 3:].any()


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_gated_rows_are_coded_from_f32(format: Format) -> None:
    x = _rows(7, 128)
    given = global_scale_of(x)
    codes, scales = getattr(gemmill, f"silu_and_mul_{format}_quant")(x, *_given(format, x))
    wanted = quantise(activated(x, Activation.SILU), format, global_scale=given if format.has_global_scale else None)
    assert torch.equal(_bytes(codes), wanted.codes) and torch.equal(_bytes(scales), swizzle(wanted.scales))


def test_leading_dimensions_are_rows() -> None:
    x = _rows(6, 64)
    codes, scales = gemmill.scaled_mxfp6_quant(x.reshape(2, 3, 64))
    assert codes.shape == (2, 3, 48) and scales.shape == (128, 4)
    assert torch.equal(codes.reshape(6, 48), gemmill.scaled_mxfp6_quant(x)[0])


def _zeros(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("op", "arguments", "sentence"),
    [
        (
            "scaled_mxfp4_quant",
            (_zeros(5, 60), _zeros(128, 4), _rows(5, 120), "up"),
            "rows of 120 values are not a multiple of mxfp4's group of 32",
        ),
        (
            "scaled_mxfp6_quant",
            (_zeros(5, 64), _zeros(128, 4), _rows(5, 128), "up"),
            "out is [5, 64], expected [5, 96] for an input of [5, 128]",
        ),
        (
            "scaled_nvfp4_quant",
            (_zeros(5, 64), _zeros(5, 8), _rows(5, 128), torch.ones(1)),
            "out_sf is [5, 8], expected [scale_rows, scale_columns] = [128, 8]",
        ),
        (
            "scaled_nvfp4_quant",
            (_zeros(5, 64), _zeros(128, 8), _rows(5, 128), torch.ones(1), False),
            "out_sf is [128, 8], expected [scale_rows, scale_columns] = [5, 8]",
        ),
        (
            "scaled_mxfp4_quant",
            (_zeros(5, 64), _zeros(128, 8)[:, :4], _rows(5, 128), "up"),
            "out_sf has strides [8, 1]: swizzled scales must be contiguous",
        ),
        (
            "scaled_mxfp8_quant",
            (_zeros(5, 128), _zeros(128, 4), _rows(5, 128), "up"),
            "out is uint8, expected float8_e4m3fn",
        ),
        (
            "scaled_mxfp8_quant",
            (_zeros(5, 128, dtype=torch.float8_e4m3fn), _zeros(128, 4), _rows(5, 128), "down"),
            "scale_rounding is 'down', expected 'up' or 'ocp'",
        ),
        (
            "scaled_nvfp4_quant",
            (_zeros(5, 64), _zeros(128, 8), _rows(5, 128), torch.ones(2)),
            "global_scale has shape [2]: expected one value",
        ),
        (
            "scaled_mxfp4_quant",
            (_zeros(5, 64), _zeros(128, 4), _rows(5, 128, torch.float32), "up"),
            "input is float32, expected bfloat16 or float16",
        ),
    ],
)
def test_what_does_not_fit_is_refused(op: str, arguments: tuple[object, ...], sentence: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        getattr(torch.ops.gemmill, op)(*arguments)
    assert str(caught.value) == f"{op}: {sentence}"


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_global_scale_that_is_no_number_above_zero_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="expected a finite number above zero"):
        gemmill.scaled_nvfp4_quant(_rows(2, 32), torch.tensor([value]))
