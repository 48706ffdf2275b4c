"""The host side of Blackwell's kernels, compiled and run without a GPU: arguments, strides, layouts of scales, CUTLASS's own verdict on a
call, and workspaces. Tensor maps need the driver's encoder, and are not here."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from compile.binding.structs import struct_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.emit.render import emit
from gemmill.families.blockscaled.config import PairConfig
from gemmill.families.blockscaled.pairs import (
    CODE_PAIRS,
    Pair,
)
from gemmill.families.blockscaled.selections import default
from gemmill.formats.layout import swizzled_offset, swizzled_shape
from gemmill.space.names import to_name
from gemmill.vocab import Arch

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[4]
SM_COUNT = 148
ARCHES = ("SM90", "SM100", "SM120")
"""Whose collectives CUTLASS declares; by itself it asks nvcc's version."""
ADDRESSES = {name: 4096 * (i + 1) for i, name in enumerate(("a", "b", "a_sf", "b_sf", "alpha", "bias", "d"))}
LOOK = """}}
#include "pair_host.cuh"
extern "C" void look_{name}(gemmill_blockscaled_args const* x, gemmill_launch const* how, Found* found, int64_t* offsets) {{
  look<{name}::Kernel, {name}::Alpha, {name}::Bias>(*x, *how, found, offsets);
}}
"""


Arguments, Launch = struct_of("blockscaled/abi.h"), struct_of("core/abi.h", "gemmill_launch")


class Found(ctypes.Structure):
    """Mirrors pair_host.cuh."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("verdict", "group")),
        *((name, ctypes.c_int64) for name in ("workspace", "lda", "ldb", "ldd", "scales_a", "scales_b")),
        *((name, ctypes.c_void_p) for name in ("a", "b", "a_sf", "b_sf", "alpha", "bias", "d")),
        ("alpha_of_none", ctypes.c_float),
    ]


def configs_of(arch: Arch) -> dict[str, PairConfig]:
    """Of each pair the first, and the last where two multiprocessors share a tile."""
    of_pairs = {pair: [c for c in default(arch) if isinstance(c, PairConfig) and c.pair is pair] for pair in CODE_PAIRS}
    chosen = {pair: found[0] for pair, found in of_pairs.items()}
    return {to_name(c): c for c in (*chosen.values(), of_pairs[Pair.NVFP4][-1])}


@pytest.fixture(scope="module", params=[Arch.SM100A, Arch.SM120F], ids=str)
def host(
    request: pytest.FixtureRequest, toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ctypes.CDLL, dict[str, PairConfig]]:
    """The declared types of kernels, without the kernels, by the host compiler alone: words of device code stand for themselves."""
    folder, configs = tmp_path_factory.mktemp("pairs"), configs_of(request.param)
    source, library = folder / "pairs.cpp", folder / "pairs.so"
    texts = (emit(c).text.partition('extern "C" __global__')[0] + LOOK.format(name=name) for name, c in configs.items())
    source.write_text("".join(texts))
    includes = [f"-isystem{path}" for path in (toolchain.cutlass_include, *toolchain.include_dirs)]
    flags = [
        "-std=c++17",
        "-O0",
        "-w",
        "-fpermissive",
        "-fPIC",
        "-shared",
        *(f"-DCUTLASS_ARCH_MMA_{arch}_SUPPORTED=1" for arch in ARCHES),
    ]
    command = [
        toolchain.gxx,
        *flags,
        f"-I{ROOT / 'kernels'}",
        f"-I{HERE}",
        *includes,
        "-include",
        "device_words.h",
        source,
    ]
    command += ["-o", library, toolchain.cudart_static, "-ldl", "-lrt", "-lpthread"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library)), configs


def look(
    library: ctypes.CDLL,
    name: str,
    config: PairConfig,
    m: int,
    n: int,
    k: int,
    offsets: ctypes.Array | None = None,
    **given: int,
) -> Found:
    """The host's arguments for a call. Into `offsets` it writes where it has the scales of A, then of B."""
    a_format, b_format = config.pair.a_format, config.pair.b_format
    assert a_format is not None
    strides = {"lda": k * a_format.code.bits // 8, "ldb": k * b_format.code.bits // 8, "ldd": n}
    x = Arguments(m=m, n=n, k=k, splits=1, **(ADDRESSES | strides | given))
    found, how = Found(), Launch(device=0, sm_count=SM_COUNT)
    getattr(library, f"look_{name}")(ctypes.byref(x), ctypes.byref(how), ctypes.byref(found), offsets)
    return found


def least_k(config: PairConfig) -> int:
    """Of which K is a multiple where rows of codes begin at multiples of 16 bytes."""
    assert config.pair.a_format is not None
    bits = min(config.pair.a_format.code.bits, config.pair.b_format.code.bits)
    return max(config.k_multiple, config.pair.b_format.group, 128 // bits)


def test_arguments_are_the_calls(host: tuple[ctypes.CDLL, dict[str, PairConfig]]) -> None:
    library, configs = host
    for name, config in configs.items():
        k = 2 * least_k(config)
        found = look(library, name, config, 3, 24, k, ldd=40)
        assert {field: getattr(found, field) for field in ADDRESSES} == ADDRESSES
        assert (found.lda, found.ldb, found.ldd) == (k, k, 40), "strides are in codes"
        assert found.group == config.pair.b_format.group
        absent = look(library, name, config, 3, 24, k, alpha=0, bias=0)
        assert absent.alpha is None and absent.alpha_of_none == 1.0 and absent.bias is None


def test_scales_lie_where_they_are_swizzled_to(host: tuple[ctypes.CDLL, dict[str, PairConfig]]) -> None:
    library, configs = host
    for name, config in configs.items():
        for m, n, multiple in ((1, 8, 1), (129, 136, 3), (300, 256, 5)):
            k = multiple * least_k(config)
            groups = k // config.pair.b_format.group
            offsets = (ctypes.c_int64 * ((m + n) * groups))()
            found = look(library, name, config, m, n, k, offsets)
            wanted = [swizzled_offset(row, i, groups) for rows in (m, n) for row in range(rows) for i in range(groups)]
            assert list(offsets) == wanted, (name, m, n, k)
            sizes = [rows * scales for rows, scales in (swizzled_shape(m, groups), swizzled_shape(n, groups))]
            assert [found.scales_a, found.scales_b] == sizes, (name, m, n, k)


def test_cutlass_takes_what_we_take(host: tuple[ctypes.CDLL, dict[str, PairConfig]]) -> None:
    """N a multiple of 8, K of the units of loads and groups; not half of either."""
    library, configs = host
    for name, config in configs.items():
        k = least_k(config)
        for m, n, multiple in ((1, 8, 1), (127, 136, 3), (4096, 8192, 64)):
            assert look(library, name, config, m, n, multiple * k).verdict == 0, (name, m, n, multiple * k)
        assert look(library, name, config, 16, 4, k).verdict != 0, name
        if k // 2 % config.pair.b_format.group == 0:
            assert look(library, name, config, 16, 16, k // 2).verdict != 0, name


def test_workspaces_are_small(host: tuple[ctypes.CDLL, dict[str, PairConfig]]) -> None:
    """No operand is written out in full."""
    library, configs = host
    for name, config in configs.items():
        sizes = [look(library, name, config, m, 8192, 64 * least_k(config)).workspace for m in (1, 4096)]
        assert all(0 <= size <= 1 << 16 for size in sizes), (name, sizes)
