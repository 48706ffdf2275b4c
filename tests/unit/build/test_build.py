"""A build from selection to a folder, with a compiler that takes no time."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.build.driver import build
from gemmill.build.errors import BuildError
from gemmill.build.maintenance import cache_list
from gemmill.build.options import BuildOptions
from gemmill.build.planning import plan
from gemmill.manifest import read_manifest
from gemmill.manifest.reading import check_extension
from gemmill.space.names import symbol_of, to_name
from gemmill.space.selections import Selection
from gemmill.vocab import RasterOrder

from .built import Recorder, builds, left_over
from .conftest import FakeToolkit

Make = Callable[..., Selection]


def test_extension_and_manifest(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, tmp_path: Path
) -> None:
    selection = make_selection(64, 128)
    result = build(selection, options)
    assert result.folder == tmp_path / "home" / "builds" / result.manifest.build_id and not result.reused
    assert sorted(path.name for path in result.folder.iterdir()) == [
        f"gemmill_{result.manifest.build_id}.so",
        "manifest.json",
    ]
    manifest = read_manifest(result.folder / "manifest.json")
    assert manifest == result.manifest
    library = ctypes.CDLL(str(check_extension(manifest, result.folder)))
    library.gemmill_build_id.restype = ctypes.c_char_p
    assert library.gemmill_build_id().decode() == manifest.build_id
    assert ctypes.c_int.in_dll(library, "gemmill_kernel_count").value == 2

    assert [entry.name for entry in manifest.entries] == [to_name(config) for config in selection.configs]
    entry = manifest.entries[0]
    assert (entry.registers, entry.spill_bytes, entry.code_bytes, entry.sass) == (
        168,
        12,
        48,
        {"QGMMA": 1, "UTMALDG": 1},
    )
    assert (
        entry.symbol == symbol_of(selection.configs[0])
        and entry.compile_seconds > 0
        and entry.peak_memory_bytes > 1 << 20
    )
    assert (manifest.arch, manifest.selection, manifest.torch_target, manifest.rejected) == (
        "sm90a",
        "test",
        "2.11",
        (),
    )
    assert (manifest.toolchain.nvcc, manifest.toolchain.cutlass) == ("13.0.88", "4.2.0")
    assert not any(str(tmp_path) in flag for flag in manifest.toolchain.flags)
    assert manifest.extension_bytes == (result.folder / manifest.extension).stat().st_size
    assert not left_over(options.home_dir)


def test_library_names_no_folder_of_this_machine(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make
) -> None:
    result = build(make_selection(64), options)
    dynamic = subprocess.run(
        ["readelf", "-d", str(result.folder / result.manifest.extension)], capture_output=True, text=True, check=True
    ).stdout
    assert "RPATH" not in dynamic and "RUNPATH" not in dynamic
    assert all(f"[{name}]" in dynamic for name in ("libtorch.so", "libtorch_cpu.so", "libc10.so"))


def test_second_build_compiles_and_links_nothing(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(make_selection(64, 128, 192), options)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    second = build(make_selection(64, 128, 192), options)
    assert second.reused and second.folder == first.folder and second.manifest == first.manifest


def test_same_request_stays_the_same_build(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, tmp_path: Path
) -> None:
    first = build(make_selection(64, 128), options)
    # another machine's cache, where the two were compiled together, is merged into this one
    other = replace(options, home=tmp_path / "other", jobs=1)
    build(make_selection(64, 128), other)
    shutil.copytree(tmp_path / "other" / "cache", options.home_dir / "cache", dirs_exist_ok=True, ignore=_only_objects)
    assert len([row for row in cache_list(options.home) if any("_t64x" in name for name in row.names)]) == 2
    again = build(make_selection(64, 128), options)
    assert again.reused and again.folder == first.folder


def _only_objects(folder: str, names: list[str]) -> list[str]:
    return ["choices"] if folder.endswith("cache") else []


def test_launch_settings_share_a_kernel(toolkit: FakeToolkit, options: BuildOptions, make_selection: Make) -> None:
    selection = make_selection(64)
    config = selection.configs[0]
    along_m = replace(config, launch=replace(config.launch, raster_order=RasterOrder.ALONG_M))
    result = build(replace(selection, configs=(config, along_m)), options)
    assert len(toolkit.calls()) == 1 and len(toolkit.calls()[0]) == 1
    assert len(result.manifest.entries) == 2 and len({entry.symbol for entry in result.manifest.entries}) == 1


def test_progress(toolkit: FakeToolkit, options: BuildOptions, make_selection: Make) -> None:
    recorder = Recorder()
    result = build(make_selection(64, 128, 192), options, recorder)
    started, *units, linked, finished = recorder.events
    assert started[0] == "started" and linked == ("linking",) and finished == ("finished", result)
    assert sum(event[2] for event in units) == pytest.approx(started[1]) and all(event[3] for event in units)


def test_only_what_is_missing_is_compiled(toolkit: FakeToolkit, options: BuildOptions, make_selection: Make) -> None:
    build(make_selection(64, 128), options)
    before = len(toolkit.calls())
    result = build(make_selection(64, 128, 192), options)
    assert [["m192" in name or "t192" in name for name in call] for call in toolkit.calls()[before:]] == [[True]]
    assert len(result.manifest.entries) == 3
    assert len(builds(options.home_dir)) == 2


def test_bad_variant_is_left_out_and_the_good_kept(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make
) -> None:
    toolkit.set("bad", "t128x")
    recorder = Recorder()
    selection = make_selection(64, 128, 192, 256, 320, 384)
    result = build(selection, replace(options, jobs=1), recorder)
    assert [row.name for row in result.rejected] == [to_name(selection.configs[1])]
    assert result.rejected[0].error.endswith('(7): error: static assertion failed with "too big"')
    assert len(result.manifest.entries) == 5
    # all together, then the named one alone and the rest together
    assert sorted(len(call) for call in toolkit.calls()) == [1, 5, 6]
    started = [event[1] for event in recorder.events if event[0] == "started"]
    assert len(started) == 2 and started[1] > started[0]
    assert sum(event[2] for event in recorder.events if event[0] == "unit_done") == pytest.approx(started[1])


def test_unit_that_fails_without_naming_anything_is_halved(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make
) -> None:
    toolkit.set("killed", "1")
    result = build(make_selection(64, 128, 192, 256), replace(options, jobs=1))
    assert len(result.manifest.entries) == 4 and not result.rejected
    assert sorted(len(call) for call in toolkit.calls()) == [1, 1, 1, 1, 2, 2, 4]


def test_known_failure_is_not_tried_again(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    toolkit.set("bad", "t128x")
    selection = make_selection(64, 128)
    first = build(selection, options)
    toolkit.unset("bad")
    tried = len(toolkit.calls())
    assert [row.name for row in plan(selection, options).known_bad] == [first.rejected[0].name]
    again = build(selection, options)
    assert again.reused and again.rejected == first.rejected and len(toolkit.calls()) == tried
    assert (first.remembered, again.remembered) == (0, 1)

    assert not build(selection, replace(options, retry_failed=True)).rejected

    shutil.rmtree(options.home_dir)
    toolkit.set("bad", "t128x")
    build(selection, options)
    toolkit.unset("bad")
    with (kernels / "core" / "epilogue.cuh").open("a") as header:
        header.write("inline int repaired();\n")
    assert not build(selection, options).rejected


@pytest.mark.parametrize("other", ["nvcc", "CUTLASS"])
def test_other_toolchain_gives_a_failure_another_try(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, other: str
) -> None:
    toolkit.set("bad", "t128x")
    build(make_selection(64, 128), options)
    toolkit.unset("bad")
    if other == "nvcc":
        toolkit.set("version", "release 13.5, V13.5.37")
        (toolkit.home / "bin" / "nvcc").touch()
    else:
        version = toolkit.cutlass / "include" / "cutlass" / "version.h"
        version.write_text(version.read_text().replace("MINOR 2", "MINOR 3"))
    assert not build(make_selection(64, 128), options).rejected


def test_no_variant_compiles(toolkit: FakeToolkit, options: BuildOptions, make_selection: Make) -> None:
    toolkit.set("bad", "sm90a")
    selection = make_selection(64, 128)
    name = min(to_name(config) for config in selection.configs)
    expected = f'none of the 2 kernels compiles; the first, {name}: sm90a/scaled_mm/{name}.cu(7): error: static assertion failed with "too big"'
    for more in ("", "; 2 failed in an earlier build, --retry-failed tries them again"):
        with pytest.raises(BuildError) as caught:
            build(selection, options)
        assert str(caught.value) == expected + more
    assert not builds(options.home_dir) and not left_over(options.home_dir)


def test_template_error(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "templates" / "scaled_mm" / "cutlass").mkdir(parents=True)
    (tmp_path / "templates" / "scaled_mm" / "cutlass" / "scaled_mm.cu.jinja").write_text("\n{{ nothing }}\n")
    monkeypatch.setattr("gemmill.emit.render.templates_dir", lambda: tmp_path / "templates")
    from gemmill.emit.render import environment

    environment.cache_clear()
    try:
        with pytest.raises(
            BuildError, match=r"template scaled_mm/cutlass/scaled_mm\.cu\.jinja.*'nothing' is undefined"
        ):
            build(make_selection(64), options)
    finally:
        environment.cache_clear()
    assert not options.home_dir.exists()


def test_compiler_that_is_killed_alone(toolkit: FakeToolkit, options: BuildOptions, make_selection: Make) -> None:
    toolkit.set("killed", "0")
    with pytest.raises(
        BuildError,
        match=r"^the compiler was killed on sm90a\w+, most likely for want of memory: give the machine more$",
    ):
        build(make_selection(64, 128), options)
    toolkit.unset("killed")
    assert not build(make_selection(64, 128), options).rejected


def test_launcher(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ccache").write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/launched\nexec "$@"\n')
    (tools / "ccache").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.delenv("GEMMILL_COMPILER_LAUNCHER")
    build(make_selection(64), options)
    launched = [Path(line).name for line in (tmp_path / "launched").read_text().split()]
    assert sorted(launched) == ["g++", "g++", "nvcc"]
    monkeypatch.setenv("GEMMILL_COMPILER_LAUNCHER", "no-such-launcher")
    with pytest.raises(
        BuildError,
        match="GEMMILL_COMPILER_LAUNCHER is 'no-such-launcher', which is not a program on PATH: install it, or",
    ):
        build(make_selection(64), options)


def test_plan(toolkit: FakeToolkit, options: BuildOptions, make_selection: Make) -> None:
    empty = plan(make_selection(64, 128), options)
    assert not options.home_dir.exists()
    assert empty.selection == "test" and len(empty.configs) == len(empty.kernels) == 2 and empty.cached == ()
    assert empty.estimated_cpu_seconds == sum(unit.seconds for unit in empty.units) > 0 and empty.jobs == 2
    build(make_selection(64), options)
    half = plan(make_selection(64, 128), options)
    assert to_name(make_selection(64).configs[0]) in half.cached and "extension/binding.cpp" in half.cached
    assert [[source.name for source in unit.sources] for unit in half.units] == [
        [to_name(make_selection(128).configs[0])]
    ]
    assert 0 < half.estimated_cpu_seconds < empty.estimated_cpu_seconds


def test_plan_without_toolchain(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMILL_CUDA_HOME", "/nowhere")
    result = plan(make_selection(64, 128), options)
    assert result.without_toolchain.startswith("no CUDA compiler at /nowhere/bin/nvcc")
    assert len(result.kernels) == 2 and result.cached == () and result.estimated_cpu_seconds > 0
