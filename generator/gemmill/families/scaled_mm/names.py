"""Names of GEMMs."""

from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.own import OwnConfig
from gemmill.family import Field, Grammar, Spelling, words
from gemmill.vocab import Backend, MainLoop, RasterOrder, ScaleGranularity, ScaleLayout

_FIELDS = (
    Field("{operands.a_dtype}"),
    Field("{operands.b_dtype}"),
    Field("{operands.accumulator_dtype}"),
    Field("{operands.out_dtype}"),
    Field("{epilogue}"),
    Field(
        "{operands.a_scale}{operands.b_scale}{operands.group_size}{operands.scale_layout}",
        default=(ScaleGranularity.CHANNEL, ScaleGranularity.CHANNEL, 0, ScaleLayout.VECTOR),
        instead=("channel",),
    ),
    Field("t{design.tile_shape_mnk}"),
    Field("c{design.cluster_shape_mnk}"),
    Field("{design.kernel_schedule}"),
    Field("{design.accumulation}"),
    Field("{design.tile_scheduler}"),
    Field("{design.swap_ab}", spelled={"design.swap_ab": words({False: "ab", True: "swapab"})}),
    Field("s{design.stages}"),
    Field("{design.main_loop}", default=MainLoop.STANDARD),
    Field("d{design.slice_step}", default=None),
    Field("p{design.partial_sets}", default=2),
    Field("a{design.alignment_a}b{design.alignment_b}d{design.alignment_d}"),
    # Launch settings
    Field("r{launch.raster_order}", default=RasterOrder.HEURISTIC),
    Field("w{launch.swizzle}", default=1),
    Field("k{launch.splits}", default=1),
)
_KEY = Spelling("[a-z0-9]+", str, str, "the letters and digits of an epilogue's key")
OF_BACKEND = {backend: Grammar(KernelConfig, _FIELDS, fixed={"backend": backend}) for backend in Backend}
OF_OWN = {
    backend: Grammar(OwnConfig, (Field("{own}", spelled={"own": _KEY}), *_FIELDS), fixed={"backend": backend})
    for backend in Backend
}
"""Grammars of kernels that end in a user's epilogue, by their backend."""
