"""The spelling of a config in Python, for the CuTe DSL: a file that instantiates a kernel of
gemmill.families.scaled_mm.dsl."""

from dataclasses import fields
from enum import Enum
from typing import Any

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.own import OwnConfig
from gemmill.family import Spelled


def spell(config: KernelConfig) -> Spelled:
    """The template of a config, one for all, since the kernels read the config themselves.

    Its holes are Python expressions of all that a compilation depends on.
    """
    problem, schedule = (
        {f.name: getattr(part, f.name) for f in fields(part)} for part in (config.problem, config.schedule)
    )
    values = [*problem.values(), *schedule.values(), config.arch, config.backend]
    holes = {
        "problem": {name: _spell(value) for name, value in problem.items()},
        "schedule": {name: _spell(value) for name, value in schedule.items()},
        "arch": _spell(config.arch),
        "backend": _spell(config.backend),
        "vocabulary": sorted({type(value).__name__ for value in values if isinstance(value, Enum)}),
    }
    return Spelled(template="scaled_mm/cutedsl/scaled_mm.py.jinja", values=holes)


def spell_own(config: OwnConfig) -> Spelled:
    """The template of a config with a user's epilogue, whose steps the file has too."""
    plain = spell(config)
    values = dict(plain.values) | {"epilogue": repr(config.problem.traced.text)}
    return Spelled(template="scaled_mm/cutedsl/epilogue_mm.py.jinja", values=values)


def _spell(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
