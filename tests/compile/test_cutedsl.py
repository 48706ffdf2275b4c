"""Properties of the real CuTe DSL on which the build relies, and the loading of its kernels."""

import ctypes
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gemmill.build import planning
from gemmill.build.cubins import embedded_cubins
from gemmill.build.driver import build
from gemmill.build.dsl import find_dsl
from gemmill.build.inspect import read_cubin
from gemmill.build.linking import runtimes
from gemmill.build.options import BuildOptions, BuildResult
from gemmill.build.sass import architectures, disassemble
from gemmill.build.sources import is_of_dsl
from gemmill.build.toolchain import ToolchainPaths
from gemmill.build.workshop import open_workshop
from gemmill.emit import emit
from gemmill.locations import kernels_dir
from gemmill.manifest.reading import check_extension
from gemmill.space.names import parse_name, symbol_of, to_name
from gemmill.space.selections import Selection, select
from gemmill.vocab import Arch

_SOURCE_ROOT = Path(emit.__code__.co_filename).resolve().parents[2]
NAME = "sm90a_cutedsl_s8_s8_s32_bf16_scaledbias_channel_t128x128x128_c1x1x1_pingpong_exact_persistent_ab_sauto_a16b16d8"
TOO_BIG = NAME.replace("t128x128x128_c1x1x1_pingpong", "t256x256x128_c1x1x1_cooperative")


@pytest.fixture(scope="module", autouse=True)
def _needs_dsl(toolchain: ToolchainPaths) -> None:
    find_dsl(toolchain.cuda_major)


def _output(*command: object) -> str:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout


def test_smoke_has_variants_of_both_backends(smoke: BuildResult, toolchain: ToolchainPaths) -> None:
    mine = [entry for entry in smoke.manifest.entries if is_of_dsl(entry.config)]
    assert [entry.config for entry in mine] == [config for config in select("smoke").configs if is_of_dsl(config)] != []
    assert smoke.manifest.toolchain.cutedsl == find_dsl(toolchain.cuda_major).version
    extension = check_extension(smoke.manifest, smoke.folder)
    asked = {line.split()[-1] for line in _output("nm", "-D", "--undefined-only", extension).splitlines()}
    assert not {name for name in asked if re.match(r"_cu|_mlir|CuteDSL|cuda_dialect", name)}
    text = disassemble(extension, toolchain.cuobjdump, to_name(mine[0].config.compiled))
    assert re.search(rf"Function : {symbol_of(mine[0].config)}_kernel_\d+", text) and "QGMMA" in text
    assert list(embedded_cubins(extension.read_bytes())) == [] and re.search("^compressed$", text, re.MULTILINE)
    assert read_cubin(text).sass_digest == mine[0].sass_digest, "its code is that of the object before"


def test_a_build_of_dsl_kernels_alone(toolchain: ToolchainPaths, inspected: Path) -> None:
    """A config that the kernel cannot be made of is a row of the ledger; machine code is found where nvcc made none."""
    configs = (parse_name(NAME), parse_name(TOO_BIG))
    selection = Selection(name="dsl", arch=Arch.SM90A, configs=configs, rejections=())
    made = build(selection, BuildOptions(home=inspected, retry_failed=True))
    (entry,) = made.manifest.entries
    assert entry.sass["IGMMA"] > 0 and entry.sass["UTMALDG"] >= 2 and entry.spill_bytes == 0
    assert entry.registers > 0 and entry.code_bytes > 1000 and entry.compile_seconds > 0
    assert [(row.name, row.error) for row in made.rejected] == [
        (TOO_BIG, "ValueError: tile 256x256 needs 256 accumulator registers a thread of 192")
    ]
    assert architectures(check_extension(made.manifest, made.folder), toolchain.cuobjdump) == ("sm_90a",)


def test_a_build_that_links_nothing_of_the_dsl(toolchain: ToolchainPaths, inspected: Path, monkeypatch) -> None:
    """The same machine code, launched by gemmill's host code, which names kernels that it cannot launch."""
    configs = tuple(parse_name(name) for name in (NAME, NAME.replace("128x128x128", "64x128x128")))
    selection = Selection(name="own_host_code", arch=Arch.SM90A, configs=configs, rejections=())
    monkeypatch.setattr(planning, "has_host_code", lambda name: name == NAME)
    options = BuildOptions(home=inspected, own_host_code=True)
    workshop = open_workshop(Arch.SM90A, options)
    assert runtimes(planning.survey(selection, workshop).variants, workshop) == [toolchain.cudart_static]
    made = build(selection, options)
    (entry,) = made.manifest.entries
    assert [(row.name, row.error) for row in made.rejected] == [(to_name(configs[1]), planning.NO_HOST_CODE)]
    extension = check_extension(made.manifest, made.folder)
    text = disassemble(extension, toolchain.cuobjdump, NAME)
    assert re.search(rf"Function : gemmill_{NAME}_kernel_\d+", text) and re.search("^compressed$", text, re.MULTILINE)
    assert read_cubin(text).sass_digest == entry.sass_digest and architectures(extension, toolchain.cuobjdump) == (
        "sm_90a",
    )


def test_an_emitted_file_compiles_on_its_own(tmp_path: Path) -> None:
    file = emit(parse_name(NAME))
    path = tmp_path / file.path.name
    path.write_text(file.text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUTE_DSL_")}
    subprocess.run(
        [sys.executable, path, "--out", tmp_path / "made"],
        check=True,
        capture_output=True,
        env=environment | {"PYTHONPATH": str(_SOURCE_ROOT)},
    )
    assert sorted(made.suffix for made in (tmp_path / "made").iterdir()) == [".h", ".o"]
    listed = _output("nm", "--defined-only", tmp_path / "made" / f"gemmill_{NAME}.o")
    assert f"_mlir_gemmill_{NAME}_cuda_init" in listed


_PROBE = """\
#include "core/cutedsl.h"
#include <cuda_runtime.h>
#include <atomic>

// In place of the CUDA runtime and of a kernel: what is called is counted.
extern "C" {
int modes[2], mode_calls = 0;
std::atomic<int> inits{0}, loads{0}, last_device{-1};
int failure = 0;

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  modes[mode_calls++ % 2] = *mode;
  *mode = cudaStreamCaptureModeGlobal;
  return cudaSuccess;
}
static void init(void** packed) {
  ++inits;
  **static_cast<void***>(packed[0]) = &inits;
  *static_cast<int*>(packed[1]) = failure;
}
static void load(void** packed) {
  ++loads;
  last_device = *static_cast<int*>(packed[1]);
  *static_cast<int*>(packed[2]) = **static_cast<void***>(packed[0]) == &inits ? failure : 999;
}
static gemmill_cutedsl_module module = {init, load, nullptr, 0};
int ready(int device) { return gemmill_cutedsl_ready(&module, device); }
}
"""


@pytest.fixture
def loader(toolchain: ToolchainPaths, tmp_path: Path) -> ctypes.CDLL:
    """The binding's loader with a module that counts."""
    (tmp_path / "probe.cpp").write_text(_PROBE)
    includes = [f"-I{kernels_dir()}", f"-I{toolchain.home / 'include'}"]
    sources = [tmp_path / "probe.cpp", kernels_dir() / "extension" / "cutedsl.cpp"]
    _output(toolchain.gxx, "-std=c++20", "-shared", "-fPIC", *includes, *sources, "-o", tmp_path / "probe.so")
    return ctypes.CDLL(str(tmp_path / "probe.so"))


@pytest.fixture
def value(loader: ctypes.CDLL) -> Callable[[str], int]:
    return lambda name: ctypes.c_int.in_dll(loader, name).value


def test_a_kernel_is_loaded_once_for_each_device(loader: ctypes.CDLL, value: Callable[[str], int]) -> None:
    for device in (64, 0, 0, 3, 0, 63, 3):
        assert loader.ready(device) == 0
    assert (value("inits"), value("loads"), value("last_device")) == (1, 4, 63)
    assert loader.ready(64) == loader.ready(64) == 0 and value("loads") == 6, "beyond what is remembered"
    # A capture under way is let be, and its mode is put back.
    assert list((ctypes.c_int * 2).in_dll(loader, "modes")) == [2, 0]


def test_a_kernel_that_cannot_be_loaded_is_tried_again(loader: ctypes.CDLL, value: Callable[[str], int]) -> None:
    ctypes.c_int.in_dll(loader, "failure").value = 209
    assert loader.ready(1) == 209 and loader.ready(1) == 209
    assert (value("inits"), value("loads")) == (2, 0)
    ctypes.c_int.in_dll(loader, "failure").value = 0
    assert loader.ready(1) == 0 and (value("inits"), value("loads")) == (3, 1)


def test_threads_that_come_at_once_load_it_once(loader: ctypes.CDLL, value: Callable[[str], int]) -> None:
    together = threading.Barrier(16)
    found = []

    def launch() -> None:
        together.wait()
        found.append(loader.ready(2))

    threads = [threading.Thread(target=launch) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0] * 16 and (value("inits"), value("loads")) == (1, 1)
