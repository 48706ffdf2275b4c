"""Which calls of the quantisation ops are timed, and their arguments."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch

from gemmill.families.quant.call import OP_OF, SCALE_NAMES, name_of
from gemmill.families.quant.cases.calls import QuantCase
from gemmill.families.quant.config import Activation, Scaling
from gemmill.families.quant.ops import QUANT_OPS, QuantOp
from gemmill.runtime.schemas import BY_NAME
from timed.workload import Kind, Workload, any_size

FEWEST_COPIES, MOST_COPIES = 2, 64
LARGEST = 16.0
"""The first element of every `input`: no other is as large, so a tensor's scale can be told from a few of its rows."""

GRID_M = (1, 16, 64, 256, 1024, 4096, 16384)
GRID_HIDDEN = (2048, 4096, 7168, 14336, 28672)
TABLE = ((1, 28672), (16, 14336), (1024, 4096), (4096, 14336))
"""(M, hidden) by which progress is measured."""
HOST_SHAPE, WARM_UP_SHAPE = (16, 1024), (4096, 4096)
TINY_M, TINY_HIDDEN = 17, 256
JUDGED = (
    "dynamic_per_token_scaled_fp8_quant",
    "per_token_group_fp8_quant",
    "silu_and_mul_per_block_quant",
    "dynamic_scaled_int8_quant",
)
DRAWN, DRAWN_STEP = ((1, 16384), (1024, 32768)), 256
"""Least and most of M and of hidden; the latter are multiples of the step."""


def _cases() -> Iterator[tuple[str, QuantCase]]:
    """Every op once, of bf16 to its first codes, in groups of 128; with further arguments of some calls."""
    for op in QUANT_OPS:
        case = _case(op)
        yield _label(case), case
        if op.symmetric == (True, False) and op.scaling is Scaling.TOKEN:
            yield f"{op.name} azp", replace(case, zero_points=True)
        if op.scaling is Scaling.RMS_TOKEN:
            yield f"{op.name} residual", replace(case, residual=True)
        for group in (16, 256) if op.takes_any_group else ():
            yield f"{op.name} group {group}", replace(case, group_size=group)


def _case(op: QuantOp) -> QuantCase:
    activation = Activation.GELU_TANH if Activation.GELU_TANH in op.activations else op.activations[0]
    return QuantCase(
        op=op.name,
        rows=1,
        hidden=1,
        out_dtype=op.out_dtypes[0],
        group_size=max(op.group_sizes),
        activation=activation.op_argument,
        scale_format=op.scale_formats[0],
        zero_points=op.symmetric == (False,),
    )


def _label(case: QuantCase) -> str:
    """The op's name, with the activation where calls say which."""
    return f"{case.op} {case.activation}" if "activation" in BY_NAME[case.op].arguments else case.op


@dataclass(frozen=True, kw_only=True)
class QuantKind(Kind):
    """A case, on m rows of `hidden` codes each."""

    case: QuantCase
    """Of one row and code."""

    def bytes(self, p: Workload) -> int:
        """The case's."""
        return case_of(p).bytes


KINDS = {name: QuantKind(name=name, case=case) for name, case in _cases()}


def case_of(workload: Workload[QuantKind]) -> QuantCase:
    """The call."""
    return replace(workload.of.case, rows=workload.m, hidden=workload.hidden)


@dataclass(frozen=True, kw_only=True)
class QuantOperands:
    """Arguments of the op's schema, in its order, in copies that between them exceed L2 twice over."""

    workload: Workload[QuantKind]
    given: tuple[list[Any], ...]

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self.given)

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments' names."""
        return BY_NAME[self.workload.of.case.op].arguments


class QuantOperandMaker:
    """Makes operands of normal random data."""

    def __init__(self, device: torch.device, rotated_bytes: int) -> None:
        self._device = device
        self._rotated_bytes = rotated_bytes
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, workload: Workload[QuantKind]) -> QuantOperands:
        """As many copies as keep L2 from holding them."""
        count = min(MOST_COPIES, max(FEWEST_COPIES, -(-self._rotated_bytes // workload.bytes)))
        return QuantOperands(workload=workload, given=tuple(self._copy(case_of(workload)) for _ in range(count)))

    def _copy(self, case: QuantCase) -> list[Any]:
        values = case.arguments(self._device, self._generator)
        given = dict(zip(BY_NAME[case.op].arguments, values, strict=True))
        if "input" in given:
            given["input"][0, :: case.hidden] = LARGEST
        if OP_OF[case.op].scaling is Scaling.TENSOR:
            given[name_of(given, SCALE_NAMES)].zero_()  # which vLLM's op only raises
        return values


def workloads_of(options: Namespace) -> list[Workload]:
    """Every case on every shape, the shapes of a case in ascending order of size. Raises ValueError."""
    if options.draw is not None:
        random, kinds = Random(options.draw), kinds_named(options.op)
        shapes = [_drawn(random) for _ in range(options.draws)]
        return [KINDS[kind].at(m=m, hidden=hidden) for m, hidden in shapes for kind in kinds]
    shapes = sorted(set(parse_shapes(options.shapes)), key=lambda shape: (shape[0] * shape[1], shape))
    return [KINDS[kind].at(m=m, hidden=hidden) for kind in kinds_named(options.op) for m, hidden in shapes]


def _drawn(random: Random) -> tuple[int, int]:
    """M and hidden, each as likely in one octave as in another."""
    m, hidden = (any_size(random, *sizes) for sizes in DRAWN)
    return round(m), DRAWN_STEP * round(hidden / DRAWN_STEP)


def parse_shapes(text: str) -> Iterator[tuple[int, int]]:
    """(M, hidden) of "table", "grid" or "MxH", with commas. Raises ValueError, naming the part that cannot be read."""
    for part in (part.strip() for part in text.split(",")):
        fields = part.split("x")
        if part == "table":
            yield from TABLE
        elif part == "grid":
            yield from ((m, hidden) for m in GRID_M for hidden in GRID_HIDDEN)
        elif len(fields) == 2 and all(field.isdigit() and int(field) for field in fields):
            yield int(fields[0]), int(fields[1])
        else:
            raise ValueError(f"shape {part!r} is neither table, grid nor MxHIDDEN, two positive numbers as in 16x4096")


def kinds_named(text: str | None) -> tuple[str, ...]:
    """The kinds whose names contain one of these, with commas; all for None. Raises ValueError where one fits none."""
    parts = [""] if text is None else [part.strip() for part in text.split(",")]
    for part in parts:
        if not any(part in kind for kind in KINDS):
            raise ValueError(f"no op has {part!r} in its name: there are {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if any(part in kind for part in parts))


def add_options(parser: ArgumentParser) -> None:
    """Of the quantisation ops alone."""
    parser.add_argument("--op", "--ops", help="only ops with one of these in their name, with commas")
    parser.add_argument(
        "--shapes", default="table,grid", help='"table", "grid" or MxHIDDEN, with commas; both by default'
    )
    parser.add_argument("--draw", type=int, metavar="SEED", help="draw shapes in place of these")
    parser.add_argument("--draws", type=int, default=12, help="how many are drawn")
