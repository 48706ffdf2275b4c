"""Builds with kernels of the CuTe DSL, compiled by a stand-in for its worker."""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemmill.build import dsl, dsl_worker, workshop
from gemmill.build.driver import build
from gemmill.build.dsl import DslPackage
from gemmill.build.dsl_body import Bodies
from gemmill.build.errors import BuildError
from gemmill.build.failures import Failure
from gemmill.build.graph import dsl_request
from gemmill.build.options import BuildOptions
from gemmill.build.planning import plan as plan_build
from gemmill.build.sources import variant_source
from gemmill.build.units import Unit
from gemmill.build.workshop import keys_for
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.locations import templates_dir
from gemmill.runtime.variant_table import make_variant_table
from gemmill.space.names import symbol_of, to_name
from gemmill.space.selections import Selection
from gemmill.vocab import Arch, Backend

from .conftest import FakeToolkit
from .test_build import Recorder

_SOURCE_ROOT = templates_dir().parent / "generator"
_FAKE_WORKER = Path(__file__).with_name("fake_dsl_worker.py")
_LOADER = '#include <cstdint>\nextern "C" int32_t gemmill_cutedsl_load(void*, int32_t device) { return device; }\n'
_NO_DSL = "no CuTe DSL: nvidia-cutlass-dsl is not installed; install it with `pip install 'gemmill[dsl]'`"

Make = Callable[..., Selection]


@dataclass(frozen=True, kw_only=True)
class FakeDsl:
    """The stand-in, and its requests."""

    folder: Path

    def set(self, name: str, text: str = "") -> None:
        """Make it behave in a way from now on: see fake_dsl_worker.py."""
        (self.folder / "control" / name).write_text(text)

    def log(self) -> list[str]:
        """A line for each process that started, and one for each file that it was given."""
        path = self.folder / "dsl.log"
        return path.read_text().splitlines() if path.is_file() else []

    def package(self, build_digest: str = "1") -> DslPackage:
        """As `find_dsl` would give it."""
        return DslPackage(
            version="4.8.1",
            worker=(sys.executable, str(_FAKE_WORKER), str(self.folder / "control")),
            runtime=self.folder / "libruntime.a",
            objcopy=Path("objcopy"),
            build=build_digest,
        )


@pytest.fixture
def fake_dsl(toolkit: FakeToolkit, kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDsl:
    result = FakeDsl(folder=tmp_path / "dsl")
    (result.folder / "control").mkdir(parents=True)
    subprocess.run(["ar", "rcs", str(result.folder / "libruntime.a")], check=True)
    (kernels / "extension" / "cutedsl.cpp").write_text(_LOADER)
    monkeypatch.setattr(workshop, "find_dsl", lambda *_: result.package())
    return result


@pytest.fixture
def make_both(make_config: Callable[..., KernelConfig]) -> Make:
    """A selection of one CUTLASS kernel, and DSL kernels that differ in their tile's columns."""

    def make(*columns: int) -> Selection:
        dsl_configs = [make_config(backend=Backend.CUTEDSL, tile_shape_mnk=(128, n, 128)) for n in columns]
        return Selection(name="both", arch=Arch.SM90A, configs=(make_config(), *dsl_configs), rejections=())

    return make


def _names(selection: Selection) -> list[str]:
    return [to_name(config) for config in selection.configs]


def test_both_backends_in_one_extension(fake_dsl: FakeDsl, options: BuildOptions, make_both: Make) -> None:
    selection = make_both(64, 128)
    result = build(selection, replace(options, jobs=1))
    assert result.rejected == () and result.manifest.toolchain.cutedsl == "4.8.1"
    assert [entry.name for entry in result.manifest.entries] == _names(selection)
    assert fake_dsl.log() == ["started sm_90a", *sorted(_names(selection)[1:])], "one process compiles both"
    library = ctypes.CDLL(str(result.folder / result.manifest.extension))
    assert ctypes.c_int.in_dll(library, "gemmill_kernel_count").value == 3

    cutlass, first, _ = result.manifest.entries
    assert (first.registers, first.spill_bytes, first.code_bytes) == (168, 0, 48)
    assert first.sass == cutlass.sass == {"QGMMA": 1, "UTMALDG": 1}
    assert first.compile_seconds == 0.75, "half of the import is this kernel's"
    assert first.peak_memory_bytes == 200 << 20
    assert [
        row.kernel
        for row in make_variant_table(result.manifest.entries, [e.symbol for e in result.manifest.entries], ()).rows
    ]


class Kernel(ctypes.Structure):
    """Mirrors `gemmill_kernel` in kernels/core/abi.h."""

    _fields_ = (
        ("symbol", ctypes.c_char_p),
        ("launch", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)),
        ("workspace", ctypes.c_void_p),
    )


def test_launch_functions_hand_over_the_structs_of_a_call(
    fake_dsl: FakeDsl, options: BuildOptions, make_both: Make
) -> None:
    result = build(make_both(64), options)
    library = ctypes.CDLL(str(result.folder / result.manifest.extension))
    kernels = {kernel.symbol.decode(): kernel for kernel in (Kernel * 2).in_dll(library, "gemmill_kernels")}
    kernel = kernels[result.manifest.entries[1].symbol]
    value = ctypes.c_int(70)
    arguments = (ctypes.c_int64 * 32)(ctypes.addressof(value))
    how = (ctypes.c_int32 * 8)()
    how[0], how[5] = 500, 1000
    # The stand-in adds *a, sm_count, the stream and the number of arguments: both structs, ticket, stream and the status.
    assert kernel.launch(arguments, how) == 70 + 1000 + 500 + 5 and kernel.workspace is None
    how[4] = 9  # the device, which the stand-in of the loader refuses
    assert kernel.launch(arguments, how) == 9


def test_objects_have_one_symbol(fake_dsl: FakeDsl, options: BuildOptions, make_both: Make) -> None:
    selection = make_both(64)
    build(selection, options)
    symbol = symbol_of(selection.configs[1])
    (entry,) = [p for p in options.home_dir.glob("cache/objects/*/entry.json") if symbol[8:] in p.read_text()]
    listed = subprocess.run(
        ["nm", "-g", "--defined-only", entry.with_name("object.o")], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == [symbol]


def test_second_build_starts_nothing(
    fake_dsl: FakeDsl, options: BuildOptions, make_both: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(make_both(64, 128), options)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    second = build(make_both(64, 128), options)
    assert second.reused and second.folder == first.folder


def test_only_what_is_missing_is_compiled(fake_dsl: FakeDsl, options: BuildOptions, make_both: Make) -> None:
    build(make_both(64, 128), options)
    before = len(fake_dsl.log())
    build(make_both(64, 128, 192), options)
    assert fake_dsl.log()[before:] == ["started sm_90a", _names(make_both(192))[1]]


def test_another_dsl_compiles_again(
    fake_dsl: FakeDsl, options: BuildOptions, make_both: Make, toolkit: FakeToolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(make_both(64), options)
    monkeypatch.setattr(workshop, "find_dsl", lambda *_: fake_dsl.package("2"))
    second = build(make_both(64), options)
    assert len(fake_dsl.log()) == 4 and len(toolkit.calls()) == 1, "the CUTLASS kernel is as it was"
    assert second.manifest.build_id != first.manifest.build_id


def test_a_kernel_that_does_not_compile_is_left_out(fake_dsl: FakeDsl, options: BuildOptions, make_both: Make) -> None:
    selection = make_both(64, 128, 192)
    bad = _names(selection)[2]
    fake_dsl.set("bad", bad)
    result = build(selection, options)
    assert [(row.name, row.error) for row in result.rejected] == [(bad, "ValueError: the tile is too big")]
    assert [entry.name for entry in result.manifest.entries] == [n for n in _names(selection) if n != bad]
    before = len(fake_dsl.log())
    assert build(selection, options).rejected == result.rejected and len(fake_dsl.log()) == before
    build(selection, replace(options, retry_failed=True))
    assert fake_dsl.log()[before:] == ["started sm_90a", bad]


@pytest.mark.parametrize("times", ["", " once"])
def test_a_worker_that_is_killed(fake_dsl: FakeDsl, options: BuildOptions, make_both: Make, times: str) -> None:
    selection = make_both(64, 128, 192)
    name = sorted(_names(selection)[1:])[1]
    fake_dsl.set("killed", name + times)
    result = build(selection, replace(options, jobs=1))
    assert fake_dsl.log().count(name) == 2, "it may have been for want of memory: it is tried again"
    expected = [] if times else [(name, "the CuTe DSL's process ended on it twice (signal 9: out of memory)")]
    assert [(row.name, row.error) for row in result.rejected] == expected
    assert len(result.manifest.entries) == len(selection.configs) - len(expected)
    assert not list(options.home_dir.glob("cache/ledger/*")), "another machine may have the memory"


def test_a_failure_of_the_machine_is_not_the_kernels(fake_dsl: FakeDsl, options: BuildOptions, make_both: Make) -> None:
    selection = make_both(64, 128)
    fake_dsl.set("bad", "cutedsl")
    fake_dsl.set("failure", "tool")
    result = build(selection, options)
    assert {row.name for row in result.rejected} == set(_names(selection)[1:])
    assert not list(options.home_dir.glob("cache/ledger/*"))
    fake_dsl.set("failure", "diskfull")
    with pytest.raises(BuildError, match=r"^the disk is full \(compiling "):
        build(selection, options)
    (fake_dsl.folder / "control" / "bad").unlink()
    assert build(selection, options).rejected == ()


def test_a_dsl_that_does_not_start(fake_dsl: FakeDsl, options: BuildOptions, make_both: Make) -> None:
    selection = make_both(64)
    fake_dsl.set("nostart")
    result = build(selection, options)
    assert [entry.name for entry in result.manifest.entries] == _names(selection)[:1]
    assert result.rejected[0].error == (
        "the CuTe DSL does not start (exit status 1: ImportError: libsomething.so: cannot open shared object file)"
    )
    (fake_dsl.folder / "control" / "nostart").unlink()
    assert build(selection, options).rejected == (), "it was no fault of the kernel: it is tried again"


@pytest.mark.parametrize(
    ("control", "text"), [("header", "int x;"), ("parameters", "void *call, void *how, cudaStream_t stream")]
)
def test_an_export_that_does_not_fit(
    fake_dsl: FakeDsl, options: BuildOptions, make_both: Make, control: str, text: str
) -> None:
    fake_dsl.set(control, text)
    result = build(make_both(64), options)
    assert len(result.manifest.entries) == 1
    assert result.rejected[0].error == (
        "the C header that the CuTe DSL wrote declares no entry function of "
        "(void *call, void *how, int64_t ticket, cudaStream_t stream)"
    )


def test_without_the_dsl_the_rest_is_built(
    toolkit: FakeToolkit, options: BuildOptions, make_both: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dsl, "DISTRIBUTION", "nvidia-cutlass-dsl-of-nobody")
    selection = make_both(64, 128)
    text = _NO_DSL.replace("-dsl is", "-dsl-of-nobody is")
    assert {(row.name, row.error) for row in plan_build(selection, options).known_bad} == {
        (name, text) for name in _names(selection)[1:]
    }
    result = build(selection, options)
    assert [entry.name for entry in result.manifest.entries] == _names(selection)[:1]
    assert {(row.name, row.error) for row in result.rejected} == {(name, text) for name in _names(selection)[1:]}
    assert not list(options.home_dir.glob("cache/ledger/*")), "installing it is all that is needed"


def _install(folder: Path, version: str, *, libraries: bool = True) -> Path:
    """A package folder in which only the DSL is installed."""
    info = folder / f"nvidia_cutlass_dsl-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: nvidia-cutlass-dsl\nVersion: {version}\n"
        "Requires-Dist: nvidia-cutlass-dsl-libs-core==1\nRequires-Dist: numpy\n"
    )
    parts = folder / "nvidia_cutlass_dsl_libs_core-1.dist-info"
    parts.mkdir()
    (parts / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cutlass-dsl-libs-core\nVersion: 1\n")
    if libraries:
        library = folder / "nvidia_cutlass_dsl" / "cu13" / "lib" / "libcuda_dialect_runtime_static.a"
        library.parent.mkdir(parents=True)
        library.write_bytes(b"!<arch>\n")
    return folder


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DslPackage]:
    def find_in(folder: Path, cuda_major: int = 13) -> DslPackage:
        monkeypatch.setattr(sys, "path", [str(folder)])
        return dsl.find_dsl(cuda_major)

    return find_in


def test_the_package_is_found_without_its_import(find: Callable[..., DslPackage], tmp_path: Path) -> None:
    found = find(_install(tmp_path / "site", "4.8.1"))
    assert (found.version, found.runtime.parent.parent.name) == ("4.8.1", "cu13")
    assert found.worker[1:] == ("-m", "gemmill.build.dsl_worker")
    later = find(_install(tmp_path / "later", "4.9.0"))
    assert later.build != found.build
    part = tmp_path / "later" / "nvidia_cutlass_dsl_libs_core-1.dist-info" / "METADATA"
    part.write_text(part.read_text().replace("Version: 1\n", "Version: 2\n"))
    assert find(tmp_path / "later").build != later.build, "its parts have versions of their own"


@pytest.mark.parametrize(
    ("version", "libraries", "expected"),
    [
        (None, True, _NO_DSL),
        (
            "4.2.0",
            True,
            "nvidia-cutlass-dsl is 4.2.0, gemmill compiles with 4.8 or later: upgrade it with `pip install --upgrade 'gemmill[dsl]'`",
        ),
        (
            "4.8.1",
            False,
            "nvidia-cutlass-dsl 4.8.1 has no runtime library for CUDA 13: install it with `pip install 'gemmill[dsl]'`",
        ),
    ],
)
def test_a_package_that_cannot_be_used(
    find: Callable[..., DslPackage], tmp_path: Path, version: str | None, libraries: bool, expected: str
) -> None:
    folder = _install(tmp_path / "site", version, libraries=libraries) if version else tmp_path
    with pytest.raises(BuildError) as caught:
        find(folder)
    assert str(caught.value) == expected


def test_no_objcopy(find: Callable[..., DslPackage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError) as caught:
        find(_install(tmp_path / "site", "4.8.1"))
    assert str(caught.value) == (
        "no objcopy on PATH, which the CuTe DSL's objects need: install it with `apt install binutils`"
    )


def test_a_kernel_changed_meanwhile(fake_dsl: FakeDsl, options: BuildOptions, make_both: Make) -> None:
    fake_dsl.set("bad", "cutedsl")
    fake_dsl.set("failure", "changed")
    fake_dsl.set("error", "a file of the kernels' bodies was changed meanwhile")
    with pytest.raises(BuildError, match=r"^a file of the kernels' bodies was changed meanwhile \(.+\): build again$"):
        build(make_both(64), options)


def test_the_worker_holds_what_it_imported_against_what_was_keyed(
    make_config: Callable[..., KernelConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = make_config(backend=Backend.CUTEDSL)
    emitted = {"NAME": to_name(config), "export": lambda *_: None}
    monkeypatch.setattr(dsl_worker, "runpy", SimpleNamespace(run_path=lambda _: emitted))
    keyed = Bodies().digest(config)
    assert dsl_worker._compile(tmp_path, tmp_path, keyed) == ("", "")
    changed = (Failure.CHANGED, "a file of the kernels' bodies was changed meanwhile")
    assert dsl_worker._compile(tmp_path, tmp_path, "0" * 64) == changed


def _is_alive(status: Path) -> bool:
    try:
        return "(zombie)" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_does_not_outlive_who_asked_it(
    fake_dsl: FakeDsl, options: BuildOptions, make_both: Make, tmp_path: Path
) -> None:
    selection = make_both(64)
    source = variant_source(selection.configs[1], keys_for(Arch.SM90A, options))
    path = tmp_path / source.path
    path.parent.mkdir(parents=True)
    path.write_text(source.text)
    request = dsl_request(
        Unit(sources=(source,)), tmp_path, tmp_path / "outcome.json", workshop.open_workshop(Arch.SM90A, options)
    )
    (tmp_path / "request.json").write_text(json.dumps(asdict(request)))
    fake_dsl.set("slow", "1")
    command = [sys.executable, "-m", "gemmill.build.dsl_unit", str(tmp_path / "request.json")]
    asking = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(_SOURCE_ROOT)})
    deadline = time.monotonic() + 60
    while len(fake_dsl.log()) < 2:
        assert asking.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    asking.kill()
    asking.wait()
    status = Path("/proc") / (fake_dsl.folder / "pid").read_text() / "status"
    while _is_alive(status):
        assert time.monotonic() < deadline, "the worker outlives the process that asked it"
        time.sleep(0.02)


def test_progress_and_ledger_row(fake_dsl: FakeDsl, options: BuildOptions, make_both: Make) -> None:
    selection = make_both(64, 128)
    fake_dsl.set("bad", _names(selection)[1])
    recorder = Recorder()
    build(selection, replace(options, jobs=1), recorder)
    started, *units, _, _ = recorder.events
    assert sum(event[2] for event in units) == pytest.approx(started[1])
    assert [event[1] for event in units if not event[3]] == [_names(selection)[1]]
    (row,) = [json.loads(path.read_text()) for path in options.home_dir.glob("cache/ledger/*.json")]
    assert row == {"name": _names(selection)[1], "error": "ValueError: the tile is too big"}
