"""The quantisation ops, each with the configs that serve its calls: what selections, predicates and the runtime share."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from gemmill.families.quant.config import (
    GROUP_SIZES,
    IN_DTYPES,
    Activation,
    QuantConfig,
    QuantFamily,
    ScaleFormat,
    of_vllm,
)
from gemmill.family import VLLM_PREFIX, OpSchema
from gemmill.vocab import Arch, DType

_GATED = (Activation.SILU, Activation.GELU_TANH, Activation.GELU_ERF)
_SIXTEEN_BITS = (DType.BF16, DType.F16)
_BOTH = (DType.E4M3, DType.S8)
# docs/quantisation.md says how.
_DIFFER_IN_VLLM = (
    "static_scaled_fp8_quant",
    "dynamic_scaled_fp8_quant",
    "dynamic_per_token_scaled_fp8_quant",
    "static_scaled_int8_quant",
    "dynamic_scaled_int8_quant",
    "per_token_group_fp8_quant",
    "per_token_group_quant_int8",
    "per_token_group_fp8_quant_packed",
    "silu_and_mul_per_block_quant",
    "silu_and_mul_quant",
    "rms_norm_dynamic_per_token_quant",
    "rms_norm_per_block_quant",
    "rms_norm_static_fp8_quant",
    "fused_add_rms_norm_static_fp8_quant",
)


@dataclass(frozen=True, kw_only=True)
class QuantOp:
    """What one op can be asked for: any mix of these."""

    schema: OpSchema
    family: QuantFamily
    out_dtypes: tuple[DType, ...]
    in_dtypes: tuple[DType, ...] = IN_DTYPES
    activations: tuple[Activation, ...] = (Activation.NONE,)
    group_sizes: tuple[int, ...] = (0,)
    scale_formats: tuple[ScaleFormat, ...] = (ScaleFormat.F32,)
    symmetric: tuple[bool, ...] = (True,)
    vllm: bool = False
    """Whether scales and codes are those of vLLM's op."""

    @property
    def is_gated(self) -> bool:
        """Whether input has a gate and an up half."""
        return self.activations[0] is not Activation.NONE

    @property
    def is_packed(self) -> bool:
        """Whether scales are exponents, four in a word."""
        return self.scale_formats == (ScaleFormat.PACKED_UE8M0,)

    @property
    def name(self) -> str:
        """The op's name."""
        return self.schema.name

    def configs(self, arch: Arch) -> Iterator[QuantConfig]:
        """Every config that serves a call of the op, each once."""
        axes = product(
            self.in_dtypes, self.out_dtypes, self.activations, self.group_sizes, self.scale_formats, self.symmetric
        )
        for in_dtype, out_dtype, activation, group_size, scale_format, symmetric in axes:
            config = QuantConfig(
                family=self.family,
                in_dtype=in_dtype,
                out_dtype=out_dtype,
                activation=activation,
                group_size=group_size,
                scale_format=scale_format,
                symmetric=symmetric,
                arch=arch,
            )
            yield of_vllm(config) if self.vllm else config

    def serves(self, config: QuantConfig) -> bool:
        """Whether a kernel of this config serves calls of the op."""
        return config in self.configs(config.arch)


_OPS = (
    QuantOp(
        schema=OpSchema(
            "static_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()"
        ),
        family=QuantFamily.STATIC,
        out_dtypes=(DType.E4M3,),
    ),
    QuantOp(
        schema=OpSchema("dynamic_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale) -> ()"),
        family=QuantFamily.TENSOR,
        out_dtypes=(DType.E4M3,),
    ),
    QuantOp(
        schema=OpSchema(
            "dynamic_per_token_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, "
            "Tensor? scale_ub) -> ()"
        ),
        family=QuantFamily.TOKEN,
        out_dtypes=(DType.E4M3,),
    ),
    QuantOp(
        schema=OpSchema("static_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor scale, Tensor? azp) -> ()"),
        family=QuantFamily.STATIC,
        out_dtypes=(DType.S8,),
        symmetric=(True, False),
    ),
    QuantOp(
        schema=OpSchema(
            "dynamic_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor(c!)? azp) -> ()"
        ),
        family=QuantFamily.TOKEN,
        out_dtypes=(DType.S8,),
        symmetric=(True, False),
    ),
    QuantOp(
        schema=OpSchema(
            "per_token_group_fp8_quant(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, "
            "float eps, float fp8_min, float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, "
            "bool dummy_is_tma_aligned) -> ()"
        ),
        family=QuantFamily.GROUP,
        out_dtypes=(DType.E4M3,),
        group_sizes=GROUP_SIZES,
        scale_formats=(ScaleFormat.F32, ScaleFormat.POWER_OF_TWO),
    ),
    QuantOp(
        schema=OpSchema(
            "per_token_group_quant_int8(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, "
            "float eps, float int8_min, float int8_max) -> ()"
        ),
        family=QuantFamily.GROUP,
        out_dtypes=(DType.S8,),
        group_sizes=GROUP_SIZES,
    ),
    QuantOp(
        schema=OpSchema(
            "per_token_group_fp8_quant_packed(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s_packed, "
            "int group_size, float eps, float fp8_min, float fp8_max) -> ()"
        ),
        family=QuantFamily.GROUP,
        out_dtypes=(DType.E4M3,),
        group_sizes=GROUP_SIZES,
        scale_formats=(ScaleFormat.PACKED_UE8M0,),
    ),
    QuantOp(
        schema=OpSchema(
            "silu_and_mul_per_block_quant(Tensor(a!) out, Tensor input, Tensor(b!) scales, int group_size, "
            "Tensor? scale_ub=None, bool is_scale_transposed=False) -> ()"
        ),
        family=QuantFamily.GROUP,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=_BOTH,
        activations=(Activation.SILU,),
        group_sizes=(64, 128),
    ),
    QuantOp(
        schema=OpSchema("silu_and_mul_quant(Tensor(a!) result, Tensor input, Tensor scale) -> ()"),
        family=QuantFamily.STATIC,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=(DType.E4M3,),
        activations=(Activation.SILU,),
    ),
    QuantOp(
        schema=OpSchema(
            "silu_and_mul_per_token_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor? scale_ub) -> ()"
        ),
        family=QuantFamily.TOKEN,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=_BOTH,
        activations=(Activation.SILU,),
    ),
    QuantOp(
        schema=OpSchema(
            "rms_norm_dynamic_per_token_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor(b!) scale, "
            "float epsilon, Tensor? scale_ub, Tensor(c!)? residual) -> ()"
        ),
        family=QuantFamily.RMS_TOKEN,
        out_dtypes=_BOTH,
    ),
    QuantOp(
        schema=OpSchema(
            "rms_norm_per_block_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor(b!) scale, "
            "float epsilon, Tensor? scale_ub, Tensor(c!)? residual, int group_size, "
            "bool is_scale_transposed) -> ()"
        ),
        family=QuantFamily.RMS_GROUP,
        out_dtypes=_BOTH,
        group_sizes=(64, 128),
    ),
    QuantOp(
        schema=OpSchema(
            "rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor scale, float epsilon) -> ()"
        ),
        family=QuantFamily.RMS_STATIC,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=(DType.E4M3,),
    ),
    QuantOp(
        schema=OpSchema(
            "fused_add_rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) residual, Tensor weight, "
            "Tensor scale, float epsilon) -> ()"
        ),
        family=QuantFamily.RMS_STATIC,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=(DType.E4M3,),
    ),
    QuantOp(
        schema=OpSchema(
            "act_and_mul_per_block_quant(Tensor(a!) out, Tensor input, Tensor(b!) scales, str activation, "
            "int group_size, Tensor? scale_ub=None, bool scale_ue8m0=False) -> ()"
        ),
        family=QuantFamily.GROUP,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=_BOTH,
        activations=_GATED,
        group_sizes=(64, 128),
        scale_formats=(ScaleFormat.F32, ScaleFormat.POWER_OF_TWO),
    ),
    QuantOp(
        schema=OpSchema("act_and_mul_quant(Tensor(a!) result, Tensor input, Tensor scale, str activation) -> ()"),
        family=QuantFamily.STATIC,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=_BOTH,
        activations=_GATED,
    ),
    QuantOp(
        schema=OpSchema(
            "act_and_mul_per_token_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, str activation, "
            "Tensor? scale_ub=None) -> ()"
        ),
        family=QuantFamily.TOKEN,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=_BOTH,
        activations=_GATED,
    ),
    QuantOp(
        schema=OpSchema(
            "dynamic_tensor_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, "
            "Tensor(c!)? azp=None) -> ()"
        ),
        family=QuantFamily.TENSOR,
        out_dtypes=(DType.S8,),
        symmetric=(True, False),
    ),
    QuantOp(
        schema=OpSchema(
            "per_token_group_quant_int8_azp(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, "
            "Tensor(c!) output_azp, int group_size) -> ()"
        ),
        family=QuantFamily.GROUP,
        out_dtypes=(DType.S8,),
        group_sizes=GROUP_SIZES,
        symmetric=(False,),
    ),
)


def _of_vllm(op: QuantOp) -> QuantOp:
    """vLLM's op of the name, with vLLM's scales and codes, under a name of ours. Its packed scales are of 16 bits in groups of
    32 and 128 only."""
    renamed = replace(op, schema=OpSchema(VLLM_PREFIX + op.schema.schema), vllm=True)
    if op.is_packed:
        return replace(renamed, in_dtypes=_SIXTEEN_BITS, group_sizes=(32, 128))
    return renamed


QUANT_OPS = (*_OPS, *(_of_vllm(op) for op in _OPS if op.name in _DIFFER_IN_VLLM))


def ops_of(config: QuantConfig) -> tuple[str, ...]:
    """Names of the ops that a kernel of this config serves."""
    return tuple(op.name for op in QUANT_OPS if op.serves(config))
