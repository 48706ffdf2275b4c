"""Structs of kernels' arguments lie in memory as gemmill reads their headers: the C++ compiler is asked."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gemmill.family.c_struct import read_struct
from gemmill.locations import kernels_dir

STRUCTS = [
    ("core/abi.h", "gemmill_launch"),
    ("scaled_mm/abi.h", "gemmill_scaled_mm_args"),
    ("gated_mm/abi.h", "gemmill_gated_mm_args"),
    ("gemm/grouped_args.h", "gemmill_grouped_mm_args"),
]
HEADER = "struct one {\n  float const* a;  // [n]\n  void const *b, *c;\n  uint8_t d;\n  int64_t e, f;\n};\n"


@pytest.mark.parametrize(("header", "name"), STRUCTS)
def test_offsets_are_those_of_the_compiler(header: str, name: str, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    fields = read_struct((kernels_dir() / header).read_text(encoding="utf-8"), name)
    assert len(fields) > 5
    checks = "".join(f"static_assert(offsetof({name}, {field.name}) == {field.offset});\n" for field in fields)
    (tmp_path / "probe.cpp").write_text(f'#include <cstddef>\n#include "{header}"\n{checks}', encoding="utf-8")
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{kernels_dir()}", tmp_path / "probe.cpp"]
    subprocess.run(command, check=True)


def test_a_field_has_its_type_and_its_place() -> None:
    told = [(field.name, field.type, field.format, field.offset) for field in read_struct(HEADER, "one")]
    assert told == [
        ("a", "float", "P", 0),
        ("b", "void", "P", 8),
        ("c", "void", "P", 16),
        ("d", "uint8_t", "B", 24),
        ("e", "int64_t", "q", 32),
        ("f", "int64_t", "q", 40),
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("one {", "two {"), "the header declares no struct one: it declares two"),
        (
            ("uint8_t d", "half d"),
            "one declares 'half d', whose type is none of int64_t, int32_t, uint64_t, uint32_t, float, double, uint8_t or a pointer",
        ),
    ],
)
def test_a_header_that_cannot_be_read(change: tuple[str, str], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_struct(HEADER.replace(*change), "one")
    assert str(caught.value) == sentence
