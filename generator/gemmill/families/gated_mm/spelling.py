"""The spelling of a config in CUDA C++."""

from gemmill.families.gated_mm.config import GatedPartsConfig, Result, UnalignedGatedConfig
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


def spell_parts(config: GatedPartsConfig) -> Spelled:
    """The template of the second kernel of a config that runs its parts, and the values of its holes."""
    result = config.epilogue.result
    values = {"coded": str(result is not Result.BF16).lower(), "group": result.group, "block": config.block}
    return Spelled(template="gated_mm/activate_packed.cu.jinja", values=values)
