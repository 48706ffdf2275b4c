"""Which of gemmill's own files a kernel of the CuTe DSL is made from."""

from pathlib import Path

import pytest

from gemmill.build import dsl_files
from gemmill.build.dsl_files import made_from, reached
from gemmill.build.files import FileMemo

_ADAPTER = "dsl/adapter.cpp.jinja"


@pytest.fixture
def memo(tmp_path: Path) -> FileMemo:
    return FileMemo(tmp_path / "memo")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two families, of which one uses a body that both could use."""
    folder = tmp_path / "gemmill"
    for name, text in {
        "gemm/mainloop.py": "from gemmill.vocab import dtype",
        "gemm/unused.py": "",
        "vocab/__init__.py": "",
        "vocab/dtype.py": "",
        "families/a/config.py": "",
        "families/a/names.py": "from gemmill.gemm import mainloop",
        "families/a/dsl/kernel.py": "def body():\n    from gemmill.families.a.names import x\n",
        "families/b/config.py": "import gemmill.vocab.dtype",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(dsl_files, "PACKAGE", folder)
    return folder


def _names(rows: dsl_files.Rows) -> list[str]:
    return [name for name, _ in rows]


def test_what_counts_of_gemmill_itself(memo: FileMemo) -> None:
    rows = made_from(memo)
    assert {"families/scaled_mm/config.py", "vocab/schedule.py", _ADAPTER} <= set(_names(rows))
    of_gated = _names(reached(["gemmill.families.gated_mm.dsl.export"], rows, memo))
    assert {"families/gated_mm/config.py", "gemm/mainloop.py", "vocab/schedule.py", _ADAPTER} <= set(of_gated)
    assert "families/gated_mm/int8_config.py" not in of_gated, "kernels of e4m3 are not made from it"
    of_int8 = _names(reached(["gemmill.families.gated_mm.int8_config"], rows, memo))
    assert {"families/gated_mm/config.py", "families/gated_mm/int8_config.py"} <= set(of_int8)
    assert not any(name.startswith(("families/scaled_mm/", "families/moe/")) for name in of_gated)


def test_bodies_and_meanings_count_and_names_do_not(package: Path, memo: FileMemo) -> None:
    assert _names(made_from(memo)) == [
        _ADAPTER,
        "families/a/config.py",
        "families/a/dsl/kernel.py",
        "families/b/config.py",
        "gemm/mainloop.py",
        "gemm/unused.py",
        "vocab/__init__.py",
        "vocab/dtype.py",
    ]


def test_a_kernel_is_made_from_what_its_modules_import(package: Path, memo: FileMemo) -> None:
    rows = made_from(memo)
    through_names = _names(reached(["gemmill.families.a.dsl.kernel"], rows, memo))
    assert through_names == [
        _ADAPTER,
        "families/a/dsl/kernel.py",
        "gemm/mainloop.py",
        "vocab/__init__.py",
        "vocab/dtype.py",
    ]
    assert _names(reached(["gemmill.families.b.config"], rows, memo)) == [
        _ADAPTER,
        "families/b/config.py",
        "vocab/dtype.py",
    ]


def test_all_counts_where_a_module_is_another_packages(package: Path, memo: FileMemo) -> None:
    rows = made_from(memo)
    assert reached(["gemmill.families.b.config", "elsewhere.dsl.kernel"], rows, memo) == rows


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ('"""Another text."""\n\nx = 1  # a comment\n\n\ndef f():\n    """Said."""\n    return x\n', True),
        ("x = 2\ndef f():\n    return x\n", False),
        ("x = 1\ndef f():\n    return 'Said.'\n", False),
    ],
)
def test_only_what_the_compiler_reads_counts(tmp_path: Path, package: Path, text: str, is_same: bool) -> None:
    body = package / "gemm" / "mainloop.py"
    body.write_text('"""A body."""\nx = 1\ndef f():\n    "Said."\n    return x\n')
    before = made_from(FileMemo(tmp_path / "one"))
    body.write_text(text)
    assert (made_from(FileMemo(tmp_path / "two")) == before) is is_same
