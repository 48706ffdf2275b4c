"""The declaration of the GEMMs of 2:4 sparse weights."""

from gemmill.families.sparse_mm import NAME, selections
from gemmill.families.sparse_mm.config import SparseConfig
from gemmill.families.sparse_mm.ops import OPS, SPARSE_MM, SPARSE_MM_AZP
from gemmill.families.sparse_mm.questions import QUESTIONS
from gemmill.families.sparse_mm.rules import RULES
from gemmill.families.sparse_mm.spelling import spell
from gemmill.families.sparse_mm.tuning import TUNING
from gemmill.family import Family, Field, Grammar, Kernels
from gemmill.vocab import RasterOrder, TileScheduler

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-23: a unit's headers and host passes, then each variant.
_UNIT_SECONDS, _SECONDS = 13.0, 43.0


GRAMMAR = Grammar(
    SparseConfig,
    (
        Field("{operands.dtype}"),
        Field("{operands.out_dtype}"),
        Field("{epilogue}"),
        Field("t{design.tile_shape_mnk}"),
        Field("c{design.cluster_shape_mnk}"),
        Field("{design.kernel_schedule}"),
        Field("{design.accumulation}"),
        Field("{design.tile_scheduler}", default=TileScheduler.PERSISTENT),
        Field("s{design.stages}"),
        # Launch settings
        Field("r{raster_order}", default=RasterOrder.HEURISTIC),
        Field("w{swizzle}", default=1),
    ),
    fixed={"design.swap_ab": True},
)


def _ops(config: SparseConfig) -> tuple[str, ...]:
    return (SPARSE_MM.name, SPARSE_MM_AZP.name) if config.epilogue.takes_azp else (SPARSE_MM.name,)


SPARSE = Kernels(
    tag=SparseConfig.tag,
    doc="CUTLASS 3.x sparse collectives, on Hopper",
    grammar=GRAMMAR,
    ops=_ops,
    rules=RULES,
    spell=spell,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=2,  # cicc takes 2 GB for each: eight were killed on a machine of 24 GB
)
FAMILY = Family(
    name=NAME,
    doc="multiplies activations by 2:4 sparse weights",
    asks=OPS,
    kernels=(SPARSE,),
    questions=QUESTIONS,
    selections={"smoke": selections.smoke, "default": selections.default, "sweep": selections.sweep},
    tuning=TUNING,
)
