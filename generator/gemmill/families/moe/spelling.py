"""Spelling a config: in Python, a file that instantiates a kernel of gemmill.families.moe.dsl with it, or in CUDA C++."""

from dataclasses import fields
from enum import Enum
from typing import Any

from gemmill.families.moe.config import GroupedConfig, UnalignedGroupedConfig
from gemmill.family import Spelled
from gemmill.gemm.config import ACCUMULATOR_OF


def spell(config: GroupedConfig) -> Spelled:
    """The template's holes are Python expressions of all fields."""
    told = {field.name: getattr(config, field.name) for field in fields(config)}
    holes = {
        "fields": {name: _spell(value) for name, value in told.items()},
        "vocabulary": sorted({type(value).__name__ for value in told.values() if isinstance(value, Enum)}),
    }
    return Spelled(template="moe/grouped_mm.py.jinja", values=holes)


def spell_unaligned(config: UnalignedGroupedConfig) -> Spelled:
    """The template, and what fills the holes."""
    holes = {
        "element_type": config.dtype.cutlass_type,
        "accumulator_type": ACCUMULATOR_OF[config.dtype].cutlass_type,
        "d_type": config.out_dtype.cutlass_type,
        "factors": "of_groups" if config.group_size else "of_channels" if config.scaled else "none",
    }
    return Spelled(template="moe/unaligned_grouped_mm.cu.jinja", values=holes)


def _spell(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
