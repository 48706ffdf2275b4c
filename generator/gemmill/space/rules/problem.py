"""Which problems exist at all."""

from gemmill.space.config import KernelConfig
from gemmill.vocab import (
    GROUP_SIZES,
    OK,
    SCALE_GROUPS,
    Accumulation,
    Arch,
    DType,
    ScaleGranularity,
    Status,
    rejected,
)


def operand_dtypes(config: KernelConfig) -> Status:
    """The tensor core multiplies operands of one family: e4m3 x e4m3 to f32, or s8 x s8 to s32."""
    p = config.problem
    if (p.a_dtype, p.b_dtype) not in ((DType.E4M3, DType.E4M3), (DType.S8, DType.S8)):
        return rejected(f"{p.a_dtype} x {p.b_dtype} is not offered: e4m3 x e4m3 and s8 x s8 are")
    return OK


def out_dtype(config: KernelConfig) -> Status:
    """Results are stored in 16 bits: what the next layer reads."""
    if config.problem.out_dtype not in (DType.BF16, DType.F16):
        return rejected(f"out {config.problem.out_dtype} is not offered: bf16 and f16 are")
    return OK


def zero_points_are_integers(config: KernelConfig) -> Status:
    """A zero point shifts integer codes; FP8 has its zero in the code."""
    p = config.problem
    if p.epilogue.takes_azp and p.a_dtype is not DType.S8:
        return rejected(f"epilogue {p.epilogue} corrects integer zero points, operands are {p.a_dtype}")
    return OK


def grouped_scales(config: KernelConfig) -> Status:
    """The kinds of groups that calls can have: of A 1 x g, of B g x g or 1 x g."""
    p = config.problem
    if p.scale_groups is None:
        return OK
    if p.a_scale is not ScaleGranularity.GROUP or p.scale_groups not in SCALE_GROUPS:
        return rejected(
            f"scales {p.a_scale} of A and {p.b_scale} of B in groups of {p.group_size}: group with block or group is "
            f"offered, in groups of {' or '.join(map(str, GROUP_SIZES))}"
        )
    if p.epilogue.takes_azp:
        return rejected(f"epilogue {p.epilogue} corrects one integer sum, scales in groups of {p.group_size} make many")
    if config.arch is not Arch.SM90A:
        return rejected(f"scales in groups are offered on sm90a only, not on {config.arch}")
    return OK


def accumulation_fits_dtype(config: KernelConfig) -> Status:
    """Integer sums are exact; FP8 sums are either left in the tensor core or promoted."""
    exact = config.schedule.accumulation is Accumulation.EXACT
    if exact == config.problem.a_dtype.is_float:
        return rejected(
            f"accumulation {config.schedule.accumulation} does not fit {config.problem.a_dtype}: "
            "s8 is exact, e4m3 is fast or promoted"
        )
    if config.problem.group_size and config.schedule.accumulation is Accumulation.FAST:
        return rejected(f"scales change every {config.problem.group_size} along K: sums are promoted there, not fast")
    return OK


RULES = (operand_dtypes, out_dtype, zero_points_are_integers, grouped_scales, accumulation_fits_dtype)
