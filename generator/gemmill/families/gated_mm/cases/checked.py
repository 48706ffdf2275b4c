"""The calls that verify a gated GEMM."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from gemmill.families.gated_mm.cases.calls import (
    NEUTRAL,
    CallSpec,
    arguments_of,
    groups_of,
    make_given,
    report_of,
    wrong_of,
)
from gemmill.families.gated_mm.cases.experts import (
    ExpertSpec,
    expert_arguments_of,
    make_expert_given,
    of_counts,
    wrong_of_experts,
)
from gemmill.families.gated_mm.config import (
    Activation,
    AnyConfig,
    GatedConfig,
    GatedPartsConfig,
    Result,
    UnalignedGatedConfig,
)
from gemmill.families.gated_mm.facts import Facts
from gemmill.families.gated_mm.ops import SCALED_MM_ACT_QUANT
from gemmill.numerics.cases import CaseOutcome, SpecCase
from gemmill.numerics.memory import GUARD_BYTES, GUARD_ROWS, Memory, Slot
from gemmill.runtime.schemas import NAMESPACE

_Tiled = GatedConfig | GatedPartsConfig
OF_SWIGLU = (1.702, 7.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class GatedCase(SpecCase):
    """A call spec with its computation and comparison."""

    spec: CallSpec

    @property
    def op(self) -> str:
        """The op's name."""
        return SCALED_MM_ACT_QUANT.name

    def arguments(self, device: str) -> list[Any]:
        """Arguments in the order of the op's schema. Outputs hold poison."""
        return arguments_of(self._made(device)[0])

    def _made(self, device: str) -> tuple[dict[str, Any], Memory]:
        p, where = self.spec, torch.device(device)
        dtype = getattr(torch, p.result.dtype.torch_name)
        slots = {"out": Slot.matrix(dtype, (p.m, p.hidden), (p.hidden + p.pad, 1), values=None, written=True)}
        if p.result.group:
            groups = groups_of(p)
            strides = (1, p.m + p.pad) if p.transposed else (groups + p.pad, 1)
            slots["out_scales"] = Slot.matrix(torch.float32, (p.m, groups), strides, values=None, written=True)
        memory = Memory(slots, where, GUARD_BYTES + GUARD_ROWS * (p.hidden + p.pad) * dtype.itemsize)
        written: dict[str, Any] = {"out_scales": None} | {name: self._shaped(memory.tensor(name)) for name in slots}
        return self._given(where) | written, memory

    def _given(self, where: torch.device) -> dict[str, Any]:
        return make_given(self.spec, where)

    def _shaped(self, written: Tensor) -> Tensor:
        return written

    def run(self, device: str) -> CaseOutcome:
        """Call the op on fresh operands, and hold the result against the reference."""
        given, memory = self._made(device)
        before = memory.bytes.clone()
        getattr(getattr(torch.ops, NAMESPACE), self.op).default(*arguments_of(given))
        written = {name: memory.tensor(name) for name in memory.slots}
        report = report_of(wrong_of(given, written, exactly=self.spec.data != "random"))
        if not report and (changed := memory.changed(before, written=True)).any():
            report = memory.places(changed)
        return CaseOutcome(report=report)


@dataclass(frozen=True, kw_only=True)
class ExpertGatedCase(GatedCase):
    """A call spec of rows that belong to experts, computed and compared."""

    spec: ExpertSpec

    @property
    def op(self) -> str:
        """The op's name."""
        return self.spec.op

    def arguments(self, device: str) -> list[Any]:
        """Arguments in the order of the op's schema. Outputs hold poison."""
        return expert_arguments_of(self.op, self._made(device)[0])

    def _given(self, where: torch.device) -> dict[str, Any]:
        return make_expert_given(self.spec, where)

    def _shaped(self, written: Tensor) -> Tensor:
        p = self.spec
        return written.unflatten(0, (len(p.counts), p.slot)) if p.slot else written

    def run(self, device: str) -> CaseOutcome:
        """Call the op on fresh operands, and hold the result against the reference; rows of no expert stay poisoned."""
        given, memory = self._made(device)
        before = memory.bytes.clone()
        was = {name: memory.tensor(name).clone() for name in memory.slots}
        getattr(getattr(torch.ops, NAMESPACE), self.op).default(*expert_arguments_of(self.op, given))
        written = {name: given[name] for name in memory.slots}
        report = report_of(wrong_of_experts(self.op, given, written, was, exactly=self.spec.data != "random"))
        if not report and (changed := memory.changed(before, written=True)).any():
            report = memory.places(changed)
        return CaseOutcome(report=report)


def of_config(config: AnyConfig) -> Iterator[GatedCase]:
    """The cases of a variant: rows below, at and across its tile, results across it, and rows that lie apart.

    K is part of a step, or many steps.
    """
    if isinstance(config, UnalignedGatedConfig):
        for activation in Activation:
            yield from _of_unaligned(_first(config, activation))
        return
    for activation in config.epilogue.activations:
        cases = _of_experts(config, activation) if config.operands.by_expert else _of_tile(config, activation)
        yield from islice(cases, None if activation is config.epilogue.activations[0] else 2)


def _of_unaligned(first: CallSpec) -> Iterator[GatedCase]:
    """The cases of a kernel for unaligned operands: rows begin anywhere, and K is no multiple of anything."""
    step = first.hidden if first.result is Result.GROUP else 16
    specs = (
        replace(first, m=65, hidden=3 * step, k=77, pad=3, transposed=True),
        replace(first, m=1, hidden=step, k=1),
        replace(first, m=2, hidden=step, k=0),
        replace(first, m=130, hidden=5 * step, k=200, pad=1, one_value=True),
    )
    for spec in specs:
        yield GatedCase(spec=replace(spec, data="integers"))
    yield GatedCase(spec=specs[0])
    yield GatedCase(spec=replace(specs[0], data="large"))


def _tile_of(config: _Tiled) -> tuple[int, int]:
    """Rows and results of a tile; of parts, of a CTA of the second kernel."""
    if isinstance(config, GatedPartsConfig):
        return config.tile_shape_mnk[0], config.tile_shape_mnk[1] // 2
    return Facts(config).tile_m, Facts(config).tile_columns


def _of_tile(config: _Tiled, activation: Activation) -> Iterator[GatedCase]:
    first, (tile, columns), step = _first(config, activation), _tile_of(config), _step(config)
    least_k = 48 if config.operands.rows_scaled and config.operands.group_size else 16  # one group is no group
    specs = (
        replace(first, m=tile, hidden=columns, k=256),
        replace(first, m=1, hidden=-(-3 * columns // step) * step, k=least_k),
        replace(first, m=tile - 1, hidden=-(-(columns + step) // step) * step, k=400, pad=16, transposed=True),
        replace(first, m=2 * tile + 3, hidden=-(-5 * columns // step) * step, k=1040),
        replace(first, m=3 * tile // 2, hidden=step, k=128, one_value=True, pad=16),
        replace(first, m=17 * tile + 5, hidden=-(-33 * columns // step) * step, k=64),
    )
    for i, spec in enumerate(specs):
        yield GatedCase(spec=replace(spec, data="integers"))
        if i < 4:
            yield GatedCase(spec=spec)
    yield GatedCase(spec=replace(specs[3], data="large"))


def _of_experts(config: _Tiled, activation: Activation) -> Iterator[GatedCase]:
    """The cases of experts' rows: routings below, at and across a tile, experts without rows, spare rows, slots and
    maps."""
    first, (tile, columns), step = _first_of_experts(config, activation), _tile_of(config), _step(config)
    across = -(-(columns + step) // step) * step
    specs = (
        of_counts(first, (tile + 3,), hidden=step, k=160),
        of_counts(first, (0, 1, 0, tile, 2 * tile + 1, 0), hidden=across, k=512, pad=16),
        of_counts(first, (0, 0, tile - 1), hidden=columns, k=96, spare=7, wide_offsets=True),
        of_counts(first, (5, 0, tile, 1), slot=tile, hidden=step, k=288),
        of_counts(first, (tile, 3 * tile // 2, 2), slot=2 * tile, hidden=across, k=128, wide_offsets=True, pad=16),
        of_counts(first, (4, tile + 1, 9, 2), mapped=(2, -1, 0, 1), hidden=columns, k=256),
        of_counts(first, (17 * tile + 5, 3), hidden=step, k=64),
        of_counts(first, (1,) * 40 + (0,) * 60 + (2,) * 33, hidden=step, k=192),
    )
    for i, spec in enumerate(specs):
        if config.operands.indexed and spec.slot:
            continue  # rows of slots are in order
        yield ExpertGatedCase(spec=replace(spec, data="integers"))
        if i < 2:
            yield ExpertGatedCase(spec=spec)
    yield ExpertGatedCase(spec=replace(specs[1], data="large"))
    if not config.group_size:
        yield ExpertGatedCase(spec=of_counts(first, (3, tile), hidden=step, one_value=True, data="integers"))


def _step(config: _Tiled) -> int:
    """How many results are whole groups of them, and whole blocks of gates."""
    block = config.block if isinstance(config, GatedPartsConfig) else 0
    return config.epilogue.result.group or block or 16


def _first_of_experts(config: _Tiled, activation: Activation) -> ExpertSpec:
    first = _first(config, activation)
    told = {field.name: getattr(first, field.name) for field in fields(first)}
    return ExpertSpec(**told, counts=(1,), indexed=config.operands.indexed)


def sized(config: AnyConfig, sizes: Mapping[str, int]) -> GatedCase:
    """A call of small integers. Raises ValueError for sizes that the op has no room for."""
    activation = config.epilogue.activations[0]
    if not isinstance(config, UnalignedGatedConfig) and config.operands.by_expert:
        rows = _first_of_experts(config, activation)
        spec = of_counts(rows, (sizes["m"],), hidden=sizes["n"] // 2, k=sizes["k"], data="integers")
        return ExpertGatedCase(spec=spec)
    first = _first(config, activation)
    return GatedCase(spec=replace(first, m=sizes["m"], hidden=sizes["n"] // 2, k=sizes["k"], data="integers"))


def _first(config: AnyConfig, activation: Activation) -> CallSpec:
    return CallSpec(
        m=1,
        hidden=128,
        k=128,
        result=config.epilogue.result,
        activation=activation,
        numbers=OF_SWIGLU if activation is Activation.SWIGLU else NEUTRAL,
        dtype=config.operands.dtype,
        group_size=config.group_size,
        rows_scaled=config.rows_scaled,
    )


def once() -> Iterator[tuple[str, GatedCase]]:
    """Each op, once for each result that there is."""
    for result in (Result.BF16, Result.GROUP):
        spec = CallSpec(m=5, hidden=256, k=256, result=result)
        yield f"{SCALED_MM_ACT_QUANT.name} to {result}", GatedCase(spec=spec)
