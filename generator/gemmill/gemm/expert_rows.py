"""Conditions on rows of experts, for any weights."""

from gemmill.family import Aspect, Check, Layout, Let, Require, Step, Tensor
from gemmill.family.operand import MOST_OF_TMA
from gemmill.vocab import DType

MOST_EXPERTS = 512
"""Experts at most: a kernel looks up their rows in shared memory."""
_GATHER_NS, _GATHERED_ROW_NS = 40, 4
"""Nanoseconds by which threads that copy rows lengthen each step, and those for each row of a tile. With them the choice takes
the fastest of three or four kernels at 18 points but three. At worst it takes 7 % longer (H200, 2026-11-22;
notes of grouped GEMMs)."""


def gathering_ns(rows: int) -> int:
    """Nanoseconds by which gathering a tile's rows of 8-bit elements lengthens a step of 128 along K."""
    return _GATHER_NS + _GATHERED_ROW_NS * rows


MAP = Tensor("expert_map", "experts", (DType.S32,), Layout.VECTOR)
OFFSETS = Tensor("expert_offsets", "ends", (DType.S32, DType.S64), Layout.VECTOR)
ROWS_USED = Tensor("expert_offsets", "experts", (DType.S32, DType.S64), Layout.VECTOR)
IDS = Tensor("token_ids", "M", (DType.S32, DType.S64), Layout.VECTOR)
LIMIT = Require(
    f"M <= {MOST_OF_TMA} and tokens <= {MOST_OF_TMA} and N <= {MOST_OF_TMA} and K <= {MOST_OF_TMA}",
    f"rows, N, K = {{M}}, {{N}}, {{K}}: each must be at most {MOST_OF_TMA}",
)
EXPERTS: tuple[Step, ...] = (
    Require(
        f"experts <= {MOST_EXPERTS}",
        f"there are {{experts}} experts: a kernel finds rows of {MOST_EXPERTS} at most",
    ),
    Require(
        "expert_map == 1 or experts == weights",
        "{b.name} is {b.shape}, weights of {weights} experts, and there are {experts}: give an expert_map that says whose they are",
    ),
    Check(Aspect.WHOLE, "expert_map"),
)


def rows_at_one_stride(role: str) -> tuple[Step, ...]:
    """The steps that ask a tensor of three dimensions for rows at one stride."""
    return (
        Let(f"{role}_rows", f"row_stride({role})"),
        Require(
            f"{role}_rows >= 0",
            f"{{{role}.name}} of {{{role}.shape}} has strides {{{role}.strides}}: its last stride must be 1, and rows must follow "
            "one another at one stride",
        ),
    )


IN_ORDER_OR_GATHERED: tuple[Step, ...] = (
    Let("indexed", "token_ids"),
    Require(
        "indexed == 1 or M == tokens",
        "{out.name} is {out.shape} and {a.name} is {a.shape}: without token_ids both have the same rows",
    ),
    Check(Aspect.WHOLE, "token_ids"),
    Require("indexed == 0 or M == 0 or tokens >= 1", "{a.name} is {a.shape}: token_ids name {M} rows, and it has none"),
    LIMIT,
    Check(Aspect.LAYOUT, "a out"),
)
SEGMENTS: tuple[Step, ...] = (
    Check(Aspect.DTYPE, "expert_offsets"),
    Let("ends", "numel(expert_offsets)"),
    Check(Aspect.SHAPE, "expert_offsets"),
    Check(Aspect.LAYOUT, "expert_offsets"),
    Require(
        "ends >= 1", "{expert_offsets.name} is empty, expected the first row of each expert and the end of the last"
    ),
    Let("experts", "ends - 1"),
    Let("slot", "0"),
    *EXPERTS,
)
IN_SLOTS: tuple[Step, ...] = (
    Let("M", "experts * slot"),
    Let("tokens", "M"),
    Let("indexed", "0"),
    LIMIT,
    *rows_at_one_stride("a"),
)
ROWS_APART = Require(
    "M <= 1 or out_rows >= N",
    "{out.name} has row stride {out_rows} for rows of {N}: its rows overlap",
)
USED_ROWS: tuple[Step, ...] = (
    Check(Aspect.DTYPE, "expert_offsets"),
    Check(Aspect.SHAPE, "expert_offsets"),
    Check(Aspect.LAYOUT, "expert_offsets"),
    Require("expected_rows >= 0", "expected_rows is {expected_rows}, expected a number of rows, or 0 for any"),
    *EXPERTS,
)
