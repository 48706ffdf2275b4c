"""Spelling a QuantConfig in CUDA C++: which template, and what fills its holes."""

from typing import Any

from gemmill.space.quant import QuantConfig, QuantFamily

_TEMPLATES = {
    QuantFamily.STATIC: "quant/static.cu.jinja",
    QuantFamily.TENSOR: "quant/tensor.cu.jinja",
    QuantFamily.TOKEN: "quant/token.cu.jinja",
    QuantFamily.GROUP: "quant/group.cu.jinja",
    QuantFamily.RMS_TOKEN: "quant/rms_norm.cu.jinja",
    QuantFamily.RMS_GROUP: "quant/rms_norm.cu.jinja",
}


def template_of(config: QuantConfig) -> str:
    """Path of the template below templates/."""
    return _TEMPLATES[config.family]


def values_of(config: QuantConfig) -> dict[str, Any]:
    """What fills the template's holes, beside the name."""
    return {
        "in_type": config.in_type,
        "out_type": config.out_type,
        "activation": config.activation.cpp_type,
        "scale_format": config.scale_format.cpp_value,
        "group_size": config.group_size,
        "symmetric": "true" if config.symmetric else "false",
        "coding": _coding(config),
    }


def _coding(config: QuantConfig) -> str:
    if not config.symmetric:
        return "AsymmetricCoding"
    if config.family is QuantFamily.TENSOR:
        return f"TensorCoding<{config.out_type}>"
    return f"SymmetricCoding<{config.out_type}, {config.activation.cpp_type}>"
