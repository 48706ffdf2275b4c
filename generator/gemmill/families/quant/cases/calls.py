"""Calls of the quantisation ops by their sizes and options. Outputs hold poison before a call; the reference checks
them after it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gemmill.families.quant import bounds
from gemmill.families.quant.call import OP_OF, OUT_NAMES, SCALE_NAMES, config_of, name_of
from gemmill.families.quant.cases.blocks import blocks_are_within_bounds
from gemmill.families.quant.cases.weights import SIZES_OF_WEIGHTS, packed_shape, packed_weights
from gemmill.families.quant.config import Activation, QuantConfig, ScaleFormat, Scaling
from gemmill.families.quant.ops import QUANT_OPS, QuantOp
from gemmill.families.quant.selections import smoke
from gemmill.formats.layout import TILE_ROWS, padded_offsets, swizzled_shape
from gemmill.formats.quantise import LARGEST_PRODUCT
from gemmill.numerics.cases import CaseOutcome
from gemmill.runtime.checks import check
from gemmill.runtime.on_cpu import by_reference
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME, NAMESPACE, OpSchema
from gemmill.vocab import Arch, DType
from gemmill.vocab.format import ScaleRounding

ROLES = {
    "result": "out",
    "output_q": "out",
    "output": "out",
    "input_global_scale": "global_scale",
} | dict.fromkeys(
    ("scales", "output_s", "output_s_packed", "out_sf", "result_block_scale", "output_scale", "input_sf"), "scale"
)
"""Roles of codes, scales and global scales by the names that ops give them."""
LIMITS = {"fp8_min": -448.0, "fp8_max": 448.0, "int8_min": -128.0, "int8_max": 127.0}
SMALLEST_BOUND, BOUND = 0.004, 1.5
"""A scale_ub that bites, of scales of groups, and one of scales of rows."""


@dataclass(frozen=True, kw_only=True)
class QuantCase:
    """One call of an op: its dtypes, its sizes and its options."""

    op: str
    rows: int
    hidden: int
    """Columns of the codes."""
    in_dtype: DType = DType.BF16
    out_dtype: DType = DType.E4M3
    group_size: int = 0
    activation: str = Activation.NONE.op_argument
    """The activation, as ops that take one spell it."""
    scale_format: ScaleFormat = ScaleFormat.F32
    zero_points: bool = False
    padding: int = 0
    """Elements between the rows of the input, or of the values of packed weights."""
    m_major: bool = False
    """Whether scales of groups are M-major, padded to four rows."""
    bounded: bool = False
    """Whether there is a scale_ub that bites, for e4m3."""
    residual: bool = False
    """Whether there is a residual, and whether the modulation has a value for each element."""
    plain: bool = False
    """Whether block scales lie in rows, not swizzled."""
    rounding: ScaleRounding = ScaleRounding.UP
    """The rounding of mx scales."""
    rounded: bool = False
    """Whether GELU and modulated values round to the input's type before they are coded."""

    def __str__(self) -> str:
        extras = [name for name in ("m_major", "bounded", "residual", "plain", "rounded") if getattr(self, name)]
        flags = "".join(f", {name}" for name in extras)
        rounded = "" if self.rounding is ScaleRounding.UP else f", {self.rounding}"
        return f"{self.op} {self.rows} x {self.hidden}, padding {self.padding}{flags}{rounded}"

    @property
    def declared(self) -> QuantOp:
        """The op's declaration."""
        return OP_OF[self.op]

    @property
    def width(self) -> int:
        """Columns of the input."""
        return self.hidden * (2 if self.declared.is_gated else 1)

    @property
    def words(self) -> int:
        """Scales, or words of packed ones, of a row; 0 where there is one for the tensor."""
        if self.declared.scaling.is_whole:
            return 0
        if self.declared.format is None and not self.declared.scaling.is_grouped:
            return 1
        groups = self.hidden // self.group_size if self.group_size > 0 else 0
        return -(-groups // 4) if self.scale_format is ScaleFormat.PACKED_UE8M0 else groups

    @property
    def bytes(self) -> int:
        """Bytes that must be read and written, each counted once."""
        width = self.in_dtype.bits // 8
        if (format := self.declared.format) is not None:
            if self.declared.scaling is Scaling.WEIGHT_DEQUANT:
                return width * self.rows * self.hidden + math.prod(packed_shape(format, self.rows, self.hidden))
            of_row = width * self.width + format.code_bytes(self.hidden)
            beside = 2 * width * self.hidden * (self.rows if self.residual else 1) if self.is_modulated else 0
            if self.declared.scaling is Scaling.EXPERTS:
                beside = 4 * (2 * len(self.expert_offsets) + format.has_global_scale * (len(self.expert_offsets) - 2))
            return self.rows * of_row + math.prod(self._block_scales) + 4 * format.has_global_scale + beside
        moved = self.rows * (width * self.width + self.hidden) + 4 * max(self.rows * self.words, 1)
        if self.zero_points:
            moved += 4 * (self.rows * self.words or 1)
        if self.declared.row_sums:
            moved += 4 * self.rows
        if self.declared.scaling.is_normed:
            moved += width * self.hidden
        return moved + (2 * width * self.rows * self.hidden if self.has_residual else 0)

    @property
    def is_modulated(self) -> bool:
        """Whether the call modulates rows."""
        return self.declared.activations == (Activation.MODULATE,)

    @property
    def expert_offsets(self) -> tuple[int, ...]:
        """For rows sorted by expert, the first row of each expert, and the end.

        One expert has no rows, and some rows belong to no expert.
        """
        rows = self.rows
        return (0, rows // 8, rows // 8, rows // 2, rows - rows // 5, rows - rows // 16)

    @property
    def scale_offsets(self) -> tuple[int, ...]:
        """The row of scales at which each expert's begin, and the end."""
        return padded_offsets([end - start for start, end in pairwise(self.expert_offsets)])

    @property
    def has_residual(self) -> bool:
        """Whether a residual is given. Some ops have none, some always one."""
        return any(
            parameter.name == "residual" and (self.residual or not parameter.optional)
            for parameter in BY_NAME[self.op].parameters
        )

    def arguments(self, device: torch.device | str, random: torch.Generator | None = None) -> list[Any]:
        """Arguments in the order of the op's schema: normally distributed data, outputs poisoned. On the meta device
        there is no data."""
        if random is None and str(device) != "meta":
            random = torch.Generator(device).manual_seed(self.rows * 1009 + self.hidden)
        in_dtype, out_dtype = (getattr(torch, dtype.torch_name) for dtype in (self.in_dtype, self.out_dtype))

        def values(rows: int, columns: int) -> Tensor:
            return torch.randn((rows, columns), generator=random, device=device, dtype=torch.float32).to(in_dtype)

        def whole(values: tuple[int, ...]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        scales, columns = self._scales(device), self.hidden * self.out_dtype.bits // 8
        is_of_experts = self.declared.scaling is Scaling.EXPERTS
        experts = len(self.expert_offsets) - 1 if is_of_experts else 1
        bound = SMALLEST_BOUND if self.declared.scaling is Scaling.GROUP else BOUND
        is_bounded = self.bounded and self.out_dtype is DType.E4M3
        given: dict[str, Any] = LIMITS | {
            "input": values(self.rows, self.width + self.padding)[:, : self.width],
            "out": torch.full((self.rows, columns), 0x55, dtype=torch.uint8, device=device).view(out_dtype),
            "scale": scales,
            "azp": self._zero_points(device),
            "row_sums": torch.full((self.rows, 1), 0x55555555, dtype=torch.int32, device=device),
            "output_azp": torch.empty_strided(scales.shape, scales.stride(), dtype=torch.int32, device=device).fill_(
                12345
            ),
            "scale_ub": torch.tensor([bound], device=device, dtype=torch.float32) if is_bounded else None,
            "weight": values(1, self.hidden)[0],
            "residual": values(self.rows, self.hidden) if self.has_residual else None,
            "activation": self.activation,
            "group_size": self.group_size,
            "group_shape": None,
            "eps": 1e-10,
            "epsilon": 1e-6,
            "scale_ue8m0": self.scale_format is ScaleFormat.POWER_OF_TWO,
            "scale_rounding": str(self.rounding),
            "is_sf_swizzled_layout": not self.plain,
            "global_scale": torch.tensor(
                [LARGEST_PRODUCT / (5.0 + i) for i in range(experts)], device=device, dtype=torch.float32
            ),
            "rounds_to_input": self.rounded,
            "approximate": self.activation == Activation.GELU_TANH.op_argument,
            "mod_scale": values(self.rows if self.residual else 1, self.hidden) if self.is_modulated else None,
            "mod_shift": values(self.rows if self.residual else 1, self.hidden) if self.is_modulated else None,
            "input_offset_by_experts": whole(self.expert_offsets),
            "output_scale_offset_by_experts": whole(self.scale_offsets),
            "n_experts": experts,
        }
        if self.declared.scaling is Scaling.DEQUANT:
            given |= self._coded(device, random)
        elif self.declared.scaling is Scaling.WEIGHT_DEQUANT:
            given |= self._packed(device, random)
        said_to_be = self.m_major and self.scale_format is not ScaleFormat.PACKED_UE8M0
        given |= dict.fromkeys(("is_scale_transposed", "dummy_is_scale_transposed", "dummy_is_tma_aligned"), said_to_be)
        return [given[ROLES.get(name, name)] for name in BY_NAME[self.op].arguments]

    def _coded(self, device: torch.device | str, random: torch.Generator | None) -> dict[str, Any]:
        """The arguments of an op that decodes: codes and scales of every kind, of numbers only, and the values,
        poisoned."""
        format = self.declared.format
        assert format is not None
        codes = torch.empty(
            (self.rows, format.code_bytes(self.hidden) + self.padding), dtype=torch.uint8, device=device
        )
        scales = torch.empty(self._block_scales, dtype=torch.uint8, device=device)
        if random is not None:
            codes.random_(0, 256, generator=random)
            scales.random_(0, format.scale.last_code + 1, generator=random)
        codes = codes.view(getattr(torch, format.torch_name))[:, : format.code_bytes(self.hidden)]
        poison = torch.full((self.rows, self.hidden), torch.nan, device=device, dtype=torch.float32)
        return {"input": codes, "out": poison.to(getattr(torch, self.in_dtype.torch_name)), "scale": scales}

    def _packed(self, device: torch.device | str, random: torch.Generator | None) -> dict[str, Any]:
        """The arguments of an op that decodes packed weights, whose values are poisoned."""
        format = self.declared.format
        assert format is not None
        wide = (self.rows, self.hidden + self.padding)
        poison = torch.full(wide, torch.nan, device=device, dtype=torch.bfloat16)[:, : self.hidden]
        return {"blocks": packed_weights(format, self.rows, self.hidden, device, random), "out": poison}

    def run(self, device: str) -> CaseOutcome:
        """Make the call, and hold it against the reference on the same device."""
        got = self.arguments(device)
        wanted = [_copied(value) if isinstance(value, Tensor) else value for value in got]
        getattr(getattr(torch.ops, NAMESPACE), self.op).default(*got)
        by_reference(BY_NAME[self.op], wanted)
        return CaseOutcome(report=differences(BY_NAME[self.op], got, wanted))

    def _zero_points(self, device: torch.device | str) -> Tensor | None:
        if not self.zero_points:
            return None
        shape = (1,) if self.declared.scaling.is_whole else (self.rows, 1)
        return torch.full(shape, -7, dtype=torch.int32, device=device)

    @property
    def _block_scales(self) -> tuple[int, int]:
        """The shape of block scales."""
        if self.declared.scaling is Scaling.EXPERTS:
            return self.scale_offsets[-1] + TILE_ROWS, swizzled_shape(0, self.words)[1]
        return (self.rows, self.words) if self.plain else swizzled_shape(self.rows, self.words)

    def _scales(self, device: torch.device | str) -> Tensor:
        scaling, padded = self.declared.scaling, -(-self.rows // 4) * 4
        if self.declared.format is not None:
            dtype = torch.float8_e4m3fn if self.declared.format.has_global_scale else torch.uint8
            return torch.full(self._block_scales, 0xA5, dtype=torch.uint8, device=device).view(dtype)
        if scaling.is_whole:
            return torch.full((1,), 0.0123 if scaling.is_given else torch.nan, device=device, dtype=torch.float32)
        if self.scale_format is ScaleFormat.PACKED_UE8M0:
            return torch.full((self.words, padded), -1, dtype=torch.int32, device=device).t()[: self.rows]
        if self.m_major and scaling.is_grouped:
            return torch.full((self.words, padded), torch.nan, device=device, dtype=torch.float32).t()[: self.rows]
        return torch.full((self.rows, self.words), torch.nan, device=device, dtype=torch.float32)


def of_config(config: QuantConfig) -> Iterator[QuantCase]:
    """Calls of each op that a config serves: below, at and across the kernels' own limits."""
    for op in QUANT_OPS:
        if op.serves(config):
            yield from (_of_op(config, op.name, **sizes) for sizes in _sizes_of(config))


def sized(config: QuantConfig, sizes: Mapping[str, int]) -> QuantCase:
    """A call of the first op that a config serves."""
    op = next(op for op in QUANT_OPS if op.serves(config))
    hidden = sizes["hidden"]
    return _of_op(config, op.name, rows=sizes["m"], hidden=hidden, **_group_in(config, math.gcd(hidden, 512)))


def once() -> Iterator[tuple[str, QuantCase]]:
    """Each op that the smoke selection has a variant for, once."""
    for config in smoke(Arch.SM90A):
        for op in QUANT_OPS:
            if op.serves(config):
                yield op.name, _of_op(config, op.name, rows=33, hidden=1024)


def _group_in(config: QuantConfig, size: int) -> dict[str, int]:
    """The size of groups, an argument of calls of a kernel of any group."""
    return {"group_size": size if config.is_of_any_group else config.group_size}


def _of_op(config: QuantConfig, op: str, **sizes: Any) -> QuantCase:
    return QuantCase(
        op=op,
        in_dtype=config.in_dtype,
        out_dtype=config.out_dtype,
        **({"group_size": config.group_size} | sizes),
        activation=config.activation.op_argument,
        scale_format=config.scale_format,
        zero_points=not config.symmetric,
    )


_OF_ANY_GROUP = (
    *(
        (rows, hidden, group)
        for group in (16, 256, 512)
        for rows, hidden in ((1, 512), (7, 1536), (133, 2048), (512, 7168))
    ),
    *((rows, 2560, group) for group in (16, 256, 512) for rows in (0, 4099)),
    *((3, 32 * group, group) for group in (1, 3, 8, 24, 48, 96, 1000)),  # lanes beyond the group, and single elements
    *((9, 3 * group, group) for group in (1024, 1032, 4608)),  # from where a group does not fit its lanes on
)
"""Rows, columns and size of groups, where that is an argument."""


def _sizes_of(config: QuantConfig) -> Iterator[dict[str, Any]]:
    if config.scaling is Scaling.WEIGHT_DEQUANT:
        yield from SIZES_OF_WEIGHTS
        return
    if not config.is_of_any_group:
        yield from _sizes_of_compiled(config)
        return
    for rows, hidden, group in _OF_ANY_GROUP:
        yield {"rows": rows, "hidden": hidden, "group_size": group, "m_major": rows % 2 == 0}
    for group in (16, 256, 512, 24):
        yield {"rows": 37, "hidden": 5 * group, "group_size": group, "padding": 3, "m_major": True}
        yield {"rows": 65, "hidden": 3 * group, "group_size": group, "padding": 24}


def _sizes_of_compiled(config: QuantConfig) -> Iterator[dict[str, Any]]:
    small = ((1, 128), (7, 384), (133, 2048), (512, 7168), (3, 28672), (1, 131072), (2, 76800), (0, 256))
    for rows, hidden in small:
        yield {"rows": rows, "hidden": hidden, "residual": rows % 2 == 1, "m_major": rows % 2 == 0}
    # Rows so large that threads hold as much as they can. Some rows fill their CTA, and some do not.
    norm = config.scaling.is_normed
    by_row = norm or config.scaling is Scaling.TOKEN
    for rows, hidden in ((8003, 2176), (4099, 4480), (2501, 7168), (641, 28672)) if by_row else ((8003, 2176),):
        yield {"rows": rows, "hidden": hidden}
        if norm:
            yield {"rows": rows, "hidden": hidden, "residual": True, "m_major": True}
    yield {"rows": 65, "hidden": 1152, "padding": 24}
    yield {"rows": 37, "hidden": 640, "padding": 3, "m_major": True, "residual": True}
    yield {"rows": 34, "hidden": 2048, "bounded": True}
    if (format := config.format) is not None:
        odd = {"rows": 130, "hidden": 3 * format.group}  # padding of rows and of groups
        for plain in (False, True):
            yield odd | {"plain": plain, "padding": 8}
            yield odd | {"plain": plain, "rounding": ScaleRounding.OCP, "padding": 1}
            yield {"rows": 257, "hidden": 4096, "plain": plain, "rounding": ScaleRounding.OCP}
        if config.activation is not Activation.NONE and not config.activation.is_gated:
            for rows, hidden in ((257, 512), (130, 96), (8003, 2176)):
                yield {"rows": rows, "hidden": hidden, "rounded": True, "residual": rows % 2 == 1}
    elif not config.scaling.is_grouped:
        yield from ({"rows": 5, "hidden": hidden, "residual": True} for hidden in (1, 3, 17, 129, 1001, 5003))


def _copied(value: Tensor) -> Tensor:
    """A copy of a value, with the strides and padding of a tensor."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


def differences(op: OpSchema, arguments: list[Any], wanted: list[Any]) -> str:
    """How a call's arguments after it differ from the reference's, in words; the empty text if they do not.

    Differences that the arithmetic leaves open do not count.
    """
    names = op.arguments
    apart = {
        name: count
        for name, got, expected in zip(names, arguments, wanted, strict=True)
        if isinstance(got, Tensor) and (count := int((~same_bits(got, expected)).sum()))
    }
    if not apart:
        return ""
    config = config_of(check(op, of_arguments(op, wanted)), Arch.SM90A)
    if _within_bounds(config, dict(zip(names, arguments, strict=True))):
        return ""
    return ", ".join(f"{count} elements of {name} differ from the reference" for name, count in apart.items())


def same_bits(got: Tensor, wanted: Tensor) -> Tensor:
    """Which elements are alike, NaN whatever its bits. It waits for no device."""
    if got.dtype.itemsize == 1:
        return got.view(torch.uint8) == wanted.view(torch.uint8)
    return (got == wanted) | ((got != got) & (wanted != wanted))


def _within_bounds(config: QuantConfig, got: dict[str, Any]) -> bool:
    if config.format is not None:
        is_approximate = config.vllm and config.format.has_global_scale  # its reciprocals
        is_exact = config.activation in (Activation.NONE, Activation.MODULATE) and not is_approximate
        return not is_exact and blocks_are_within_bounds(config, got)
    if config.activation is not Activation.NONE:
        codes, scales = got[name_of(got, OUT_NAMES)], got[name_of(got, SCALE_NAMES)]
        ub = got.get("scale_ub")
        return not any(bounds.outside_of_gate_bounds(config, got["input"], codes, scales, scale_ub=ub))
    return False
