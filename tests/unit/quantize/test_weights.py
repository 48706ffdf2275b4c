"""`quantize_weight`: codes are the nearest, memory is bounded, and other weights are refused in a sentence."""

import pytest
import torch

from gemmill.formats.quantise import global_scale_of, quantise
from gemmill.quantize import WEIGHT_FORMATS, layer_error, quantize_weight, weights
from gemmill.vocab.float_type import E4M3
from gemmill.vocab.format import NVFP4, ScaleRounding, format_named


def drawn(n: int, k: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(n * k)).to(dtype)


def numbers_of(format: str) -> torch.Tensor:
    """All values of a code, float64."""
    if format == "int8":
        return torch.arange(-127, 128, dtype=torch.float64)
    return torch.tensor([v for v in E4M3.values if v == v], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("format", ["channel", "int8", "block128"])
def test_every_code_is_the_nearest(format: str, dtype: torch.dtype) -> None:
    weight = drawn(130, 200, dtype)
    made = quantize_weight(weight, format)
    scales = made.scales.double()
    largest = numbers_of(format).max()
    if format == "block128":
        padded = torch.nn.functional.pad(weight.double(), (0, 56, 0, 126)).abs()
        amax = padded.view(2, 128, 2, 128).amax(dim=(1, 3))
        scales = scales.repeat_interleave(128, 0)[:130].repeat_interleave(128, 1)[:, :200]
    else:
        amax = weight.double().abs().amax(dim=1, keepdim=True)
    assert torch.allclose(made.scales.double(), amax / largest, rtol=2**-22)
    ratio = weight.double() / scales
    least = (ratio[..., None] - numbers_of(format)).abs().amin(dim=-1)
    # The f32 quotient may lie a rounding to the other side of a boundary.
    assert ((ratio - made.codes.double()).abs() <= least + ratio.abs() * 2**-22).all()
    assert torch.equal(made.values(), made.codes.float() * scales.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_of_32_have_the_least_power_of_two(dtype: torch.dtype) -> None:
    """By half of it the largest magnitude of a block would be beyond e4m3."""
    weight = drawn(130, 200, dtype)
    weight[:32, :32] = torch.linspace(0, 448, 1024).reshape(32, 32)  # a power of two times 448 needs no larger scale
    weight[32:64, :32] = 0
    made = quantize_weight(weight, "block32")
    amax = torch.nn.functional.pad(weight.float(), (0, 24, 0, 30)).abs().view(5, 32, 7, 32).amax(dim=(1, 3))
    assert made.scales.shape == (5, 7) and made.scales.dtype is torch.float32
    assert made.scales[0, 0] == made.scales[1, 0] == 1
    assert (torch.frexp(made.scales).mantissa == 0.5).all()
    assert (amax <= 448 * made.scales).all() and ((amax > 224 * made.scales) | (amax == 0)).all()
    spread = made.scales.repeat_interleave(32, 0)[:130].repeat_interleave(32, 1)[:, :200]
    assert torch.equal(made.codes.float(), (weight.float() / spread).to(torch.float8_e4m3fn).float())
    assert torch.equal(made.values(), made.codes.float() * spread)


def test_zero_points_are_those_of_compressed_tensors() -> None:
    """Its arithmetic in f64: scales of the range with zero, a zero point among the codes, nearest codes."""
    weight = drawn(33, 200) * 3 + torch.linspace(-6, 6, 33).reshape(-1, 1)
    weight[5] = 0
    made = quantize_weight(weight, "int8_asymmetric")
    assert made.zero_points is not None and (made.codes.dtype, made.zero_points.dtype) == (torch.int8, torch.int32)
    low, high = weight.double().amin(1, keepdim=True).clamp(max=0), weight.double().amax(1, keepdim=True).clamp(min=0)
    scales = torch.where(high == low, 1.0, (high - low) / 255)
    assert torch.allclose(made.scales.double(), scales, rtol=2**-22)
    points = (-128 - low / scales).clamp(-128, 127)
    assert ((made.zero_points - points).abs() <= 0.5 + 2**-12).all() and made.zero_points.unique().numel() > 20
    shifted = (weight.double() / made.scales + made.zero_points).clamp(-128, 127)
    assert ((made.codes - shifted).abs() <= 0.5 + 2**-12).all()
    assert torch.equal(made.values(), (made.codes.float() - made.zero_points) * made.scales)
    assert (made.values()[5] == 0).all() and ((made.values() - weight).abs() <= 1.01 * made.scales).all()
    assert layer_error("", weight, made).weights < layer_error("", weight, quantize_weight(weight, "int8")).weights


def test_ties_go_to_the_even_code_and_nothing_saturates_to_nan() -> None:
    weight = torch.tensor([[448.0, 17.0, 19.0, -448.0], [127.0, 0.5, 1.5, -2.5]])
    assert quantize_weight(weight, "channel").codes[0].float().tolist() == [448, 16, 20, -448]
    assert quantize_weight(weight[1:], "int8").codes.tolist() == [[127, 0, 2, -2]]


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp6", "mxfp8"])
def test_block_scaled_ones_are_the_definition(format: str) -> None:
    weight, kind = drawn(5, 96, torch.bfloat16), format_named(format)
    factor = global_scale_of(weight) if format == "nvfp4" else None
    made = quantize_weight(weight, format)
    wanted = quantise(weight, kind, global_scale=factor)
    assert torch.equal(made.codes.view(torch.uint8), wanted.codes) and torch.equal(made.scales, wanted.scales)
    exact = wanted.values() / (1.0 if factor is None else factor.double())
    assert torch.equal(made.values(), exact.float())
    if factor is None:
        by_ocp = quantise(weight, kind, rounding=ScaleRounding.OCP)
        assert torch.equal(quantize_weight(weight, format, scale_rounding="ocp").scales, by_ocp.scales)


@pytest.mark.parametrize("format", WEIGHT_FORMATS)
def test_chunks_change_nothing(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = drawn(300, 160)
    whole, error = quantize_weight(weight, format), layer_error("a", weight, quantize_weight(weight, format))
    monkeypatch.setattr(weights, "CHUNKS", {"cpu": 1000, "cuda": 1})
    parts = quantize_weight(weight, format)
    assert all(torch.equal(parts.tensors[name], tensor) for name, tensor in whole.tensors.items())
    assert (whole.n, whole.k) == (300, 160)
    assert layer_error("a", weight, parts).weights == pytest.approx(error.weights, rel=1e-12)
    rows = slice(127, 131)
    assert torch.equal(whole.values(rows), whole.values()[rows])


@pytest.mark.parametrize("format", WEIGHT_FORMATS)
def test_no_graph_of_the_weight_is_kept(format: str) -> None:
    """The weight of a layer requires grad, and so may a global scale that several share."""
    weight = torch.nn.Parameter(drawn(130, 160))
    factor = {"global_scale": torch.nn.Parameter(torch.ones(1))} if format == "nvfp4" else {}
    made = quantize_weight(weight, format, **factor)
    assert not any(tensor.requires_grad for tensor in made.tensors.values())
    wanted = quantize_weight(weight.detach(), format, **factor)
    assert all(torch.equal(made.tensors[name], tensor) for name, tensor in wanted.tensors.items())
    with torch.autograd.graph.saved_tensors_hooks(pytest.fail, pytest.fail):
        layer_error("a", weight, made)


@pytest.mark.parametrize("format", WEIGHT_FORMATS)
@pytest.mark.parametrize("value", [1e300, -1e39, 3.4028236e38])
def test_weights_beyond_float32_are_refused(format: str, value: float) -> None:
    weight = drawn(130, 160, torch.float64)
    weight[129, 3] = torch.finfo(torch.float32).max
    assert not quantize_weight(weight, format).values()[:128].isnan().any()
    weight[129, 3] = value
    with pytest.raises(ValueError) as error:
        quantize_weight(weight, format)
    assert str(error.value) == (
        f"weight [129, 3] is {value}: weights that are quantised are finite in float32, so repair the checkpoint or leave the "
        "layer as it is"
    )


@pytest.mark.parametrize("format", WEIGHT_FORMATS)
@pytest.mark.parametrize("shape", [(0, 64), (3, 0)])
def test_empty_and_zero_weights(format: str, shape: tuple[int, int]) -> None:
    assert quantize_weight(torch.empty(shape), format).values().shape == shape
    zeros = quantize_weight(torch.zeros(2, 32), format)
    assert not zeros.values().any() and torch.isfinite(zeros.scales.float()).all()
    assert layer_error("zeros", torch.zeros(2, 32), zeros).weights == 0


def test_tiny_rows_keep_their_codes() -> None:
    weight = drawn(4, 64) * 1e-30
    for format in ("channel", "int8", "block128", "block32"):
        assert layer_error("tiny", weight, quantize_weight(weight, format)).weights < 2e-3


@pytest.mark.parametrize("largest", [1e-40, 1e-44, 1e-45])
def test_scales_are_normal_numbers(largest: float) -> None:
    """A GPU may read others as 0, and a quotient by 0 is NaN."""
    weight, info = torch.full((3, 64), largest), torch.finfo(torch.float32)
    for format in ("channel", "int8", "block128", "block32"):
        made = quantize_weight(weight, format)
        assert (made.scales == info.tiny).all() and (made.values() <= largest).all(), format
    made = quantize_weight(weight, "nvfp4")
    assert made.global_scale is not None and made.global_scale.tolist() == [info.max]
    assert (made.values() <= 1.1 * largest).all()


def test_a_global_scale_may_be_shared() -> None:
    weight = drawn(4, 32)
    shared = torch.tensor([100.0])
    assert torch.equal(
        quantize_weight(weight, "nvfp4", global_scale=shared).scales,
        quantise(weight, NVFP4, global_scale=shared).scales,
    )


@pytest.mark.parametrize(
    ("weight", "format", "sentence"),
    [
        (
            torch.zeros(2, 32),
            "fp4",
            "there is no weight format 'fp4': the formats are channel, int8, int8_asymmetric, block128, block32, group128, nvfp4, mxfp4, mxfp6, mxfp8",
        ),
        (torch.zeros(32), "channel", "the weight has shape [32], expected [N, K], two dimensions"),
        (
            torch.zeros(2, 40),
            "mxfp4",
            "mxfp4 takes K in multiples of its group of 32, got K = 40: pad K with zeros to 64",
        ),
        (
            torch.zeros(2, 32, dtype=torch.int8),
            "channel",
            "the weight is int8, which is quantised already or no number: quantisation takes bfloat16, float16, float32, "
            "float64",
        ),
        (
            torch.tensor([[1.0, 2.0], [3.0, float("nan")]]),
            "int8",
            "weight [1, 1] is nan: weights that are quantised are finite, so repair the checkpoint or leave the layer as it is",
        ),
        (
            torch.tensor([[1.0, -torch.inf]]),
            "channel",
            "weight [0, 1] is -inf: weights that are quantised are finite, so repair the checkpoint or leave the layer as it is",
        ),
    ],
)
def test_what_is_refused(weight: torch.Tensor, format: str, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        quantize_weight(weight, format)
    assert str(error.value) == sentence


def test_a_global_scale_is_nvfp4s() -> None:
    with pytest.raises(ValueError) as error:
        quantize_weight(torch.zeros(2, 32), "mxfp4", global_scale=torch.ones(1))
    assert str(error.value) == "quantisation to mxfp4 got a global scale, which only nvfp4 has: leave it out"


def test_errors_are_those_of_weights_and_outputs() -> None:
    weight, inputs = drawn(8, 64), drawn(10, 64)
    made = quantize_weight(weight, "mxfp8")
    change = made.values().double() - weight.double()
    error = layer_error("layer", weight, made, inputs)
    assert error.weights == pytest.approx(float(change.square().sum() / weight.double().square().sum()), rel=1e-6)
    outputs = (inputs.double() @ change.t()).square().sum() / (inputs.double() @ weight.double().t()).square().sum()
    assert error.outputs == pytest.approx(float(outputs), rel=1e-5)
    assert str(error).startswith("layer: 8 x 64 to mxfp8, weights ") and ", outputs " in str(error)


def test_rows_of_mxfp4_that_do_not_fold_are_named() -> None:
    weight = torch.ones(3, 64)
    weight[1, 32:] = 2.0**-14
    weight[2, 32:] = 2.0**-15
    error = layer_error("layer", weight, quantize_weight(weight, "mxfp4"))
    assert (error.unfolded, error.spread, error.unfolded_rows) == (1, 15, ((2, 15),))
    assert str(error).endswith("weights 0.00e+00, 1 of 3 rows does not fold: 2 (spread 15)")
    folds = layer_error("layer", weight[:2], quantize_weight(weight[:2], "mxfp4"))
    assert (folds.unfolded, folds.unfolded_rows) == (0, ())
    assert str(folds).endswith("weights 0.00e+00, every row folds (spread 14 at most)")
    other = layer_error("layer", weight, quantize_weight(weight, "nvfp4"))
    assert (other.unfolded, other.unfolded_rows, other.folding) == (None, None, "")
    many = weight.repeat(9, 1)
    many[5, 32:] = 2.0**-18
    error = layer_error("layer", many, quantize_weight(many, "mxfp4"))
    assert error.unfolded_rows == tuple((row, 18 if row == 5 else 15) for row in range(2, 27, 3))
    assert error.folding == (
        "9 of 27 rows do not fold: 2 (spread 15), 5 (spread 18), 8 (spread 15), 11 (spread 15), 14 (spread 15) and 4 more"
    )


def test_shapes_of_an_error_agree() -> None:
    made = quantize_weight(torch.zeros(2, 32), "channel")
    with pytest.raises(ValueError, match=r"^a is \[3, 32\] and its quantised form 2 x 32: they are not one layer's$"):
        layer_error("a", torch.zeros(3, 32), made)
    with pytest.raises(ValueError, match=r"^inputs of a are \[3, 31\], expected \[tokens, 32\]$"):
        layer_error("a", torch.zeros(2, 32), made, torch.zeros(3, 31))
