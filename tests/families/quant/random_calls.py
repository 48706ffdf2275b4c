"""Random calls of the quantisation ops, right ones and ones with something wrong."""

import random
from enum import Enum
from typing import Any

import torch

from gemmill.families.quant.call import OP_OF
from gemmill.families.quant.cases.weights import packed_shape
from gemmill.families.quant.config import ScaleFormat, Scales, Scaling
from gemmill.formats.layout import swizzled_shape
from gemmill.runtime.schemas import BY_NAME, ArgumentKind
from gemmill.vocab import DType

_BLOCK_SCALES = ("out_sf", "result_block_scale", "output_scale", "input_sf")
"""Matrices, whatever dimensions the rows have."""
_NAMES = {
    "result": "out",
    "output_q": "out",
    "output": "out",
    "input_offset_by_experts": "expert_offsets",
    "output_scale_offset_by_experts": "scale_offsets",
    "input_global_scale": "global_scale",
    "is_sf_swizzled_layout": "is_swizzled",
} | dict.fromkeys(("scale", "scales", "output_s", "output_s_packed", *_BLOCK_SCALES), "scales")
ROWS = (0, 1, 2, 3, 4, 5, 7, 64)


class Breakage(Enum):
    """How much of a call may be wrong."""

    NONE = 0
    SOME = 1


def torch_dtype(dtype: DType) -> torch.dtype:
    return getattr(torch, dtype.torch_name)


def padded(rows: int, columns: int, dtype: torch.dtype, rng: random.Random) -> torch.Tensor:
    """[rows, columns] with a row stride that may be larger."""
    return torch.zeros((rows, columns + rng.choice((0, 0, 16, 3))), dtype=torch.float32).to(dtype)[:, :columns]


def some_call(op: str, rng: random.Random, breakage: Breakage) -> list[Any]:
    """Arguments of a call in the schema's order."""
    quant = OP_OF[op]
    rows, group = rng.choice(ROWS), rng.choice(quant.group_sizes)
    if quant.takes_any_group and not group:
        group = rng.choice((1, 3, 16, 48, 256, 512))
    hidden = (group or 16) * rng.choice((1, 2, 3, 4, 8))
    gated, experts = quant.is_gated, quant.scaling is Scaling.EXPERTS
    wide = hidden + (
        rng.choice((0, 0, group, 3 * group)) if quant.format and quant.scaling is not Scaling.DEQUANT else 0
    )
    in_dtype, out_dtype = rng.choice(quant.in_dtypes), rng.choice(quant.out_dtypes)
    transposed = rng.random() < 0.5
    values: dict[str, Any] = {
        "input": padded(rows, hidden * (2 if gated else 1), torch_dtype(in_dtype), rng),
        "out": padded(rows, wide * out_dtype.bits // 8, torch_dtype(out_dtype), rng),
        "global_scale": torch.ones(3 if experts else 1),
        "expert_offsets": torch.tensor([0, rows // 2, rows // 2, rows], dtype=torch.int32),
        "scale_offsets": torch.tensor([0, 128, 128, 256], dtype=torch.int32),
        "n_experts": 3,
        "approximate": rng.random() < 0.5,
        "mod_scale": torch.ones(hidden, dtype=torch_dtype(in_dtype)),
        "mod_shift": padded(rows, hidden, torch_dtype(in_dtype), rng),
        "scale_rounding": rng.choice(("up", "ocp")),
        "is_swizzled": rng.random() < 0.5,
        "activation": rng.choice(quant.activations).op_argument,
        "group_size": group,
        "eps": rng.choice((0.0, 1e-10, 1e-6)),
        "epsilon": 1e-6,
        "weight": torch.ones(hidden, dtype=torch_dtype(in_dtype)),
        "residual": padded(rows, hidden, torch_dtype(in_dtype), rng)
        if any(p.name == "residual" and not p.optional for p in BY_NAME[op].parameters) or rng.random() < 0.5
        else None,
        "scale_ub": torch.ones(1) if out_dtype is DType.E4M3 and rng.random() < 0.5 else None,
        "is_scale_transposed": transposed,
        "scale_ue8m0": rng.random() < 0.5,
        "fp8_min": -448.0,
        "fp8_max": 448.0,
        "int8_min": -128.0,
        "int8_max": 127.0,
        "row_sums": torch.zeros((rows, 1) if rng.random() < 0.5 else rows, dtype=torch.int32),
        "azp": torch.zeros(1 if quant.scaling.is_whole else rows, dtype=torch.int32) if rng.random() < 0.5 else None,
    }
    scales, shape_of_groups = _some_scales(op, rows, hidden, wide, group, values, rng)
    output_azp = torch.empty_strided(scales.shape, scales.stride(), dtype=torch.int32).zero_()
    values |= {"scales": scales, "group_shape": shape_of_groups, "output_azp": output_azp}
    if quant.scaling is Scaling.DEQUANT:
        values["input"], values["out"] = (
            padded(rows, hidden * out_dtype.bits // 8, torch_dtype(out_dtype), rng),
            values["input"],
        )
    if quant.format and quant.scaling is Scaling.WEIGHT_DEQUANT:
        values["blocks"] = torch.zeros(packed_shape(quant.format, rows, hidden), dtype=torch.uint8)
        values["out"] = values["input"]
    if breakage is Breakage.SOME:
        for _ in range(rng.choice((1, 1, 2))):
            _break(values, op, rng)
    arguments = [
        values.get(_NAMES.get(p.name, p.name), False if p.kind is ArgumentKind.BOOL else None)
        for p in BY_NAME[op].parameters
    ]
    return [odd_strides(value, rng) if isinstance(value, torch.Tensor) else value for value in arguments]


def _some_scales(
    op: str, rows: int, hidden: int, wide: int, group: int, values: dict[str, Any], rng: random.Random
) -> tuple[torch.Tensor, tuple[int, int] | None]:
    """Scales as the op takes them, and the shape of their groups; of experts `values` learns that scales are swizzled."""
    quant = OP_OF[op]
    experts, transposed = quant.scaling is Scaling.EXPERTS, values["is_scale_transposed"]
    shape_of_groups = None
    match quant.scaling.scales:
        case Scales.GIVEN:
            blocks = op == "static_scaled_fp8_quant"
            kind = rng.choice(("one", "rows", "columns", "blocks")) if blocks and rows else "one"
            scales = {"one": torch.ones(1), "rows": torch.ones(rows), "columns": torch.ones(hidden)}.get(kind)
            shape_of_groups = {"rows": (1, -1), "columns": (-1, 1)}.get(kind)
            if scales is None:
                n = rng.choice((1, 2, 4, 8))
                scales = torch.ones((rows, hidden // n))
                shape_of_groups = rng.choice((None, (1, n)))
        case Scales.OF_TENSOR:
            scales = torch.ones(1)
        case Scales.OF_BLOCK:
            values["is_swizzled"] |= experts
            shape = swizzled_shape(256 if experts else rows, wide // group)
            if not values["is_swizzled"]:
                shape = rows, wide // group + rng.choice((0, 2))
            scales = torch.zeros(shape, dtype=torch.uint8)
            scales = scales if values["is_swizzled"] else scales[:, : wide // group]
            if values["is_swizzled"] and rng.random() < 0.3:
                scales = scales.view(torch.int32)
        case Scales.OF_ROW:
            scales = torch.ones((rows, 1) if rng.random() < 0.5 else rows)
        case _:
            groups, step = hidden // group, -(-rows // 4) * 4
            free = "is_scale_transposed" not in BY_NAME[op].arguments
            if quant.scale_formats == (ScaleFormat.PACKED_UE8M0,):
                scales = torch.zeros((-(-groups // 4), step), dtype=torch.int32).t()[:rows]
            elif transposed:
                kinds = [torch.ones(groups, rows).t(), torch.ones(groups, step).t()[:rows]]
                scales = rng.choice(kinds if free else [*kinds, torch.ones(groups, rows)])
            else:
                scales = torch.ones((rows, groups + rng.choice((0, 2))))[:, :groups]
    return scales, shape_of_groups


def odd_strides(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """The same elements, now and then with other strides where strides mean nothing: in dimensions of size 1."""
    if rng.random() < 0.5:
        return tensor
    strides = [
        rng.choice((0, 1, 7, 1 << 20)) if n == 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return tensor.as_strided(tensor.shape, strides)


def empty_call(op: str, leading: tuple[int, ...], rng: random.Random) -> list[Any]:
    """Arguments of a call on dense tensors without elements, all rows of which have these dimensions."""
    while True:
        arguments = some_call(op, rng, Breakage.NONE)
        call = dict(zip(BY_NAME[op].arguments, arguments, strict=True))
        if not call["input"].shape[0]:
            break

    def dense(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.shape[0] != 0:
            return value
        return torch.empty((*leading, *value.shape[1:]) if value.dim() > 1 else leading, dtype=value.dtype)

    return [value if name in _BLOCK_SCALES else dense(value) for name, value in call.items()]


def _break(values: dict[str, Any], op: str, rng: random.Random) -> None:
    parameter = rng.choice(BY_NAME[op].parameters)
    name = _NAMES.get(parameter.name, parameter.name)
    value = values.get(name)
    if parameter.kind is ArgumentKind.INT:
        values[name] = rng.choice((0, 1, 16, 32, 48, 64, 96, 128, 256, -64))
    elif parameter.kind is ArgumentKind.FLOAT:
        values[name] = rng.choice((-1.0, 0.0, 240.0, float("nan")))
    elif parameter.kind is ArgumentKind.BOOL:
        values[name] = not value
    elif parameter.kind is ArgumentKind.TEXT:
        values[name] = rng.choice(("up", "ocp", "silu", "gelu", "gelu_tanh", "relu", "none", "", "geluß"))
    elif parameter.kind is ArgumentKind.INTS:
        values[name] = rng.choice(((1, -1), (-1, 1), (1,), (0, 4), (-1, -1), (1, 1), (2, 2), None))
    elif value is None:
        values[name] = rng.choice((torch.ones(2), torch.ones(1, dtype=torch.int32), torch.ones(()), torch.ones(1)))
    else:
        values[name] = rng.choice(_TENSOR_BREAKAGES)(value, values)


_TENSOR_BREAKAGES = (
    lambda t, values: t.float() if t.dtype != torch.float32 else t.to(torch.float64),
    lambda t, values: t.to(torch.float32).to(torch.int8),
    lambda t, values: t.reshape(-1),
    lambda t, values: t.reshape(1, *t.shape),
    lambda t, values: torch.zeros(()).to(t.dtype),
    lambda t, values: torch.zeros((*t.shape[:-1], t.shape[-1] + 1) if t.dim() else (2,)).to(t.dtype),
    lambda t, values: torch.zeros((*t.shape, 2)).to(t.dtype)[..., 0],
    lambda t, values: t[:1].expand(t.shape) if t.dim() and t.shape[0] else t,
    lambda t, values: t.t() if t.dim() == 2 else t,
    lambda t, values: t[..., :-1] if t.dim() and t.shape[-1] else t,
    lambda t, values: (
        values["input"].view(torch.uint8).reshape(-1)[: t.numel()].view(t.shape).view(torch.int8)
        if values["input"].is_contiguous() and t.dtype == torch.int8 and t.numel() <= values["input"].numel()
        else t
    ),
)
