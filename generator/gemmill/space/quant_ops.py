"""The quantisation ops, each with the configs that serve its calls: what selections, predicates and the runtime share."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from gemmill.space.quant import GROUP_SIZES, IN_DTYPES, Activation, QuantConfig, QuantFamily, ScaleFormat
from gemmill.vocab import Arch, DType

_GATED = (Activation.SILU, Activation.GELU_TANH, Activation.GELU_ERF)
_SIXTEEN_BITS = (DType.BF16, DType.F16)
_BOTH = (DType.E4M3, DType.S8)


@dataclass(frozen=True, kw_only=True)
class QuantOp:
    """What one op can be asked for: any mix of these."""

    name: str
    family: QuantFamily
    out_dtypes: tuple[DType, ...]
    in_dtypes: tuple[DType, ...] = IN_DTYPES
    activations: tuple[Activation, ...] = (Activation.NONE,)
    group_sizes: tuple[int, ...] = (0,)
    scale_formats: tuple[ScaleFormat, ...] = (ScaleFormat.F32,)
    symmetric: tuple[bool, ...] = (True,)
    truncated: bool = False

    def configs(self, arch: Arch) -> Iterator[QuantConfig]:
        """Every config that serves a call of the op, each once."""
        axes = product(
            self.in_dtypes, self.out_dtypes, self.activations, self.group_sizes, self.scale_formats, self.symmetric
        )
        for in_dtype, out_dtype, activation, group_size, scale_format, symmetric in axes:
            yield QuantConfig(
                family=self.family,
                in_dtype=in_dtype,
                out_dtype=out_dtype,
                activation=activation,
                group_size=group_size,
                scale_format=scale_format,
                symmetric=symmetric,
                truncated=self.truncated,
                arch=arch,
            )

    def serves(self, config: QuantConfig) -> bool:
        """Whether a kernel of this config serves calls of the op."""
        return (
            config.family is self.family
            and config.activation in self.activations
            and config.in_dtype in self.in_dtypes
            and config.out_dtype in self.out_dtypes
            and config.group_size in self.group_sizes
            and config.scale_format in self.scale_formats
            and config.symmetric in self.symmetric
            and config.truncated == self.truncated
        )


QUANT_OPS = (
    QuantOp(name="static_scaled_fp8_quant", family=QuantFamily.STATIC, out_dtypes=(DType.E4M3,)),
    QuantOp(name="dynamic_scaled_fp8_quant", family=QuantFamily.TENSOR, out_dtypes=(DType.E4M3,)),
    QuantOp(name="dynamic_per_token_scaled_fp8_quant", family=QuantFamily.TOKEN, out_dtypes=(DType.E4M3,)),
    QuantOp(
        name="static_scaled_int8_quant", family=QuantFamily.STATIC, out_dtypes=(DType.S8,), symmetric=(True, False)
    ),
    QuantOp(
        name="dynamic_scaled_int8_quant", family=QuantFamily.TOKEN, out_dtypes=(DType.S8,), symmetric=(True, False)
    ),
    QuantOp(
        name="per_token_group_fp8_quant",
        family=QuantFamily.GROUP,
        out_dtypes=(DType.E4M3,),
        group_sizes=GROUP_SIZES,
        scale_formats=(ScaleFormat.F32, ScaleFormat.POWER_OF_TWO),
    ),
    QuantOp(
        name="per_token_group_quant_int8", family=QuantFamily.GROUP, out_dtypes=(DType.S8,), group_sizes=GROUP_SIZES
    ),
    QuantOp(
        name="per_token_group_fp8_quant_packed",
        family=QuantFamily.GROUP,
        out_dtypes=(DType.E4M3,),
        group_sizes=GROUP_SIZES,
        scale_formats=(ScaleFormat.PACKED_UE8M0,),
    ),
    QuantOp(
        name="silu_and_mul_per_block_quant",
        family=QuantFamily.GROUP,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=_BOTH,
        activations=(Activation.SILU,),
        group_sizes=(64, 128),
    ),
    QuantOp(
        name="silu_and_mul_quant",
        family=QuantFamily.STATIC,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=(DType.E4M3,),
        activations=(Activation.SILU,),
    ),
    QuantOp(
        name="silu_and_mul_per_token_quant",
        family=QuantFamily.TOKEN,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=_BOTH,
        activations=(Activation.SILU,),
    ),
    QuantOp(name="rms_norm_dynamic_per_token_quant", family=QuantFamily.RMS_TOKEN, out_dtypes=_BOTH),
    QuantOp(name="rms_norm_per_block_quant", family=QuantFamily.RMS_GROUP, out_dtypes=_BOTH, group_sizes=(64, 128)),
    QuantOp(
        name="act_and_mul_per_block_quant",
        family=QuantFamily.GROUP,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=_BOTH,
        activations=_GATED,
        group_sizes=(64, 128),
        scale_formats=(ScaleFormat.F32, ScaleFormat.POWER_OF_TWO),
    ),
    QuantOp(
        name="act_and_mul_quant",
        family=QuantFamily.STATIC,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=_BOTH,
        activations=_GATED,
    ),
    QuantOp(
        name="act_and_mul_per_token_quant",
        family=QuantFamily.TOKEN,
        in_dtypes=_SIXTEEN_BITS,
        out_dtypes=_BOTH,
        activations=_GATED,
    ),
    QuantOp(
        name="dynamic_tensor_scaled_int8_quant",
        family=QuantFamily.TENSOR,
        out_dtypes=(DType.S8,),
        symmetric=(True, False),
    ),
    QuantOp(
        name="per_token_group_quant_int8_azp",
        family=QuantFamily.GROUP,
        out_dtypes=(DType.S8,),
        group_sizes=GROUP_SIZES,
        symmetric=(False,),
    ),
    QuantOp(
        name="per_token_group_quant_int8_truncated",
        family=QuantFamily.GROUP,
        out_dtypes=(DType.S8,),
        group_sizes=GROUP_SIZES,
        truncated=True,
    ),
)


def ops_of(config: QuantConfig) -> tuple[str, ...]:
    """Names of the ops that a kernel of this config serves."""
    return tuple(op.name for op in QUANT_OPS if op.serves(config))


def quant_configs(arch: Arch) -> Iterator[QuantConfig]:
    """Every config that an op reaches, each once."""
    yield from dict.fromkeys(config for op in QUANT_OPS for config in op.configs(arch))


def smoke_quant_configs(arch: Arch) -> Iterator[QuantConfig]:
    """One config for each op that codes bf16 as e4m3, with the last of its activations."""
    for op in QUANT_OPS:
        if DType.E4M3 in op.out_dtypes:
            yield next(
                config
                for config in op.configs(arch)
                if (config.in_dtype, config.out_dtype) == (DType.BF16, DType.E4M3)
                and config.group_size == max(op.group_sizes)
                and config.activation is op.activations[-1]
            )
