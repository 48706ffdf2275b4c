"""The declaration of the scaled GEMMs."""

from dataclasses import replace

from gemmill.families.scaled_mm import NAME, names, own, selections
from gemmill.families.scaled_mm.accepts import ops_of
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.dsl.plan import Plan
from gemmill.families.scaled_mm.ops import OPS
from gemmill.families.scaled_mm.questions import QUESTIONS
from gemmill.families.scaled_mm.rules import RULES
from gemmill.families.scaled_mm.spelling import cutedsl, cutlass, visitor
from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.family import DslBody, Epilogues, Family, HostCode, Kernels, of_dsl
from gemmill.gemm.facts import Facts
from gemmill.gemm.host import host_facts, shared_bytes
from gemmill.gemm.traced import learn, of_text
from gemmill.vocab import Backend, KernelSchedule, MainLoop, TileScheduler

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-20: a unit's headers and host passes, then each variant
# built from CUTLASS's collectives, and each that is plain CUDA.
_UNIT_SECONDS, _COLLECTIVE_SECONDS, _PLAIN_SECONDS = 26.0, 12.0, 4.0
# The same of CuTe DSL 4.8.1: a process's import, then each variant.
_DSL_UNIT_SECONDS, _DSL_SECONDS = 2.0, 2.0


def _seconds(config: KernelConfig) -> float:
    schedule = config.design
    plain = (
        schedule.kernel_schedule is KernelSchedule.MMA_SYNC
        or schedule.tile_scheduler is TileScheduler.SPLIT_K
        or schedule.main_loop is MainLoop.FEW_ROWS
    )
    return _PLAIN_SECONDS if plain else _COLLECTIVE_SECONDS


def _host_facts(config: KernelConfig) -> dict[str, int | str]:
    """The fields of `ScaledMmFacts`: of a user's epilogue also how many vectors and numbers it reads, -1 for the others."""
    facts = Facts(config)
    fields = (facts.m_fields, facts.n_fields, facts.scalar_fields) if isinstance(config, own.OwnConfig) else ()
    counts = [len(of_kind) for of_kind in fields] or [-1] * 3
    names = ("own_rows", "own_columns", "own_scalars")
    return {**host_facts(facts, config.out_dtype), **dict(zip(names, counts, strict=True))}


_HOST = HostCode(
    header="scaled_mm/driver_call.h",
    struct="ScaledMmFacts",
    facts=_host_facts,
    threads=lambda config: Facts(config).threads,
    shared_bytes=lambda config: shared_bytes(Facts(config)),
)
CUTLASS = Kernels(
    tag=Backend.CUTLASS.value,
    doc="CUTLASS 3.x collectives, and hand-written CUDA where CUTLASS has nothing",
    grammar=names.OF_BACKEND[Backend.CUTLASS],
    ops=ops_of,
    rules=RULES,
    spell=cutlass.spell,
    seconds=_seconds,
    unit_seconds=_UNIT_SECONDS,
    # Headers and host passes are a third of a lone GEMM's time; eight share them well, and a unit of more would keep one
    # core busy after the others have finished.
    unit_size=8,
)
CUTEDSL = replace(
    CUTLASS,
    tag=Backend.CUTEDSL.value,
    doc="kernels written in CuTe DSL",
    grammar=names.OF_BACKEND[Backend.CUTEDSL],
    spell=of_dsl("gemmill.families.scaled_mm.dsl.export"),
    seconds=lambda _: _DSL_SECONDS,
    unit_seconds=_DSL_UNIT_SECONDS,
    unit_size=64,  # whose import takes as long as one or two of them
    dsl=DslBody(
        entry="gemmill.families.scaled_mm.dsl.export",
        arguments="gemmill_scaled_mm_args",
        facts=Plan,
        split=lambda config: Facts(config).split_tile,
        host=_HOST,
    ),
)
OWN = replace(
    CUTEDSL,
    tag=own.TAG,
    doc="kernels in CuTe DSL that end in a user's epilogue",
    grammar=names.OF_OWN[Backend.CUTEDSL],
    spell=cutedsl.spell_own,
    dsl=DslBody(
        entry="gemmill.families.scaled_mm.dsl.own_export",
        arguments="gemmill_scaled_mm_args",
        facts=Plan,
        host=_HOST,
    ),
)
VISITORS = replace(
    CUTLASS,
    tag=own.VISITOR_TAG,
    doc="CUTLASS 3.x collectives that end in a user's epilogue",
    grammar=names.OF_OWN[Backend.CUTLASS],
    spell=visitor.spell,
)
FAMILY = Family(
    name=NAME,
    doc="multiplies matrices of codes, scales and shifts the sums",
    asks=OPS,
    kernels=(CUTLASS, CUTEDSL, OWN, VISITORS),
    questions=QUESTIONS,
    peers="gemmill.families.scaled_mm.peers",
    selections={
        "smoke": selections.smoke,
        "default": selections.default,
        "nvcc": selections.nvcc,
        "sweep": selections.sweep,
    },
    tuning=TUNING,
    epilogues=Epilogues(
        op=lambda text: own.op_of(of_text(text)),
        operands=lambda text: own.operands_of(of_text(text)),
        configs=selections.with_epilogue,
        text_of=own.text_of,
        learn=lambda text: learn(of_text(text)),
    ),
)
