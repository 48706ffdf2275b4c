"""Classes of calls: one number from a call's contract and from the config that serves it."""

import random

import pytest

from families.quant.random_calls import Breakage, some_call
from gemmill.families.quant.call import OP_OF, config_of
from gemmill.families.quant.classes import CLASSES
from gemmill.families.quant.config import all_configs
from gemmill.families.quant.contract import OPS, SCHEMAS
from gemmill.family import ClassAxis
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.vocab import Arch


@pytest.mark.parametrize("op", OPS.ops, ids=lambda op: op.schema.name)
def test_a_call_is_of_the_class_of_the_config_that_serves_it(op) -> None:
    rng, seen = random.Random(op.schema.name), set()
    for _ in range(50):
        call = of_arguments(op.schema, some_call(op.schema.name, rng, Breakage.NONE))
        judged = check(op.schema, call)
        assert judged["class"] == CLASSES.number(config_of(judged, Arch.SM90A))
        seen.add(judged["class"])
    assert (len(seen) > 1) == (len(list(OP_OF[op.schema.name].configs(Arch.SM90A))) > 1)
    assert len(OPS.ops) == len(SCHEMAS)


def test_a_class_is_that_of_one_config() -> None:
    configs = list(all_configs())
    by_number = {CLASSES.number(config): config for config in configs}
    assert len(by_number) == len(configs)
    for number, config in by_number.items():
        told = dict(CLASSES.told(number))
        assert told == {"scaling": config.scaling} | vars(config.operands) | vars(config.epilogue)


def test_values_of_an_axis_have_numbers_of_their_own() -> None:
    with pytest.raises(ValueError, match=r"^class axis 'coding': values a, b, c have 2 different numbers$"):
        ClassAxis(name="coding", expression="coding", values={"a": 0, "b": 1, "c": 1})
