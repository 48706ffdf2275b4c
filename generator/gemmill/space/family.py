"""The families of kernels, each with a config type of its own; what holds for all configs is written for AnyConfig."""

from collections.abc import Iterable
from enum import StrEnum

from gemmill.space.config import KernelConfig
from gemmill.space.quant import QuantConfig

AnyConfig = KernelConfig | QuantConfig


class Family(StrEnum):
    """What a kernel does, in the widest sense."""

    SCALED_MM = "scaled_mm"
    """multiplies quantised matrices: a KernelConfig"""
    QUANT = "quant"
    """quantises rows: a QuantConfig"""


def family_of(config: AnyConfig) -> Family:
    """The family of a config."""
    return Family.QUANT if isinstance(config, QuantConfig) else Family.SCALED_MM


def gemms(configs: Iterable[AnyConfig]) -> tuple[KernelConfig, ...]:
    """Those configs that are of GEMMs."""
    return tuple(config for config in configs if isinstance(config, KernelConfig))
