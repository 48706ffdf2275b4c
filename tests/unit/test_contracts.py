"""Contracts that contradict themselves are refused when the registry is made, with family, op and both values."""

import re
from dataclasses import replace

import pytest

from gemmill.families.scaled_mm.family import FAMILY
from gemmill.family import (
    Aspect,
    Check,
    Layout,
    Let,
    OneOf,
    Op,
    OpSchema,
    OpSet,
    Registry,
    Require,
    ResultOf,
    Same,
    Special,
    Step,
    Tensor,
    When,
)
from gemmill.family.judging import Judged
from gemmill.family.operand import Operand
from gemmill.vocab import DType
from gemmill.vocab.format import MXFP4, NVFP4

SCHEMA = OpSchema("halve(Tensor(a!) out, Tensor input, Tensor? scale, int block, str mode) -> ()")
X = Operand(dtype="uint8", shape=(4, 6), strides=(6, 1), device="cpu", data=64, is_differentiated=False)


def registry(*ops: Op) -> Registry:
    return Registry((replace(FAMILY, name="toys", asks=OpSet(ops=ops)),))


def an_op(*contract: Step, **changes: dict) -> Op:
    return Op(schema=SCHEMA, contract=contract, **changes)


def declared(*tensors: Tensor, scale: str = "1", contract: tuple[Step, ...] = (), **changes: dict) -> Op:
    """Of `scale`, `out` and `input`, the last two as the test says."""
    tensors = (*tensors, Tensor("scale", scale, (DType.F32,), Layout.ROWS))
    return Op(schema=SCHEMA, tensors=tensors, contract=contract, **changes)


def returning(out: Tensor) -> Op:
    tensors = (Tensor("input", "M K", S8, Layout.ROWS), out)
    return Op(
        schema=OpSchema("halve(Tensor input) -> Tensor"), tensors=tensors, contract=(Check(Aspect.WHOLE, "input"),)
    )


S8 = (DType.S8,)
OUT, INPUT = (Tensor(role, "M K", S8, Layout.ROWS) for role in ("out", "input"))


@pytest.mark.parametrize(
    ("op", "sentence"),
    [
        (an_op(Require("rank(inputs) == 2", "")), "'inputs' is no tensor, of out, input, scale, block, mode"),
        (
            an_op(Let("rows", "rows(input)"), Require("columns == rows", "")),
            "'columns' is neither an argument nor a size named before, of out, input, scale, block, mode, rows",
        ),
        (
            an_op(Let("rows", "rows(input)"), Let("rows", "rows(out)")),
            "size 'rows' is 'rows(out)' and was named before",
        ),
        (an_op(Require("dtype(out) in (float99,)", "")), "'float99' is no dtype, of uint8"),
        (an_op(Let("rows", "half(input)")), "'half(input)' is no size"),
        (an_op(Require("flat(input)", "")), "'flat(input)' is no test"),
        (an_op(roles={"out": "input"}), "two of its arguments have one role, of input, input, scale, block, mode"),
        (
            an_op(roles={"result": "out"}),
            "role 'out' is given to 'result', expected one of out, input, scale, block, mode",
        ),
        (an_op(fixed={"block": 3}), "'block' is fixed as 3 and an argument too"),
        (an_op(Require("block == 3", "{blocks}")), "'blocks' is neither an argument nor a size named before"),
        (an_op(Special("layout")), "no special check 'layout', of none"),
        (
            declared(Tensor("input", "M K", S8), Tensor("input", "K N", S8)),
            "tensor 'input' is declared twice, as 'M K' and 'K N'",
        ),
        (
            declared(INPUT),
            "'out' is only in one of tensors declared and tensors of the schema: input, scale and input, out, scale",
        ),
        (
            declared(OUT, INPUT, Tensor("bias", "N", S8)),
            "'bias' is only in one of tensors declared and tensors of the schema: bias, input, out, scale and input, out, scale",
        ),
        (
            declared(OUT, INPUT),
            "tensor 'out' is 'M K', and no step checks its dtype",
        ),
        (
            declared(OUT, Tensor("input", "M K", Same("b"))),
            "dtype of 'input' is told by 'b', which is no tensor, of out, input, scale",
        ),
        (
            declared(
                Tensor("out", "M K", ResultOf("input", {DType.E4M3: (DType.F16,)})),
                Tensor("input", "M K", (DType.E4M3, DType.S8)),
            ),
            "'out' has results of e4m3, and 'input' may be s8",
        ),
        (
            declared(OUT, Tensor("input", "M K/2", (NVFP4, MXFP4))),
            "'input' may be nvfp4 or mxfp4, which both come as uint8, and neither an argument nor a fixed value 'format' tells them apart",
        ),
        (
            declared(OUT, Tensor("input", "M K/2", (NVFP4,)), fixed={"format": MXFP4}),
            "'format' is fixed as mxfp4, and the dtypes of its tensors are s8, nvfp4, f32",
        ),
        (
            declared(OUT, INPUT, contract=(Check(Aspect.WHOLE, "out input scale"), Require("M == N", ""))),
            "'N' is neither an argument nor a size named before, of out, input, scale, block, mode, M, K",
        ),
        (
            declared(
                OUT, Tensor("input", "M N*N", S8, Layout.ROWS), contract=(Check(Aspect.WHOLE, "out input scale"),)
            ),
            "'N' is neither an argument nor a size named before, of out, input, scale, block, mode, M, K",
        ),
        (
            declared(OUT, INPUT, scale="N", contract=(Check(Aspect.WHOLE, "out input scale"),)),
            "size 'N' is named by 'scale', which is optional: 'N'",
        ),
        (
            an_op(
                OneOf("way", {"flat": "rank(input) == 1 and block > 2", "line": "block > 2 and rank(input) == 1"}, "")
            ),
            "alternatives 'flat' and 'line' of 'way' both hold where block > 2 and rank(input) == 1",
        ),
        (an_op(OneOf("block", {"flat": "rank(input) == 1"}, "")), "size 'block' has alternatives and was named before"),
        (an_op(Check(Aspect.RANK, "input")), "rank of 'input' is checked, declared are none"),
        (returning(Tensor("out", "M N", S8, Layout.ROWS)), "'out' is returned as 'M N', and 'N' is named by no tensor"),
        (
            returning(Tensor("out", "... 8", S8, Layout.ROWS)),
            "'out' is returned as '... 8', and '...' is named by no tensor",
        ),
        (
            returning(Tensor("out", "M 8", S8)),
            "'out' is returned with 1 dtypes and layout 'free': it has one dtype, and rows, columns or values",
        ),
        (
            returning(Tensor("out", "M 8", (DType.F16, DType.BF16), Layout.ROWS)),
            "'out' is returned with 2 dtypes and layout 'rows': it has one dtype, and rows, columns or values",
        ),
        (
            returning(Tensor("out", "M M M", S8, Layout.COLUMNS)),
            "'out' is returned as 'M M M' with layout 'columns': it has at most 4 sizes, and two where columns lie behind one another",
        ),
        (
            returning(Tensor("out", "M M M M M", S8, Layout.ROWS)),
            "'out' is returned as 'M M M M M' with layout 'rows': it has at most 4 sizes, and two where columns lie behind one another",
        ),
        (
            Op(
                schema=OpSchema("halve(int block) -> Tensor"),
                tensors=(Tensor("out", "block", S8, Layout.ROWS),),
                contract=(),
            ),
            "'out' is returned on the device of an argument, and no tensor of block is always given",
        ),
    ],
)
def test_contradiction(op: Op, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^family 'toys', op 'halve': {re.escape(sentence)}"):
        registry(op).check_contracts()


def test_an_op_of_two_families() -> None:
    with pytest.raises(ValueError, match=r"^families 'toys' and 'toys' both have an op 'halve'$"):
        registry(an_op(), an_op()).check_contracts()


def fault(op: Op, **changes: object) -> str | None:
    call = {"out": X, "input": X, "scale": None, "block": 3, "mode": "up"} | changes
    assert registry(op).ops["halve"][1] is op
    return OpSet(ops=(op,)).judged(op, call).fault


@pytest.mark.parametrize(
    ("test", "holds"),
    [
        ("size(input, -1) == 6 and size(input, 0) == 4", True),
        ("size(input, 0) == 6 or size(input, 0) == 4", True),
        ("size(input, 0) == 6 or size(input, 0) == 5", False),
        ("(rank(input) == 2 and rows(input) == 3) or block in (1, 2, 3)", True),
        ("(rank(input) == 2 and rows(input) == 3) or block in (1, 2, 4)", False),
        ("block % 2 == 1 and -(2) < block and most(1, block, 2) == 3", True),
        ("ceil(size(input, 1), 4) * 4 == 8", True),
        ("block // (block - 3) == 0", True),
        ('mode in ("down", "up") and mode_index == 1', True),
        ('mode in ("down",)', False),
        ("scale", False),
    ],
)
def test_tests(test: str, holds: bool) -> None:
    assert fault(an_op(Require(test, "it is {block} of {input.shape}"))) == (None if holds else "it is 3 of [4, 6]")


def test_what_is_asked_only_where_something_holds() -> None:
    step = When("scale", (Require("dense(scale) == 1", "{scale.name} has gaps"), Require("block > 3", "too few")))
    last = Require("block == 3", "{block} blocks")
    assert fault(an_op(step, last)) is None
    assert fault(an_op(step, last), block=4) == "4 blocks"
    assert fault(an_op(step, last), scale=X) == "too few"
    assert fault(an_op(step, last), scale=replace(X, strides=(8, 1))) == "scale has gaps"
    assert fault(an_op(step, last), scale=X, block=4) == "4 blocks"


@pytest.mark.parametrize(
    "passed_over",
    [
        When("scale", (Require("size(input, 0) == 4", ""),)),
        Require("(scale and size(input, 0) == 4) or block == 3", ""),
        Require("block == 3 or size(input, 0) == 4", ""),
    ],
)
def test_what_is_asked_where_the_program_did_not_come_is_asked_again(passed_over: Step) -> None:
    assert fault(an_op(passed_over, Require("size(input, 0) == 4", "{input.shape} has not 4 rows"))) is None


@pytest.mark.parametrize(
    ("dtype", "alignment", "data", "told"),
    [
        ("float32", 1, 66, "input begins 2 bytes past a 4-byte boundary, and kernels need it aligned: pass input.clone()"),
        ("float32", 16, 72, "input begins 8 bytes past a 16-byte boundary, and kernels need it aligned: pass input.clone()"),
        ("uint8", 2, 65, "input begins 1 bytes past a 2-byte boundary, and kernels need it aligned: pass input.clone()"),
        ("uint8", 1, 65, None),
        ("float32", 16, 80, None),
        ("float32", 4, 0, None),
    ],
)  # fmt: skip
def test_addresses_are_held_to_elements_and_to_what_kernels_want(
    dtype: str, alignment: int, data: int, told: str | None
) -> None:
    given = Tensor("input", "M K", (DType.F32, DType.U8), Layout.ROWS, alignment=alignment)
    out = Tensor("out", "M K", (DType.U8, DType.F32), Layout.ROWS)
    op = declared(out, given, contract=(Check(Aspect.WHOLE, "input out scale"),))
    call = {"out": replace(X, data=4096), "input": replace(X, dtype=dtype, data=data), "scale": None}
    assert OpSet(ops=(op,)).judged(op, call | {"block": 3, "mode": "up"}).fault == told
    empty = {"input": replace(X, dtype=dtype, data=data, shape=(0, 6)), "out": replace(X, data=4097, shape=(0, 6))}
    assert OpSet(ops=(op,)).judged(op, call | empty | {"block": 3, "mode": "up"}).fault is None


def test_an_alignment_is_a_power_of_two_up_to_16() -> None:
    with pytest.raises(ValueError, match="'input' is aligned to 32 bytes, expected 1, 2, 4, 8 or 16"):
        Tensor("input", "M K", S8, alignment=32)


def test_special_checks_see_what_was_found_out() -> None:
    def special(judged: Judged) -> str | None:
        return f"{judged['rows']} rows of {judged.tensor('input').dtype}"

    op = an_op(Let("rows", "rows(input)"), Special("layout"))
    call = {"out": X, "input": X, "scale": None, "block": 3, "mode": "up"}
    assert OpSet(ops=(op,), specials={"layout": special}).judged(op, call).fault == "4 rows of uint8"
