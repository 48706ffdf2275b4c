"""Calls of rows that belong to experts: operands, and expected results."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gemmill.families.gated_mm.cases.calls import (
    CallSpec,
    codes_of,
    group_shapes,
    numbers_of,
    operand_dtype,
    scales_of,
    wrong_of,
)
from gemmill.families.gated_mm.config import Result
from gemmill.families.gated_mm.expert_ops import GROUPED_MM_ACT_QUANT, GROUPED_MM_ACT_QUANT_MASKED
from gemmill.families.gated_mm.serving import parts_of
from gemmill.runtime import checks
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME


@dataclass(frozen=True, kw_only=True)
class ExpertSpec(CallSpec):
    """One call of rows that belong to experts. `m` counts all rows, those of nobody too."""

    counts: tuple[int, ...]
    """Rows of each expert."""
    slot: int = 0
    """Rows of room for each expert; 0 where segments follow one another."""
    spare: int = 0
    """Rows without an expert, before the first segment and behind the last."""
    mapped: tuple[int, ...] | None = None
    """The index of each expert's weights; None for a call without a map."""
    wide_offsets: bool = False
    """Whether offsets, and the numbers of rows, have 64 bits."""
    indexed: bool = False
    """Whether token_ids name the rows of A: those of two thirds as many tokens, some of nowhere."""

    @property
    def tokens(self) -> int:
        """Rows of A."""
        return max(2 * self.m // 3, 1) if self.indexed else self.m

    @property
    def op(self) -> str:
        """The op's name."""
        return (GROUPED_MM_ACT_QUANT_MASKED if self.slot else GROUPED_MM_ACT_QUANT).name

    @property
    def weights(self) -> int:
        """How many experts' weights there are."""
        return len(self.counts) if self.mapped is None else max(self.mapped) + 1

    def __str__(self) -> str:
        words = [super().__str__(), f"rows {self.counts}"]
        words += [f"slots of {self.slot}"] if self.slot else []
        words += [f"map {self.mapped}"] if self.mapped is not None else []
        words += [f"by numbers of {self.tokens} rows"] if self.indexed else []
        return "; ".join(words)


def of_counts(first: ExpertSpec, counts: tuple[int, ...], **changes: Any) -> ExpertSpec:
    """The spec `first` with `counts` rows for its experts, and other changes."""
    spec = replace(first, counts=counts, **changes)
    return replace(spec, m=len(counts) * spec.slot if spec.slot else sum(counts) + 2 * spec.spare)


def make_expert_given(p: ExpertSpec, device: torch.device) -> dict[str, Any]:
    """Arguments by name, without pure outputs; the same spec has the same data."""
    g = torch.Generator(device=device).manual_seed(p.m * 1_000_003 + p.hidden * 1009 + p.k)
    n = 2 * p.hidden
    a = torch.ones((p.tokens, p.k + p.pad), device=device, dtype=torch.float32).to(operand_dtype(p))[:, : p.k]
    a.copy_(codes_of((p.tokens, p.k), p, g))
    a_shape: tuple[int, ...] = (1,) if p.one_value else (p.tokens, 1)
    b_shape: tuple[int, ...] = (p.weights,) if p.one_value else (p.weights, n)
    if p.group_size:
        _, (k_groups, of_b) = group_shapes(p)
        a_shape, b_shape = (p.tokens, k_groups), (p.weights, of_b, k_groups)
    a_scales, b_scales = scales_of(a_shape, p, g), scales_of(b_shape, p, g)
    if p.slot:
        a = a.unflatten(0, (len(p.counts), p.slot))
        a_scales = a_scales if p.one_value else a_scales.unflatten(0, (len(p.counts), p.slot))
    told = torch.tensor(
        p.counts if p.slot else list(accumulate(p.counts, initial=p.spare)), device=device, dtype=torch.int64
    )
    integers = torch.int64 if p.wide_offsets else torch.int32
    named = torch.randint(-1, p.tokens + 1, (p.m,), device=device, generator=g, dtype=torch.int64).to(integers)
    return {
        "a": a,
        "b": codes_of((p.weights, n, p.k), p, g),
        "a_scales": a_scales,
        "b_scales": b_scales,
        "rows" if p.slot else "expert_offsets": told.to(integers),
        "static_scale": torch.full((1,), 0.25, device=device, dtype=torch.float32)
        if p.result is Result.STATIC
        else None,
        "expert_map": None if p.mapped is None else torch.tensor(p.mapped, dtype=torch.int32, device=device),
        "token_ids": named if p.indexed else None,
        "expected_rows": 0,
        **numbers_of(p),
    }


def expert_arguments_of(op: str, given: dict[str, Any]) -> list[Any]:
    """Arguments in the order of the op's schema."""
    return [given[name] for name in BY_NAME[op].arguments]


def wrong_of_experts(
    op: str, given: dict[str, Any], written: dict[str, Tensor], before: dict[str, Tensor], *, exactly: bool
) -> list[Tensor]:
    """Which elements of out, and of out_scales where there are some, are wrong. Each has a row for each of all rows.

    Rows of no expert must keep their contents.
    """
    values = expert_arguments_of(op, {"out_scales": None} | given | written)
    schema = BY_NAME[op]
    call = checks.check(schema, of_arguments(schema, values))
    by_role = dict(zip(call.roles, values, strict=False))
    names = [name for name in ("out", "out_scales") if name in written]
    found = {name: written[name].reshape(-1, written[name].shape[-1]) for name in names}
    wrong = [_bytes(found[name]).ne(_bytes(before[name].reshape(found[name].shape))).any(-1) for name in names]
    for part in parts_of(call, by_role):
        operands = by_role | part.operands
        of_part = wrong_of(operands, {name: found[name][part.rows] for name in names}, exactly=exactly)
        for whole, rows in zip(wrong, of_part, strict=True):
            whole[part.rows] = rows
    return wrong


def _bytes(x: Tensor) -> Tensor:
    """The bytes of each element, in a last dimension."""
    found: Tensor = x.contiguous().view(torch.uint8).unflatten(-1, (x.shape[-1], x.element_size()))
    return found
