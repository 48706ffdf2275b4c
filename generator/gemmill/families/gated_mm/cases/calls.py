"""Calls of the gated GEMMs by their sizes and options: operands, and expected results."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.families.gated_mm import bounds
from gemmill.families.gated_mm.config import GROUP, Activation, Result
from gemmill.families.gated_mm.ops import SCALED_MM_ACT_QUANT
from gemmill.families.gated_mm.reference import Groups
from gemmill.families.gated_mm.serving import OF_WORD
from gemmill.vocab import DType

NEUTRAL = (1.0, math.inf, 0.0)
"""The alpha, limit and beta of activations that have none."""


@dataclass(frozen=True, kw_only=True)
class CallSpec:
    """One call. Everything in it, data included, follows from these fields."""

    m: int
    hidden: int
    k: int
    result: Result
    activation: Activation = Activation.SILU
    numbers: tuple[float, float, float] = NEUTRAL
    dtype: DType = DType.E4M3
    """Type of A and of the weights."""
    group_size: int = 0
    """Elements along K that share a scale of the operands; 0: scales of rows and columns."""
    rows_scaled: bool = False
    """Whether each gate and up has scales of its own in groups."""
    one_value: bool = False
    """Whether scales are one value for A, and one for B, where they are not in groups."""
    data: str = "random"
    """The distribution of values: "random", "integers" or "large".

    "integers" are small, with powers of two as scales, so that every order of summation gives the same. Exponentials of
    "large" values overflow.
    """
    pad: int = 0
    """Elements between rows of a and of out."""
    transposed: bool = False
    """Whether scales in groups lie column by column, those of operands too."""

    def __str__(self) -> str:
        words = [
            f"M, hidden, K = {self.m}, {self.hidden}, {self.k}",
            f"{self.activation.spelled} to {self.result}",
            self.data,
        ]
        words += [f"alpha, limit, beta = {self.numbers}"] if self.numbers != NEUTRAL else []
        words += [str(self.dtype)] if self.dtype is not DType.E4M3 else []
        of_b = "1" if self.rows_scaled else self.group_size
        groups = f"scales of operands in groups, {of_b} x {self.group_size} of weights"
        words += [groups] if self.group_size else ["one scale"] if self.one_value else []
        return "; ".join(words)


def make_given(p: CallSpec, device: torch.device) -> dict[str, Any]:
    """Arguments by name, without pure outputs; the same spec has the same data."""
    g = torch.Generator(device=device).manual_seed(p.m * 1_000_003 + p.hidden * 1009 + p.k)
    n = 2 * p.hidden
    a = torch.ones((p.m, p.k + p.pad), device=device, dtype=torch.float32).to(operand_dtype(p))[:, : p.k]
    a.copy_(codes_of((p.m, p.k), p, g))
    shapes = group_shapes(p) if p.group_size else ((1,), (1,)) if p.one_value else ((p.m, 1), (n,))
    a_scales, b_scales = (scales_of(shape, p, g) for shape in shapes)
    if p.group_size and p.transposed:
        a_scales, b_scales = (x.t().contiguous().t() for x in (a_scales, b_scales))
    return {
        "a": a,
        "b": codes_of((n, p.k), p, g).t(),
        "a_scales": a_scales,
        "b_scales": b_scales,
        "static_scale": torch.full((1,), 0.25, device=device, dtype=torch.float32)
        if p.result is Result.STATIC
        else None,
        **numbers_of(p),
    }


def numbers_of(p: CallSpec) -> dict[str, Any]:
    """The activation and its numbers, by name."""
    alpha, limit, beta = p.numbers
    return {"activation": p.activation.spelled, "alpha": alpha, "limit": limit, "beta": beta}


def arguments_of(given: dict[str, Any]) -> list[Any]:
    """Arguments in the order of the op's schema."""
    return [given[name] for name in SCALED_MM_ACT_QUANT.arguments]


def wrong_of(given: dict[str, Any], written: dict[str, Tensor], *, exactly: bool) -> list[Tensor]:
    """Which elements of out, and of out_scales where there are some, are wrong.

    `given` are a call's operands, `written` its outputs. `exactly`: every order of summation gives the same.
    """
    operands = given["a"], given["b"], given["a_scales"], given["b_scales"]
    numbers = given["alpha"], given["limit"], given["beta"]
    within = bounds.interval(operands, OF_WORD[given["activation"]], numbers, exactly=exactly)
    out = written["out"]
    if "out_scales" in written:
        return list(bounds.outside_of_groups(out, written["out_scales"], within))
    if given["static_scale"] is not None:
        return [bounds.outside_of_static(out, given["static_scale"], within)]
    return [bounds.outside_of_values(out, within)]


def report_of(wrong: list[Tensor]) -> str:
    """The fault in a sentence; empty for right results."""
    for name, found in zip(("results", "scales"), wrong, strict=False):
        if count := int(found.sum()):
            places = found.nonzero()
            low, high = places.min(dim=0).values.tolist(), places.max(dim=0).values.tolist()
            rows, columns = (f"{first}..{last}" for first, last in zip(low, high, strict=True))
            return f"{count} of {found.numel()} {name} are wrong, in rows {rows} and columns {columns}"
    return ""


def group_shapes(p: CallSpec) -> tuple[tuple[int, int], tuple[int, int]]:
    """The shapes of the scales of A and of the weights, in groups."""
    of_b = Groups(p.group_size or GROUP, rows_scaled=p.rows_scaled).b_shape(2 * p.hidden, p.k)
    return (p.m, of_b[0]), of_b


def groups_of(p: CallSpec) -> int:
    """How many scales a row of results has."""
    return p.hidden // (p.result.group or GROUP)


def codes_of(shape: tuple[int, ...], p: CallSpec, g: torch.Generator) -> Tensor:
    """Random operands: codes of e4m3 or s8."""
    if p.data == "random" and p.dtype is DType.S8:
        return torch.randint(-128, 128, shape, device=g.device, generator=g, dtype=torch.int64).to(torch.int8)
    if p.data == "random":
        return torch.randn(shape, device=g.device, generator=g, dtype=torch.float32).to(torch.float8_e4m3fn)
    return torch.randint(-2, 3, shape, device=g.device, generator=g, dtype=torch.int64).float().to(operand_dtype(p))


def operand_dtype(p: CallSpec) -> torch.dtype:
    """The dtype of a and b in torch."""
    found: torch.dtype = getattr(torch, p.dtype.torch_name)
    return found


def scales_of(shape: tuple[int, ...], p: CallSpec, g: torch.Generator) -> Tensor:
    """Random scales. For integers they are powers of two. Those of codes of s8 are a 64th of those of e4m3."""
    if p.data == "random":
        found = torch.rand(shape, device=g.device, generator=g, dtype=torch.float32) * 0.2 + 0.05
        return found / 64 if p.dtype is DType.S8 else found
    least = -3 if p.data == "integers" else 0
    return torch.exp2(torch.randint(least, least + 4, shape, device=g.device, generator=g, dtype=torch.int64).float())
