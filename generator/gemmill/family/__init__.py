"""The declaration of a family of kernels: the values that all generic code reads."""

from gemmill.family.classes import ClassAxis, Classes
from gemmill.family.declaration import (
    Config,
    DslBody,
    Epilogues,
    Family,
    HostCode,
    Kernels,
    OfOperands,
    Rule,
    Spelled,
    WithoutSettings,
    first_rejection,
    of_dsl,
)
from gemmill.family.grammar import Field, Former, Grammar, Spelling, mark, number_after, words
from gemmill.family.judging import Dense, Judged
from gemmill.family.op import Op, OpSet
from gemmill.family.order import ALONE, EXACT, Order
from gemmill.family.registered import Registry
from gemmill.family.schema import VLLM_PREFIX, ArgumentKind, OpSchema, Parameter
from gemmill.family.shaped_call import ShapedCall
from gemmill.family.steps import Aspect, Check, Let, OneOf, Require, Special, Step, When
from gemmill.family.sweep import Measured, Sizes, Sweep
from gemmill.family.tensor import Layout, ResultOf, Same, Tensor, any_of
from gemmill.family.tuning import MOST_ALIGNED, MOST_FACTS, MOST_SIZES, Chunks, Needs, Reach, Row, Tuning
from gemmill.questions import Asked
