"""The spelling of a user's epilogue in C++: what one visitor of CUTLASS's does with a fragment's elements."""

import struct
from typing import Any

from gemmill.families.scaled_mm.own import OwnConfig, roles_of
from gemmill.families.scaled_mm.spelling import cutlass
from gemmill.family import Spelled
from gemmill.gemm.traced import Along, Input, Step, Stored, Traced

_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}
_FUNCTIONS = {
    "abs": "fabsf",
    "min": "fminf",
    "max": "fmaxf",
    "fma": "fmaf",
    "exp": "expf",
    "exp2": "exp2f",
    "log": "logf",
}
_FUNCTIONS |= {word: word + "f" for word in ("tanh", "erf", "sqrt", "rsqrt")}
_ALONG = {Along.ROW: "AlongM", Along.COLUMN: "AlongN"}


def spell(config: OwnConfig) -> Spelled:
    """CUTLASS's GEMM, whose epilogue is one visitor of the accumulator and all vectors."""
    plain = cutlass.spell(config)
    values = dict(plain.values) | {"epilogue_kind": "own", "own": _holes(config.problem.traced)}
    return Spelled(template=plain.template, values=values)


def _holes(traced: Traced) -> dict[str, Any]:
    roles = roles_of(traced)
    vectors = [given for given in traced.inputs if given.along is not Along.SCALAR]
    return {
        "vectors": [_vector(given, roles[given.name]) for given in vectors],
        "scalars": [roles[given.name] for given in traced.along(Along.SCALAR)],
        "values": ["acc[i]", *(_element(given, roles[given.name]) for given in traced.inputs)],
        "steps": [_step(step) for step in traced.steps],
        "first_step": 1 + len(traced.inputs),
        "result": traced.result,
    }


def _vector(given: Input, role: str) -> dict[str, str]:
    element = "ElementD" if given.stored is Stored.OUT else "float"
    return {"role": role, "element": element, "type": f"{_ALONG[given.along]}<{element}>"}


def _element(given: Input, role: str) -> str:
    return f"given.{role}" if given.along is Along.SCALAR else f"{role}[i]"


def _step(step: Step) -> str:
    """The right side of a step. Values are called v and their number."""
    of = [f"v{at}" for at in step.of]
    if step.word == "number":
        return _number(step.number)
    if step.word == "where":
        return f"{of[0]} ? {of[1]} : {of[2]}"
    if step.word == "neg":
        return f"-{of[0]}"
    if step.word in _SIGNS:
        return f"{of[0]} {_SIGNS[step.word]} {of[1]}"
    return f"{_FUNCTIONS[step.word]}({', '.join(of)})"


def _number(value: float) -> str:
    """A float32 in C++, by its bits: infinities and NaN have no literal."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return f"__uint_as_float(0x{bits:08X}u)"
