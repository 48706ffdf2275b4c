"""Ops that nobody wants, declared with all that a declaration can say: packed codes, results, defaults, lists."""

import random
from dataclasses import replace
from typing import Any

import torch

from gemmill.families.scaled_mm.family import FAMILY
from gemmill.family import (
    Aspect,
    Check,
    Judged,
    Layout,
    Let,
    OneOf,
    Op,
    OpSchema,
    OpSet,
    Registry,
    Require,
    Same,
    Tensor,
)
from gemmill.vocab import DType
from gemmill.vocab.format import MXFP4, NVFP4

PACK = Op(
    schema=OpSchema(
        "toy_pack(Tensor input, Tensor? shift, int[] block, int group=32, float eps=0.5, bool high=False) "
        "-> (Tensor codes, Tensor scales, Tensor marks)"
    ),
    fixed={"format": NVFP4},
    tensors=(
        Tensor("input", "... K", (DType.F32, DType.BF16), Layout.ROWS),
        Tensor("shift", "K", Same("input"), Layout.VECTOR),
        Tensor("codes", "... K/2", (NVFP4,), Layout.ROWS),
        Tensor("scales", "K//group rows", (DType.F32,), Layout.COLUMNS),
        Tensor("marks", "steps+order", Same("input"), Layout.VALUES),
    ),
    contract=(
        Check(Aspect.RANK, "input"),
        Check(Aspect.DTYPE, "input"),
        Check(Aspect.SHAPE, "input"),
        Check(Aspect.LAYOUT, "input"),
        Let("rows", "rows(input)"),
        Require("group in (16, 32)", "group is {group}, expected 16 or 32"),
        Require("K % group == 0", "rows of {K} values are not a multiple of group {group}"),
        Require(
            "length(block) == 2 and item(block, 1) >= item(block, 0)",
            "block is {block}, expected two numbers that rise",
        ),
        Require("eps >= 0.25", "eps is {eps}, expected 0.25 or more"),
        OneOf(
            "order",
            {"dense": "dense(input) == 1", "wide": "input_stride > K and rows > 1"},
            "input has gaps: {input.strides}",
        ),
        Let("steps", "length(block) * item(block, 1)"),
        Check(Aspect.WHOLE, "shift"),
        Check(Aspect.DEVICE, "input shift"),
    ),
)
UNPACK = Op(
    schema=OpSchema(
        "toy_unpack(Tensor(a!) result, Tensor codes, Tensor[] tables, str format, int[]? block=None) -> Tensor"
    ),
    roles={"result": "values", "out": "sums"},
    tensors=(
        Tensor("codes", "M K/2", (NVFP4, MXFP4), Layout.ROWS),
        Tensor("values", "M K", (DType.F32,), Layout.ROWS),
        Tensor("sums", "M", Same("values"), Layout.VALUES),
    ),
    contract=(
        Require("format in ('nvfp4', 'mxfp4')", "format is {format!r}, expected nvfp4 or mxfp4"),
        Check(Aspect.DTYPE, "codes values"),
        Check(Aspect.RANK, "codes values"),
        Check(Aspect.SHAPE, "codes values"),
        Check(Aspect.LAYOUT, "codes values"),
        Let("count", "length(tables)"),
        Require(
            "count == 1 + format_index", "there are {count} tables for {format}, a table of each scale is expected"
        ),
        Require("block == 0 or item(block, 2) == 7", "block is {block}, expected a third of 7"),
        Require("M % 2 == 0", "there are {M} rows, expected an even number"),
        Check(Aspect.DEVICE, "values codes tables"),
        Check(Aspect.APART, "values codes tables"),
    ),
)


OPS = OpSet(ops=(PACK, UNPACK))
TOYS = replace(FAMILY, name="toys", asks=OPS)
REGISTRY = Registry((TOYS,))


def results(call: Judged, given: dict[str, Any]) -> Any:
    """Ones, zeros and sums: enough to see each write."""
    if "sums" in given:
        yield given["values"], torch.ones(())
        yield given["sums"], given["codes"].float().sum(dim=1)
    else:
        yield given["codes"], torch.zeros(())
        yield given["marks"], torch.ones(())
        yield given["scales"], torch.full((), given["eps"])


def some_call(op: Op, rng: random.Random) -> list[Any]:
    """A call that is right in about every fourth case."""
    rows, columns = rng.choice((0, 1, 2, 4)), rng.choice((0, 16, 32, 33, 64))
    dtype = rng.choice((torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16))
    block = rng.choice(([1, 2], [1, 2], [3, 3], [2, 1], [], [1, 2, 7], [1, 2, 7, 9]))
    if op is PACK:
        whole = torch.ones(2, rows, columns + 3).to(dtype)
        x = rng.choice(
            (
                whole[0, :, :columns],
                whole[:, :, :columns],
                whole[0, :, :columns].contiguous(),
                torch.ones((), dtype=dtype),
            )
        )
        shift = rng.choice((None, torch.ones(columns).to(dtype), torch.ones(columns), torch.ones(2, columns)))
        more = rng.choice(([], [16], [48], [16, 0.25], [16, float("nan")], [16, 1.0, True]))
        return [x, shift, block, *more]
    codes = torch.full((rows, columns), 3, dtype=rng.choice((torch.uint8, torch.uint8, torch.uint8, torch.int8)))
    values = torch.zeros(rows + rng.choice((0, 0, 0, 1)), 2 * columns + 3)[:, : 2 * columns + rng.choice((0, 0, 0, 1))]
    tables = [torch.ones(3) for _ in range(rng.choice((0, 1, 1, 2, 2)))]
    if tables and rng.random() < 0.2:
        tables[-1] = rng.choice((values, torch.ones(3, requires_grad=True)))
    more = rng.choice(([], [None], [block], [[1, 2, 7]]))
    return [values, codes, tables, rng.choice(("nvfp4", "nvfp4", "mxfp4", "mxfp6", "")), *more]
