"""Calls of the quantisation ops on random data, their outputs poisoned, held against the reference on the same device."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.families.quant.call import OUT_NAMES, SCALE_NAMES, name_of
from gemmill.families.quant.config import Activation, QuantConfig, QuantFamily, ScaleFormat
from gemmill.families.quant.ops import QUANT_OPS
from gemmill.reference import quant_bounds as bounds
from gemmill.runtime.quant_cpu import by_reference
from gemmill.runtime.schemas import BY_NAME, NAMESPACE, OpSchema
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class QuantCase:
    """One call: its size and what is given beside."""

    rows: int
    hidden: int
    padding: int = 0
    """Elements between the rows of the input."""
    m_major: bool = False
    """Scales of groups M-major, padded to four rows."""
    bounded: bool = False
    """A scale_ub that bites, for e4m3."""
    residual: bool = False

    def __str__(self) -> str:
        extras = [name for name in ("m_major", "bounded", "residual") if getattr(self, name)]
        return f"{self.rows} x {self.hidden}, padding {self.padding}{''.join(f', {name}' for name in extras)}"


def cases_of(config: QuantConfig, *, quick: bool = False) -> Iterator[QuantCase]:
    """Shapes and layouts below, at and across the kernels' own limits."""
    if quick:
        yield QuantCase(rows=33, hidden=1024)
        return
    yield from (
        QuantCase(rows=rows, hidden=hidden, residual=rows % 2 == 1, m_major=rows % 2 == 0)
        for rows, hidden in (
            (1, 128),
            (7, 384),
            (133, 2048),
            (512, 7168),
            (3, 28672),
            (1, 131072),
            (2, 76800),
            (0, 256),
        )
    )
    # So large that threads are given as much as they can hold; rows that fill their CTA, and rows that do not.
    by_row = config.family in (QuantFamily.TOKEN, QuantFamily.RMS_TOKEN, QuantFamily.RMS_GROUP)
    for rows, hidden in ((8003, 2176), (4099, 4480), (2501, 7168), (641, 28672)) if by_row else ((8003, 2176),):
        yield QuantCase(rows=rows, hidden=hidden)
        if config.family in (QuantFamily.RMS_TOKEN, QuantFamily.RMS_GROUP):
            yield QuantCase(rows=rows, hidden=hidden, residual=True, m_major=True)
    yield QuantCase(rows=65, hidden=1152, padding=24)
    yield QuantCase(rows=37, hidden=640, padding=3, m_major=True, residual=True)
    yield QuantCase(rows=34, hidden=2048, bounded=True)
    if not config.family.is_grouped:
        yield from (QuantCase(rows=5, hidden=hidden, residual=True) for hidden in (1, 3, 17, 129, 1001, 5003))


def check_case(config: QuantConfig, op: str, case: QuantCase, device: str) -> str:
    """Make a call of an op that the config serves; what is wrong with its results, or nothing."""
    arguments = _arguments(config, op, case, device)
    wanted = [value.clone() if isinstance(value, Tensor) else value for value in arguments]
    for i, value in enumerate(arguments):
        if isinstance(value, Tensor):  # strides and padding too
            wanted[i] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)
    getattr(getattr(torch.ops, NAMESPACE), op).default(*arguments)
    by_reference(BY_NAME[op], wanted)
    return differences(config, BY_NAME[op], arguments, wanted)


def differences(config: QuantConfig, op: OpSchema, arguments: list[Any], wanted: list[Any]) -> str:
    """How a call's arguments after it differ from those of the reference, beyond what its arithmetic leaves open; or nothing."""
    names = op.arguments
    apart = {
        name: count
        for name, got, expected in zip(names, arguments, wanted, strict=True)
        if isinstance(got, Tensor) and (count := int((~same_bits(got, expected)).sum()))
    }
    if not apart or _within_bounds(
        config, dict(zip(names, arguments, strict=True)), dict(zip(names, wanted, strict=True)), apart
    ):
        return ""
    return ", ".join(f"{count} elements of {name} differ from the reference" for name, count in apart.items())


def same_bits(got: Tensor, wanted: Tensor) -> Tensor:
    """Where elements are alike, NaN whatever its bits; waits for no device."""
    if got.dtype.itemsize == 1:
        return got.view(torch.uint8) == wanted.view(torch.uint8)
    return (got == wanted) | ((got != got) & (wanted != wanted))


def _within_bounds(config: QuantConfig, got: dict[str, Any], wanted: dict[str, Any], apart: dict[str, int]) -> bool:
    codes, scales = got[name_of(got, OUT_NAMES)], got[name_of(got, SCALE_NAMES)]
    if config.activation is not Activation.NONE:
        ub = got.get("scale_ub")
        return not any(bounds.outside_of_gate_bounds(config, got["input"], codes, scales, scale_ub=ub))
    if config.family in (QuantFamily.RMS_TOKEN, QuantFamily.RMS_GROUP):
        rows, steps = bounds.rows_beyond_one_step(codes, wanted["result"])
        return rows <= 1 and steps == 0 and "residual" not in apart and _one_row_of_scales(scales, wanted)
    return False


def _one_row_of_scales(scales: Tensor, wanted: dict[str, Any]) -> bool:
    """Whether the scales of at most one row differ, and those by no more than rounding does (2^-22)."""
    expected = wanted[name_of(wanted, SCALE_NAMES)]
    apart = ~same_bits(scales, expected)
    rows = int(apart.reshape(apart.shape[0], -1).any(dim=1).sum()) if apart.numel() else 0
    return rows <= 1 and bool(((scales - expected).abs() <= 2.0**-22 * expected)[apart].all())


def _arguments(config: QuantConfig, op: str, case: QuantCase, device: str) -> list[Any]:
    random = torch.Generator(device).manual_seed(case.rows * 1009 + case.hidden)
    width = case.hidden * (1 if config.activation is Activation.NONE else 2)
    in_dtype, out_dtype = (getattr(torch, dtype.torch_name) for dtype in (config.in_dtype, config.out_dtype))

    def values(rows: int, columns: int) -> Tensor:
        return torch.randn((rows, columns), generator=random, device=device).to(in_dtype)

    s8 = config.out_dtype is DType.S8
    smallest = 0.004 if config.family is QuantFamily.GROUP else 1.5
    scales = _scales(config, case, device)
    azp = None
    if not config.symmetric:
        shape = (1,) if config.family in (QuantFamily.STATIC, QuantFamily.TENSOR) else (case.rows, 1)
        azp = torch.full(shape, -7, dtype=torch.int32, device=device)
    m_major = case.m_major and config.scale_format is not ScaleFormat.PACKED_UE8M0
    given: dict[str, Any] = {
        "input": values(case.rows, width + case.padding)[:, :width],
        "out": torch.full((case.rows, case.hidden), 0x55, dtype=torch.uint8, device=device).view(out_dtype),
        "scale": scales,
        "azp": azp,
        "output_azp": torch.empty_strided(scales.shape, scales.stride(), dtype=torch.int32, device=device).fill_(12345),
        "scale_ub": torch.tensor([smallest], device=device) if case.bounded and not s8 else None,
        "weight": values(1, case.hidden)[0],
        "residual": values(case.rows, case.hidden) if case.residual else None,
        "activation": config.activation.op_argument,
        "group_size": config.group_size,
        "group_shape": None,
        "eps": 1e-10,
        "epsilon": 1e-6,
        "is_scale_transposed": m_major,
        "scale_ue8m0": config.scale_format is ScaleFormat.POWER_OF_TWO,
        "fp8_min": -448.0,
        "fp8_max": 448.0,
        "int8_min": -128.0,
        "int8_max": 127.0,
        "dummy_is_scale_transposed": m_major,
        "dummy_is_tma_aligned": m_major,
    }
    other = {"result": "out", "output_q": "out", "scales": "scale", "output_s": "scale", "output_s_packed": "scale"}
    return [given[other.get(name, name)] for name in BY_NAME[op].arguments]


def _scales(config: QuantConfig, case: QuantCase, device: str) -> Tensor:
    if config.family is QuantFamily.STATIC:
        return torch.tensor([0.0123], device=device)
    if config.family is QuantFamily.TENSOR:
        return torch.full((1,), torch.nan, device=device)
    if not config.family.is_grouped:
        return torch.full((case.rows, 1), torch.nan, device=device)
    groups, padded = case.hidden // config.group_size, -(-case.rows // 4) * 4
    if config.scale_format is ScaleFormat.PACKED_UE8M0:
        return torch.full((-(-groups // 4), padded), -1, dtype=torch.int32, device=device).t()[: case.rows]
    if case.m_major:
        return torch.full((groups, padded), torch.nan, device=device).t()[: case.rows]
    return torch.full((case.rows, groups), torch.nan, device=device)


def ops_served(config: QuantConfig) -> list[str]:
    """The ops that a config serves."""
    return [op.name for op in QUANT_OPS if op.serves(config)]
