"""Spelling a config in Python, for the CuTe DSL: a file that instantiates a kernel of gemmill.cutedsl with it."""

from dataclasses import fields
from enum import Enum
from typing import Any

from gemmill.space.config import KernelConfig, Problem, Schedule


def template_of(_: KernelConfig) -> str:
    """Path of the template below templates/: one for all, since the kernels read the config themselves."""
    return "cutedsl/scaled_mm.py.jinja"


def values_of(config: KernelConfig) -> dict[str, Any]:
    """What fills the template's holes, beside name and symbol: Python expressions of all that a compilation depends on."""
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
