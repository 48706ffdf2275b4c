"""The fields of C structs below kernels/, as their headers declare them and a C++ compiler lays them out."""

import re
import struct
from dataclasses import dataclass

_COMMENT = re.compile(r"//[^\n]*")
_FIELDS = re.compile(r"\s*([\w ]+?)\s*(\*?)\s*(\w+(?:, *\w+)*|\w+(?:, *\*\w+)*)\s*")
_FORMATS = {
    "int64_t": "q",
    "int32_t": "i",
    "uint64_t": "Q",
    "uint32_t": "I",
    "float": "f",
    "double": "d",
    "uint8_t": "B",
}


@dataclass(frozen=True, kw_only=True)
class CField:
    """One field of a struct."""

    name: str
    type: str
    """The C type of a number; of an address that of the values there, as `float`."""
    format: str
    """The letter that the module `struct` has for it: P of an address."""
    offset: int
    """Bytes from the struct's begin."""


def read_struct(header: str, name: str) -> tuple[CField, ...]:
    """The fields of a struct in the text of a header.

    Raises ValueError for a header without the struct, and for a field that is neither a number nor an address.
    """
    body = re.search(rf"struct {name} \{{(.*?)\n?\}};", header, re.DOTALL)
    if body is None:
        others = ", ".join(re.findall(r"struct (\w+) \{", header)) or "none"
        raise ValueError(f"the header declares no struct {name}: it declares {others}")
    fields, format_ = list[CField](), "@"
    for text in _COMMENT.sub("", body[1]).split(";")[:-1]:
        match = _FIELDS.fullmatch(text.replace("\n", " "))
        stars = -1 if match is None else match[3].count("*")
        pointers = match is not None and bool(match[2]) and stars == match[3].count(",")
        kind = "P" if pointers else _FORMATS.get(match[1]) if match is not None and not match[2] and not stars else None
        if match is None or kind is None:
            raise ValueError(
                f"{name} declares {text.strip()!r}, whose type is none of {', '.join(_FORMATS)} or a pointer"
            )
        for field in match[3].split(","):
            format_ += kind
            offset = struct.calcsize(format_) - struct.calcsize(kind)
            type_ = match[1].removesuffix(" const")
            fields.append(CField(name=field.strip(" *"), type=type_, format=kind, offset=offset))
    return tuple(fields)
