"""Which calls of the quantisation ops are timed, and their arguments."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.families.quant.call import OP_OF
from gemmill.families.quant.config import Activation, QuantFamily, ScaleFormat
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import DType

IN = torch.bfloat16
ROTATED_BYTES = 128 << 20
"""More than twice the 60 MB of L2 of an H200."""
FEWEST_COPIES, MOST_COPIES = 2, 64
LARGEST = 16.0
"""The first element of every input: no other is as large, so a tensor's scale can be told from a few of its rows."""

GRID_M = (1, 16, 64, 256, 1024, 4096, 16384)
GRID_HIDDEN = (2048, 4096, 7168, 14336, 28672)
TABLE = ((1, 28672), (16, 14336), (1024, 4096), (4096, 14336))
"""(M, hidden) that progress is judged by."""


@dataclass(frozen=True, kw_only=True)
class QuantCase:
    """One way of calling an op; bf16 in."""

    op: str
    label: str = ""
    """What the case is called; the op's name where that says it all."""
    out_dtype: DType = DType.E4M3
    group_size: int = 0
    asymmetric: bool = False
    residual: bool = False
    activation: Activation = Activation.NONE
    """Where the op takes one."""

    @property
    def name(self) -> str:
        return self.label or self.op

    @property
    def gated(self) -> bool:
        return OP_OF[self.op].activations != (Activation.NONE,)


CASES = (
    QuantCase(op="silu_and_mul_per_block_quant", group_size=128),
    QuantCase(
        op="act_and_mul_per_block_quant",
        label="act_and_mul_per_block_quant gelu_tanh",
        group_size=128,
        activation=Activation.GELU_TANH,
    ),
    QuantCase(op="silu_and_mul_per_token_quant"),
    QuantCase(op="silu_and_mul_quant"),
    QuantCase(op="per_token_group_fp8_quant", group_size=128),
    QuantCase(op="per_token_group_fp8_quant_packed", group_size=128),
    QuantCase(op="per_token_group_quant_int8", group_size=128, out_dtype=DType.S8),
    QuantCase(op="dynamic_per_token_scaled_fp8_quant"),
    QuantCase(op="dynamic_scaled_int8_quant", out_dtype=DType.S8),
    QuantCase(
        op="dynamic_scaled_int8_quant", label="dynamic_scaled_int8_quant azp", out_dtype=DType.S8, asymmetric=True
    ),
    QuantCase(op="dynamic_scaled_fp8_quant"),
    QuantCase(op="static_scaled_fp8_quant"),
    QuantCase(op="static_scaled_int8_quant", out_dtype=DType.S8),
    QuantCase(op="rms_norm_dynamic_per_token_quant"),
    QuantCase(op="rms_norm_dynamic_per_token_quant", label="rms_norm_dynamic_per_token_quant residual", residual=True),
    QuantCase(op="rms_norm_per_block_quant", group_size=128),
)
CASE_OF = {case.name: case for case in CASES}


@dataclass(frozen=True, kw_only=True, order=True)
class QuantProblem:
    """A case on rows of `hidden` codes each."""

    case_name: str
    m: int
    hidden: int

    @property
    def case(self) -> QuantCase:
        return CASE_OF[self.case_name]

    @property
    def words(self) -> int:
        """Scales, or words of packed ones, of a row; 0 where there is one for the tensor."""
        family, size = OP_OF[self.case.op].family, self.case.group_size
        if family in (QuantFamily.STATIC, QuantFamily.TENSOR):
            return 0
        groups = self.hidden // size if size else 1
        return -(-groups // 4) if OP_OF[self.case.op].scale_formats[0] is ScaleFormat.PACKED_UE8M0 else groups

    @property
    def bytes(self) -> int:
        """What must be read and what must be written, each byte once."""
        elements, width = self.m * self.hidden, IN.itemsize
        moved = elements * (width * (2 if self.case.gated else 1) + 1) + 4 * max(self.m * self.words, 1)
        if self.case.asymmetric:
            moved += 4 * self.m
        if OP_OF[self.case.op].family in (QuantFamily.RMS_TOKEN, QuantFamily.RMS_GROUP):
            moved += width * self.hidden
        return moved + (2 * width * elements if self.case.residual else 0)

    def __str__(self) -> str:
        return f"{self.case_name} {self.m} x {self.hidden}"


def problems_of(cases: Iterable[QuantCase], shapes: Iterable[tuple[int, int]]) -> list[QuantProblem]:
    """Every case on every shape, the shapes of a case in ascending order of size."""
    shapes = sorted(set(shapes), key=lambda shape: (shape[0] * shape[1], shape))
    return [QuantProblem(case_name=case.name, m=m, hidden=hidden) for case in cases for m, hidden in shapes]


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


def cases_named(text: str | None) -> tuple[QuantCase, ...]:
    """The cases whose names contain one of these, with commas; all for None. Raises ValueError where one fits none."""
    if text is None:
        return CASES
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not any(part in case.name for case in CASES):
            raise ValueError(f"no op has {part!r} in its name: there are {', '.join(CASE_OF)}")
    return tuple(case for case in CASES if any(part in case.name for part in parts))


@dataclass(frozen=True, kw_only=True)
class QuantOperands:
    """Arguments of the op's schema, in its order, in copies that between them exceed L2 twice over."""

    problem: QuantProblem
    copies: tuple[tuple[Any, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What the arguments are called."""
        return BY_NAME[self.problem.case.op].arguments


class QuantOperandMaker:
    """Makes operands of normal random data."""

    def __init__(self, device: torch.device, rotated_bytes: int = ROTATED_BYTES) -> None:
        self._device = device
        self._rotated_bytes = rotated_bytes
        self._generator = torch.Generator(device=device).manual_seed(0)

    def make(self, problem: QuantProblem) -> QuantOperands:
        count = min(MOST_COPIES, max(FEWEST_COPIES, -(-self._rotated_bytes // problem.bytes)))
        return QuantOperands(problem=problem, copies=tuple(self._copy(problem) for _ in range(count)))

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self._device, generator=self._generator, dtype=IN)

    def _copy(self, problem: QuantProblem) -> tuple[Any, ...]:
        case, m, hidden = problem.case, problem.m, problem.hidden
        x = self._normal(m, hidden * (2 if case.gated else 1))
        x[0, 0] = LARGEST
        if case.gated:
            x[0, hidden] = LARGEST
        azp = torch.zeros((m, 1), dtype=torch.int32, device=self._device) if case.asymmetric else None
        limits = {f"{kind}_{end}": value for kind, end, value in _LIMITS}
        values = limits | {
            "input": x,
            "out": torch.empty((m, hidden), dtype=getattr(torch, case.out_dtype.torch_name), device=self._device),
            "scale": self._scales(problem),
            "azp": azp,
            "weight": self._normal(hidden),
            "residual": self._normal(m, hidden) if case.residual else None,
            "group_size": case.group_size,
            "activation": case.activation.op_argument,
            "eps": 1e-10,
            "epsilon": 1e-6,
            "scale_ub": None,
            "group_shape": None,
        }
        other = {"result": "out", "output_q": "out", "scales": "scale", "output_s": "scale", "output_s_packed": "scale"}
        return tuple(values.get(other.get(name, name), False) for name in BY_NAME[case.op].arguments)

    def _scales(self, problem: QuantProblem) -> Tensor:
        op, m, words = OP_OF[problem.case.op], problem.m, problem.words
        if op.family is QuantFamily.STATIC:
            return torch.full((1,), 0.0123, device=self._device)
        if op.family is QuantFamily.TENSOR:
            return torch.zeros(1, device=self._device)
        if op.scale_formats[0] is ScaleFormat.PACKED_UE8M0:
            return torch.zeros((words, -(-m // 4) * 4), dtype=torch.int32, device=self._device).t()[:m]
        return torch.zeros((m, words), device=self._device)


_LIMITS = (("fp8", "min", -448.0), ("fp8", "max", 448.0), ("int8", "min", -128.0), ("int8", "max", 127.0))
