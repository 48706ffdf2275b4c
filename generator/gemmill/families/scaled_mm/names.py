"""The fields of a GEMM's name, and back."""

import re
from collections.abc import Sequence
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

_FIELDS = 14
_ALIGN = re.compile(r"a(\d+)b(\d+)d(\d+)")


def to_fields(config: KernelConfig) -> list[str]:
    """a b accumulator out epilogue scales tTILE cCLUSTER schedule accumulation scheduler order stages align, then, where the
    launch settings are not the defaults, `r<raster>` `w<swizzle>` `k<splits>`."""
    p, s = config.problem, config.schedule
    fields = [
        p.a_dtype,
        p.b_dtype,
        p.accumulator_dtype,
        p.out_dtype,
        p.epilogue,
        _scales_to_text(p),
        "t" + _shape_to_text(s.tile_shape_mnk),
        "c" + _shape_to_text(s.cluster_shape_mnk),
        s.kernel_schedule,
        s.accumulation,
        s.tile_scheduler,
        "swapab" if s.swap_ab else "ab",
        f"s{s.stages or 'auto'}",
        f"a{s.alignment_a}b{s.alignment_b}d{s.alignment_d}",
    ]
    return [str(field) for field in fields] + _launch_to_fields(config.launch)


def from_fields(arch: Arch, tag: str, fields: Sequence[str]) -> KernelConfig:
    """The config that `to_fields` spelled. Raises ValueError, naming the field that cannot be read."""
    if len(fields) < _FIELDS:
        raise ValueError(f"it has {len(fields) + 2} fields of {_FIELDS + 2}")
    align = _ALIGN.fullmatch(fields[13])
    if align is None:
        raise ValueError(f"alignment {fields[13]!r}, expected a, b and d, each with a number")
    problem = Problem(
        a_dtype=DType(fields[0]),
        b_dtype=DType(fields[1]),
        accumulator_dtype=DType(fields[2]),
        out_dtype=DType(fields[3]),
        epilogue=EpilogueKind(fields[4]),
        **_scales_from_text(fields[5]),
    )
    schedule = Schedule(
        tile_shape_mnk=_shape_from_text(fields[6], "t"),
        cluster_shape_mnk=_shape_from_text(fields[7], "c"),
        kernel_schedule=KernelSchedule(fields[8]),
        accumulation=Accumulation(fields[9]),
        tile_scheduler=TileScheduler(fields[10]),
        swap_ab=_swap_from_text(fields[11]),
        stages=_stages_from_text(fields[12]),
        alignment_a=int(align[1]),
        alignment_b=int(align[2]),
        alignment_d=int(align[3]),
    )
    return KernelConfig(
        problem=problem,
        schedule=schedule,
        launch=_launch_from_fields(fields[_FIELDS:]),
        arch=arch,
        backend=Backend(tag),
    )


def parse_gemm_name(name: str) -> KernelConfig:
    """The config of a GEMM by its whole name. Raises ValueError, for the name of another kernel too."""
    arch, tag, *fields = [*name.split("_"), ""]
    if tag not in set(Backend):
        raise ValueError(f"{name!r} is not the name of a GEMM")
    return from_fields(Arch(arch), tag, fields[:-1])


def _shape_to_text(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))


def _shape_from_text(text: str, prefix: str) -> tuple[int, int, int]:
    match = re.fullmatch(prefix + r"(\d+)x(\d+)x(\d+)", text)
    if match is None:
        raise ValueError(f"shape {text!r}, expected {prefix}MxNxK")
    return int(match[1]), int(match[2]), int(match[3])


def _swap_from_text(text: str) -> bool:
    if text not in ("swapab", "ab"):
        raise ValueError(f"operand order {text!r}, expected ab or swapab")
    return text == "swapab"


def _stages_from_text(text: str) -> int | None:
    if text == "sauto":
        return None
    match = re.fullmatch(r"s([1-9]\d*)", text)
    if match is None:
        raise ValueError(f"stages {text!r}, expected sauto or s and a number")
    return int(match[1])


def _scales_to_text(problem: Problem) -> str:
    if not problem.group_size:
        return "channel"
    return f"{problem.a_scale}{problem.b_scale}{problem.group_size}{problem.scale_layout}"


def _scales_from_text(text: str) -> dict[str, Any]:
    if text == "channel":
        return {}
    match = re.fullmatch(r"(channel|group|block)(channel|group|block)(\d+)(mnmajor|strided)", text)
    if match is None:
        raise ValueError(f"scales {text!r}")
    return {
        "a_scale": ScaleGranularity(match[1]),
        "b_scale": ScaleGranularity(match[2]),
        "group_size": int(match[3]),
        "scale_layout": ScaleLayout(match[4]),
    }


def _launch_to_fields(launch: Launch) -> list[str]:
    default = Launch()
    fields = []
    if launch.raster_order is not default.raster_order:
        fields.append(f"r{launch.raster_order}")
    if launch.swizzle != default.swizzle:
        fields.append(f"w{launch.swizzle}")
    if launch.splits != default.splits:
        fields.append(f"k{launch.splits}")
    return fields


def _launch_from_fields(fields: Sequence[str]) -> Launch:
    settings: dict[str, Any] = {}
    for text in fields:
        kind, value = text[:1], text[1:]
        if kind == "r":
            settings["raster_order"] = RasterOrder(value)
        elif kind == "w" and value.isdecimal():
            settings["swizzle"] = int(value)
        elif kind == "k" and value.isdecimal():
            settings["splits"] = int(value)
        else:
            raise ValueError(f"launch setting {text!r}")
    return Launch(**settings)
