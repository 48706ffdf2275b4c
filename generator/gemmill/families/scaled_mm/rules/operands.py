"""Rules about which operands and results exist at all."""

from collections.abc import Iterator
from typing import TypeGuard

from gemmill.families.scaled_mm.config import ACCUMULATOR_OF, RESULTS_OF, KernelConfig
from gemmill.families.scaled_mm.own import OWN_RESULTS_OF, OwnConfig
from gemmill.family import any_of
from gemmill.vocab import (
    GROUP_SIZES,
    SCALE_GROUPS,
    Accumulation,
    Arch,
    Backend,
    DType,
    MainLoop,
    ScaleGranularity,
    TileScheduler,
)

ACCUMULATIONS_OF = {
    DType.E4M3: (Accumulation.FAST, Accumulation.PROMOTED),
    DType.S8: (Accumulation.EXACT,),
    DType.BF16: (Accumulation.FAST,),
    DType.F16: (Accumulation.FAST,),
}
"""The accumulations that each operand's sums can have."""


def operand_dtypes(config: KernelConfig) -> Iterator[str]:
    """The tensor core multiplies operands of one type: floats to f32, s8 to s32."""
    x = config.operands
    if x.a_dtype not in ACCUMULATOR_OF or x.a_dtype is not x.b_dtype:
        offered = ", ".join(f"{dtype} x {dtype}" for dtype in ACCUMULATOR_OF)
        yield f"{x.a_dtype} x {x.b_dtype} is not offered: {offered} are"


def out_dtype(config: KernelConfig) -> Iterator[str]:
    """Results have 16 bits, which the next layer reads. A user's epilogue may end in codes, which the DSL does not
    store.
    """
    x = config.operands
    outs = (OWN_RESULTS_OF if _is_visitor(config) else RESULTS_OF).get(x.a_dtype, ())
    if x.out_dtype not in outs:
        yield f"out {x.out_dtype} of {x.a_dtype} operands is not offered: it is {' or '.join(outs)}"


def visitors(config: KernelConfig) -> Iterator[str]:
    """CUTLASS's visitors are part of its collectives' epilogues."""
    s = config.design
    if not _is_visitor(config):
        return
    if not s.kernel_schedule.uses_tma or s.tile_scheduler is TileScheduler.SPLIT_K or s.main_loop is MainLoop.FEW_ROWS:
        yield f"{s.kernel_schedule} with {s.tile_scheduler} is no collective of CUTLASS's: it has no visitors"


def _is_visitor(config: KernelConfig) -> TypeGuard[OwnConfig]:
    return isinstance(config, OwnConfig) and config.backend is Backend.CUTLASS


def operands_of_16_bits(config: KernelConfig) -> Iterator[str]:
    """Operands of 16 bits are for comparisons, and for unquantised layers. One fast backend and the fallback do."""
    x = config.operands
    if x.a_dtype.bits != 8 and x.group_size:
        yield f"scales in groups of {x.group_size} belong to codes of 8 bits, operands are {x.a_dtype}"


def zero_points_are_integers(config: KernelConfig) -> Iterator[str]:
    """A zero point shifts integer codes; FP8 has its zero in the code."""
    x = config.operands
    if config.epilogue.takes_azp and x.a_dtype is not DType.S8:
        yield f"epilogue {config.epilogue} corrects integer zero points, operands are {x.a_dtype}"


def grouped_scales(config: KernelConfig) -> Iterator[str]:
    """Calls can have these kinds of groups: of A 1 x g, of B g x g or 1 x g."""
    x = config.operands
    if x.scale_groups is None:
        return
    if x.a_scale is not ScaleGranularity.GROUP or x.scale_groups not in SCALE_GROUPS:
        yield (
            f"scales {x.a_scale} of A and {x.b_scale} of B in groups of {x.group_size}: group with block or group is "
            f"offered, in groups of {any_of(list(map(str, GROUP_SIZES)))}"
        )
    if config.epilogue.takes_azp:
        yield f"epilogue {config.epilogue} corrects one integer sum, scales in groups of {x.group_size} make many"
    if config.arch is not Arch.SM90A and (config.design.kernel_schedule.uses_tma or config.arch is not Arch.SM120F):
        yield f"scales in groups are offered on sm90a only, not on {config.arch}"


def accumulation_fits_dtype(config: KernelConfig) -> Iterator[str]:
    """Integer sums are exact; FP8 sums are left in the tensor core's FP22 or promoted; others are f32 there
    already."""
    operand = config.operands.a_dtype
    fitting = ACCUMULATIONS_OF.get(operand, ())
    if config.design.accumulation not in fitting:
        yield f"accumulation {config.design.accumulation} does not fit {operand}: it is {' or '.join(fitting)}"
    if config.operands.group_size and operand is DType.E4M3 and config.design.accumulation is Accumulation.FAST:
        yield f"scales change every {config.operands.group_size} along K: sums are promoted there, not fast"
