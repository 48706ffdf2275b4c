"""The spelling of a config in CUDA C++."""

from gemmill.families.gated_mm.config import UnalignedGatedConfig
from gemmill.family import Spelled
from gemmill.vocab import DType


def spell_unaligned(config: UnalignedGatedConfig) -> Spelled:
    """The template of a config for unaligned operands, and the values of its holes."""
    values = {
        "element_type": config.operands.dtype.cutlass_type,
        "integers": config.operands.dtype is DType.S8,
        "result": config.epilogue.result.value,
    }
    return Spelled(template="gated_mm/unaligned_gated_mm.cu.jinja", values=values)
