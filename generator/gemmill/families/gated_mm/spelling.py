"""The spelling of a config in the CuTe DSL's Python, or in CUDA C++.

A file of Python instantiates a kernel of gemmill.families.gated_mm.dsl.
"""

from dataclasses import fields
from enum import Enum
from typing import Any

from gemmill.families.gated_mm.config import GatedConfig, UnalignedGatedConfig
from gemmill.families.gated_mm.int8_config import Int8GatedConfig, Int8UnalignedGatedConfig
from gemmill.family import Spelled

_OWN = ("Activation", "Result")
"""The enumerations that are the family's own."""


def spell(config: GatedConfig) -> Spelled:
    """The Python template of a config, whose holes are expressions of all fields."""
    told = {field.name: getattr(config, field.name) for field in fields(config)}
    types = sorted({type(value).__name__ for value in told.values() if isinstance(value, Enum)})
    integers, name = isinstance(config, Int8GatedConfig), type(config).__name__
    holes = {
        "fields": {name: _spell(value) for name, value in told.items()},
        "config": name,
        "integers": integers,
        "own": sorted(_OWN if integers else (*_OWN, name)),
        "vocabulary": [name for name in types if name not in _OWN],
    }
    return Spelled(template="gated_mm/gated_mm.py.jinja", values=holes)


def spell_unaligned(config: UnalignedGatedConfig) -> Spelled:
    """The C++ template of a config for unaligned operands, and what fills its holes."""
    values = {
        "element_type": config.dtype.cutlass_type,
        "integers": isinstance(config, Int8UnalignedGatedConfig),
        "result": config.result.value,
    }
    return Spelled(template="gated_mm/unaligned_gated_mm.cu.jinja", values=values)


def _spell(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
