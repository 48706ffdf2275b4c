"""Kernels of sm120f compiled for Hopper with emulated instructions, and inspected: nothing here runs a kernel."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.build.driver import build
from gemmill.build.options import BuildOptions, BuildResult
from gemmill.build.sass import architectures
from gemmill.build.toolchain import ToolchainPaths
from gemmill.manifest import ManifestError
from gemmill.manifest.reading import check_extension
from gemmill.runtime.builds import find_builds, newest
from gemmill.space.names import to_name
from gemmill.space.selections import select
from gemmill.vocab import Arch

KINDS = (
    "sm120f_blockscaled_nvfp4xnvfp4_bf16_t128x128x128_c1x1x1_cooperative",
    "sm120f_blockscaled_mxfp8xmxfp6_bf16_t128x128x128_c1x1x1_pingpong",
)
"""Block-scaled products of 4-bit codes, and of 8-bit and packed ones, whose maps and loads are emulated, too: a minute of nvcc each."""


@pytest.fixture(scope="module")
def emulated(inspected: Path) -> BuildResult:
    selection = select("default", Arch.SM120F)
    kinds = tuple(config for config in selection.configs if to_name(config) in KINDS)
    assert len(kinds) == len(KINDS)
    return build(replace(selection, configs=kinds), BuildOptions(home=inspected, emulate=True))


def test_one_kernel_of_each_kind(emulated: BuildResult, toolchain: ToolchainPaths) -> None:
    assert emulated.rejected == () and emulated.manifest.is_emulated
    extension = check_extension(emulated.manifest, emulated.folder)
    assert architectures(extension, toolchain.cuobjdump) == ("sm_90a",)
    for entry in emulated.manifest.entries:
        assert not {"QMMA", "OMMA", "QGMMA", "HMMA"} & entry.sass.keys(), f"a tensor core multiplies: {entry.sass}"
        assert entry.sass.get("UTMALDG", 0) >= 2 and entry.sass.get("UTMASTG", 0) >= 1, "TMA is the hardware's"


def test_it_does_not_serve(emulated: BuildResult, inspected: Path) -> None:
    assert emulated.folder in find_builds(inspected)
    with contextlib.suppress(ManifestError):  # no test has built another one yet
        assert newest("sm120f", inspected)[0] != emulated.folder
