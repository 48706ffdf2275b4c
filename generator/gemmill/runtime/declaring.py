"""Declaring the ops to an extension: names, kinds of arguments, and contracts."""

import ctypes
from collections.abc import Sequence
from typing import Any

from gemmill.family import ArgumentKind, Family, Op
from gemmill.manifest import ManifestError

_Numbers = ctypes.POINTER(ctypes.c_int64)
_Texts = ctypes.POINTER(ctypes.c_char_p)


class Declaration(ctypes.Structure):
    """Mirrors `gemmill_op_declaration` in kernels/extension/call.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("family", ctypes.c_char_p),
        ("argument_count", ctypes.c_int64),
        ("arguments", _Numbers),
        ("value_count", ctypes.c_int64),
        ("value_names", _Texts),
        ("value_places", _Numbers),
        ("initial_count", ctypes.c_int64),
        ("initial", _Numbers),
        ("word_count", ctypes.c_int64),
        ("words", _Texts),
        ("special_count", ctypes.c_int64),
        ("specials", _Texts),
        ("instruction_count", ctypes.c_int64),
        ("program", _Numbers),
        ("result_count", ctypes.c_int64),
        ("results", _Numbers),
    )


def declare(library: ctypes.CDLL, family: Family, op: Op) -> None:
    """Declare an op to an extension. Raises ManifestError where the extension cannot serve it."""
    library.gemmill_declare.restype = ctypes.c_char_p
    if (fault := library.gemmill_declare(ctypes.byref(_declaration(family, op)))) is not None:
        raise ManifestError(
            f"op {op.schema.name} cannot be declared to the extension ({fault.decode()}): it was built by another gemmill, make it "
            "again with `gemmill build`"
        )


def _declaration(family: Family, op: Op) -> Declaration:
    program, parameters = op.program, op.schema.parameters
    kinds = [n for p in parameters for n in (list(ArgumentKind).index(p.kind), p.optional, p.written)]
    return Declaration(
        name=op.schema.name.encode(),
        family=family.name.encode(),
        argument_count=len(parameters),
        arguments=_numbers(kinds),
        value_count=len(program.values),
        value_names=_texts(list(program.values)),
        value_places=_numbers(list(program.values.values())),
        initial_count=len(program.initial),
        initial=_numbers(program.initial),
        word_count=len(program.words),
        words=_texts(program.words),
        special_count=len(program.specials),
        specials=_texts(program.specials),
        instruction_count=len(program.instructions),
        program=_numbers(program.numbers),
        result_count=len(program.results),
        results=_numbers([number for result in program.results for number in result.numbers]),
    )


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


def _texts(values: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))
