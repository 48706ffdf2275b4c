"""Block-scaled results within the bounds of their activation: codes and scales of each matrix, and zeros around
them."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gemmill.families.quant import bounds
from gemmill.families.quant.call import OUT_NAMES, SCALE_NAMES, name_of
from gemmill.families.quant.config import QuantConfig
from gemmill.formats.layout import swizzled_shape
from gemmill.formats.quantise import swizzle, unswizzle
from gemmill.vocab.format import ScaleRounding


def blocks_are_within_bounds(config: QuantConfig, got: dict[str, Any]) -> bool:
    """Whether a call's outputs may come from another version of its library function, or from approximate reciprocals.
    Arguments are by their names.
    """
    assert config.format is not None
    x = got["input"].reshape(-1, got["input"].shape[-1])
    hidden = x.shape[1] // 2 if config.activation.is_gated else x.shape[1]
    codes = got[name_of(got, OUT_NAMES)].view(torch.uint8).reshape(x.shape[0], -1)
    width, groups = config.format.code_bytes(hidden), hidden // config.group_size
    inside = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
    for rows, scales, global_scale in _matrices(config, got, x.shape[0], codes.shape[1]):
        inside[rows] = True
        outside = scales is None or any(
            bounds.outside_of_block_bounds(
                config,
                x[rows],
                codes[rows, :width],
                scales[:, :groups],
                global_scale=global_scale,
                rounding=ScaleRounding(got.get("scale_rounding", ScaleRounding.UP)),
                rounded=got.get("rounds_to_input", False),
            )
        )
        if outside or bool(codes[rows, width:].any()):
            return False
    return not bool(codes[~inside].any())


def _matrices(
    config: QuantConfig, got: dict[str, Any], rows: int, code_bytes: int
) -> Iterator[tuple[slice, Tensor | None, Tensor | None]]:
    """The rows of each matrix, its plain scales (None where their padding is not zero) and its global scale."""
    assert config.format is not None
    groups = config.format.scale_count(config.format.k_of(code_bytes))
    scales, given = (
        got[name_of(got, SCALE_NAMES)].view(torch.uint8),
        got.get("input_global_scale", got.get("global_scale")),
    )
    if "input_offset_by_experts" not in got:
        is_swizzled = got["is_sf_swizzled_layout"]
        yield slice(0, rows), _plain(scales, rows, groups) if is_swizzled else scales, given
        return
    firsts = got["output_scale_offset_by_experts"].reshape(-1).tolist()
    for expert, (start, end) in enumerate(pairwise(got["input_offset_by_experts"].reshape(-1).tolist())):
        taken = swizzled_shape(end - start, groups)[0]
        plain = _plain(scales[firsts[expert] : firsts[expert] + taken], end - start, groups)
        yield slice(start, end), plain, None if given is None else given.reshape(-1)[expert].reshape(1)


def _plain(swizzled: Tensor, rows: int, groups: int) -> Tensor | None:
    plain = unswizzle(swizzled, rows, groups)
    return plain if torch.equal(swizzle(plain), swizzled) else None
