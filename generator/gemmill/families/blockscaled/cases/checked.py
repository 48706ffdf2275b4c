"""The calls that verify a variant."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmill.families.blockscaled.cases.calls import CallSpec, Operands, arguments_of, make_operands
from gemmill.families.blockscaled.config import AnyConfig, ManyConfig, PackedConfig, PairConfig
from gemmill.families.blockscaled.ops import OPS, OPS_OF
from gemmill.families.blockscaled.pairs import WEIGHT_PAIRS
from gemmill.families.blockscaled.selections import smoke
from gemmill.numerics.cases import CaseOutcome, SpecCase, outcome_of, result_memory
from gemmill.numerics.memory import Memory
from gemmill.runtime.schemas import NAMESPACE
from gemmill.vocab import Arch, DType

PAD = 16
"""Room between rows: elements, or bytes where these are codes. Rows begin at multiples of 16 bytes all the same."""
ROLES_OF = {op.schema.name: op.role_of for op in OPS.ops}
SHAPES = ((32, 32), (128, 256), (160, 288), (96, 1056), (384, 64))
"""N and K: below, at and across tiles and stages."""
ODD_N = (33, 131)
LONG = (160, 4096)
_LEAST_GROUPED, _LEAST_UNFOLDED = 160, 64
"""Least columns: more than share a scale, and as many as a row's scales need to spread."""


@dataclass(frozen=True, kw_only=True)
class BlockScaledCase(SpecCase):
    """A spec with its computation and comparison."""

    spec: CallSpec

    @property
    def op(self) -> str:
        """The op's name."""
        return self.spec.name

    def arguments(self, device: str) -> list[Any]:
        """The arguments in the order of the op's schema; the result holds poison."""
        return self._made(device)[2]

    def _made(self, device: str) -> tuple[Operands, Memory, list[Any]]:
        p, where = self.spec, torch.device(device)
        operands = make_operands(p, where)
        memory = result_memory(getattr(torch, p.out_dtype.torch_name), (p.m, p.n), p.pad, where)
        return operands, memory, arguments_of(p.name, ROLES_OF[p.name], operands.given, memory.tensor("out"))

    def run(self, device: str) -> CaseOutcome:
        """Call the op on fresh operands, and hold the result against the reference."""
        operands, memory, arguments = self._made(device)
        getattr(getattr(torch.ops, NAMESPACE), self.op).default(*arguments)
        return outcome_of(operands.wanted(self.spec).compare(memory.tensor("out")), memory)


def of_config(config: AnyConfig) -> Iterator[BlockScaledCase]:
    """Shapes that a variant takes, with and without bias and alpha."""
    first, tile, multiple = _first(config), config.design.tile_mn[0], _multiple(config)
    is_any = not isinstance(config, PairConfig)  # N may be
    least = _LEAST_GROUPED if config.grouped else _LEAST_UNFOLDED if first.is_folded else 1
    rows = (1, tile - 1, tile, tile + 1, 2 * tile + 3)
    for i, (m, (n, shape_k)) in enumerate(zip(rows, SHAPES, strict=True)):
        k = max(-(-shape_k // multiple) * multiple, least)
        alpha = i != 1 or first.pair not in WEIGHT_PAIRS
        random = replace(first, m=m, n=n, k=k, bias=i % 2 == 0, alpha=alpha, pad=PAD * (i % 2))
        yield BlockScaledCase(spec=random)
        yield BlockScaledCase(spec=replace(random, bias=i % 2 == 1, alpha=True, pad=0, data="integers"))
    if first.is_folded:  # every code by every scale
        for n, k in SHAPES[1:3]:
            yield BlockScaledCase(spec=replace(first, m=k, n=n, k=k, data="single", bias=True))
    for n in ODD_N if is_any else ():  # the last row's pieces are not whole
        k = -(-320 // multiple) * multiple
        yield BlockScaledCase(spec=replace(first, m=tile + 5, n=n, k=k, bias=True, data="integers"))
    n, k = LONG
    yield BlockScaledCase(spec=replace(first, m=tile, n=n, k=k, data="integers"))
    for op in OPS_OF[config.pair][1:]:
        yield BlockScaledCase(spec=replace(first, op=op, m=3, n=64, k=max(64, multiple)))


def sized(config: AnyConfig, sizes: Mapping[str, int]) -> BlockScaledCase:
    """A call of the first op that a config serves, of small integers."""
    spec = replace(_first(config), m=sizes["m"], n=sizes["n"], k=sizes["k"], data="integers")
    return BlockScaledCase(spec=spec)


def _first(config: AnyConfig) -> CallSpec:
    ops = OPS_OF[config.pair]
    return CallSpec(
        m=1,
        n=32,
        k=256,
        pair=config.pair,
        out_dtype=config.out_dtype,
        prepacked=config.prepacked,
        grouped=config.grouped,
        op=ops[0],
    )


def _multiple(config: AnyConfig) -> int:
    """The number that K is a multiple of, where rows of codes are taken in pieces of 16 bytes."""
    if isinstance(config, PackedConfig) or (isinstance(config, ManyConfig) and config.k_multiple == 1):
        return config.group_size
    return max(32, config.k_multiple)


def once() -> Iterator[tuple[str, BlockScaledCase]]:
    """Each op that the smoke selection has a variant for, once for each of its formats."""
    for config in smoke(Arch.SM90A):
        for op in OPS_OF[config.pair]:
            spec = replace(_first(config), m=33, n=96, op=op)
            of_checkpoint = spec.is_widened and not spec.prepacked
            words = [op, str(config.pair), *(["as in a checkpoint"] if of_checkpoint else [])]
            words += ["unfolded"] if spec.is_folded and not spec.prepacked else []
            words += ["in groups"] if spec.grouped else []
            words += [str(config.out_dtype)] if config.out_dtype is DType.F16 else []
            yield " ".join(words), BlockScaledCase(spec=spec)
