"""QuantConfig: one variant of the hand-written quantisation kernels, and its rules."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from functools import cache
from itertools import product
from typing import Any, ClassVar

from gemmill.family import WithoutSettings, first_rejection
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4

IN_DTYPES = (DType.BF16, DType.F16, DType.F32)
OUT_DTYPES = (DType.E4M3, DType.S8)
QUANT_GROUP_SIZES = (32, 64, 128)
"""Sizes of groups that kernels have at compile time. Kernels of plain groups also come without a size, which the call
then has.
"""
BLOCK_FORMATS = (NVFP4, MXFP4, MXFP6, MXFP8)
"""Formats with a scale of one byte for each group, as block-scaled tensor cores read them."""


class Scales(Enum):
    """The source of scales, and the elements that share one."""

    GIVEN = auto()
    OF_TENSOR = auto()
    OF_ROW = auto()
    OF_GROUP = auto()
    OF_BLOCK = auto()
    """one scale of a group, in one byte"""


class Scaling(StrEnum):
    """The coding of rows: the source of scales, and the operations on rows before.

    Template, contract, reference, cases and binding follow from these. The binding knows one by its place.
    """

    STATIC = "static"
    TENSOR = "tensor"
    TOKEN = "token"
    GROUP = "group"
    RMS_TOKEN = "rmstoken"
    RMS_GROUP = "rmsgroup"
    RMS_STATIC = "rmsstatic"
    BLOCK = "block"
    EXPERTS = "experts"
    """as block, of rows sorted by expert: each expert's scales are a matrix of their own"""
    DEQUANT = "dequant"
    """codes and scales of block become values again"""
    WEIGHT_DEQUANT = "weightdequant"
    """the same of packed weights, whose scales lie behind the codes of each block (`gemmill.formats.fp4_blocks`)"""

    @property
    def scales(self) -> Scales:
        """Where its scales come from."""
        return _KIND[self][0]

    @property
    def template(self) -> str:
        """Name of its template below templates/quant/."""
        return _KIND[self][1]

    @property
    def is_normed(self) -> bool:
        """Whether the kernel norms rows by their RMS before it codes them."""
        return self.template == "rms_norm"

    @property
    def is_given(self) -> bool:
        """Whether scales are given."""
        return self.scales is Scales.GIVEN

    @property
    def is_whole(self) -> bool:
        """Whether a call may have one scale and zero point for its tensor."""
        return self.scales in (Scales.GIVEN, Scales.OF_TENSOR)

    @property
    def is_per_row(self) -> bool:
        """Whether every row has its scale, even one without elements."""
        return self.scales is Scales.OF_ROW

    @property
    def is_grouped(self) -> bool:
        """Whether scales belong to groups, in f32 or words."""
        return self.scales is Scales.OF_GROUP

    @property
    def is_blocked(self) -> bool:
        """Whether scales belong to groups, in bytes."""
        return self.scales is Scales.OF_BLOCK

    @property
    def decodes(self) -> bool:
        """Whether codes become values."""
        return self in (Scaling.DEQUANT, Scaling.WEIGHT_DEQUANT)


_KIND = {
    Scaling.STATIC: (Scales.GIVEN, "static"),
    Scaling.TENSOR: (Scales.OF_TENSOR, "tensor"),
    Scaling.TOKEN: (Scales.OF_ROW, "token"),
    Scaling.GROUP: (Scales.OF_GROUP, "group"),
    Scaling.RMS_TOKEN: (Scales.OF_ROW, "rms_norm"),
    Scaling.RMS_GROUP: (Scales.OF_GROUP, "rms_norm"),
    Scaling.RMS_STATIC: (Scales.GIVEN, "rms_norm"),
    Scaling.BLOCK: (Scales.OF_BLOCK, "block"),
    Scaling.EXPERTS: (Scales.OF_BLOCK, "block"),
    Scaling.DEQUANT: (Scales.OF_BLOCK, "dequant"),
    Scaling.WEIGHT_DEQUANT: (Scales.OF_BLOCK, "weight_dequant"),
}


class Activation(StrEnum):
    """The operation on a row before it is coded.

    A gated activation is of a row's first half. The second half multiplies it.
    """

    NONE = "none"
    SILU = "silu"
    GELU_TANH = "gelutanh"
    GELU_ERF = "geluerf"
    ONLY_GELU_TANH = "onlygelutanh"
    """gelu of the whole row, without a product"""
    ONLY_GELU_ERF = "onlygeluerf"
    MODULATE = "modulate"
    """x * (1 + scale) + shift, where scale and shift belong to a column or to an element"""

    @property
    def is_gated(self) -> bool:
        """Whether rows have two halves, gate and up."""
        return self in (Activation.SILU, Activation.GELU_TANH, Activation.GELU_ERF)

    @property
    def op_argument(self) -> str:
        """The word for it in ops that take an activation.

        The word `gelu` alone means the one with erf, as in torch.
        """
        return _OP_ARGUMENT[self]

    @property
    def cpp_type(self) -> str:
        """Class in kernels/coding/activation.cuh."""
        return _CPP_ACTIVATION[self]


class ScaleFormat(StrEnum):
    """The storage format of a scale."""

    F32 = "f32"
    POWER_OF_TWO = "f32pow2"
    """f32, rounded up to a power of two"""
    PACKED_UE8M0 = "ue8m0x4"
    """exponents of powers of two, four groups in a 32-bit word, the first in the low byte"""
    UE8M0 = "ue8m0"
    """an exponent of a power of two, a byte"""
    UE4M3 = "ue4m3"
    """a byte, with one more scale for the tensor"""

    @property
    def cpp_value(self) -> str:
        """Enumerator in kernels/quant/group_quant.cuh; bytes have none."""
        return _CPP_SCALE_FORMAT.get(self, "")


_OP_ARGUMENT = {
    Activation.NONE: "none",
    Activation.SILU: "silu",
    Activation.GELU_TANH: "gelu_tanh",
    Activation.GELU_ERF: "gelu",
    Activation.ONLY_GELU_TANH: "gelu_tanh",
    Activation.ONLY_GELU_ERF: "gelu",
    Activation.MODULATE: "modulate",
}
_CPP_ACTIVATION = {
    Activation.NONE: "Identity",
    Activation.SILU: "Silu",
    Activation.GELU_TANH: "GeluTanh",
    Activation.GELU_ERF: "GeluErf",
    Activation.ONLY_GELU_TANH: "Only<GeluTanh>",
    Activation.ONLY_GELU_ERF: "Only<GeluErf>",
    Activation.MODULATE: "Modulate",
}
_CPP_SCALE_FORMAT = {
    ScaleFormat.F32: "ScaleFormat::kF32",
    ScaleFormat.POWER_OF_TWO: "ScaleFormat::kPowerOfTwo",
    ScaleFormat.PACKED_UE8M0: "ScaleFormat::kPackedUe8m0",
}
_CPP_IN = {DType.BF16: "__nv_bfloat16", DType.F16: "__half", DType.F32: "float"}
_CPP_OUT = {DType.E4M3: "E4M3", DType.S8: "S8"}
_CPP_FORMAT = {NVFP4: "NvFp4", MXFP4: "MxFp4", MXFP6: "MxFp6", MXFP8: "MxFp8"}


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The input."""

    in_dtype: DType
    """Type of the values, which dequantisation writes."""
    activation: Activation = Activation.NONE


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """The output: codes and their scales."""

    out_dtype: DType
    """Type of the codes."""
    group_size: int = 0
    """Elements of a row that share a scale; 0 where no scale belongs to a group, or where the size is a run-time
    argument.
    """
    scale_format: ScaleFormat = ScaleFormat.F32
    symmetric: bool = True
    """Whether codes have no zero point."""
    vllm: bool = False
    """Whether scales and codes are those of vLLM's kernel, where ours differ from them."""
    row_sums: bool = False
    """Whether it also stores the sum of each row's codes, which zero points of weights multiply."""


@dataclass(frozen=True, kw_only=True)
class QuantConfig(WithoutSettings):
    """One variant. The same binary serves all layouts of scales: row-major, M-major, and M-major padded to 4 rows.

    Strides and addresses decide the layout and the alignment of rows at run time. The scaling decides the design: a
    template.
    """

    scaling: Scaling
    operands: Operands
    epilogue: Epilogue
    arch: Arch = Arch.SM90A
    tag: ClassVar[str] = "quant"

    def __post_init__(self) -> None:
        status = first_rejection(RULES, self)
        if not status:
            raise ValueError(f"{status.reason} ({status.rule})")

    @classmethod
    def of(
        cls,
        scaling: Scaling,
        in_dtype: DType,
        activation: Activation = Activation.NONE,
        arch: Arch = Arch.SM90A,
        **stored: Any,
    ) -> "QuantConfig":
        """The config whose epilogue has the fields `stored`. Raises ValueError, with the rule, where there is none."""
        operands = Operands(in_dtype=in_dtype, activation=activation)
        return cls(scaling=scaling, operands=operands, epilogue=Epilogue(**stored), arch=arch)

    @property
    def in_dtype(self) -> DType:
        """Type of the values."""
        return self.operands.in_dtype

    @property
    def activation(self) -> Activation:
        """The operation on a row before it is coded."""
        return self.operands.activation

    @property
    def out_dtype(self) -> DType:
        """Type of the codes."""
        return self.epilogue.out_dtype

    @property
    def group_size(self) -> int:
        """Elements of a row that share a scale, or 0."""
        return self.epilogue.group_size

    @property
    def scale_format(self) -> ScaleFormat:
        """The storage format of a scale."""
        return self.epilogue.scale_format

    @property
    def symmetric(self) -> bool:
        """Whether codes have no zero point."""
        return self.epilogue.symmetric

    @property
    def vllm(self) -> bool:
        """Whether codes are those of vLLM's kernel, where ours differ."""
        return self.epilogue.vllm

    @property
    def row_sums(self) -> bool:
        """Whether it also stores the sum of each row's codes."""
        return self.epilogue.row_sums

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that identifies a call."""
        return self.in_dtype

    @property
    def is_of_any_group(self) -> bool:
        """Whether the size of groups is a run-time argument."""
        return self.scaling is Scaling.GROUP and not self.group_size

    @property
    def in_type(self) -> str:
        """C++ type of the input's elements."""
        return _CPP_IN[self.in_dtype]

    @property
    def out_type(self) -> str:
        """Class of the codes in kernels/coding/code.cuh, or of the format in kernels/quant/block_code.cuh."""
        code = _CPP_OUT[self.out_dtype] if (format := self.format) is None else _CPP_FORMAT[format]
        return f"{'Vllm' if self.vllm else ''}{code}"

    @property
    def format(self) -> Format | None:
        """The block-scaled format of its codes and scales, if they have one."""
        return next((f for f in BLOCK_FORMATS if self.scaling.is_blocked and told_by(f) == _told(self)), None)


def told_by(format: Format) -> dict[str, Any]:
    """The fields of an epilogue that say its format."""
    scale = ScaleFormat(format.scale.name)
    return {"out_dtype": DType(format.code.name), "group_size": format.group, "scale_format": scale}


def _told(c: QuantConfig) -> dict[str, Any]:
    return {"out_dtype": c.out_dtype, "group_size": c.group_size, "scale_format": c.scale_format}


def _block(c: QuantConfig) -> Iterator[str]:
    if c.scaling.is_blocked and c.format is None:
        yield (
            f"out_dtype={c.out_dtype} group_size={c.group_size} scale_format={c.scale_format} are of no format, of "
            f"{', '.join(map(str, BLOCK_FORMATS))}"
        )
    if c.scaling.is_blocked and not c.scaling.decodes and c.in_dtype is DType.F32:
        yield f"in_dtype={c.in_dtype} contradicts scaling={c.scaling}: block-scaled codes are of bf16 or f16"


def _weights(c: QuantConfig) -> Iterator[str]:
    if c.scaling is Scaling.WEIGHT_DEQUANT and (c.format != NVFP4 or c.in_dtype is not DType.BF16):
        yield (
            f"format={c.format} in_dtype={c.in_dtype} contradicts scaling={c.scaling}: packed weights of {NVFP4} are exact in "
            f"{DType.BF16}, those of other formats have bases of rows"
        )


def _dtypes(c: QuantConfig) -> Iterator[str]:
    if not c.scaling.is_blocked and (c.in_dtype not in IN_DTYPES or c.out_dtype not in OUT_DTYPES):
        yield (
            f"in_dtype={c.in_dtype} out_dtype={c.out_dtype}: inputs are {', '.join(IN_DTYPES)}, codes {', '.join(OUT_DTYPES)}"
        )


def _normed(c: QuantConfig) -> Iterator[str]:
    if c.scaling is Scaling.RMS_STATIC and c.out_dtype is not DType.E4M3:
        yield f"out_dtype={c.out_dtype} contradicts scaling={c.scaling}: by scales that are given, normed rows are coded as e4m3"


def _groups(c: QuantConfig) -> Iterator[str]:
    if not (c.scaling.is_grouped or c.scaling.is_blocked) and c.group_size:
        yield f"group_size={c.group_size} contradicts scaling={c.scaling}: no scale belongs to a group"
    if c.is_of_any_group:
        if c.activation is not Activation.NONE or not c.symmetric or c.scale_format is ScaleFormat.PACKED_UE8M0:
            yield (
                f"group_size={c.group_size} contradicts activation={c.activation} symmetric={c.symmetric} "
                f"scale_format={c.scale_format}: kernels of any group are for plain symmetric codes with a scale in f32"
            )
    elif c.scaling.is_grouped and c.group_size not in QUANT_GROUP_SIZES:
        yield (
            f"group_size={c.group_size}: groups of {', '.join(map(str, QUANT_GROUP_SIZES))} are held by 2 to 32 lanes of one warp, 16 bytes each"
        )


def _scale_format(c: QuantConfig) -> Iterator[str]:
    if c.scale_format is not ScaleFormat.F32 and c.scaling is not Scaling.GROUP and not c.scaling.is_blocked:
        yield (
            f"scale_format={c.scale_format} contradicts scaling={c.scaling}: powers of two are for group scales of {Scaling.GROUP}"
        )
    elif c.scale_format in (ScaleFormat.UE8M0, ScaleFormat.UE4M3) and not c.scaling.is_blocked:
        yield f"scale_format={c.scale_format} contradicts scaling={c.scaling}: bytes are scales of {Scaling.BLOCK}"


def _activation(c: QuantConfig) -> Iterator[str]:
    gated = (Scaling.STATIC, Scaling.TOKEN, Scaling.GROUP, Scaling.BLOCK, Scaling.EXPERTS)
    if c.activation is not Activation.NONE and c.scaling not in gated:
        yield f"activation={c.activation} contradicts scaling={c.scaling}: activations are fused with {', '.join(gated)}"
    alone = c.activation is not Activation.NONE and not c.activation.is_gated
    if alone and (c.scaling is not Scaling.BLOCK or c.format != MXFP8):
        yield f"activation={c.activation} contradicts scaling={c.scaling} format={c.format}: it is fused with block and mxfp8"


def _symmetry(c: QuantConfig) -> Iterator[str]:
    if c.symmetric:
        return
    if c.out_dtype is not DType.S8:
        yield f"symmetric=False contradicts out_dtype={c.out_dtype}: only s8 codes have a zero point"
    if (
        c.scaling not in (Scaling.STATIC, Scaling.TENSOR, Scaling.TOKEN, Scaling.GROUP)
        or c.activation is not Activation.NONE
    ):
        yield (
            f"symmetric=False contradicts scaling={c.scaling} activation={c.activation}: zero points are for plain static, tensor, token and group"
        )
    if c.scale_format is not ScaleFormat.F32:
        yield f"symmetric=False contradicts scale_format={c.scale_format}: with a zero point the scale is f32"


def _row_sums(c: QuantConfig) -> Iterator[str]:
    if c.row_sums and not _can_sum(c):
        yield (
            f"row_sums=True contradicts scaling={c.scaling} out_dtype={c.out_dtype} activation={c.activation} vllm={c.vllm}: "
            f"rows are summed of plain s8 codes of {Scaling.TOKEN} alone"
        )


def _can_sum(c: QuantConfig) -> bool:
    return c.scaling is Scaling.TOKEN and c.out_dtype is DType.S8 and c.activation is Activation.NONE and not c.vllm


def _vllm(c: QuantConfig) -> Iterator[str]:
    if c.vllm and not _differs_in_vllm(c):
        yield (
            f"vllm=True contradicts scaling={c.scaling} out_dtype={c.out_dtype} activation={c.activation} symmetric={c.symmetric}: "
            "vLLM has no such kernel, or one with our codes"
        )


def _differs_in_vllm(c: QuantConfig) -> bool:
    plain, e4m3 = c.activation is Activation.NONE, c.out_dtype is DType.E4M3
    silu_to_e4m3 = c.activation is Activation.SILU and e4m3 and c.scale_format is ScaleFormat.F32
    match c.scaling:
        case Scaling.STATIC:
            return silu_to_e4m3 or (plain and (e4m3 or not c.symmetric))
        case Scaling.TENSOR:
            return e4m3
        case Scaling.TOKEN:
            return plain and (e4m3 or not c.symmetric)
        case Scaling.BLOCK:
            return c.format == NVFP4 and (plain or c.activation is Activation.SILU)
        case Scaling.EXPERTS:
            return c.format in (NVFP4, MXFP4) and (plain or c.activation is Activation.SILU)
        case Scaling.DEQUANT | Scaling.WEIGHT_DEQUANT:
            return False
        case Scaling.GROUP:
            return silu_to_e4m3 or (plain and c.symmetric and (e4m3 or c.scale_format is ScaleFormat.F32))
        case _:
            return True


def of_vllm(config: QuantConfig) -> QuantConfig:
    """The config that makes vLLM's codes of the same calls: itself where they are the same."""
    return replace(config, epilogue=replace(config.epilogue, vllm=_differs_in_vllm(config)))


RULES = (_block, _weights, _dtypes, _normed, _groups, _scale_format, _activation, _symmetry, _row_sums, _vllm)


def _block_configs(arch: Arch) -> Iterator[QuantConfig]:
    scalings = (Scaling.BLOCK, Scaling.EXPERTS)
    for scaling, format, in_dtype, activation in product(scalings, BLOCK_FORMATS, IN_DTYPES[:2], Activation):
        of_rows = activation.is_gated or activation is Activation.NONE
        if of_rows or (scaling is Scaling.BLOCK and format == MXFP8):
            ours = QuantConfig.of(scaling, in_dtype, activation, arch, **told_by(format))
            yield from dict.fromkeys((ours, of_vllm(ours)))
    for format, in_dtype in product(BLOCK_FORMATS, IN_DTYPES):
        yield QuantConfig.of(Scaling.DEQUANT, in_dtype, arch=arch, **told_by(format))
    yield QuantConfig.of(Scaling.WEIGHT_DEQUANT, DType.BF16, arch=arch, **told_by(NVFP4))


@cache
def all_configs(arch: Arch = Arch.SM90A) -> tuple[QuantConfig, ...]:
    """Every variant that the rules allow, each once."""
    return tuple(_all_configs(arch))


def _all_configs(arch: Arch) -> Iterator[QuantConfig]:
    flags = (True, False)
    yield from _block_configs(arch)
    axes = product(Scaling, IN_DTYPES, OUT_DTYPES, Activation, (0, *QUANT_GROUP_SIZES), ScaleFormat, flags, flags)
    for scaling, in_dtype, out_dtype, activation, group_size, scale_format, symmetric, vllm in axes:
        if scaling.is_blocked or (activation is not Activation.NONE and in_dtype is DType.F32):
            continue  # activations follow a GEMM, whose results are bf16 or f16
        try:
            config = QuantConfig.of(
                scaling,
                in_dtype,
                activation,
                arch,
                out_dtype=out_dtype,
                group_size=group_size,
                scale_format=scale_format,
                symmetric=symmetric,
                vllm=vllm,
            )
        except ValueError:
            continue
        yield config
        if _can_sum(config):
            yield replace(config, epilogue=replace(config.epilogue, row_sums=True))
