"""The quantisation ops, each with the configs that serve its calls, for selections, predicates and the runtime."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from gemmill.families.quant.config import (
    IN_DTYPES,
    QUANT_GROUP_SIZES,
    Activation,
    QuantConfig,
    ScaleFormat,
    Scaling,
    of_vllm,
    told_by,
)
from gemmill.family import VLLM_PREFIX, OpSchema
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4

_SIXTEEN_BITS = (DType.BF16, DType.F16)


@dataclass(frozen=True, kw_only=True)
class QuantOp:
    """The possible calls of one op: any mix of these fields' values."""

    schema: OpSchema
    scaling: Scaling
    out_dtypes: tuple[DType, ...]
    in_dtypes: tuple[DType, ...] = IN_DTYPES
    activations: tuple[Activation, ...] = (Activation.NONE,)
    group_sizes: tuple[int, ...] = (0,)
    """The group sizes of its kernels: 0, next to others, for any size."""
    scale_formats: tuple[ScaleFormat, ...] = (ScaleFormat.F32,)
    symmetric: tuple[bool, ...] = (True,)
    row_sums: bool = False
    """Whether it stores the sum of each row's codes too."""
    format: Format | None = None
    """The block-scaled format of codes and scales, if they have one."""
    vllm: bool = False
    """Whether scales and codes are those of vLLM's op."""

    @property
    def is_gated(self) -> bool:
        """Whether the input has a gate and an up half."""
        return self.activations[0].is_gated

    @property
    def takes_any_group(self) -> bool:
        """Whether groups may have any size."""
        return self.scaling.is_grouped and 0 in self.group_sizes

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
            config = QuantConfig.of(
                self.scaling,
                in_dtype,
                activation,
                arch,
                out_dtype=out_dtype,
                group_size=group_size,
                scale_format=scale_format,
                symmetric=symmetric,
                row_sums=self.row_sums,
            )
            yield of_vllm(config) if self.vllm else config

    def serves(self, config: QuantConfig) -> bool:
        """Whether a kernel of this config serves calls of the op."""
        return self.name in ops_of(config)


def _op(scaling: Scaling, codes: tuple[DType, ...], schema: str, **others: Any) -> QuantOp:
    return QuantOp(schema=OpSchema(f"{schema} -> ()"), scaling=scaling, out_dtypes=codes, **others)


def _block(format: Format, schema: str, **others: Any) -> QuantOp:
    told = told_by(format)
    return _op(
        others.pop("scaling", Scaling.BLOCK),
        (told["out_dtype"],),
        schema,
        format=format,
        group_sizes=(told["group_size"],),
        scale_formats=(told["scale_format"],),
        **({"in_dtypes": _SIXTEEN_BITS} | others),
    )


_STATIC, _TENSOR, _TOKEN, _GROUP, _RMS_TOKEN, _RMS_GROUP, _RMS_STATIC, _, _EXPERTS, _DEQUANT, _WEIGHT_DEQUANT = Scaling
_FP8, _INT8, _EITHER = (DType.E4M3,), (DType.S8,), (DType.E4M3, DType.S8)
# The fields of ops apart from scaling and codes, where they are not the default.
_SILU = {"in_dtypes": _SIXTEEN_BITS, "activations": (Activation.SILU,)}
_GATED = {"in_dtypes": _SIXTEEN_BITS, "activations": (Activation.SILU, Activation.GELU_TANH, Activation.GELU_ERF)}
_AZP_IF_ASKED = {"symmetric": (True, False)}
_GROUPS = {"group_sizes": QUANT_GROUP_SIZES}
_ANY_GROUPS = {"group_sizes": (0, *QUANT_GROUP_SIZES)}
_POWERS_TOO = {"scale_formats": (ScaleFormat.F32, ScaleFormat.POWER_OF_TWO)}
_WORDS = {"scale_formats": (ScaleFormat.PACKED_UE8M0,)}

_OF_VLLMS_NAME = (
    _op(
        _STATIC, _FP8, "static_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor scale, int[]? group_shape=None)"
    ),
    _op(_TENSOR, _FP8, "dynamic_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale)"),
    _op(
        _TOKEN,
        _FP8,
        "dynamic_per_token_scaled_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor? scale_ub)",
    ),
    _op(
        _STATIC,
        _INT8,
        "static_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor scale, Tensor? azp)",
        **_AZP_IF_ASKED,
    ),
    _op(
        _TOKEN,
        _INT8,
        "dynamic_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor(c!)? azp)",
        **_AZP_IF_ASKED,
    ),
    _op(
        _GROUP,
        _FP8,
        "per_token_group_fp8_quant(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, float eps, "
        "float fp8_min, float fp8_max, bool scale_ue8m0, bool dummy_is_scale_transposed, bool dummy_is_tma_aligned)",
        **_ANY_GROUPS,
        **_POWERS_TOO,
    ),
    _op(
        _GROUP,
        _INT8,
        "per_token_group_quant_int8(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, int group_size, float eps, "
        "float int8_min, float int8_max)",
        **_ANY_GROUPS,
    ),
    _op(
        _GROUP,
        _FP8,
        "per_token_group_fp8_quant_packed(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s_packed, "
        "int group_size, float eps, float fp8_min, float fp8_max)",
        **_GROUPS,
        **_WORDS,
    ),
    _op(
        _GROUP,
        _EITHER,
        "silu_and_mul_per_block_quant(Tensor(a!) out, Tensor input, Tensor(b!) scales, int group_size, "
        "Tensor? scale_ub=None, bool is_scale_transposed=False)",
        **_SILU,
        **_GROUPS,
    ),
    _op(_STATIC, _FP8, "silu_and_mul_quant(Tensor(a!) result, Tensor input, Tensor scale)", **_SILU),
    _op(
        _RMS_TOKEN,
        _EITHER,
        "rms_norm_dynamic_per_token_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor(b!) scale, "
        "float epsilon, Tensor? scale_ub, Tensor(c!)? residual)",
    ),
    _op(
        _RMS_GROUP,
        _EITHER,
        "rms_norm_per_block_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor(b!) scale, float epsilon, "
        "Tensor? scale_ub, Tensor(c!)? residual, int group_size, bool is_scale_transposed)",
        **_GROUPS,
    ),
    _op(
        _RMS_STATIC,
        _FP8,
        "rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor weight, Tensor scale, float epsilon)",
    ),
    _op(
        _RMS_STATIC,
        _FP8,
        "fused_add_rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor(b!) residual, Tensor weight, "
        "Tensor scale, float epsilon)",
    ),
)
"""Ops whose names and schemas are vLLM's, but whose scales or codes are not all vLLM's: docs/quant.md says
how."""
_OWN = (
    _op(
        _TOKEN,
        _EITHER,
        "silu_and_mul_per_token_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor? scale_ub)",
        **_SILU,
    ),
    _op(
        _GROUP,
        _EITHER,
        "act_and_mul_per_block_quant(Tensor(a!) out, Tensor input, Tensor(b!) scales, str activation, int group_size, "
        "Tensor? scale_ub=None, bool scale_ue8m0=False)",
        **_GATED,
        **_GROUPS,
        **_POWERS_TOO,
    ),
    _op(_STATIC, _EITHER, "act_and_mul_quant(Tensor(a!) result, Tensor input, Tensor scale, str activation)", **_GATED),
    _op(
        _TOKEN,
        _EITHER,
        "act_and_mul_per_token_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, str activation, "
        "Tensor? scale_ub=None)",
        **_GATED,
    ),
    _op(
        _TOKEN,
        _INT8,
        "dynamic_scaled_int8_quant_row_sums(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor(c!) row_sums, "
        "Tensor(d!)? azp=None)",
        **_AZP_IF_ASKED,
        row_sums=True,
    ),
    _op(
        _TENSOR,
        _INT8,
        "dynamic_tensor_scaled_int8_quant(Tensor(a!) result, Tensor input, Tensor(b!) scale, Tensor(c!)? azp=None)",
        **_AZP_IF_ASKED,
    ),
    _op(
        _GROUP,
        _INT8,
        "per_token_group_quant_int8_azp(Tensor input, Tensor(a!) output_q, Tensor(b!) output_s, Tensor(c!) output_azp, "
        "int group_size)",
        **_GROUPS,
        symmetric=(False,),
    ),
)
_MX_FORMATS = (MXFP4, MXFP6, MXFP8)
_MX_ARGUMENTS = "Tensor input, str scale_rounding, bool is_sf_swizzled_layout=True"
_ROUNDED = "bool rounds_to_input=False"
_BLOCK_SCALED = (
    _block(
        NVFP4,
        "scaled_nvfp4_quant(Tensor(a!) out, Tensor(b!) out_sf, Tensor input, Tensor global_scale, "
        "bool is_sf_swizzled_layout=True)",
    ),
    *(_block(x, f"scaled_{x}_quant(Tensor(a!) out, Tensor(b!) out_sf, {_MX_ARGUMENTS})") for x in _MX_FORMATS),
    _block(
        NVFP4,
        "silu_and_mul_nvfp4_quant(Tensor(a!) result, Tensor(b!) result_block_scale, Tensor input, "
        "Tensor input_global_scale, bool is_sf_swizzled_layout=True)",
        **_SILU,
    ),
    *(
        _block(x, f"silu_and_mul_{x}_quant(Tensor(a!) out, Tensor(b!) out_sf, {_MX_ARGUMENTS})", **_SILU)
        for x in _MX_FORMATS
    ),
    _block(
        MXFP8,
        f"scaled_mxfp8_gelu_quant(Tensor(a!) out, Tensor(b!) out_sf, {_MX_ARGUMENTS}, bool approximate=True, {_ROUNDED})",
        activations=(Activation.ONLY_GELU_TANH, Activation.ONLY_GELU_ERF),
    ),
    _block(
        MXFP8,
        "scaled_mxfp8_modulate_quant(Tensor(a!) out, Tensor(b!) out_sf, Tensor input, Tensor mod_scale, "
        f"Tensor mod_shift, str scale_rounding, bool is_sf_swizzled_layout=True, {_ROUNDED})",
        activations=(Activation.MODULATE,),
    ),
)

_BY_EXPERT = "Tensor(a!) output, Tensor(b!) output_scale, Tensor input"
_OFFSETS = "Tensor input_offset_by_experts, Tensor output_scale_offset_by_experts"
_OF_EXPERTS = tuple(
    _block(format, f"{name}({_BY_EXPERT}, {rest})", scaling=_EXPERTS, **others)
    for prefix, others in (("", {}), ("silu_and_mul_", _SILU))
    for format, name, rest in (
        (NVFP4, f"{prefix}scaled_fp4_experts_quant", f"Tensor input_global_scale, {_OFFSETS}"),
        *(
            (x, f"{prefix}{x}_experts_quant", f'{_OFFSETS}, int n_experts, str scale_rounding="up"')
            for x in (MXFP4, MXFP8)
        ),
    )
)
"""Ops of rows sorted by expert. Their names and schemas are vLLM's; for mxfp8 vLLM has none."""

_BACK = (
    *(
        _block(
            x,
            f"scaled_{x}_dequant(Tensor(a!) out, Tensor input, Tensor input_sf, "
            f"{'Tensor global_scale, ' if x.has_global_scale else ''}bool is_sf_swizzled_layout=True)",
            scaling=_DEQUANT,
            in_dtypes=IN_DTYPES,
        )
        for x in (NVFP4, *_MX_FORMATS)
    ),
    _block(
        NVFP4,
        "nvfp4_weight_dequant(Tensor(a!) out, Tensor blocks)",
        scaling=_WEIGHT_DEQUANT,
        in_dtypes=(DType.BF16,),
    ),
)
"""Ops that make values of codes and scales again."""


def _of_vllm(op: QuantOp) -> QuantOp:
    """vLLM's op of the name, with vLLM's scales and codes, under a name of ours.

    Its packed scales are for 16-bit values in groups of 32 and 128 only, and its powers of two round in one way.
    """
    schema = op.schema.schema.replace(', str scale_rounding="up"', "")
    renamed = replace(op, schema=OpSchema(VLLM_PREFIX + schema), vllm=True)
    if op.is_packed:
        return replace(renamed, in_dtypes=_SIXTEEN_BITS, group_sizes=(32, 128))
    return renamed


_CODED_AS_VLLM = tuple(
    op for op in (*_BLOCK_SCALED, *_OF_EXPERTS) if any(of_vllm(config) != config for config in op.configs(Arch.SM90A))
)
"""Block-scaled ops that vLLM has too, with codes of its own."""
QUANT_OPS = (
    *_OF_VLLMS_NAME,
    *_OWN,
    *_BLOCK_SCALED,
    *_OF_EXPERTS,
    *_BACK,
    *map(_of_vllm, (*_OF_VLLMS_NAME, *_CODED_AS_VLLM)),
)


def ops_of(config: QuantConfig) -> tuple[str, ...]:
    """Names of the ops that a kernel of this config serves."""
    return _ops_by_config(config.arch).get(config, ())


@cache
def _ops_by_config(arch: Arch) -> Mapping[QuantConfig, tuple[str, ...]]:
    served: dict[QuantConfig, tuple[str, ...]] = {}
    for op in QUANT_OPS:
        for config in dict.fromkeys(op.configs(arch)):
            served[config] = (*served.get(config, ()), op.name)
    return served
