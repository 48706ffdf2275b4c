"""Spelling a QuantConfig in CUDA C++: which template, and what fills its holes."""

from pathlib import PurePosixPath

from gemmill.emit.render import EmittedFile, render
from gemmill.space.quant import QuantConfig, QuantFamily, symbol_of, to_name

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


def values_of(config: QuantConfig) -> dict[str, object]:
    """What fills the template's holes, beside the name."""
    activation = config.activation.cpp_type
    return {
        "in_type": config.in_type,
        "out_type": config.out_type,
        "activation": activation,
        "scale_format": config.scale_format.cpp_value,
        "group_size": config.group_size,
        "symmetric": "true" if config.symmetric else "false",
        "coding": f"SymmetricCoding<{config.out_type}, {activation}>" if config.symmetric else "AsymmetricCoding",
    }


def emit_quant(config: QuantConfig) -> EmittedFile:
    """The source of one variant."""
    name = to_name(config)
    text = render(template_of(config), {"name": name, "symbol": symbol_of(config), **values_of(config)})
    return EmittedFile(path=PurePosixPath(config.arch) / f"{name}.cu", text=text)
