"""The declaration of routers."""

from dataclasses import replace

from gemmill.families.routing import NAME, selections
from gemmill.families.routing.classes import CLASSES
from gemmill.families.routing.config import RULES, RoutingConfig
from gemmill.families.routing.ops import OPS, ROUTER_TOPK
from gemmill.families.routing.questions import QUESTIONS
from gemmill.family import ALONE, Family, Field, Grammar, Kernels, Spelled
from gemmill.vocab import DType

# CPU seconds of nvcc 13 on a 2-core x86-64 build machine, 2026-11-30: a unit's headers and host passes, then each kernel.
_UNIT_SECONDS, _SECONDS = 3.0, 1.0
_TYPES = {DType.BF16: "cutlass::bfloat16_t", DType.F16: "cutlass::half_t"}
GRAMMAR = Grammar(RoutingConfig, (Field("{operands.dtype}"),))


def _spell(config: RoutingConfig) -> Spelled:
    return Spelled(template="routing/router_topk.cu.jinja", values={"half_type": _TYPES[config.dtype]})


ROUTERS = Kernels(
    tag=RoutingConfig.tag,
    doc="logits and their largest in one launch, on Hopper",
    grammar=GRAMMAR,
    ops=lambda _: (ROUTER_TOPK.name,),
    rules=RULES,
    spell=_spell,
    seconds=lambda _: _SECONDS,
    unit_seconds=_UNIT_SECONDS,
    unit_size=4,
)
FAMILY = Family(
    name=NAME,
    doc="routes tokens to experts",
    asks=OPS,
    kernels=(ROUTERS,),
    questions=QUESTIONS,
    selections={"smoke": selections.smoke, "default": selections.default},
    tuning=replace(CLASSES.tuning, order=lambda _: ALONE),
)
