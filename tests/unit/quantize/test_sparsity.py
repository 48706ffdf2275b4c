"""Pruning, and 2:4 sparse FP4: values by the format's own arithmetic, layouts both ways, errors, sentences."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gemmill.formats.codes import decode, unpack
from gemmill.formats.sparse_fp4 import PATTERNS, SparseFp4, from_transposed_2to4
from gemmill.quantize import prune_to_fp4, pruned, quantize_weight
from gemmill.vocab.float_type import E2M1


def weight(n: int, k: int, seed: int = 0) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).bfloat16()


def experts(rescale: bool = False) -> SparseFp4:
    return prune_to_fp4([[weight(6, 96, e), 4 * weight(6, 96, e + 9)] for e in range(3)], rescale=rescale)[0]


def relative(after: Tensor, before: Tensor) -> float:
    return float((after.double() - before.double()).square().sum() / before.double().square().sum())


def test_the_two_largest_of_four_are_kept() -> None:
    x = torch.tensor([[1.0, -3, 2, 0, 5, 5, -5, 5, 0, 0, 0, -1, -0.0, 0, 0, 0]])
    assert pruned(x).tolist() == [[0, -3, 2, 0, 5, 5, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0]]
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        y = torch.randn(70, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
        z = pruned(y)
        assert z.dtype is dtype and bool(((z == y) | (z == 0)).all())
        assert bool(((z != 0).unflatten(1, (-1, 4)).sum(dim=-1) == 2).all())
        lost = torch.where(z == 0, y, 0).abs().unflatten(1, (-1, 4)).amax(dim=-1)
        assert bool((z.abs().unflatten(1, (-1, 4)).sort(dim=-1).values[..., 2] >= lost).all())


def test_values_are_codes_times_scales_at_their_places() -> None:
    made = experts()
    assert made.shape == (3, 12, 96) and made.parts == 2 and made.group == 16
    assert made.nbytes == 3 * 12 * 96 * 13 // 32 + 3 * 2 * 4
    codes = decode(unpack(made.codes, 4), E2M1)
    for expert in range(3):
        values, places = made.values(expert), made.places(expert)
        for row in range(12):
            for column in range(96):
                group = column // 4
                at = places[row, group].tolist()
                factor = made.weight_scale_2[expert, row // 6]
                code = float(codes[expert, row, 2 * group + at.index(column % 4)]) if column % 4 in at else 0.0
                scale = made.scales[expert, row, column // 16].view(torch.float8_e4m3fn).float()
                assert values[row, column] == code * scale * factor


def test_each_part_keeps_its_global_scale() -> None:
    made = experts()
    gate, up = made.weight_scale_2.unbind(dim=1)
    assert bool((up > 3 * gate).all())
    dense = quantize_weight(weight(6, 96, 1), "nvfp4")
    assert dense.global_scale is not None
    assert torch.equal(made.weight_scale_2[1, 0], (1 / dense.global_scale.double()).float()[0])


@pytest.mark.parametrize("rescale", [False, True])
def test_kept_weights_are_quantised_and_the_error_is_told(rescale: bool) -> None:
    sources = [[weight(64, 128, e), weight(64, 128, e + 5)] for e in range(2)]
    inputs = [torch.rand(16, 128, generator=torch.Generator().manual_seed(e)) for e in range(2)]
    made, errors = prune_to_fp4(sources, rescale=rescale, inputs=inputs)
    for e, parts in enumerate(sources):
        before, after = torch.cat(parts), made.values(e)
        assert errors[e].expert == e
        assert errors[e].weights == pytest.approx(relative(after, before), rel=1e-4)
        assert errors[e].pruned == pytest.approx(relative(pruned(before), before), rel=1e-4)
        wanted = inputs[e] @ before.float().t()
        assert errors[e].outputs == pytest.approx(relative(inputs[e] @ after.t(), wanted), rel=1e-3)
        kept = pruned(before) != 0
        assert relative(after[kept], before[kept]) < 0.012
        assert str(errors[e]).startswith(f"expert {e}: weights 1.") and ", of which pruning 1." in str(errors[e])


def test_least_squares_lessen_the_error() -> None:
    sources = [[weight(64, 256)]]
    plain, fitted = (prune_to_fp4(sources, rescale=rescale)[1][0] for rescale in (False, True))
    assert fitted.weights < plain.weights and fitted.pruned == plain.pruned
    skewed = [torch.rand(512, 256, generator=torch.Generator().manual_seed(0))]
    positive = [[weight(64, 256).abs()]]
    plain, fitted = (prune_to_fp4(positive, rescale=rescale, inputs=skewed)[1][0] for rescale in (False, True))
    assert fitted.outputs is not None and plain.outputs is not None
    assert fitted.outputs < 0.2 * plain.outputs, "positive weights and inputs lose a known part of each output"


def test_codes_of_nvfp4_are_kept() -> None:
    dense = quantize_weight(weight(32, 64), "nvfp4")
    made, (error,) = prune_to_fp4([[dense]])
    values = dense.values()
    assert torch.allclose(made.values(0), pruned(values), rtol=1e-6)
    assert torch.equal(made.scales[0], dense.scales)
    assert error.weights == pytest.approx(error.pruned, rel=1e-4) and error.pruned > 0.1


@pytest.mark.parametrize("group", [16, 8])
def test_the_articles_layout_is_written_and_read_to_the_bit(group: int) -> None:
    made = experts()
    if group == 8:
        made = replace(made, scales=made.scales.repeat_interleave(2, dim=2))
    tensors = made.transposed_2to4()
    assert {name: tuple(x.shape) for name, x in tensors.items()} == {
        "comp_T": (3, 24, 12),
        "meta_T": (3, 12, 12),
        "scale_T": (3, 96 // group, 12),
        "weight_scale_2": (3, 2),
    }
    again = from_transposed_2to4(tensors)
    for field in ("codes", "patterns", "scales", "weight_scale_2"):
        assert torch.equal(getattr(again, field), getattr(made, field))
    assert again.group == group
    codes, meta = tensors["comp_T"], tensors["meta_T"]
    scales, factors = tensors["scale_T"].float(), tensors["weight_scale_2"]
    found = torch.zeros(12, 96)
    for row in range(12):  # as the layout says it
        for g in range(24):
            nibble = int(meta[1, g // 2, row]) >> 4 * (g % 2) & 15
            byte = int(codes[1, g, row])
            for place, code in ((nibble & 3, byte & 15), (nibble >> 2, byte >> 4)):
                column = 4 * g + place
                value = E2M1.values[code] * float(scales[1, column // group, row])
                found[row, column] = value * float(factors[1, row // 6])
    assert torch.allclose(found, made.values(1), rtol=1e-6)


def test_one_part_has_one_factor() -> None:
    made = prune_to_fp4([[weight(4, 32)], [weight(4, 32, 1)]])[0]
    tensors = made.transposed_2to4()
    assert tensors["weight_scale_2"].shape == (2,)
    assert torch.equal(from_transposed_2to4(tensors).weight_scale_2, made.weight_scale_2)


def test_patterns_are_numbered() -> None:
    made = experts()
    assert sorted({tuple(p) for e in range(3) for p in made.places(e).flatten(0, 1).tolist()}) == list(PATTERNS)


def broken(**changes: Tensor) -> None:
    replace(experts(), **changes)


def read(**changes: Tensor) -> None:
    from_transposed_2to4(experts().transposed_2to4() | changes)


def changed(x: Tensor, place: tuple[int, ...], value: float) -> Tensor:
    y = x.clone()
    y[place] = value
    return y


_MADE = experts()
_TENSORS = _MADE.transposed_2to4()
_NAN = changed(weight(6, 96), (3, 17), torch.nan)
SENTENCES = {
    "NaN in a weight": (
        lambda: prune_to_fp4([[_NAN]]),
        "weight [3, 17] is nan: weights that are quantised are finite, so repair the checkpoint or leave the layer as it is",
    ),
    "NaN in a matrix": (
        lambda: pruned(_NAN),
        "weight [3, 17] is nan: weights that are quantised are finite, so repair the checkpoint or leave the layer as it is",
    ),
    "pattern of three bits": (
        lambda: broken(patterns=changed(_MADE.patterns, (1, 4, 3), 0x3E)),
        "expert 1, row 4 has pattern 6 for columns 32 to 35: patterns 0 to 5 are the pairs of four places",
    ),
    "pattern of the article's": (
        lambda: read(meta_T=changed(_TENSORS["meta_T"], (2, 5, 7), 0x46)),
        "meta_T: expert, row 2, 7 keeps places 2 and 1 of columns 40 to 43: the first must be the lower",
    ),
    "both at one place": (
        lambda: read(meta_T=changed(_TENSORS["meta_T"], (0, 0, 0), 0x54)),
        "meta_T: expert, row 0, 0 keeps places 1 and 1 of columns 4 to 7: the first must be the lower",
    ),
    "NaN as a scale": (
        lambda: read(scale_T=changed(_TENSORS["scale_T"].view(torch.uint8), (1, 2, 3), 127).view(torch.float8_e4m3fn)),
        "scale_T of expert 1, row 3, group 2 is byte 127, which is no number of ue4m3: bytes 0 to 126 are",
    ),
    "groups of scales": (
        lambda: read(scale_T=_TENSORS["scale_T"][:, :5]),
        "scale_T has 5 groups of (3, 12) rows for weights of [3, 12, 96]: there are K / 16 = 6 or K / 8 = 12",
    ),
    "metadata of another K": (
        lambda: read(meta_T=_TENSORS["meta_T"][:, :11]),
        "meta_T is [3, 11, 12] beside a comp_T of [3, 24, 12], expected [E, K / 8, N] with K = 96, a multiple of 32",
    ),
    "a factor that is no number": (
        lambda: read(weight_scale_2=changed(_TENSORS["weight_scale_2"], (2, 1), torch.inf)),
        "weight_scale_2 of expert 2, part 1 is inf, expected a finite number, 0 or above",
    ),
    "parts that do not divide": (
        lambda: read(weight_scale_2=torch.ones(3, 5)),
        "weight_scale_2 is torch.float32 of [3, 5], expected float32 [3, parts], where parts divide the 12 rows of an expert",
    ),
    "a tensor that is missing": (
        lambda: from_transposed_2to4({"comp_T": _TENSORS["comp_T"]}),
        "transposed_2to4 lacks meta_T: it has comp_T",
    ),
    "K of a weight": (
        lambda: prune_to_fp4([[weight(6, 48)]]),
        "the weight has shape [6, 48], expected [N, K] with K a multiple of 32, whose patterns are whole bytes",
    ),
    "experts that differ": (
        lambda: prune_to_fp4([[weight(6, 32)], [weight(8, 32)]]),
        "expert 1 has parts of [[8, 32]], expected [6, 32] of all parts and experts",
    ),
    "another format": (
        lambda: prune_to_fp4([[quantize_weight(weight(6, 32), "mxfp4")]]),
        "the weight is mxfp4: 2:4 sparse FP4 is made of floats or of nvfp4",
    ),
    "no experts": (lambda: prune_to_fp4([]), "there are 0 experts of no parts: each has one weight or more"),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_what_cannot_be_is_told(name: str) -> None:
    make, said = SENTENCES[name]
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == said
