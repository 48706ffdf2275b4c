"""Spelling a config in Python, for the CuTe DSL: a file that instantiates a kernel of gemmill.families.scaled_mm.dsl with it."""

from dataclasses import fields
from enum import Enum
from typing import Any

from gemmill.families.scaled_mm.config import KernelConfig, Problem, Schedule
from gemmill.family import Spelled


def spell(config: KernelConfig) -> Spelled:
    """One template for all, since the kernels read the config themselves: its holes are Python expressions of all that a
    compilation depends on."""
    return Spelled(template="scaled_mm/cutedsl/scaled_mm.py.jinja", values=_holes(config))


def _holes(config: KernelConfig) -> dict[str, Any]:
    values = [
        *_values(config.problem).values(),
        *_values(config.schedule).values(),
        config.arch,
        config.backend,
    ]
    return {
        "problem": {name: _spell(value) for name, value in _values(config.problem).items()},
        "schedule": {name: _spell(value) for name, value in _values(config.schedule).items()},
        "arch": _spell(config.arch),
        "backend": _spell(config.backend),
        "vocabulary": sorted({type(value).__name__ for value in values if isinstance(value, Enum)}),
    }


def _values(part: Problem | Schedule) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}


def _spell(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
