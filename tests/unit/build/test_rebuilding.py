"""Changes that make a build another one, and the parts that are made again: damage, headers, compilers, the hand-written sources."""

import ctypes
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.build.driver import build
from gemmill.build.errors import BuildError
from gemmill.build.options import BuildOptions
from gemmill.manifest import read_manifest
from gemmill.manifest.reading import check_extension
from gemmill.space.names import to_name
from gemmill.space.selections import Selection
from gemmill.vocab import Arch

from .built import builds, left_over, object_of
from .conftest import FakeToolkit, make_toolkit

Make = Callable[..., Selection]


@pytest.mark.parametrize("damage", ["truncate", "overwrite", "delete", "entry"])
def test_damaged_object_is_compiled_again(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, damage: str
) -> None:
    selection = make_selection(64)
    first = build(selection, options)
    path = object_of(options.home_dir, to_name(selection.configs[0]))
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
    assert not left_over(options.home_dir)


def test_header_edit_compiles_again_and_undoing_it_does_not(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    first = build(make_selection(64), options)
    header = kernels / "core" / "epilogue.cuh"
    text = header.read_text()
    header.write_text(text + "inline int edited() { return 1; }\n")
    second = build(make_selection(64), options)
    assert len(toolkit.calls()) == 2 and second.folder != first.folder
    assert digests_of(second).isdisjoint(digests_of(first)), "a tuned row does not outlive the kernel that it measured"
    header.write_text(text)
    assert build(make_selection(64), options).folder == first.folder
    assert len(toolkit.calls()) == 2


def test_a_header_that_moves_or_says_more_to_readers_compiles_nothing(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    first = build(make_selection(64), options)
    header, other = kernels / "core" / "epilogue.cuh", kernels / "core" / "abi.h"
    header.write_text("// Said again.\n" + header.read_text())
    other.rename(kernels / "core" / "moved.h")
    for path in (*kernels.rglob("*.h"), *kernels.rglob("*.cuh"), *kernels.rglob("*.cpp")):
        path.write_text(path.read_text().replace('"core/abi.h"', '"core/moved.h"'))
    second = build(make_selection(64), options)
    assert second.folder == first.folder and second.reused and len(toolkit.calls()) == 1


def test_a_header_that_is_found_otherwise_is_recorded(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    """A key covers headers that sources name in quotes from the folders of kernels; the compiler's list has the rest."""
    binding = kernels / "extension" / "binding.cpp"
    other = kernels / "extension" / "other.h"
    other.write_text("constexpr int kOther = 1;\n")
    binding.write_text(f'#define OTHER "{other}"\n#include OTHER\n' + binding.read_text())
    first = build(make_selection(64), options)
    other.write_text("constexpr int kOther = 2;\n")
    assert build(make_selection(64), options).folder != first.folder


def test_a_header_of_others_leaves_the_source_digest_alone(
    options: BuildOptions, toolkit: FakeToolkit, make_selection: Make, kernels: Path
) -> None:
    first = build(make_selection(64), options)
    with (kernels / "extension" / "binding.cpp").open("a") as file:
        file.write("int more() { return 1; }\n")
    second = build(make_selection(64), options)
    assert second.manifest.build_id != first.manifest.build_id and digests_of(second) == digests_of(first)


def digests_of(result) -> set[str]:
    """Of the emitted sources and their includes."""
    return {entry.source_digest for entry in result.manifest.entries}


def test_a_header_that_is_edited_meanwhile(
    toolkit: FakeToolkit, options: BuildOptions, make_selection: Make, kernels: Path
) -> None:
    header = kernels / "core" / "epilogue.cuh"
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
    header = kernels / "core" / "epilogue.cuh"
    os.utime(header, (time.time() + 1e6,) * 2)
    build(make_selection(64), options)
    assert build(make_selection(64), options).reused and len(toolkit.calls()) == 1
    with header.open("a") as file:
        file.write("inline int edited() { return 1; }\n")
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
    (kernels / "quant").mkdir(exist_ok=True)
    (kernels / "quant" / "silu.cu").write_text('extern "C" int32_t gemmill_silu(void const*) { return 0; }\n')
    (kernels / "extension" / "binding.cpp").write_text(
        'extern "C" int gemmill_silu();\nint binding() { return gemmill_silu(); }\n'
    )
    result = build(make_selection(64), options)
    assert ["silu"] in toolkit.calls() and len(result.manifest.entries) == 1
    toolkit.set("bad", "silu")
    with (kernels / "quant" / "silu.cu").open("a") as file:
        file.write("int edited;\n")
    with pytest.raises(
        BuildError, match=r"^kernels/quant/silu\.cu does not compile: quant/silu\.cu\(7\): error: static assertion"
    ):
        build(make_selection(64), options)
    assert builds(options.home_dir) == [result.folder.name]


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
    # by an initialiser, as ops are registered with torch: the linker drops sections without references, with their needs
    text = 'extern "C" int cuTensorMapEncodeTiled();\nint binding = cuTensorMapEncodeTiled();\n'
    (kernels / "extension" / "binding.cpp").write_text(text)
    with pytest.raises(BuildError, match=r"^linking failed: .*undefined reference to `cuTensorMapEncodeTiled'$"):
        build(make_selection(64), options)
    assert not builds(options.home_dir) and not left_over(options.home_dir)


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
    assert not builds(options.home_dir) and not left_over(options.home_dir)
    result = build(selection, replace(options, max_size=10_000_000))
    with pytest.raises(BuildError, match="more than the 1,000 allowed"):
        build(selection, replace(options, max_size=1000))
    assert builds(options.home_dir) == [result.folder.name]
