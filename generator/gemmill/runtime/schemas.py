"""Names and schemas of the ops; the order of OPS is known to kernels/extension."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

NAMESPACE = "gemmill"


class Kind(StrEnum):
    """Types of arguments, as torch writes them."""

    TENSOR = "Tensor"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    INTS = "int[]"
    TEXT = "str"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One argument of an op."""

    name: str
    kind: Kind
    written: bool
    optional: bool
    """Whether None may be given."""
    default: bool | None
    """What stands in for an argument that is not given; None too where `required`."""
    required: bool


_PARAMETER = re.compile(r"(Tensor|int\[\]|int|float|bool|str)(\(\w!\))?(\?)? (\w+)(?:=(None|False))?")


@dataclass(frozen=True)
class OpSchema:
    """An out-variant op, by its schema in torch's language. It returns nothing."""

    schema: str

    @cached_property
    def name(self) -> str:
        """The op's name."""
        return self.schema.partition("(")[0]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its arguments. Raises ValueError for a schema with others than those this project uses."""
        inner = self.schema.removesuffix(") -> ()").partition("(")[2]
        return tuple(_parameter(text) for text in inner.split(", "))

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """Names of its arguments."""
        return tuple(parameter.name for parameter in self.parameters)


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match is None:
        raise ValueError(f"argument {text!r} of a schema cannot be read")
    kind, written, optional, name, default = match.groups()
    return Parameter(
        name=name,
        kind=Kind(kind),
        written=written is not None,
        optional=optional is not None,
        default=False if default == "False" else None,
        required=default is None,
    )


SCALED_MM = OpSchema(
    "cutlass_scaled_mm(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()"
)
SCALED_MM_AZP = OpSchema(
    "cutlass_scaled_mm_azp(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor azp_adj, "
    "Tensor? azp, Tensor? bias) -> ()"
)
GEMM_OPS = (SCALED_MM, SCALED_MM_AZP)
QUANT_OPS = tuple(
    map(
        OpSchema,
        (
            "static_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()",
            "dynamic_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale) -> ()",
            "dynamic_per_token_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor? scale_ub) -> ()",
            "static_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor scale, Tensor? azp) -> ()",
            "dynamic_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor(c!)? azp) -> ()",
            "per_token_group_fp8_quant(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, float eps, "
            "float fp8_min, float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, bool dummy_is_tma_aligned) -> ()",
            "per_token_group_quant_int8(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, float eps, "
            "float int8_min, float int8_max) -> ()",
            "per_token_group_fp8_quant_packed(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s_packed, int group_size, "
            "float eps, float fp8_min, float fp8_max) -> ()",
            "silu_and_mul_per_block_quant(Tensor(a!) out, Tensor input, Tensor(b!) scales, int group_size, "
            "Tensor? scale_ub=None, bool is_scale_transposed=False) -> ()",
            "silu_and_mul_quant(Tensor(a!) result, Tensor input, Tensor scale) -> ()",
            "silu_and_mul_per_token_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor? scale_ub) -> ()",
            "rms_norm_dynamic_per_token_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor(b!) scale, "
            "float epsilon, Tensor? scale_ub, Tensor(c!)? residual) -> ()",
            "rms_norm_per_block_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor(b!) scale, float epsilon, "
            "Tensor? scale_ub, Tensor(c!)? residual, int group_size, bool is_scale_transposed) -> ()",
            "act_and_mul_per_block_quant(Tensor(a!) out, Tensor input, Tensor(b!) scales, str activation, int group_size, "
            "Tensor? scale_ub=None, bool scale_ue8m0=False) -> ()",
            "act_and_mul_quant(Tensor(a!) result, Tensor input, Tensor scale, str activation) -> ()",
            "act_and_mul_per_token_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, str activation, "
            "Tensor? scale_ub=None) -> ()",
            "dynamic_tensor_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor(c!)? azp=None) -> ()",
            "per_token_group_quant_int8_azp(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, Tensor(c!) output_azp, "
            "int group_size) -> ()",
            "per_token_group_quant_int8_truncated(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, "
            "float eps, float int8_min, float int8_max) -> ()",
        ),
    )
)
OPS = (*GEMM_OPS, *QUANT_OPS)
BY_NAME = {op.name: op for op in OPS}
