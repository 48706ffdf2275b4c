"""A build from selection to a folder, with a compiler that takes no time."""

import ctypes
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.build import BuildError, BuildOptions, BuildResult, build, cache_list, compiling, linking, plan
from gemmill.build.ledger import Ledger
from gemmill.manifest import read_manifest
from gemmill.manifest.reading import check_extension
from gemmill.space.names import symbol_of, to_name
from gemmill.space.selections import Selection
from gemmill.vocab import Arch, RasterOrder

from .conftest import FakeToolkit, make_toolkit

Make = Callable[..., Selection]


class Recorder:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple] = []

    def started(self, total_weight: float) -> None:
        self.events.append(("started", total_weight))

    def unit_done(self, label: str, weight: float, ok: bool) -> None:
        self.events.append(("unit_done", label, weight, ok))

    def linking(self) -> None:
        self.events.append(("linking",))

    def finished(self, result: BuildResult) -> None:
        self.events.append(("finished", result))


def _builds(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "builds").iterdir()) if (home / "builds").is_dir() else []


def _left_over(home: Path) -> list[Path]:
    """What a build that has ended must not leave."""
    return [*home.glob("work/*"), *home.glob("builds/.*"), *home.glob("cache/*/.*"), *home.glob("**/.*")]


def _object_of(home: Path, variant: str) -> Path:
    for path in home.glob("cache/objects/*/entry.json"):
        if variant in json.loads(path.read_text())["members"].values():
            return path.with_name("object.o")
    raise AssertionError(f"no object of {variant}")


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
    assert not _left_over(options.home_dir)


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
    assert len(_builds(options.home_dir)) == 2


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
    with (kernels / "scaled_mm" / "epilogue.cuh").open("a") as header:
        header.write("// repaired\n")
    assert not build(selection, options).rejected


def test_other_toolchain_gives_a_failure_another_try(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make
) -> None:
    toolkit.set("bad", "t128x")
    build(make_selection(64, 128), options)
    toolkit.unset("bad")
    toolkit.set("version", "release 13.5, V13.5.37")
    (toolkit.home / "bin" / "nvcc").touch()
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
    assert not _builds(options.home_dir) and not _left_over(options.home_dir)


def test_strict_build_ends_at_the_first_failure(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make
) -> None:
    toolkit.set("bad", "t128x")
    with pytest.raises(
        BuildError, match=r"t128x128x128\w+ does not compile: .*too big.*; leave it out with --filter, or build without"
    ):
        build(make_selection(64, 128), replace(options, keep_going=False))
    assert not _builds(options.home_dir)


@pytest.mark.parametrize("damage", ["truncate", "overwrite", "delete", "entry"])
def test_damaged_object_is_compiled_again(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, damage: str
) -> None:
    selection = make_selection(64)
    first = build(selection, options)
    path = _object_of(options.home_dir, to_name(selection.configs[0]))
    data = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(data[:100])
    elif damage == "overwrite":
        path.write_bytes(b"x" * len(data))
    elif damage == "delete":
        path.unlink()
    else:
        path.with_name("entry.json").write_text("{")
    shutil.rmtree(first.folder)
    second = build(selection, options)
    assert len(toolkit.calls()) == 2 and not second.reused
    assert ctypes.CDLL(str(check_extension(second.manifest, second.folder)))
    assert path.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("damage", ["extension", "manifest", "no manifest"])
def test_damaged_build_is_linked_again(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, damage: str
) -> None:
    first = build(make_selection(64), options)
    if damage == "extension":
        (first.folder / first.manifest.extension).write_bytes(b"\x7fELF")
    elif damage == "manifest":
        (first.folder / "manifest.json").write_text("{}")
    else:
        (first.folder / "manifest.json").unlink()
    second = build(make_selection(64), options)
    assert not second.reused and second.folder == first.folder and len(toolkit.calls()) == 1
    check_extension(read_manifest(second.folder / "manifest.json"), second.folder)
    assert not _left_over(options.home_dir)


def test_header_edit_compiles_again_and_undoing_it_does_not(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    first = build(make_selection(64), options)
    header = kernels / "scaled_mm" / "epilogue.cuh"
    text = header.read_text()
    header.write_text(text + "inline int edited() { return 1; }\n")
    second = build(make_selection(64), options)
    assert len(toolkit.calls()) == 2 and second.folder != first.folder
    assert digests_of(second).isdisjoint(digests_of(first)), "a tuned row does not outlive the kernel that it measured"
    header.write_text(text)
    assert build(make_selection(64), options).folder == first.folder
    assert len(toolkit.calls()) == 2


def test_a_header_of_others_leaves_the_source_digest_alone(
    options: BuildOptions, toolkit: FakeToolkit, make_selection: Make, kernels: Path
) -> None:
    first = build(make_selection(64), options)
    with (kernels / "extension" / "binding.cpp").open("a") as file:
        file.write("int more() { return 1; }\n")
    second = build(make_selection(64), options)
    assert second.manifest.build_id != first.manifest.build_id and digests_of(second) == digests_of(first)


def digests_of(result) -> set[str]:
    """Of the emitted sources and what they include."""
    return {entry.source_digest for entry in result.manifest.entries}


def test_a_header_that_is_edited_meanwhile(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    header = kernels / "scaled_mm" / "epilogue.cuh"
    toolkit.set("edit", str(header))
    with pytest.raises(
        BuildError, match=r"^a header was changed while the compiler read it \(sm90a\w+\): build again$"
    ):
        build(make_selection(64), options)
    toolkit.unset("edit")
    assert len(build(make_selection(64), options).manifest.entries) == 1


def test_a_header_dated_in_the_future(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    header = kernels / "scaled_mm" / "epilogue.cuh"
    os.utime(header, (time.time() + 1e6,) * 2)
    build(make_selection(64), options)
    assert build(make_selection(64), options).reused and len(toolkit.calls()) == 1
    with header.open("a") as file:
        file.write("// edited\n")
    os.utime(header, (time.time() + 1e6,) * 2)
    build(make_selection(64), options)
    assert len(toolkit.calls()) == 2


@pytest.mark.parametrize("change", ["compiler", "cutlass header", "binding"])
def test_everything_that_makes_a_build_is_in_its_id(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path, change: str
) -> None:
    first = build(make_selection(64), options)
    if change == "compiler":
        toolkit.set("version", "release 13.5, V13.5.37")
        (toolkit.home / "bin" / "nvcc").touch()
    elif change == "cutlass header":
        (toolkit.cutlass / "include" / "cutlass" / "cutlass.h").write_text("// other\n")
    else:
        with (kernels / "extension" / "binding.cpp").open("a") as file:
            file.write("int more() { return 1; }\n")
    second = build(make_selection(64), options)
    assert second.manifest.build_id != first.manifest.build_id
    assert len(toolkit.calls()) == (1 if change == "binding" else 2)
    assert build(make_selection(64, name="other"), options).manifest.build_id != second.manifest.build_id


def test_moved_cache_still_hits(
    toolkit: FakeToolkit,
    options: BuildOptions,
    make_selection: Make,
    kernels: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build(make_selection(64, 128), options)
    other = make_toolkit(tmp_path / "another place" / "toolkit")
    monkeypatch.setenv("GEMMILL_CUDA_HOME", str(other.home))
    monkeypatch.setenv("GEMMILL_CUTLASS_HOME", str(other.cutlass))
    for script in ("nvcc", "cuobjdump"):  # the same programs, elsewhere
        shutil.copy2(toolkit.home / "bin" / script, other.home / "bin" / script)
    shutil.copytree(options.home_dir / "cache", tmp_path / "moved" / "cache")
    shutil.copytree(kernels, tmp_path / "other kernels")
    result = build(
        make_selection(64, 128), replace(options, home=tmp_path / "moved", kernels=tmp_path / "other kernels")
    )
    assert len(result.manifest.entries) == 2
    assert other.calls() == []


def test_hand_written_kernels_are_compiled_and_linked(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    (kernels / "quant").mkdir()
    (kernels / "quant" / "silu.cu").write_text('extern "C" int32_t gemmill_silu(void const*) { return 0; }\n')
    (kernels / "extension" / "binding.cpp").write_text(
        'extern "C" int gemmill_silu();\nint binding() { return gemmill_silu(); }\n'
    )
    result = build(make_selection(64), options)
    assert ["silu"] in toolkit.calls() and len(result.manifest.entries) == 1
    toolkit.set("bad", "silu")
    with (kernels / "quant" / "silu.cu").open("a") as file:
        file.write("// edited\n")
    with pytest.raises(
        BuildError, match=r"^kernels/quant/silu\.cu does not compile: quant/silu\.cu\(7\): error: static assertion"
    ):
        build(make_selection(64), options)
    assert _builds(options.home_dir) == [result.folder.name]


def test_binding_that_does_not_compile(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    (kernels / "extension" / "binding.cpp").write_text("int binding() { return nothing; }\n")
    with pytest.raises(
        BuildError, match=r"^kernels/extension/binding\.cpp does not compile: .*error: .nothing. was not declared"
    ):
        build(make_selection(64), options)


def test_undefined_symbol_is_found_when_linking(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    text = 'extern "C" int cuTensorMapEncodeTiled();\nint binding() { return cuTensorMapEncodeTiled(); }\n'
    (kernels / "extension" / "binding.cpp").write_text(text)
    with pytest.raises(BuildError, match=r"^linking failed: .*undefined reference to `cuTensorMapEncodeTiled'$"):
        build(make_selection(64), options)
    assert not _builds(options.home_dir) and not _left_over(options.home_dir)


def test_no_binding(toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path) -> None:
    shutil.rmtree(kernels / "extension")
    with pytest.raises(
        BuildError, match=r"^no C\+\+ files in .*extension: they bind the kernels to torch; reinstall gemmill$"
    ):
        build(make_selection(64), options)


def test_empty_selection(toolkit: FakeToolkit, options: BuildOptions) -> None:
    with pytest.raises(BuildError, match=r"^selection 'none' has no variant for sm100a: see `gemmill list`"):
        build(Selection(name="none", arch=Arch.SM100A, configs=(), rejections=()), options)


def test_max_size(toolkit: FakeToolkit, options: BuildOptions, make_selection: Make) -> None:
    selection = make_selection(64)
    with pytest.raises(BuildError) as caught:
        build(selection, replace(options, max_size=1000))
    text = str(caught.value)
    assert "bytes, more than the 1,000 allowed: leave variants out with --filter, or allow more with --max-size" in text
    assert text.endswith(f"of the largest: {to_name(selection.configs[0])} 48")
    assert not _builds(options.home_dir) and not _left_over(options.home_dir)
    result = build(selection, replace(options, max_size=10_000_000))
    with pytest.raises(BuildError, match="more than the 1,000 allowed"):
        build(selection, replace(options, max_size=1000))
    assert _builds(options.home_dir) == [result.folder.name]


def test_full_disk_under_the_compiler(toolkit: FakeToolkit, options: BuildOptions, make_selection: Make) -> None:
    good = build(make_selection(64), options)
    toolkit.set("diskfull")
    with pytest.raises(
        BuildError,
        match=r"^the disk is full \(compiling .*\): free some space, or name another folder with GEMMILL_HOME$",
    ):
        build(make_selection(128), options)
    assert _builds(options.home_dir) == [good.folder.name] and not _left_over(options.home_dir)
    toolkit.unset("diskfull")
    assert not build(make_selection(128), options).rejected  # not remembered as the variant's fault


@pytest.mark.parametrize(
    "message",
    [
        "nvcc fatal   : Could not open output file '/gone/tmpxft_00005219_0000000a'",
        "inc.cu:1:10: fatal error: cuda_fp8.h: No such file or directory",
        "cc1plus: fatal error: /cuda/include/tbb.h: Too many open files",
        "Fatal error: can't create /gone/ok.o: No such file or directory",
        "unit.cu(3): catastrophic error: could not open /tmp/x: Permission denied",
        "",
    ],
)
def test_what_is_not_about_the_source_is_not_remembered(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, message: str
) -> None:
    toolkit.set("says", f"1 {message}")
    with pytest.raises(BuildError) as caught:
        build(make_selection(64), options)
    name = to_name(make_selection(64).configs[0])
    assert str(caught.value) == f"{name} was not compiled: {message or 'the compiler gave no reason'}"
    assert not list(options.home_dir.glob("cache/ledger/*")) and not _left_over(options.home_dir)
    toolkit.unset("says")
    assert not build(make_selection(64), options).rejected


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (255, "ptxas error   : Entry function 'f' uses too much shared data (0x61a80 bytes, 0x38c00 max)"),
        (255, "ptxas /tmp/tmpxft_1.ptx, line 21; error   : Unknown modifier '.bar'"),
        (1, "kernels/a.cuh(88): Error: Formal parameter space overflowed"),
        (1, "a.cu:3:5: internal compiler error: in f, at g.cc:1"),
    ],
)
def test_what_is_about_the_source_is_remembered(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, code: int, message: str
) -> None:
    build(make_selection(64), options)
    toolkit.set("says", f"{code} {message}")
    result = build(make_selection(64, 128), replace(options, jobs=1))
    assert [row.error for row in result.rejected] == [message]
    assert len(list(options.home_dir.glob("cache/ledger/*"))) == 1


@pytest.mark.parametrize("where", ["extension", "manifest", "ledger", "working folder"])
def test_full_disk_under_the_build(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    good = build(make_selection(64), options)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    if where == "ledger":
        toolkit.set("bad", "t128x")
    target = {
        "extension": (linking, "sync_file"),
        "manifest": (linking, "write_manifest"),
        "ledger": (Ledger, "record"),
        "working folder": (compiling, "run_graph"),
    }[where]
    monkeypatch.setattr(*target, full)
    with pytest.raises(BuildError) as caught:
        build(make_selection(64, 128), options)
    assert str(caught.value) == (
        f"the disk is full (building in {options.home}): free some space, or name another folder with GEMMILL_HOME"
    )
    assert _builds(options.home_dir) == [good.folder.name] and not _left_over(options.home_dir)


def test_home_that_cannot_be_written(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match=r"^building failed on .*file/home.*: Not a directory$"):
        build(make_selection(64), replace(options, home=tmp_path / "file" / "home"))


def test_home_without_permission(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(BuildError) as caught:
        build(make_selection(64), options)
    assert str(caught.value) == (
        f"cannot write {options.home} (building): Permission denied; make it writable, or name another folder with GEMMILL_HOME"
    )


@pytest.mark.parametrize("name", [".", "builds", "cache", "cache/objects", "cache/headers", "memo"])
def test_home_that_others_can_write(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    build(make_selection(64), options)
    folder = options.home_dir / name
    folder.chmod(0o777)
    with pytest.raises(BuildError) as caught:
        build(make_selection(64), options)
    assert str(caught.value) == (
        f"{folder} can be written by every user, and its code would run here: `chmod o-w {folder}`, "
        "or set GEMMILL_SHARED_HOME=1 to trust them"
    )
    monkeypatch.setenv("GEMMILL_SHARED_HOME", "1")
    assert build(make_selection(64), options).reused


@pytest.mark.parametrize("what", ["object", "entry", "its folder", "memo", "build"])
def test_what_others_can_write_is_made_again(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, what: str
) -> None:
    first = build(make_selection(64), options)
    path = _object_of(options.home_dir, to_name(make_selection(64).configs[0]))
    place = {"object": path, "entry": path.with_name("entry.json"), "its folder": path.parent, "build": first.folder}
    place.setdefault("memo", options.home_dir / "memo" / "files.json").chmod(0o777)
    place[what].chmod(0o777)
    again = build(make_selection(64), options)
    assert (len(toolkit.calls()), again.reused) == {"memo": (1, True), "build": (1, False)}.get(what, (2, True))
    assert not place[what].stat().st_mode & 0o022


def test_a_build_is_the_users_own_whatever_the_umask(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make
) -> None:
    before = os.umask(0)
    try:
        build(make_selection(64), options)
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    open_to_others = [path for path in options.home_dir.rglob("*") if path.stat().st_mode & 0o022]
    assert open_to_others == [] and build(make_selection(64), options).reused


def test_template_error(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "templates" / "cutlass").mkdir(parents=True)
    (tmp_path / "templates" / "cutlass" / "scaled_mm.cu.jinja").write_text("\n{{ nothing }}\n")
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
