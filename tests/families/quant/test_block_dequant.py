"""Block-scaled codes and scales back to values, on the CPU."""

import pytest
import torch

import gemmill
from gemmill.formats.codes import decode, unpack
from gemmill.formats.quantise import global_scale_of, swizzle
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4, Format

FORMATS = (NVFP4, MXFP4, MXFP6, MXFP8)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _coded(format: Format, rows: int = 5, groups: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and plain scales of every kind."""
    generator = torch.Generator().manual_seed(groups)
    codes = torch.randint(0, 256, (rows, format.code_bytes(groups * format.group)), generator=generator)
    scales = torch.randint(0, format.scale.last_code + 1, (rows, groups), generator=generator)
    return codes.to(torch.uint8).view(getattr(torch, format.torch_name)), scales.to(torch.uint8)


@pytest.mark.parametrize("swizzled", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_values_are_code_times_scale(format: Format, dtype: torch.dtype, swizzled: bool) -> None:
    codes, scales = _coded(format)
    given = (torch.tensor([0.37]),) if format.has_global_scale else ()
    op = getattr(gemmill, f"scaled_{format}_dequant")
    found = op(codes, swizzle(scales) if swizzled else scales, *given, dtype, swizzled)
    numbers = decode(unpack(codes.view(torch.uint8), format.code.bits), format.code)
    wanted = numbers * decode(scales, format.scale).repeat_interleave(format.group, dim=1)
    wanted = (wanted / given[0] if given else wanted).to(dtype)
    assert found.dtype is dtype and torch.equal(found.nan_to_num(0.5), wanted.nan_to_num(0.5))


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_what_was_quantised_comes_back_near(format: Format) -> None:
    """Within half a step of the code: a quarter of e2m1's values, an eighth of e3m2's, a sixteenth of e4m3's; leading dimensions stay."""
    x = torch.randn(2, 3, 4 * format.group, generator=torch.Generator().manual_seed(0)).bfloat16()
    given = (global_scale_of(x.flatten(0, 1)),) if format.has_global_scale else ()
    codes, scales = getattr(gemmill, f"scaled_{format}_quant")(x, *given)
    found = getattr(gemmill, f"scaled_{format}_dequant")(codes, scales, *given, torch.float32)
    assert found.shape == x.shape
    amax = x.float().unflatten(-1, (4, -1)).abs().amax(-1, keepdim=True)
    steps = {NVFP4: 0.25, MXFP4: 0.5, MXFP6: 0.25, MXFP8: 0.125}
    apart = (found - x.float()).unflatten(-1, (4, -1)).abs()
    assert bool((apart <= steps[format] * amax).all())


def test_rows_lie_apart_and_scales_come_as_words() -> None:
    codes, scales = _coded(MXFP6)
    wide = torch.zeros(5, codes.shape[1] + 7, dtype=torch.uint8)
    wide[:, 7:] = codes
    out = torch.full((5, 170), 7.0)
    words = swizzle(scales).view(torch.int32)
    torch.ops.gemmill.scaled_mxfp6_dequant(out[:, 3:163], wide[:, 7:], words)
    assert torch.equal(out[:, 3:163], gemmill.scaled_mxfp6_dequant(codes, scales, torch.float32, False))
    assert (out[:, :3] == 7.0).all() and (out[:, 163:] == 7.0).all()


def _bytes(*shape: int, fill: int = 0) -> torch.Tensor:
    return torch.full(shape, fill, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("op", "arguments", "sentence"),
    [
        (
            "mxfp6",
            (torch.zeros(5, 128), _bytes(5, 95), _bytes(128, 4)),
            "rows of 95 bytes are no whole number of mxfp6's groups, of 24 each",
        ),
        (
            "mxfp4",
            (torch.zeros(5, 100), _bytes(5, 64), _bytes(128, 4)),
            "out is [5, 100], expected [5, 128] for an input of [5, 64]",
        ),
        (
            "mxfp4",
            (_bytes(5, 128), _bytes(5, 64), _bytes(128, 4)),
            "out is uint8, expected bfloat16, float16 or float32",
        ),
        (
            "mxfp4",
            (torch.zeros(5, 128), _bytes(5, 64), _bytes(5, 4)),
            "input_sf is [5, 4], expected [scale_rows, scale_columns] = [128, 4]",
        ),
        (
            "mxfp4",
            (torch.zeros(5, 128), _bytes(5, 64), _bytes(5, 4, fill=255), False),
            "scale [0, 0] of mxfp4 is byte 255, which is no ue8m0 number: bytes 0 to 254 are",
        ),
        (
            "nvfp4",
            (torch.zeros(5, 128), _bytes(5, 64), _bytes(5, 8), torch.zeros(1), False),
            "global scale 0 is 0.0, expected a finite number above zero: it is 2688 / largest absolute value, and 1 for a tensor of zeros",
        ),
    ],
)
def test_what_does_not_fit_is_refused(op: str, arguments: tuple, sentence: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        getattr(torch.ops.gemmill, f"scaled_{op}_dequant")(*arguments)
    assert str(caught.value) == f"scaled_{op}_dequant: {sentence}"
