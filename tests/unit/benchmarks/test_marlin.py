"""Scales as Marlin reads them."""

import torch

from gemmill.formats.codes import pack
from gemmill.formats.quantise import BlockScaled
from gemmill.vocab.format import MXFP4, NVFP4
from peers.marlin import permuted, scales_of, words_of


def test_scales_of_nvfp4_keep_their_values() -> None:
    """But those below 2^-6 of the largest of e4m3, which vLLM drops too where the largest is 448."""
    scales = torch.arange(8, 127, dtype=torch.uint8).repeat(2)[:192].reshape(64, 3).repeat(1, 2)
    weights = BlockScaled(format=NVFP4, codes=torch.zeros(64, 48, dtype=torch.uint8), scales=scales)
    bytes_, factor = scales_of(weights, 0.25)
    found = (bytes_.view(torch.uint8).short() << 7).view(torch.float16).double() * float(factor) / 2.0**126
    assert torch.equal(found, permuted(scales.view(torch.float8_e4m3fn).double() * 0.25))


def test_scales_of_mxfp4_take_alpha() -> None:
    scales = torch.full((64, 2), 127, dtype=torch.uint8)
    weights = BlockScaled(format=MXFP4, codes=torch.zeros(64, 32, dtype=torch.uint8), scales=scales)
    bytes_, factor = scales_of(weights, 0.25)
    assert factor is None and bytes_.shape == (2, 64) and (bytes_.float() == 0.25).all()


def test_an_order_of_fragments() -> None:
    """Eight rows eight apart follow one another, in pairs of even and odd ones."""
    order = permuted(torch.arange(64)[:, None])[0].tolist()
    assert order[:8] == [0, 16, 8, 24, 32, 48, 40, 56] and sorted(order) == list(range(64))


def test_codes_lie_where_their_lanes_read_them() -> None:
    """Word 128 (n / 64) + 4 lane + tile of row k / 16, for every code on its own."""
    n, k = 128, 32
    codes = torch.randint(16, (n, k), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    words = words_of(pack(codes, 4)).tolist()
    for row in range(n):
        for column in range(k):
            lane = row % 8 * 4 + column % 8 // 2
            word = words[column // 16][row // 64 * 128 + 4 * lane + row % 64 // 16]
            place = 16 * (column % 2) + 8 * (row % 16 // 8) + 4 * (column % 16 // 8)
            assert word >> place & 15 == codes[row, column], (row, column)
