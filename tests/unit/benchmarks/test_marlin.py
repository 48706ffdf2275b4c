"""Scales as Marlin reads them."""

import torch

from gemmill.formats.quantise import BlockScaled
from gemmill.vocab.format import MXFP4, NVFP4
from peers.marlin import permuted, scales_of


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
