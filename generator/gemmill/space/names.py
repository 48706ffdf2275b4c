"""The only place where a kernel's name is made, and read back.

A name is a C identifier. Its fields, joined by `_`, of a GEMM:
arch backend a b accumulator out epilogue scales tTILE cCLUSTER schedule accumulation scheduler order stages align
and, where the launch settings are not the defaults, `r<raster>` `w<swizzle>` `k<splits>`; of a quantisation kernel:
arch `quant` family in out activation scales coding.
"""

import re
from typing import Any

from gemmill.space.config import KernelConfig, Launch, Problem, Schedule
from gemmill.space.family import AnyConfig
from gemmill.space.quant import Activation, QuantConfig, QuantFamily, ScaleFormat
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

_FIELDS = 16
_QUANT = "quant"
_QUANT_FIELDS = 8
_ALIGN = re.compile(r"a(\d+)b(\d+)d(\d+)")


def to_name(config: AnyConfig) -> str:
    """The name of a config; different configs have different names."""
    return _quant_to_name(config) if isinstance(config, QuantConfig) else _gemm_to_name(config)


def symbol_of(config: AnyConfig) -> str:
    """The C symbol of the compiled kernel's launch function; a GEMM has `<symbol>_workspace` and `<symbol>_kernel` too."""
    return "gemmill_" + to_name(config.compiled)


def parse_name(name: str) -> AnyConfig:
    """The config whose name this is. Raises ValueError, naming the field that cannot be read."""
    fields = name.split("_")
    try:
        config = _quant_from_fields(fields) if fields[1:2] == [_QUANT] else _gemm_from_fields(fields)
    except ValueError as error:
        raise ValueError(f"{name!r} is not a kernel name: {error}") from None
    if to_name(config) != name:
        raise ValueError(f"{name!r} is not a kernel name: it would be written {to_name(config)!r}")
    return config


def parse_gemm_name(name: str) -> KernelConfig:
    """The config of a GEMM by its name. Raises ValueError, for the name of another kernel too."""
    config = parse_name(name)
    if not isinstance(config, KernelConfig):
        raise ValueError(f"{name!r} is not the name of a GEMM")
    return config


def _gemm_to_name(config: KernelConfig) -> str:
    p, s = config.problem, config.schedule
    fields = [
        config.arch,
        config.backend,
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
    return "_".join([str(f) for f in fields] + _launch_to_fields(config.launch))


def _gemm_from_fields(fields: list[str]) -> KernelConfig:
    if len(fields) < _FIELDS:
        raise ValueError(f"it has {len(fields)} fields of {_FIELDS}")
    align = _ALIGN.fullmatch(fields[15])
    if align is None:
        raise ValueError(f"alignment {fields[15]!r}, expected a, b and d, each with a number")
    problem = Problem(
        a_dtype=DType(fields[2]),
        b_dtype=DType(fields[3]),
        accumulator_dtype=DType(fields[4]),
        out_dtype=DType(fields[5]),
        epilogue=EpilogueKind(fields[6]),
        **_scales_from_text(fields[7]),
    )
    schedule = Schedule(
        tile_shape_mnk=_shape_from_text(fields[8], "t"),
        cluster_shape_mnk=_shape_from_text(fields[9], "c"),
        kernel_schedule=KernelSchedule(fields[10]),
        accumulation=Accumulation(fields[11]),
        tile_scheduler=TileScheduler(fields[12]),
        swap_ab=_swap_from_text(fields[13]),
        stages=_stages_from_text(fields[14]),
        alignment_a=int(align[1]),
        alignment_b=int(align[2]),
        alignment_d=int(align[3]),
    )
    return KernelConfig(
        problem=problem,
        schedule=schedule,
        launch=_launch_from_fields(fields[_FIELDS:]),
        arch=Arch(fields[0]),
        backend=Backend(fields[1]),
    )


def _quant_to_name(config: QuantConfig) -> str:
    scales = f"g{config.group_size}{config.scale_format}" if config.family.is_grouped else config.scale_format.value
    coding = "trunc" if config.truncated else "sym" if config.symmetric else "asym"
    fields = [config.arch, _QUANT, config.family, config.in_dtype, config.out_dtype, config.activation, scales, coding]
    return "_".join(fields)


def _quant_from_fields(fields: list[str]) -> QuantConfig:
    if len(fields) != _QUANT_FIELDS:
        raise ValueError(f"it has {len(fields)} fields of {_QUANT_FIELDS}")
    if fields[7] not in ("sym", "asym", "trunc"):
        raise ValueError(f"coding {fields[7]!r}, expected sym, asym or trunc")
    family = QuantFamily(fields[2])
    group_size, scale_format = _group_scales_from_text(fields[6]) if family.is_grouped else (0, ScaleFormat(fields[6]))
    return QuantConfig(
        family=family,
        in_dtype=DType(fields[3]),
        out_dtype=DType(fields[4]),
        activation=Activation(fields[5]),
        group_size=group_size,
        scale_format=scale_format,
        symmetric=fields[7] != "asym",
        truncated=fields[7] == "trunc",
        arch=Arch(fields[0]),
    )


def _group_scales_from_text(text: str) -> tuple[int, ScaleFormat]:
    match = re.fullmatch(r"g(\d{1,3})(f32|f32pow2|ue8m0x4)", text)
    if match is None:
        raise ValueError(f"scales {text!r}, expected g, a group size and f32, f32pow2 or ue8m0x4")
    return int(match[1]), ScaleFormat(match[2])


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


def _launch_from_fields(fields: list[str]) -> Launch:
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
