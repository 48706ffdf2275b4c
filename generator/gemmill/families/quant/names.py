"""Names of quantisation kernels: their fields, and the config that fields spell."""

import re
from collections.abc import Sequence

from gemmill.families.quant.config import Activation, QuantConfig, QuantFamily, ScaleFormat
from gemmill.vocab import Arch, DType

_FIELDS = 6


def to_fields(config: QuantConfig) -> list[str]:
    """The fields of a config's name: family, dtypes of values and of codes, activation, scales, coding."""
    scales = f"g{config.group_size}{config.scale_format}" if config.group_size else config.scale_format.value
    coding = f"{'vllm' if config.vllm else ''}{'sym' if config.symmetric else 'asym'}"
    return [config.family, config.in_dtype, config.out_dtype, config.activation, scales, coding]


def from_fields(arch: Arch, _tag: str, fields: Sequence[str]) -> QuantConfig:
    """The config that `to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if len(fields) != _FIELDS:
        raise ValueError(f"it has {len(fields) + 2} fields of {_FIELDS + 2}")
    coding = fields[5].removeprefix("vllm")
    if coding not in ("sym", "asym"):
        raise ValueError(f"coding {fields[5]!r}, expected sym or asym, or one of them after vllm")
    family = QuantFamily(fields[0])
    group_size, scale_format = (
        _group_scales_from_text(fields[4]) if family.is_grouped or family.is_blocked else (0, ScaleFormat(fields[4]))
    )
    return QuantConfig(
        family=family,
        in_dtype=DType(fields[1]),
        out_dtype=DType(fields[2]),
        activation=Activation(fields[3]),
        group_size=group_size,
        scale_format=scale_format,
        symmetric=coding == "sym",
        vllm=coding != fields[5],
        arch=arch,
    )


def _group_scales_from_text(text: str) -> tuple[int, ScaleFormat]:
    match = re.fullmatch(r"g(\d{1,3})(f32|f32pow2|ue8m0x4|ue8m0|ue4m3)", text)
    if match is None:
        raise ValueError(f"scales {text!r}, expected g, a group size and f32, f32pow2, ue8m0x4, ue8m0 or ue4m3")
    return int(match[1]), ScaleFormat(match[2])
