"""Packed nvfp4 weights to rows of bf16: exact values, any number of rows and columns, and sentences."""

import pytest
import torch

import gemmill
from gemmill.formats.quantise import BlockScaled, dequantise
from gemmill.quantize.fp4_blocks import to_blocks
from gemmill.quantize.prepack import prepack
from gemmill.vocab.format import NVFP4

u8 = torch.uint8


def weights_of(n: int, k: int) -> BlockScaled:
    random = torch.Generator().manual_seed(n + k)
    codes = torch.randint(0, 256, (n, k // 2), generator=random, dtype=u8)
    scales = torch.randint(0, 127, (n, k // 16), generator=random, dtype=u8)
    return BlockScaled(format=NVFP4, codes=codes, scales=scales)


@pytest.mark.parametrize(("n", "k"), [(1, 16), (64, 256), (130, 784), (0, 256), (64, 0)])
def test_values_are_code_times_scale(n: int, k: int) -> None:
    weights = weights_of(n, k)
    blocks = to_blocks(prepack(weights, for_op="fp4_weight_mm")).blocks
    values = gemmill.nvfp4_weight_dequant(blocks, n, k)
    assert values.dtype == torch.bfloat16
    assert torch.equal(values.double(), dequantise(weights, dtype=torch.float64))


def test_rows_may_lie_apart() -> None:
    weights = weights_of(70, 272)
    blocks = to_blocks(prepack(weights, for_op="fp4_weight_mm")).blocks
    wide = torch.full((70, 275), torch.nan, dtype=torch.bfloat16)
    torch.ops.gemmill.nvfp4_weight_dequant(wide[:, 3:], blocks)
    assert torch.equal(wide[:, 3:], dequantise(weights, dtype=torch.bfloat16))
    assert wide[:, :3].isnan().all()


def shifted() -> torch.Tensor:
    return torch.zeros(4 * 2304 + 1, dtype=u8)[1:].view(1, 4, 2304)


@pytest.mark.parametrize(
    ("blocks", "n", "k", "sentence"),
    [
        (
            torch.zeros(1, 4, 2304, dtype=u8),
            65,
            256,
            "n and k are 65 and 256, expected 64 and 256 at most: blocks is [1, 4, 2304], each with 64 rows and columns",
        ),
        (
            torch.zeros(2, 4, 2304, dtype=u8),
            64,
            256,
            "blocks is [2, 4, 2304], expected [1, 4, 2304] for 64 x 256 weights packed by gemmill.quantize.fp4_blocks.to_blocks",
        ),
        (
            torch.zeros(1, 4, 2176, dtype=u8),
            64,
            256,
            "blocks is [1, 4, 2176], expected [1, 4, 2304] for 64 x 256 weights packed by gemmill.quantize.fp4_blocks.to_blocks",
        ),
        (torch.zeros(1, 4, 2304, dtype=u8), 64, 250, "rows of 250 values are not a multiple of nvfp4's group of 16"),
        (
            shifted(),
            64,
            256,
            "blocks begins 1 bytes past a 16-byte boundary, and kernels need it aligned: pass blocks.clone()",
        ),
    ],
)
def test_sentences(blocks: torch.Tensor, n: int, k: int, sentence: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        gemmill.nvfp4_weight_dequant(blocks, n, k)
    assert str(caught.value) == f"nvfp4_weight_dequant: {sentence}"
