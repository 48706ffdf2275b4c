"""The quantisation ops in the runtime."""

from gemmill.families.quant.call import config_of
from gemmill.families.quant.config import QuantConfig
from gemmill.family import OpSchema
from gemmill.family.operand import Call
from gemmill.runtime import checks
from gemmill.runtime.library import Build
from gemmill.runtime.quant_cpu import by_reference
from gemmill.runtime.quant_table import select_quant
from gemmill.runtime.select import Choice
from gemmill.runtime.serving import Serving, count_of_variants
from gemmill.space.names import to_name
from gemmill.vocab import Arch


def _wanted(build: Build, op: OpSchema, call: Call) -> QuantConfig:
    return config_of(checks.check(op, call), Arch(build.manifest.arch))


def _choose(build: Build, op: OpSchema, call: Call, sm_count: int) -> Choice:
    return select_quant(build.quant, _wanted(build, op, call), build.pinned_quant_name())


def _lacks(build: Build, op: OpSchema, call: Call, choice: Choice) -> str:
    return (
        f"build {build.build_id} lacks {to_name(_wanted(build, op, call))}, the variant for such calls, among its "
        f"{count_of_variants(len(build.quant.rows))} of quantisation kernels; "
        f"`gemmill build --arch {build.manifest.arch} --select default` builds it"
    )


SERVING = Serving(on_cpu=by_reference, choose=_choose, lacks=_lacks)
