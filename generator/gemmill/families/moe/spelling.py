"""Spelling a config in Python: a file that instantiates a kernel of gemmill.families.moe.dsl with it."""

from dataclasses import fields
from enum import Enum
from typing import Any

from gemmill.families.moe.config import GroupedConfig
from gemmill.family import Spelled


def spell(config: GroupedConfig) -> Spelled:
    """The template's holes are Python expressions of all fields."""
    told = {field.name: getattr(config, field.name) for field in fields(config)}
    holes = {
        "fields": {name: _spell(value) for name, value in told.items()},
        "vocabulary": sorted({type(value).__name__ for value in told.values() if isinstance(value, Enum)}),
    }
    return Spelled(template="moe/grouped_mm.py.jinja", values=holes)


def _spell(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
