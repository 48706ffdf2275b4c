"""Contracts that contradict themselves are refused when the registry is made, with family, op and both values."""

import re
from dataclasses import replace

import pytest

from gemmill.families.scaled_mm.family import FAMILY
from gemmill.family import Let, Op, OpSchema, OpSet, Registry, Require, Special, Step, When
from gemmill.family.judging import Judged
from gemmill.family.operand import Operand

SCHEMA = OpSchema("halve(Tensor(a!) out, Tensor input, Tensor? scale, int block, str mode) -> ()")
X = Operand(dtype="uint8", shape=(4, 6), strides=(6, 1), device="cpu", data=64, is_differentiated=False)


def registry(*ops: Op) -> Registry:
    return Registry((replace(FAMILY, name="toys", asks=OpSet(ops=ops)),))


def an_op(*contract: Step, **changes: dict) -> Op:
    return Op(schema=SCHEMA, contract=contract, **changes)


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
    ],
)
def test_contradiction(op: Op, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^family 'toys', op 'halve': {re.escape(sentence)}"):
        registry(op)


def test_an_op_of_two_families() -> None:
    with pytest.raises(ValueError, match=r"^families 'toys' and 'toys' both have an op 'halve'$"):
        registry(an_op(), an_op())


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


def test_special_checks_see_what_was_found_out() -> None:
    def special(judged: Judged) -> str | None:
        return f"{judged['rows']} rows of {judged.tensor('input').dtype}"

    op = an_op(Let("rows", "rows(input)"), Special("layout"))
    call = {"out": X, "input": X, "scale": None, "block": 3, "mode": "up"}
    assert OpSet(ops=(op,), specials={"layout": special}).judged(op, call).fault == "4 rows of uint8"
