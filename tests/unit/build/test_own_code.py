"""gemmill's own C++ as a compiler reads it: which changes make another digest."""

from pathlib import Path

import pytest

from gemmill.build.files import FileMemo
from gemmill.build.own_code import OwnCode

HEADER = '#pragma once\n#include "b/inner.h"\n// Why.\nconstexpr int kOne = 1;  /* one */\n'
INNER = "#pragma once\nconstexpr int kTwo = 2;\n"
TEXT = '#include <vector>\n#include "a/outer.h"\n#include "cutlass/cutlass.h"\nint f() { return kOne; }\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A header that includes another."""
    for name, text in (("a/outer.h", HEADER), ("b/inner.h", INNER)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path


def digest_of(text: str, folder: Path) -> str:
    return OwnCode([folder], FileMemo(folder / "memo")).digest(text)


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ("// Said.\n\n" + TEXT, True),
        (TEXT.replace("int f", "  int f").replace(";", "; /* a\n b */"), True),
        (TEXT.replace("a/outer.h", "b/moved.h"), True),
        (TEXT.replace("<vector>", "<array>"), False),
        (TEXT.replace("cutlass/cutlass.h", "cutlass/numeric.h"), False),
        (TEXT.replace("kOne", "kTwo"), False),
        (TEXT.replace("{ return", "{\nreturn"), False),
        ('#include "b/inner.h"\n' + TEXT, False),
    ],
)
def test_a_text(folder: Path, text: str, is_same: bool) -> None:
    before = digest_of(TEXT, folder)
    (folder / "a" / "outer.h").rename(folder / "b" / "moved.h")
    (folder / "a" / "outer.h").write_text(HEADER)
    assert (digest_of(text, folder) == before) is is_same


@pytest.mark.parametrize(
    ("header", "inner", "is_same"),
    [
        (HEADER.replace("Why", "Because"), INNER + "// Said.\n", True),
        (HEADER, INNER.replace("2", "3"), False),
        (HEADER.replace('#include "b/inner.h"\n', ""), INNER, False),
        ("#pragma once\nconstexpr int kOne = 1;\n" + '#include "b/inner.h"\n', INNER, False),
    ],
)
def test_headers(folder: Path, header: str, inner: str, is_same: bool) -> None:
    before = digest_of(TEXT, folder)
    (folder / "a" / "outer.h").write_text(header)
    (folder / "b" / "inner.h").write_text(inner)
    assert (digest_of(TEXT, folder) == before) is is_same


@pytest.mark.parametrize(
    "text", ['f("http://{}");', 'R"(a // {})";', "1'000 + '\"'; g(\"//{}\");", 'char c = \'"\'; g("/*{}*/");']
)
def test_texts_are_code(folder: Path, text: str) -> None:
    assert digest_of(text.replace("{}", "x"), folder) != digest_of(text.replace("{}", "y"), folder)


def test_a_header_that_includes_itself(folder: Path) -> None:
    (folder / "b" / "inner.h").write_text('#include "a/outer.h"\n' + INNER)
    before = digest_of(TEXT, folder)
    (folder / "b" / "inner.h").write_text('#include "a/outer.h"\nint more;\n' + INNER)
    assert digest_of(TEXT, folder) != before


def test_a_header_that_only_names_another_is_that_one(folder: Path) -> None:
    """So a file that moves, and stays where it was in name, makes no other object; one with more in it does."""
    before = digest_of(TEXT, folder)
    (folder / "a" / "outer.h").rename(folder / "b" / "moved.h")
    (folder / "a" / "outer.h").write_text('// Moved.\n#pragma once\n\n#include "b/moved.h"\n')
    assert digest_of(TEXT, folder) == before
    (folder / "a" / "outer.h").write_text('#pragma once\n#include "b/moved.h"\n#include "b/inner.h"\n')
    assert digest_of(TEXT, folder) != before
