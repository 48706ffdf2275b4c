"""The spelling of a user's epilogue in C++: the operations of one CUTLASS visitor on a fragment's elements."""

import struct
from typing import Any

from gemmill.families.scaled_mm.own import OwnConfig, roles_of
from gemmill.families.scaled_mm.spelling import cutlass
from gemmill.family import Spelled
from gemmill.gemm.traced import Along, Input, Kind, Step, Stored, Traced

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


_WRAPPED = ("add", "sub", "mul")
_TYPE = {Kind.F32: "float", Kind.S32: "int"}


def spell(config: OwnConfig) -> Spelled:
    """CUTLASS's GEMM, whose epilogue is one visitor of the accumulator and all vectors."""
    plain = cutlass.spell(config)
    values = dict(plain.values) | {"epilogue_kind": "own", "own": _holes(config.traced)}
    return Spelled(template=plain.template, values=values)


def _holes(traced: Traced) -> dict[str, Any]:
    """The values of the template's holes. The name of a value is v and its number, for inputs and computed values
    alike.
    """
    roles = roles_of(traced)
    inputs = list(enumerate(traced.inputs, 1))
    vectors = [(at, given) for at, given in inputs if given.along is not Along.SCALAR]
    first_step = 1 + len(inputs)
    return {
        "vectors": [_vector(given, roles[given.name]) for _, given in vectors],
        "scalars": [roles[given.name] for given in traced.along(Along.SCALAR)],
        "elements": [f"{_TYPE[traced.kinds[at]]} v{at}" for at in (0, *(at for at, _ in vectors))],
        "numbers": [f"v{at} = given.{roles[given.name]}" for at, given in inputs if given.along is Along.SCALAR],
        "steps": [
            f"v{at} = {_step(step, [traced.kinds[i] for i in step.of])}"
            for at, step in enumerate(traced.steps, first_step)
        ],
        "result": traced.result,
    }


def _vector(given: Input, role: str) -> dict[str, str]:
    element = {Stored.OUT: "ElementD", Stored.F32: "float", Stored.S32: "int32_t"}[given.stored]
    absent = ""
    if given.absent is not None:
        absent = f", {element}({given.absent.hex()})"
    return {"role": role, "element": element, "type": f"{_ALONG[given.along]}<{element}>", "absent": absent}


def _step(step: Step, kinds: list[Kind]) -> str:
    """The right side of a step, of values of these kinds. Sums and products of int32 wrap around."""
    of = [f"v{at}" for at in step.of]
    word, is_whole = step.word, kinds[-1:] == [Kind.S32]
    if word == "number":
        return _number(step.number)
    if word == "whole":
        return f"static_cast<int>({int(step.number)})"
    if word == "float":
        return f"static_cast<float>({of[0]})"
    if word == "where":
        return f"{of[0]} ? {of[1]} : {of[2]}"
    if word == "neg":
        return f"static_cast<int>(0u - static_cast<unsigned>({of[0]}))" if is_whole else f"-{of[0]}"
    if is_whole and word in _WRAPPED:
        x, y = (f"static_cast<unsigned>({value})" for value in of)
        return f"static_cast<int>({x} {_SIGNS[word]} {y})"
    if word in _SIGNS:
        return f"{of[0]} {_SIGNS[word]} {of[1]}"
    name = word if is_whole else _FUNCTIONS[word]
    return f"{name}({', '.join(of)})"


def _number(value: float) -> str:
    """A float32 in C++, by its bits: infinities and NaN have no literal."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return f"__uint_as_float(0x{bits:08X}u)"
