"""Structs of kernels' arguments, read from the headers that declare them."""

import ctypes
import re
from functools import cache
from typing import Any

from gemmill.locations import kernels_dir
from gemmill.wheel.reproducer import arguments_header

_TYPES = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "float": ctypes.c_float}
_MEMBER = re.compile(r"^  ([\w ]+?\*?) (\*?\w+(?:, \*?\w+)*);", re.MULTILINE)


@cache
def struct_of(header: str, name: str = r"gemmill_\w+_args") -> type[ctypes.Structure]:
    """A struct of a header below kernels/, by default the only one of arguments, or of a header of gemmill's that it includes."""
    path, struct = kernels_dir() / header, rf"struct {name} {{(.*?)\n}};"
    bodies = re.findall(struct, path.read_text(), re.DOTALL)
    (body,) = bodies or re.findall(struct, arguments_header(path), re.DOTALL)
    fields: list[tuple[str, Any]] = []
    for kind, names in _MEMBER.findall(body):
        for field in names.split(", "):
            fields.append((field.strip("*"), ctypes.c_void_p if "*" in kind + field else _TYPES[kind]))
    return type(header, (ctypes.Structure,), {"_fields_": fields})
