"""The quantisation ops in the runtime."""

from gemmill.families import quant
from gemmill.families.quant.call import config_of, quant_call
from gemmill.families.quant.classes import CLASSES
from gemmill.families.quant.config import QuantConfig
from gemmill.family import OpSchema, ProblemCall
from gemmill.family.operand import Call
from gemmill.registry import REGISTRY
from gemmill.runtime.library import Build
from gemmill.runtime.quant_cpu import by_reference
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Serving, count_of_variants
from gemmill.space.names import to_name
from gemmill.vocab import Arch


def _wanted(build: Build, op: OpSchema, call: Call) -> QuantConfig:
    return config_of(quant_call(op, call), Arch(build.manifest.arch))


def _asked(op: OpSchema, call: Call) -> ProblemCall:
    family, declared = REGISTRY.ops[op.name]
    return CLASSES.of_call(family.name, family.asks.class_of(declared, call))


def _lacks(build: Build, op: OpSchema, call: Call, choice: Choice) -> str:
    return (
        f"build {build.build_id} lacks {to_name(_wanted(build, op, call))}, the variant for such calls, among its "
        f"{count_of_variants(len(build.table.families.get(quant.NAME, ())))} of quantisation kernels; "
        f"`gemmill build --arch {build.manifest.arch} --select default` builds it"
    )


SERVING = Serving(on_cpu=by_reference, asked=_asked, lacks=_lacks)
