"""The contents of the CuTe DSL's objects, and the process that makes them, piece by piece."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gemmill import settings
from gemmill.build import dsl_worker, options
from gemmill.build.cubins import code_of, embedded_cubins, embedded_fatbins, facts_of_fatbin
from gemmill.build.errors import BuildError
from gemmill.build.failures import failure_of_exception
from gemmill.build.inspect import KernelFacts, is_of_variant, listings, read_cubin
from gemmill.build.options import DSL_JOB_MEMORY_BYTES, JOB_MEMORY_BYTES, BuildOptions
from gemmill.space.names import parse_name

SASS_AND_RESOURCES = """\

Resource usage:
 Common:
  GLOBAL:0
 Function gemmill_a_kernel_0:
  REG:168 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:556 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function gemmill_a_kernel_1:
  REG:90 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:556 TEXTURE:0 SURFACE:0 SAMPLER:0
\tcode for sm_90a
\t\tFunction : gemmill_a_kernel_0
        /*0000*/                   LDC R1, c[0x0][0x28] ;           /* 0x00000a00ff017b82 */
                                                                    /* 0x000fe20000000800 */
        /*0010*/               @P0 QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR4], R24, gsb0 ;  /* 0x0 */
        /*0020*/                   STL.64 [R1+0x8], R4 ;            /* 0x0 */
        /*0030*/              @!PT LDL.LU R3, [R1+0x10] ;           /* 0x0 */
        /*0040*/                   STL.128 [R1], R4 ;               /* 0x0 */
        /*0050*/                   LDL.U16 R3, [R1+0x10] ;          /* 0x0 */
\t\tFunction : gemmill_a_kernel_1
        /*0000*/                   UTMALDG.2D [UR8], [UR4] ;        /* 0x0 */
"""


def test_facts_of_a_cubin() -> None:
    assert replace(read_cubin(SASS_AND_RESOURCES), sass_digest="") == KernelFacts(
        registers=168, spill_bytes=8 + 4 + 16 + 2, code_bytes=112, sass={"LDL": 2, "QGMMA": 1, "STL": 2, "UTMALDG": 1}
    )


LISTING = """\
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;           /* 0x00000a00ff017b82 */
                                                                    /* 0x000fe20000000800 */
        /*0010*/                   STL.64 [R1+0x8], R4 ;            /* 0x0 */
        /*0020*/                   UTMALDG.2D [UR8], [UR4] ;        /* 0x1 */
                                                                    /* 0x2 */
"""


def test_code_that_was_listed_together_is_told_apart() -> None:
    first, second = listings(LISTING, [("a", bytes(32)), ("b", bytes(16))])
    assert first.splitlines()[0] == "Function : a" and second.splitlines()[0] == "Function : b"
    facts = [read_cubin(text) for text in (first, second)]
    assert [(x.code_bytes, x.spill_bytes, x.sass) for x in facts] == [(32, 8, {"STL": 1}), (16, 0, {"UTMALDG": 1})]
    assert facts[0].sass_digest != facts[1].sass_digest, "of its own instructions"
    assert list(listings("", [])) == []


def test_code_is_found_by_the_names_of_sections() -> None:
    names, code = b"\0.text.a_kernel\0.nv.info.a_kernel\0", bytes(range(32))
    rows = ((0, 3, 0, 0, 64, len(names), 0, 0, 1, 0), (1, 1, 0, 0, 64 + len(names), 32, 0, 0, 1, 0), (16, *[0] * 9))
    table = b"".join(struct.pack("<IIQQQQIIQQ", *row) for row in rows)
    at, kind = 64 + len(names) + len(code), ("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 190, 1, 0, 0)
    cubin = struct.pack(*kind, at, 90, 64, 56, 0, 64, len(rows), 0) + names + code + table
    assert list(code_of(cubin)) == [("a_kernel", code)] and list(embedded_cubins(cubin)) == [cubin]
    assert list(code_of(_elf(190))) == [], "sections of no name are no code"


def test_kernels_of_a_variant_are_numbered() -> None:
    assert is_of_variant("gemmill_a_kernel", "a") and is_of_variant("gemmill_a_kernel_0", "a")
    assert not is_of_variant("gemmill_a_kernels", "a") and not is_of_variant("gemmill_ab_kernel_0", "a")


def _elf(machine: int, flags: int = 0, body: bytes = b"") -> bytes:
    """A file whose section table, of two empty rows, comes after `body`."""
    header = struct.pack(
        *("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, machine, 1, 0, 0, 64 + len(body), flags, 64, 56, 0, 64, 2, 0)
    )
    return header + body + bytes(128)


def test_cubins_are_found_within_other_files() -> None:
    first, second = _elf(190, 90, b"code"), _elf(190, 100)
    host = _elf(62, body=b"text" + first + b"\x7fELF\x02\x01" + second)
    assert list(embedded_cubins(host + first)) == [first, second, first]
    assert list(embedded_cubins(first[:-1])) == [], "one that was cut short is none"
    assert list(embedded_cubins(b"")) == []


def _fatbin(architecture: int, body: bytes) -> bytes:
    """A file that wraps one code."""
    code = struct.pack("<HHIQQIIQQQQ", 2, 0x101, 64, len(body), 0, 8, architecture, 64, 0, 0, 0) + body
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(code)) + code


def test_files_that_wrap_code_are_found_within_others() -> None:
    first, second = _fatbin(90, b"code"), _fatbin(100, b"")
    assert list(embedded_fatbins(b"host" + first + first[:8] + second)) == [first, second]
    assert facts_of_fatbin(first) == facts_of_fatbin(_fatbin(90, b"other")) != facts_of_fatbin(second)
    assert list(embedded_fatbins(first[:-1])) == [] == list(embedded_fatbins(first[:12])), "cut short"
    assert list(embedded_fatbins(_fatbin(90, bytes(500))[:100] + second)) == [second], "behind one that was cut short"


NAME = "sm90a_groupedmm_e4m3_bf16_channel_t64x16x256_c1x1x1_basic_fast_swapab_sauto"


def test_the_worker_tells_what_went_wrong_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsl_worker, "_BODIES", SimpleNamespace(what_makes=lambda _: "keyed"))
    emitted = tmp_path / "emitted.py"
    told = f'NAME = "{NAME}"\n'
    emitted.write_text(f"{told}def export(config, symbol, folder):\n    (folder / symbol).write_text(repr(config))\n")
    assert dsl_worker._compile(emitted, tmp_path, "keyed") == ("", "")
    assert (tmp_path / f"gemmill_{NAME}").read_text() == repr(parse_name(NAME))
    text = "\n\x1b[91m========\x1b[0m\n  error: tile \x1b[1mtoo big\x1b[0m\nmore"
    emitted.write_text(f"{told}def export(*_):\n    raise RuntimeError({text!r})\n")
    assert dsl_worker._compile(emitted, tmp_path, "keyed") == ("source", "RuntimeError: error: tile too big")
    assert dsl_worker.describe(SystemExit()) == "SystemExit: it gave no reason"
    emitted.write_text("export = print\n")
    assert dsl_worker._compile(emitted, tmp_path, "keyed") == ("source", "KeyError: 'NAME'")


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ValueError("the tile is too big"), "source"),
        (OSError(28, "No space left on device"), "diskfull"),
        (RuntimeError("cannot write: No space left on device"), "diskfull"),
        (RuntimeError("open failed: Too many open files"), "tool"),
        (FileNotFoundError(2, "No such file or directory", "/gone"), "tool"),
        (MemoryError(), "tool"),
    ],
)
def test_whose_failure_an_exception_is(error: Exception, failure: str) -> None:
    assert failure_of_exception(error) == failure


def test_the_environment_holds_nothing_that_changes_an_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTE_DSL_KEEP", "ptx")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    found = settings.dsl_environment("sm_90a", search=[tmp_path], python_path=tmp_path)
    set_for_dsl = {name: value for name, value in found.items() if name.startswith("CUTE_DSL_")}
    assert set_for_dsl == {"CUTE_DSL_ARCH": "sm_90a", "CUTE_DSL_DISABLE_FILE_CACHING": "1"}
    assert found["PATH"].startswith(str(tmp_path)) and found["PYTHONPATH"].startswith(str(tmp_path))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], BuildOptions]:
    """Options on a machine of so many cores and GiB."""

    def make(cores: int, gib: int) -> BuildOptions:
        monkeypatch.delenv("GEMMILL_JOBS", raising=False)
        monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: list(range(cores)))
        monkeypatch.setattr(options, "free_memory", lambda: gib << 30)
        return BuildOptions()

    return make


@pytest.mark.parametrize(
    ("cores", "gib", "nvcc", "dsl", "mixed"),
    [(2, 24, 2, 2, 2), (16, 12, 2, 12, 4), (8, 128, 8, 8, 8), (2, 3, 1, 2, 1), (1, 1, 1, 1, 1), (4, 6, 1, 4, 2)],
)
def test_jobs_by_cores_and_memory(
    machine: Callable[[int, int], BuildOptions], cores: int, gib: int, nvcc: int, dsl: int, mixed: int
) -> None:
    found = machine(cores, gib)
    assert (found.job_count, found.dsl_job_count, found.mixed_job_count) == (nvcc, dsl, mixed)
    if gib > 5:
        assert nvcc * JOB_MEMORY_BYTES + (mixed - nvcc) * DSL_JOB_MEMORY_BYTES <= gib << 30


def test_asked_jobs_hold_for_both(machine: Callable[[int, int], BuildOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(2, 4)
    asked = BuildOptions(jobs=7)
    assert (asked.job_count, asked.dsl_job_count, asked.mixed_job_count) == (7, 7, 7)
    monkeypatch.setenv("GEMMILL_JOBS", "many")
    with pytest.raises(BuildError, match="GEMMILL_JOBS is 'many'"):
        _ = BuildOptions().mixed_job_count
