"""The calls that verify a variant."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gemmill.families.grouped_mm.cases.calls import CallSpec, arguments_of, make_given, wanted_of
from gemmill.families.grouped_mm.config import AnyConfig, GroupedConfig, PackedGroupedConfig, UnalignedGroupedConfig
from gemmill.families.grouped_mm.facts import Facts
from gemmill.families.grouped_mm.selections import smoke
from gemmill.numerics.cases import CaseOutcome, SpecCase, outcome_of, result_memory
from gemmill.numerics.memory import Memory
from gemmill.runtime.schemas import NAMESPACE
from gemmill.vocab import Accumulation, Arch, DType

LONG_K = 2304
"""More than all stages of a ring hold, so that its phase turns: eight of 256 columns are the most."""


@dataclass(frozen=True, kw_only=True)
class GroupedCase(SpecCase):
    """A spec with its computation and comparison."""

    spec: CallSpec

    def arguments(self, device: str) -> list[Any]:
        """The arguments in the order of the op's schema; the result holds poison."""
        return self._made(device)[2]

    def _made(self, device: str) -> tuple[dict[str, Any], Memory, list[Any]]:
        p, where = self.spec, torch.device(device)
        given, dtype = make_given(p, where), getattr(torch, p.out_dtype.torch_name)
        memory = result_memory(dtype, (p.rows, p.n), p.pad, where)
        return given, memory, arguments_of(p.op, given, self._shaped(memory.tensor("out")))

    def _shaped(self, out: Tensor) -> Tensor:
        p = self.spec
        return out.unflatten(0, (len(p.counts), p.slot)) if p.slot else out

    def run(self, device: str) -> CaseOutcome:
        """Call the op on fresh operands, and hold the result against the reference; rows of no expert stay poisoned."""
        p = self.spec
        given, memory, arguments = self._made(device)
        wanted = wanted_of(p.op, given, arguments[0], exactly=p.data == "integers", promoted=p.promoted)
        getattr(getattr(torch.ops, NAMESPACE), self.op).default(*arguments)
        return outcome_of(wanted.compare(memory.tensor("out")), memory)


def of_config(config: AnyConfig) -> Iterator[GroupedCase]:
    """Specs for a tiled kernel: routings below, at and across its tile, experts without rows, spare rows around segments, and
    maps."""
    if isinstance(config, PackedGroupedConfig):
        return _of_packed(config)
    cases = _of_unaligned(config) if isinstance(config, UnalignedGroupedConfig) else _of_tile(config)
    return _with_ends(cases) if config.biased else cases


def _with_ends(cases: Iterator[GroupedCase]) -> Iterator[GroupedCase]:
    """Cases with both of alpha and bias, with a bias alone, and with an alpha alone, in turn."""
    for i, case in enumerate(cases):
        yield GroupedCase(spec=replace(case.spec, alpha=i % 3 != 1, bias=i % 3 != 2))


def _of_packed(config: PackedGroupedConfig) -> Iterator[GroupedCase]:
    """Specs for packed weights: rows in order, in slots and gathered; columns that fill no block, and K that fills no
    stage."""
    first, tile = _first(config), config.tile_m
    specs = (
        replace(first, counts=(0, 1, 0, tile, 2 * tile + 1, 0), n=160, k=512, pad=16, alpha=True, bias=True),
        replace(first, counts=(tile - 1, 3), n=75, k=96, spare=7, wide_offsets=True),
        replace(first, counts=(5, 0, tile, 1), slot=tile, n=64, k=288, alpha=True, bias=True),
        replace(first, counts=(4, tile + 1, 9, 2), mapped=(2, -1, 0, 1), n=129, k=64),
        replace(first, counts=(17 * tile + 5, 3), n=192, k=32),
        replace(first, counts=(1,) * 40 + (0,) * 60 + (2,) * 33, n=32, k=192),
        replace(first, counts=(3, 0, tile + 1), n=96, k=LONG_K),
    )
    for spec in specs:
        for indexed in (False,) if spec.slot else (False, True):
            yield GroupedCase(spec=replace(spec, indexed=indexed, data="integers"))
    for indexed in (False, True):
        yield GroupedCase(spec=replace(specs[0], indexed=indexed))


def _of_unaligned(config: UnalignedGroupedConfig) -> Iterator[GroupedCase]:
    """Specs for unaligned operands: rows that begin anywhere, odd N and K, in order and gathered."""
    first, tile = _first(config), config.tile_shape_mnk[0]
    fewest = 2 if config.operands.rows_scaled else 1  # scales of one row are those of its block
    specs = (
        replace(first, counts=(0, 1, 0, tile, 2 * tile + 1, 0), n=75, k=333, pad=3),
        replace(first, counts=(tile - 1, 3), n=fewest, k=131, spare=7, wide_offsets=True),
        replace(first, counts=(5, 0, tile, 1), slot=tile, n=67, k=257),
        replace(first, counts=(4, tile + 1, 9, 2), mapped=(2, -1, 0, 1), n=129, k=63),
        replace(first, counts=(1,) * 40 + (0,) * 60 + (2,) * 33, n=32, k=192),
    )
    for spec in specs:
        for indexed in (False,) if spec.slot else (False, True):
            yield GroupedCase(spec=replace(spec, indexed=indexed, data="integers"))
    yield GroupedCase(spec=specs[0])
    yield GroupedCase(spec=replace(specs[0], indexed=True, wide_offsets=True))


def _of_tile(config: GroupedConfig) -> Iterator[GroupedCase]:
    first, tile = _first(config), Facts(config).tile_m
    specs: tuple[CallSpec, ...] = (
        replace(first, counts=(tile + 3,), n=96, k=160),
        replace(first, counts=(0, 1, 0, tile, 2 * tile + 1, 0), n=160, k=512, pad=16),
        replace(first, counts=(0, 0, tile - 1), n=384, k=96, spare=7, wide_offsets=True),
        replace(first, counts=(5, 0, tile, 1), slot=tile, n=64, k=288),
        replace(first, counts=(tile, 3 * tile // 2, 2), slot=2 * tile, n=256, k=128, wide_offsets=True, pad=16),
        replace(first, counts=(4, tile + 1, 9, 2), mapped=(2, -1, 0, 1), n=128, k=256),
        replace(first, counts=(17 * tile + 5, 3), n=192, k=64),
        replace(first, counts=(1,) * 40 + (0,) * 60 + (2,) * 33, n=32, k=192),
        replace(first, counts=(3, 0, tile + 1), n=96, k=LONG_K),
    )
    if config.operands.indexed:
        specs = tuple(spec for spec in specs if not spec.slot)
    for i, spec in enumerate(specs):
        yield GroupedCase(spec=replace(spec, data="integers"))
        if i < 2:
            yield GroupedCase(spec=spec)
    if config.operands.scaled and not config.group_size:
        yield GroupedCase(spec=replace(first, counts=(3, tile), n=64, k=128, one_value=True, data="integers"))


def sized(config: AnyConfig, sizes: Mapping[str, int]) -> GroupedCase:
    """A call of small integers, all rows of one expert."""
    return GroupedCase(spec=replace(_first(config), counts=(sizes["m"],), n=sizes["n"], k=sizes["k"], data="integers"))


def _first(config: AnyConfig) -> CallSpec:
    first = CallSpec(
        counts=(1,),
        n=64,
        k=128,
        dtype=config.operand_dtype,
        out_dtype=config.out_dtype,
        groups=config.scale_groups,
        alpha=config.biased,
        bias=config.biased,
    )
    if isinstance(config, UnalignedGroupedConfig):
        return replace(first, promoted=config.operands.dtype is DType.E4M3)
    if isinstance(config, PackedGroupedConfig):
        return replace(first, format=config.format)
    return replace(first, indexed=config.operands.indexed, promoted=config.design.accumulation is Accumulation.PROMOTED)


def once() -> Iterator[tuple[str, GroupedCase]]:
    """Each op, once for each kind of operands that the smoke selection has."""
    kernels = list(smoke(Arch.SM90A))
    tiled = [config for config in kernels if isinstance(config, GroupedConfig)]
    kinds = dict.fromkeys((config.operands.indexed, config.operands.dtype, config.scale_groups) for config in tiled)
    for indexed, dtype, groups in sorted(kinds, key=lambda kind: (*kind[:2], kind[2] is not None)):
        for slot in (0,) if indexed else (0, 64):
            spec = CallSpec(counts=(5, 0, 40, 1), n=96, k=256, dtype=dtype, groups=groups, slot=slot, indexed=indexed)
            words = [" with groups"] if groups is not None else [" of bf16"] if spec.is_plain else []
            words += [", gathered"] if indexed else []
            yield f"{spec.op}{''.join(words)}", GroupedCase(spec=spec)
    for config in kernels:
        if isinstance(config, PackedGroupedConfig):
            for slot, indexed in ((0, False), (0, True), (64, False)):
                spec = replace(
                    _first(config), counts=(5, 0, 40, 1), n=96, k=256, slot=slot, indexed=indexed, alpha=True, bias=True
                )
                kind = f"{config.format} by {config.dtype}{', gathered' if indexed else ''}"
                yield f"{spec.op} of {kind}", GroupedCase(spec=spec)
