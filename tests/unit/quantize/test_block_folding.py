"""Blocks of 32 x 32 fold into scales for each 128 along K exactly, or say that they do not."""

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.nn import QuantLinear
from gemmill.quantize import QuantizedWeight, block_folding, folding_share, prepack_blocks, quantize_weight, weights
from gemmill.quantize.block_folding import FOLDS
from gemmill.quantize.weights import BLOCKS

E4M3 = torch.float8_e4m3fn
N, K = 136, 288


def generator(seed: int = 41) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(n: int = N, k: int = K, high: int = 3) -> QuantizedWeight:
    """Any codes but NaN, on powers of two that spread over `high` - 1 binary orders."""
    codes = torch.randint(0, 254, (n, k), generator=generator(), dtype=torch.int32)
    codes = torch.where(codes >= 127, codes + 1, codes).to(torch.uint8)
    exponents = torch.randint(0, high, (-(-n // 32), -(-k // 32)), generator=generator(1), dtype=torch.int32) - 9
    return QuantizedWeight(format="block32", codes=codes.view(E4M3), scales=torch.exp2(exponents.float()))


def of_values(values: Tensor, exponents: Tensor) -> QuantizedWeight:
    """Codes by which values stand on scales."""
    scales = torch.exp2(exponents.float())
    spread = scales.repeat_interleave(32, 0)[: len(values)].repeat_interleave(32, 1)[:, : values.shape[1]]
    codes = (values / spread).to(E4M3)
    assert torch.equal(codes.float() * spread, values), "the test's own values"
    return QuantizedWeight(format="block32", codes=codes, scales=scales)


def holds(values: Tensor, format: str) -> Tensor:
    """Whether there is a base, of all, on which each value of a block is a number of e4m3, by trying them."""
    high, wide = BLOCKS[format]
    padded = torch.nn.functional.pad(values.double(), (0, -values.shape[1] % wide, 0, -len(values) % high))
    blocks = padded.unflatten(1, (-1, wide)).unflatten(0, (-1, high)).movedim(1, 2)
    found = torch.zeros(blocks.shape[:2], dtype=torch.bool)
    for base in range(-30, 30):
        on_base = blocks * 2.0**-base
        rounded = on_base.clamp(-448, 448).float().to(E4M3).double()
        found |= (rounded == on_base).all(-1).all(-1)
    return found


@pytest.mark.parametrize("format", FOLDS)
def test_groups_that_fold_are_those_that_a_base_holds(format: str) -> None:
    """Of every code, and of shares between none and all: the rows have few codes that a shift loses."""
    weight = drawn()
    for sparse in (1.0, 0.05, 0.01):
        keep = torch.rand(N, K, generator=generator(3)) < sparse
        few = replace(weight, codes=torch.where(keep, weight.codes.view(torch.uint8), 0x48).view(E4M3))
        wanted = holds(few.values(), format)
        assert folding_share(few, format) == pytest.approx(float(wanted.float().mean()))
        assert torch.equal(block_folding._Folding(few, format).fits, wanted)


@pytest.mark.parametrize("format", FOLDS)
@pytest.mark.parametrize("chunk", [1 << 18, 1000])
def test_a_weight_that_folds_has_the_same_values(format: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "CHUNKS", {"cpu": chunk, "cuda": chunk})
    values = torch.randint(-15, 16, (N, K), generator=generator()).float()
    values[:32, :32], values[5] = 0, 0
    exponents = torch.randint(-5, 1, (-(-N // 32), K // 32), generator=generator(2))  # 15 * 2^5 is beyond 448
    weight = of_values(values, exponents.clamp(min=-4))
    made = prepack_blocks(weight, fold=format)
    assert made.weight.format == format and made.report.exact and made.report.added_error == 0
    assert torch.equal(made.weight.values(), values)
    assert made.weight.scales.shape == (-(-N // BLOCKS[format][0]), -(-K // 128))
    spread = int(made.report.spread.max())  # type: ignore[union-attr]
    assert str(made).startswith(f"block32 folds into {format}: {N} x {K} weights are packed exactly") and spread == 4


def test_the_first_format_that_folds_is_taken() -> None:
    values = torch.full((128, 128), 8.0)
    assert prepack_blocks(of_values(values, torch.zeros(4, 4))).weight.format == "block128"
    values[64:] = 2.0**-15  # on one base with 8 it is a subnormal number or none
    exponents = torch.zeros(4, 4)
    exponents[2:] = -15
    assert prepack_blocks(of_values(values, exponents)).weight.format == "group128"


@pytest.mark.parametrize(
    ("format", "where", "share"), [("group128", "row 3", "1 of 256"), ("block128", "rows 0 to 127", "1 of 2")]
)
def test_a_weight_that_does_not_fold_is_refused_by_row_and_spread(format: str, where: str, share: str) -> None:
    codes = torch.full((128, 256), 8.0)
    codes[3, 160] = 2.0**-9  # of a block whose scale is four times less than the largest one's
    scales = torch.ones(4, 8)
    scales[0, 5], scales[0, 7] = 0.25, 0.125
    codes[3, 144] = 448
    weight = QuantizedWeight(format="block32", codes=codes.to(E4M3), scales=scales)
    with pytest.raises(ValueError, match="folds into") as error:
        prepack_blocks(weight, fold=format)
    assert str(error.value) == (
        f"block32 folds into {format} where codes stay numbers of e4m3, and {where} of columns 128 to 255 do not, whose scales spread over "
        f"3 binary orders ({share} such groups): keep the weight in groups of 32, or pass rounded=True to round codes near the subnormals "
        "and have the error reported"
    )
    with pytest.raises(ValueError, match="row 3 of"):
        prepack_blocks(weight)
    assert folding_share(weight, "group128") == 255 / 256 and folding_share(weight, "block128") == 0.5


@pytest.mark.parametrize("format", FOLDS)
def test_rounding_is_to_the_nearest_and_within_its_bound(format: str) -> None:
    weight = drawn(high=9)
    made = prepack_blocks(weight, fold=format, rounded=True)
    before, after = weight.values().double(), made.weight.values().double()
    high, wide = BLOCKS[format]
    base = made.weight.scales.double().repeat_interleave(high, 0)[:N].repeat_interleave(wide, 1)[:, :K]
    change = (after - before).abs()
    assert (change <= base * 2**-10).all() and 0 < made.report.changed == int((change > 0).sum())
    assert (change[before.abs() >= base * 2**-6] == 0).all(), "numbers that stay normal are as they were"
    exact = torch.where(before.abs() < base * 2**-6, torch.round(before / base * 2**9) * 2**-9 * base, before)
    assert torch.equal(after, exact), "ties to even"
    padded = torch.nn.functional.pad(before.abs(), (0, -K % wide, 0, -N % high))
    largest = padded.unflatten(1, (-1, wide)).unflatten(0, (-1, high)).amax(dim=(1, 3))
    assert (base.amax() * 2**-10 < largest.max() * 2**-17 / 1.75) and (
        2**-10 * made.weight.scales.double() < largest * 2**-17 / 1.75
    ).all()
    assert made.report.added_error == pytest.approx(float(change.square().sum() / before.square().sum()))
    assert re.search(r"weights changed, which adds a relative squared error of [\d.e-]+", str(made))


def test_the_ends_of_ue8m0_stay_normal_scales() -> None:
    """Kernels multiply by them: a subnormal float32 would be zero there."""
    codes = torch.full((32, 128), 448.0)
    for exponent, wanted in ((-127, -126), (127, 127)):
        weight = QuantizedWeight(format="block32", codes=codes.to(E4M3), scales=torch.full((1, 4), 2.0**exponent))
        made = prepack_blocks(weight, fold="group128")
        assert made.report.exact and (made.weight.scales == 2.0**wanted).all()
        assert torch.equal(made.weight.values().double(), weight.values().double())


WRONG = {
    "a weight of another format": (
        lambda w: {"weight": quantize_weight(torch.ones(128, 128), "block128")},
        "blocks of 32 x 32 fold into scales of 128, got a weight of block128: there is nothing to fold",
    ),
    "another fold": (
        lambda w: {"weight": w, "fold": "channel"},
        "block32 folds into block128 or group128, got fold='channel'",
    ),
    "a scale that is no power of two": (
        lambda w: {"weight": replace(w, scales=w.scales.index_fill(1, torch.tensor([2]), 0.375))},
        "scale [0, 2] of block32 is 0.375: scales that fold are powers of two, as ue8m0 bytes of 0 to 254 are, so keep the weight in groups "
        "of 32 or quantise it anew",
    ),
    "ue8m0 of 255": (
        lambda w: {
            "weight": replace(
                w, scales=torch.full_like(w.scales, 255).to(torch.uint8).view(torch.float8_e8m0fnu).float()
            )
        },
        "scale [0, 0] of block32 is nan: scales that fold are powers of two, as ue8m0 bytes of 0 to 254 are, so keep the weight in groups "
        "of 32 or quantise it anew",
    ),
    "a code of NaN": (
        lambda w: {
            "weight": replace(w, codes=w.codes.view(torch.uint8).index_fill(1, torch.tensor([7]), 255).view(E4M3))
        },
        "weight [0, 7] of block32 is NaN: a checkpoint's weights are finite",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_folded_is_refused(case: str) -> None:
    change, text = WRONG[case]
    with pytest.raises(ValueError, match="block") as error:
        prepack_blocks(**change(drawn()))
    assert str(error.value) == text


def test_a_layer_of_a_folded_weight_quantises_in_groups_of_128() -> None:
    """Exact integers: the products of the folded weight are those of the weight in groups of 32."""
    values = torch.randint(-4, 5, (64, 256), generator=generator()).float()
    weight = of_values(values, torch.randint(-2, 1, (2, 8), generator=generator(2)))
    x = torch.randint(-4, 5, (7, 256), generator=generator(5)).bfloat16()
    x[:, ::32] = 448  # in groups of 32 and of 128 the scale is 1, and each number is a code
    folded = prepack_blocks(weight)
    layer, plain = QuantLinear(folded.weight), QuantLinear(weight)
    assert layer.format == "block128" and torch.equal(layer(x), plain(x))
    assert torch.equal(layer(x).double(), (x.double() @ values.double().t()).bfloat16().double())
    assert "block128 weights, e4m3 activations" in repr(layer)
    rows = QuantLinear(prepack_blocks(weight, fold="group128").weight)
    assert rows.format == "group128" and torch.equal(rows(x), plain(x))


@pytest.mark.parametrize("ue8m0", [False, True])
def test_groups_of_128_are_coded_no_worse_than_folded_groups_of_32(ue8m0: bool) -> None:
    """With powers of two the scale of 128 columns is the largest of their four, and a code is rounded once."""
    x = torch.randn(9, 256, generator=generator()) * torch.exp(torch.randn(256, generator=generator(1)))
    a32, s32 = gemmill.per_token_group_fp8_quant(x.bfloat16(), 32, scale_ue8m0=ue8m0)
    a128, s128 = gemmill.per_token_group_fp8_quant(x.bfloat16(), 128, scale_ue8m0=ue8m0)
    assert torch.equal(s128, s32.reshape(9, 2, 4).amax(2))
    spread = s128.repeat_interleave(128, 1)
    twice = (a32.float() * s32.repeat_interleave(32, 1) / spread).to(E4M3).float() * spread
    once = a128.float() * spread
    given = x.bfloat16().float()
    assert ((once - given).abs() <= (twice - given).abs() + spread * 2**-20).all()
