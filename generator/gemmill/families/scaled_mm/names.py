"""Names of GEMMs: their fields, and the config that fields spell."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from gemmill.families.scaled_mm.config import KernelConfig, Launch, Problem, Schedule
from gemmill.vocab import (
    Accumulation,
    Arch,
    Backend,
    DType,
    EpilogueKind,
    KernelSchedule,
    RasterOrder,
    ScaleGranularity,
    ScaleLayout,
    TileScheduler,
)


@dataclass(frozen=True)
class _Field:
    part: type[Any]
    """The class of the part of a config that the field belongs to: Problem or Schedule."""
    write: Callable[[Any], object]
    """The function that writes the field of that part."""
    read: Callable[[str], dict[str, Any]]
    """The function that reads the field as arguments of that part. Raises ValueError."""


def _word(part: type[Any], name: str, kind: Callable[[str], Any]) -> _Field:
    return _Field(part, attrgetter(name), lambda text: {name: kind(text)})


def _shape(name: str, prefix: str) -> _Field:
    def read(text: str) -> dict[str, Any]:
        match = _matched(prefix + r"(\d+)x(\d+)x(\d+)", text, f"shape {text!r}, expected {prefix}MxNxK")
        return {name: tuple(map(int, match.groups()))}

    return _Field(Schedule, lambda schedule: prefix + "x".join(map(str, getattr(schedule, name))), read)


def _scales_to_text(problem: Problem) -> str:
    if not problem.group_size:
        return "channel"
    return f"{problem.a_scale}{problem.b_scale}{problem.group_size}{problem.scale_layout}"


def _scales_from_text(text: str) -> dict[str, Any]:
    if text == "channel":
        return {}
    pattern = r"(channel|group|block)(channel|group|block)(\d+)(mnmajor|strided)"
    a_scale, b_scale, size, layout = _matched(pattern, text, f"scales {text!r}").groups()
    return {
        "a_scale": ScaleGranularity(a_scale),
        "b_scale": ScaleGranularity(b_scale),
        "group_size": int(size),
        "scale_layout": ScaleLayout(layout),
    }


def _swap_from_text(text: str) -> dict[str, Any]:
    return {"swap_ab": _matched("(swap)?ab", text, f"operand order {text!r}, expected ab or swapab")[1] is not None}


def _stages_from_text(text: str) -> dict[str, Any]:
    stages = _matched(r"s(auto|[1-9]\d*)", text, f"stages {text!r}, expected sauto or s and a number")[1]
    return {"stages": None if stages == "auto" else int(stages)}


def _alignments_from_text(text: str) -> dict[str, Any]:
    wanted = f"alignment {text!r}, expected a, b and d, each with a number"
    numbers = _matched(r"a(\d+)b(\d+)d(\d+)", text, wanted).groups()
    return {f"alignment_{operand}": int(number) for operand, number in zip("abd", numbers, strict=True)}


def _matched(pattern: str, text: str, otherwise: str) -> re.Match[str]:
    if (match := re.fullmatch(pattern, text)) is None:
        raise ValueError(otherwise)
    return match


_FIELDS = (
    _word(Problem, "a_dtype", DType),
    _word(Problem, "b_dtype", DType),
    _word(Problem, "accumulator_dtype", DType),
    _word(Problem, "out_dtype", DType),
    _word(Problem, "epilogue", EpilogueKind),
    _Field(Problem, _scales_to_text, _scales_from_text),
    _shape("tile_shape_mnk", "t"),
    _shape("cluster_shape_mnk", "c"),
    _word(Schedule, "kernel_schedule", KernelSchedule),
    _word(Schedule, "accumulation", Accumulation),
    _word(Schedule, "tile_scheduler", TileScheduler),
    _Field(Schedule, lambda schedule: "swapab" if schedule.swap_ab else "ab", _swap_from_text),
    _Field(Schedule, lambda schedule: f"s{schedule.stages or 'auto'}", _stages_from_text),
    _Field(Schedule, lambda s: f"a{s.alignment_a}b{s.alignment_b}d{s.alignment_d}", _alignments_from_text),
)
_LAUNCH: dict[str, tuple[str, Callable[[str], Any]]] = {
    "r": ("raster_order", RasterOrder),
    "w": ("swizzle", int),
    "k": ("splits", int),
}
"""Launch settings, by the letter before each. Those that are not the defaults follow the fields."""


def to_fields(config: KernelConfig) -> list[str]:
    """The fields of a config's problem and schedule, then its launch settings."""
    parts = {Problem: config.problem, Schedule: config.schedule}
    launch = [(letter, getattr(config.launch, name), getattr(Launch, name)) for letter, (name, _) in _LAUNCH.items()]
    return [
        *(str(field.write(parts[field.part])) for field in _FIELDS),
        *(f"{letter}{value}" for letter, value, default in launch if value != default),
    ]


def from_fields(arch: Arch, tag: str, fields: Sequence[str]) -> KernelConfig:
    """The config that `to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if len(fields) < len(_FIELDS):
        raise ValueError(f"it has {len(fields) + 2} fields of {len(_FIELDS) + 2}")
    told: dict[type[Any], dict[str, Any]] = {Problem: {}, Schedule: {}}
    for field, text in zip(_FIELDS, fields, strict=False):
        told[field.part] |= field.read(text)
    return KernelConfig(
        problem=Problem(**told[Problem]),
        schedule=Schedule(**told[Schedule]),
        launch=_launch_from_fields(fields[len(_FIELDS) :]),
        arch=arch,
        backend=Backend(tag),
    )


def _launch_from_fields(fields: Sequence[str]) -> Launch:
    settings = {}
    for text in fields:
        name, kind = _LAUNCH.get(text[:1], ("", int))
        if not name or (kind is int and not text[1:].isdecimal()):
            raise ValueError(f"launch setting {text!r}")
        settings[name] = kind(text[1:])
    return Launch(**settings)
