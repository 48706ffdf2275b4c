"""The config that serves a call of a quantisation op."""

from collections.abc import Collection

from gemmill.families.quant.classes import CODED
from gemmill.families.quant.config import (
    IN_DTYPES,
    Activation,
    QuantConfig,
    ScaleFormat,
    Scaling,
    of_vllm,
)
from gemmill.families.quant.ops import QUANT_OPS
from gemmill.family import Judged
from gemmill.vocab import Arch

OP_OF = {op.name: op for op in QUANT_OPS}
OUT_NAMES = ("result", "out", "output_q", "output")
SCALE_NAMES = (
    "scale",
    "scales",
    "output_s",
    "output_s_packed",
    "out_sf",
    "result_block_scale",
    "output_scale",
    "input_sf",
)
GROUP_AZP = "output_azp"
"""The name of the zero points of groups. The name of others is `azp`."""
_DTYPE_OF = {dtype.torch_name: dtype for dtype in IN_DTYPES}
_CODED = {number: dtype for dtype, number in CODED.items()}


def name_of(names: Collection[str], known: tuple[str, ...]) -> str:
    """The one of the names `known` that an op's arguments have."""
    return next(name for name in known if name in names)


def config_of(call: Judged, arch: Arch) -> QuantConfig:
    """The config that serves a call which has passed the checks: there is exactly one."""
    scaling = list(Scaling)[call["scaling"]]
    config = QuantConfig.of(
        scaling,
        _DTYPE_OF[call["out" if scaling.decodes else "input"].dtype],
        list(Activation)[call["chosen"]],
        arch,
        out_dtype=_CODED[call["coded"]],
        group_size=call.get("built_group") or 0,
        scale_format=list(ScaleFormat)[call["scale_format"]],
        symmetric=call.get("azp") is None,
        row_sums=call.get("row_sums") is not None,
    )
    return of_vllm(config) if call["vllm"] else config
