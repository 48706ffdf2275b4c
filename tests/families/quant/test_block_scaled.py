"""The block-scaled ops on the CPU: layouts of scales, padding, activations, sentences."""

import pytest
import torch

import gemmill
from gemmill.compat import lightx2v
from gemmill.families.quant.config import Activation
from gemmill.families.quant.reference import activated, block_quant, gelu
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
    """Nothing else is written: bytes between rows stay."""
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


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_gelu_of_whole_rows_is_coded_from_f32(activation: str) -> None:
    x = _rows(7, 128)
    codes, scales = gemmill.scaled_mxfp8_gelu_quant(x, activation, "ocp", False)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    kind = Activation.ONLY_GELU_TANH if activation == "gelu_tanh" else Activation.ONLY_GELU_ERF
    values = activated(x, kind)
    torch.testing.assert_close(values, torch.nn.functional.gelu(x.float(), approximate=approximate))
    wanted = quantise(values, MXFP8, rounding=ScaleRounding.OCP)
    assert torch.equal(_bytes(codes), wanted.codes) and torch.equal(scales, wanted.scales)


@pytest.mark.parametrize("scale_rows", [1, 6])
@pytest.mark.parametrize("shift_rows", [1, 6])
def test_rows_are_modulated_in_f32(scale_rows: int, shift_rows: int) -> None:
    x, scale, shift = _rows(6, 64), _rows(scale_rows, 96)[:, :64], _rows(shift_rows, 64)
    wanted = quantise(x.float() * (1.0 + scale.float()) + shift.float(), MXFP8)
    given = [y[0] if y.shape[0] == 1 else y for y in (scale, shift)]
    codes, scales = gemmill.scaled_mxfp8_modulate_quant(x, *given, is_sf_swizzled_layout=False)
    assert torch.equal(_bytes(codes), wanted.codes) and torch.equal(scales, wanted.scales)
    same = gemmill.scaled_mxfp8_modulate_quant(
        x.reshape(2, 3, 64), *(y if y.dim() == 1 else y.reshape(2, 3, 64) for y in given)
    )
    assert torch.equal(_bytes(same[0]).reshape(6, 64), wanted.codes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_light_x2v_makes_of_rows_is_rounded_before_it_is_coded(dtype: torch.dtype) -> None:
    """As LightX2V's own test has it, bit for bit: its plain op of torch's result; f32 throughout gives another."""
    x, scale, shift = (_rows(257, 512).to(dtype) for _ in range(3))
    scale, shift = scale[0] * 0.1, shift[1]
    of_gelu = gelu(x.float(), by_tanh=True, contracted=True).to(dtype)
    torch.testing.assert_close(of_gelu, torch.nn.functional.gelu(x, approximate="tanh"))
    made = (x.float() * (1.0 + scale.float()) + shift.float()).to(dtype)
    modulations = [(scale, shift), (scale.view(1, 1, -1), shift.expand(257, -1))]
    calls = [lightx2v.scaled_mxfp8_gelu_quant(x), *(lightx2v.scaled_mxfp8_modulate_quant(x, *y) for y in modulations)]
    for found, rounded in zip(calls, (of_gelu, made, made), strict=True):
        wanted = lightx2v.scaled_mxfp8_quant(rounded)
        assert all(torch.equal(_bytes(a), _bytes(b)) for a, b in zip(found, wanted, strict=True))
    for found, own in zip(
        calls, (gemmill.scaled_mxfp8_gelu_quant(x), gemmill.scaled_mxfp8_modulate_quant(x, scale, shift)), strict=False
    ):
        assert not torch.equal(found[0], _bytes(own[0]))
    with pytest.raises(RuntimeError, match=r"^scaled_mxfp8_modulate_quant: mod_scale has shape \[3\]"):
        lightx2v.scaled_mxfp8_modulate_quant(x, scale[:3], shift)


def test_gelu_is_torchs_where_it_is_rounded() -> None:
    """In the argument of tanh product and sum are rounded once."""
    x = torch.linspace(-6, 6, 4096)
    cube = (x * x * x).double() * torch.tensor(0.044715).double()
    inner = torch.tensor(0.7978845608028654) * (cube + x.double()).float()
    assert torch.equal(gelu(x, by_tanh=True, contracted=True), 0.5 * x * (1.0 + torch.tanh(inner)))
    assert not torch.equal(gelu(x, by_tanh=True, contracted=True), gelu(x, by_tanh=True))


@pytest.mark.parametrize("swizzled", [True, False])
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_wider_codes_are_padded_with_groups_of_zeros(format: Format, swizzled: bool) -> None:
    group, rows = format.group, 3
    x = _rows(rows, 5 * group)
    op = getattr(torch.ops.gemmill, f"scaled_{format}_quant")
    out = torch.full((rows, format.code_bytes(9 * group)), 0x5A, dtype=torch.uint8)
    scales = torch.full((128, 12) if swizzled else (rows, 9), 0x77, dtype=torch.uint8)
    op(out.view(getattr(torch, format.torch_name)), scales, x, *_given(format, x), swizzled)
    wanted = block_quant(x, format, global_scale=global_scale_of(x) if format.has_global_scale else None)
    found = unswizzle(scales, 128, 12)[:rows] if swizzled else scales
    assert torch.equal(out[:, : wanted[0].shape[1]], wanted[0]) and not out[:, wanted[0].shape[1] :].any()
    assert torch.equal(found[:, :5], wanted[1]) and not found[:, 5:].any()


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_swizzled_scales_come_as_words_of_four(format: Format) -> None:
    x = _rows(5, 3 * format.group)
    codes, wanted = getattr(gemmill, f"scaled_{format}_quant")(x, *_given(format, x))
    scales = torch.full((128, 1), -1, dtype=torch.int32)
    getattr(torch.ops.gemmill, f"scaled_{format}_quant")(torch.empty_like(codes), scales, x, *_given(format, x))
    assert torch.equal(scales.view(torch.uint8), _bytes(wanted))


def test_a_global_scale_may_be_a_number_and_is_looked_at() -> None:
    x = _rows(2, 32)
    found, wanted = gemmill.scaled_nvfp4_quant(x, 300.0), gemmill.scaled_nvfp4_quant(x, torch.tensor([300.0]))
    assert all(torch.equal(_bytes(a), _bytes(b)) for a, b in zip(found, wanted, strict=True))
    with pytest.raises(ValueError, match=r"^global scale is 0\.0, expected a finite number above zero"):
        gemmill.silu_and_mul_nvfp4_quant(x, 0.0)
    with pytest.raises(ValueError, match=r"^activation is 'silu', expected 'gelu_tanh' or 'gelu'$"):
        gemmill.scaled_mxfp8_gelu_quant(x, "silu")


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
            "out is [5, 64], expected [5, 96] for an input of [5, 128], or wider rows of whole groups, padded with zeros",
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
            (_zeros(5, 64), _zeros(5, 1, dtype=torch.int32), _rows(5, 128), "up", False),
            "out_sf is int32: scales in rows are bytes, only swizzled ones come as words of four",
        ),
        (
            "scaled_nvfp4_quant",
            (_zeros(5, 60), _zeros(128, 8), _rows(5, 128), torch.ones(1)),
            "out is [5, 60], expected [5, 64] for an input of [5, 128], or wider rows of whole groups, padded with zeros",
        ),
        (
            "scaled_mxfp8_modulate_quant",
            (
                _zeros(5, 64, dtype=torch.float8_e4m3fn),
                _zeros(128, 4),
                _rows(5, 64),
                _rows(5, 64)[0],
                _rows(4, 64),
                "up",
            ),
            "mod_shift has shape [4, 64] and strides [64, 1]: expected [64] or [5, 64], rows of contiguous values",
        ),
        (
            "scaled_mxfp8_modulate_quant",
            (
                _zeros(5, 64, dtype=torch.float8_e4m3fn),
                _zeros(128, 4),
                _rows(5, 64),
                torch.ones(64),
                _rows(5, 64),
                "up",
            ),
            "mod_scale is float32, expected bfloat16",
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
    with pytest.raises(RuntimeError, match=r"scaled_nvfp4_quant: .*expected a finite number above zero"):
        gemmill.scaled_nvfp4_quant(_rows(2, 32), torch.tensor([value]))
