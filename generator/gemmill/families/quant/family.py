"""The declaration of the quantisation kernels."""

from dataclasses import replace

from gemmill.families.quant import NAME, selections
from gemmill.families.quant.classes import CLASSES
from gemmill.families.quant.config import RULES, QuantConfig, Scales, Scaling
from gemmill.families.quant.contract import OPS
from gemmill.families.quant.ops import ops_of
from gemmill.families.quant.questions import QUESTIONS
from gemmill.families.quant.spelling import spell
from gemmill.family import ALONE, Family, Field, Grammar, Kernels, Order, number_after, words

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-20: a unit's headers and host passes, then each kernel.
_UNIT_SECONDS, _SECONDS = 3.0, 1.0


GRAMMAR = Grammar(
    QuantConfig,
    (
        Field("{scaling}"),
        Field("{operands.in_dtype}"),
        Field("{epilogue.out_dtype}"),
        Field("{operands.activation}"),
        Field("{epilogue.group_size}{epilogue.scale_format}", spelled={"epilogue.group_size": number_after("g")}),
        Field(
            "{epilogue.vllm}{epilogue.symmetric}{epilogue.row_sums}",
            spelled={
                "epilogue.vllm": words({False: "", True: "vllm"}),
                "epilogue.symmetric": words({True: "sym", False: "asym"}),
                "epilogue.row_sums": words({False: "", True: "sums"}),
            },
        ),
    ),
)

QUANT = Kernels(
    tag=QuantConfig.tag,
    doc="hand-written CUDA",
    grammar=GRAMMAR,
    ops=ops_of,
    rules=RULES,
    spell=spell,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=48,
)


def _order(config: QuantConfig) -> Order | None:
    """A largest magnitude is the same in any order, and so is our sum of a norm's squares (kernels/quant/mean_square.cuh). vLLM divides
    a norm's row among threads by the number of rows, unless each row has one scale. A scale of the whole tensor is the batch's."""
    by_rows = config.vllm and config.scaling in (Scaling.RMS_GROUP, Scaling.RMS_STATIC)
    return None if by_rows or config.scaling.scales is Scales.OF_TENSOR else ALONE


FAMILY = Family(
    name=NAME,
    doc="quantises rows, alone or after an activation or a norm",
    asks=OPS,
    kernels=(QUANT,),
    questions=QUESTIONS,
    selections={"smoke": selections.smoke, "default": selections.default},
    tuning=replace(CLASSES.tuning, order=_order),
)
