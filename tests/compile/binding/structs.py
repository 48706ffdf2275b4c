"""Structs of kernels' arguments, read from the headers that declare them."""

import ctypes
import re
from functools import cache
from typing import Any

from gemmill.locations import kernels_dir

_TYPES = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "float": ctypes.c_float}
_MEMBER = re.compile(r"^  ([\w ]+?\*?) ((?:\w+(?:, )?)+);", re.MULTILINE)


@cache
def struct_of(header: str, name: str = r"gemmill_\w+_args") -> type[ctypes.Structure]:
    """A struct of a header below kernels/, by default the only one of arguments."""
    (body,) = re.findall(rf"struct {name} {{(.*?)\n}};", (kernels_dir() / header).read_text(), re.DOTALL)
    fields: list[tuple[str, Any]] = []
    for kind, names in _MEMBER.findall(body):
        for field in names.split(", "):
            fields.append((field, ctypes.c_void_p if kind.endswith("*") else _TYPES[kind]))
    return type(header, (ctypes.Structure,), {"_fields_": fields})
