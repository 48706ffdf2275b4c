"""The arguments of a call: fields of gemmill's C structs, which the launch function reads where the structs lie."""

# mypy: ignore-errors
from collections.abc import Mapping

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from gemmill.family.c_struct import read_struct
from gemmill.locations import kernels_dir

_NUMBERS = {"int64_t": Int64, "int32_t": Int32, "float": Float32}


def read_fields(header: str, struct: str, address: cute.Pointer, elements: Mapping) -> dict:
    """The fields of a struct of a header below kernels/, by name.

    `elements` gives (element, alignment) of what lies at addresses of `void`; of others the C type says it.
    """
    found = {}
    for field in read_struct((kernels_dir() / header).read_text(encoding="utf-8"), struct):
        kind = Int64 if field.format == "P" else _NUMBERS[field.type]
        at = cute.make_ptr(kind, address.toint() + field.offset, cute.AddressSpace.generic, assumed_align=4)
        value = cute.make_tensor(at, cute.make_layout(1))[0]
        if field.format == "P":
            element, alignment = elements.get(field.name) or (_NUMBERS.get(field.type, Float32), 4)
            value = cute.make_ptr(element, value, cute.AddressSpace.gmem, assumed_align=alignment)
        found[field.name] = value
    return found
