"""Spelling a config in CUDA C++."""

from gemmill.families.fused_moe.config import ExpertsConfig
from gemmill.family import Spelled
from gemmill.vocab import DType

_TYPES = {DType.BF16: "__nv_bfloat16", DType.F16: "__half", DType.E4M3: "gemmill::fused_moe::Coded"}


def spell(config: ExpertsConfig) -> Spelled:
    """The template, and what fills its holes."""
    values = {
        "half_type": _TYPES[config.out_dtype],
        "element_type": _TYPES[config.dtype],
        "grouped": str(bool(config.group_size)).lower(),
        "tile_tokens": config.tile_tokens,
    }
    return Spelled(template="fused_moe/fused_experts.cu.jinja", values=values)
