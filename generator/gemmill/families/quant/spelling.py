"""The spelling of a QuantConfig in CUDA C++: a template, and the values of its holes."""

from typing import Any

from gemmill.families.quant.config import QuantConfig, Scaling
from gemmill.family import Spelled


def spell(config: QuantConfig) -> Spelled:
    """The template of a config's family, and the values of its holes."""
    template = "any_group" if config.is_of_any_group else config.scaling.template
    return Spelled(template=f"quant/{template}.cu.jinja", values=_values(config))


def _values(config: QuantConfig) -> dict[str, Any]:
    return {
        "in_type": config.in_type,
        "out_type": config.out_type,
        "format": config.out_type,
        "activation": config.activation.cpp_type,
        "scale_format": config.scale_format.cpp_value,
        "group_size": -1 if config.scaling.is_given else config.group_size,
        "symmetric": "true" if config.symmetric else "false",
        "experts": "true" if config.scaling is Scaling.EXPERTS else "false",
        "coding": _coding(config),
    }


def _coding(config: QuantConfig) -> str:
    return f"WithRowSums<{_of_codes(config)}>" if config.row_sums else _of_codes(config)


def _of_codes(config: QuantConfig) -> str:
    if not config.symmetric:
        return "VllmAsymmetricCoding" if config.vllm else "AsymmetricCoding"
    if config.scaling is Scaling.TENSOR:
        return f"TensorCoding<{config.out_type}>"
    return f"SymmetricCoding<{config.out_type}, {config.activation.cpp_type}>"
