"""Reading the output and files of compilers, and remembering digests of files."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.build.errors import first_error
from gemmill.build.files import FileMemo
from gemmill.build.headers import changed_between, dependencies, header_set, read_depfile
from gemmill.build.inspect import KernelFacts, read_ptxas, read_sass
from gemmill.writing import write_whole

PTXAS = """\
ptxas info    : 10 bytes gmem
ptxas info    : Compiling entry function 'gemmill_a_kernel' for 'sm_90a'
ptxas info    : Function properties for gemmill_a_kernel
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size
ptxas info    : Function properties for helper
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'gemmill_b_kernel' for 'sm_90a'
ptxas info    : Function properties for gemmill_b_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 90 registers, used 0 barriers
"""
SASS = """\
\tcode for sm_90a
\t\tFunction : gemmill_a_kernel
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;           /* 0x00000a00ff017b82 */
                                                                    /* 0x000fe20000000800 */
        /*0010*/               @P0 QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24, gsb0 ;  /* 0x0000000000000000 */
        /*0020*/             @!UP1 UTMALDG.2D.MULTICAST [UR8], [UR4] ;  /* 0x0000000000000000 */
        /*0030*/             @UPT  UTMALDG.2D [UR8], [UR4] ;        /* 0x0000000000000000 */
        /*10040*/             @!PT LDL.LU R3, [R1+0x10] ;           /* 0x0000000000000000 */
        /*10050*/                  BRA 0x90;                        /* 0xfffffffc00fc7947 */
\t\t..........
\t\tFunction : gemmill_b_kernel
        /*0000*/                   IGMMA.64x64x32.S8.S8 R24, gdesc[UR4], R24 ;  /* 0x0000000000000000 */
"""


def test_ptxas_and_sass() -> None:
    facts: dict[str, KernelFacts] = {}
    read_ptxas(PTXAS, facts)
    read_sass(SASS, facts)
    digests = {facts[f"gemmill_{name}_kernel"].sass_digest for name in "ab"}
    assert len(digests) == 2 and all(len(digest) == 64 for digest in digests)
    facts = {name: replace(found, sass_digest="") for name, found in facts.items()}
    assert facts["gemmill_a_kernel"] == KernelFacts(
        registers=168, spill_bytes=32, code_bytes=96, sass={"LDL": 1, "QGMMA": 1, "UTMALDG": 2}
    )
    assert facts["gemmill_b_kernel"] == KernelFacts(registers=90, spill_bytes=0, code_bytes=16, sass={"IGMMA": 1})


def test_the_digest_of_machine_code_is_of_its_encodings_alone() -> None:
    def digest(text: str) -> str:
        facts: dict[str, KernelFacts] = {}
        read_sass(text, facts)
        return facts["gemmill_a_kernel"].sass_digest

    moved = SASS.replace("code for sm_90a", "code for sm_90a, from elsewhere").replace("LDC R1", "LDC  R1")
    assert digest(moved) == digest(SASS)
    assert digest(SASS.replace("0x000fe20000000800", "0x000fe20000000801")) != digest(SASS)
    assert digest(SASS.replace("0xfffffffc00fc7947", "0xfffffffc00fc7948")) != digest(SASS)
    no_code: dict[str, KernelFacts] = {}
    read_sass("\t\tFunction : gemmill_a_kernel\n", no_code)
    assert no_code["gemmill_a_kernel"].sass_digest == ""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("a.cu(1): warning: w\na.cu(3): error: identifier\n1 error", "a.cu(3): error: identifier"),
        ("nvcc fatal   : Unsupported gpu architecture", "nvcc fatal   : Unsupported gpu architecture"),
        ("ptxas error   : uses too much shared data", "ptxas error   : uses too much shared data"),
        ("\n  something odd\n", "something odd"),
        ("", "the compiler gave no reason"),
    ],
)
def test_first_error(message: str, expected: str) -> None:
    assert first_error(message) == expected


def test_depfile() -> None:
    text = "unit.o : unit.cu \\\n    /usr/include/a.h /with\\ blank/b.h \\\n  c$$d.h\n"
    assert read_depfile(text) == ["unit.cu", "/usr/include/a.h", "/with blank/b.h", "c$d.h"]


def test_headers_are_named_by_root(tmp_path: Path) -> None:
    for name in ("work/unit.cu", "cuda/include/a.h", "cuda/cutlass/b.h", "elsewhere/c.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "work" / "d").write_text(
        f"o: unit.cu {tmp_path}/cuda/bin/../include/a.h ../cuda/cutlass/b.h {tmp_path}/elsewhere/c.h"
    )
    roots = {"cuda": tmp_path / "cuda", "cutlass": tmp_path / "cuda" / "cutlass"}
    listed = dependencies(tmp_path / "work" / "d", tmp_path / "work")
    rows = header_set(listed, roots, FileMemo(tmp_path / "memo"))
    assert [row[:2] for row in rows] == [["", f"{tmp_path}/elsewhere/c.h"], ["cuda", "include/a.h"], ["cutlass", "b.h"]]
    assert all(len(row[2]) == 64 for row in rows)


def test_when_a_header_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.h"
    path.write_text("")
    changed = path.stat().st_ctime
    for since, until, expected in [
        (changed - 1, changed + 1, True),
        (changed + 1, changed + 2, False),
        (changed - 2, changed - 1, False),  # by a clock that is ahead: it was not in this time
    ]:
        assert changed_between([path], since, until) is expected


def test_memo(tmp_path: Path) -> None:
    path, asked = tmp_path / "file", []

    def size(file: Path) -> int:
        asked.append(file)
        return file.stat().st_size

    def get() -> int:
        memo = FileMemo(tmp_path / "memo" / "files.json")
        value = memo.get(path, size, kind="size")
        memo.save()
        return value

    path.write_text("one")
    assert (get(), get(), len(asked)) == (3, 3, 2)  # too new to be remembered: it may change within the clock's tick
    os.utime(path, (time.time() - 60,) * 2)
    assert (get(), get(), len(asked)) == (3, 3, 3)
    path.write_text("three")
    os.utime(path, (time.time() - 60,) * 2)
    assert (get(), len(asked)) == (5, 4)
    (tmp_path / "memo" / "files.json").write_text("[]")
    assert (get(), len(asked)) == (5, 5)


def test_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a", "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"
