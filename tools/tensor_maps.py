"""Compare the tensor maps and launches of Blackwell's block-scaled GEMMs with the call. The driver encodes the maps, if there is one.

    python tools/tensor_maps.py                            # all pairs, tiles and clusters of sm100a and sm120f
    python tools/tensor_maps.py --arch sm120f --jobs 16

The host side of each kernel is compiled by g++ alone, half a minute each, and its questions to cuTensorMapEncodeTiled are written down. A driver on a
Hopper GPU encodes maps of whole bytes and 16-bit floats, and refuses those of 4 and 6 bits. Where a driver refuses another, or where it and
`kernels/emulation/packed_map.h` disagree on a map of 4 or 6 bits, legal or broken, that is a difference. Exits with 1 where there is one, with 2 without
a compiler.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from math import prod
from pathlib import Path

from gemmill.build.errors import BuildError
from gemmill.build.toolchain import ToolchainPaths, find_toolchain
from gemmill.emit import emit
from gemmill.families.blockscaled.config import PairConfig
from gemmill.families.blockscaled.design import Sharing
from gemmill.families.blockscaled.selections import default
from gemmill.formats.layout import swizzled_shape
from gemmill.space.names import to_name
from gemmill.vocab import Arch, DType

ROOT = Path(__file__).resolve().parents[1]
SM_COUNT, MOST_MAPS = 148, 16
ROLES = ("a", "b", "a_sf", "b_sf", "alpha", "bias", "d")
ADDRESSES = {name: 4096 * (i + 1) for i, name in enumerate(ROLES)}
BYTES, HALVES = 0, {DType.F16: 6, DType.BF16: 9}
PACKED, SPREAD = {4: 13}, {4: 14, 6: 15}
"""Numbers of CUtensorMapDataType: whole bytes and 16-bit floats; by their bits packed codes, and codes that TMA spreads to bytes in shared memory."""
PACKED_TYPES = {*PACKED.values(), *SPREAD.values()}
CAPABILITY_MAJOR, BLACKWELL = 75, 10
"""The driver's number of the attribute, and its least value on Blackwell."""
SPANS = (16, 32, 64, 128, 128, 128, 128)
"""Bytes of a swizzled row, by the number of CUtensorMapSwizzle."""
TAIL = """}}
#include "tensor_maps.cuh"
extern "C" int describe(gemmill_blockscaled_args const* x, gemmill_launch const* how, Map* maps, int room, Launched* shape) {{
  return describe<{name}::Kernel, {name}::Alpha, {name}::Bias>(*x, *how, maps, room, shape);
}}
"""


class Arguments(ctypes.Structure):
    """Mirrors gemmill_blockscaled_args."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ROLES),
        *((name, ctypes.c_int64) for name in ("lda", "ldb", "ldd")),
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "splits")),
    ]


class Launch(ctypes.Structure):
    """Mirrors gemmill_launch."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("stream", "workspace")),
        *((name, ctypes.c_int32) for name in ("device", "sm_count", "programmatic_launch", "constant_weights")),
    ]


class Map(ctypes.Structure):
    """Mirrors tensor_maps.cuh."""

    _fields_ = [
        ("address", ctypes.c_uint64),
        *((name, ctypes.c_uint64 * 5) for name in ("dims", "strides")),
        *((name, ctypes.c_uint32 * 5) for name in ("box", "element_strides")),
        *((name, ctypes.c_int32) for name in ("type", "rank", "interleave", "swizzle", "fill", "driver", "emulated")),
    ]


class Launched(ctypes.Structure):
    """Mirrors tensor_maps.cuh."""

    _fields_ = [
        *((name, ctypes.c_int32 * 3) for name in ("grid", "block", "cluster")),
        ("shared_bytes", ctypes.c_int32),
    ]


def configs_of(arch: Arch) -> list[PairConfig]:
    """One config of each pair, tile, cluster and way of sharing: results of 16 bits have the same maps but for their type."""
    return [c for c in default(arch) if isinstance(c, PairConfig) and c.out_dtype is DType.BF16]


def compiled(config: PairConfig, folder: Path, toolchain: ToolchainPaths) -> ctypes.CDLL:
    """The library of a kernel's host side. Raises BuildError where it does not compile."""
    name = to_name(config)
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(emit(config).text.partition('extern "C" __global__')[0] + TAIL.format(name=name))
    macros = [f"CUTLASS_ARCH_MMA_{arch}_SUPPORTED=1" for arch in ("SM90", "SM100", "SM120")]
    command = [
        *(toolchain.gxx, "-std=c++17", "-O0", "-w", "-fpermissive", "-fPIC", "-shared", "-Wl,-Bsymbolic"),
        *(f"-D{macro}" for macro in (*macros, "CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL=1")),
        *(f"-I{ROOT / folder}" for folder in ("kernels", "tools")),
        *(f"-isystem{path}" for path in (toolchain.cutlass_include, *toolchain.include_dirs)),
        *(
            "-include",
            ROOT / "tools/tensor_map_words.h",
            source,
            "-o",
            library,
            toolchain.cudart_static,
            "-ldl",
            "-lrt",
            "-lpthread",
        ),
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{name} does not compile: {done.stderr[:2000]}")
    return ctypes.CDLL(str(library))


class Encoded(StrEnum):
    """The maps that a machine's driver encodes."""

    NONE = "not encoded: no driver"
    BYTES = "encoded by the driver; those of 4 and 6 bits compared alone, for it refuses them on a GPU before Blackwell"
    ALL = "encoded by the driver"


def give_driver(library: ctypes.CDLL) -> Encoded:
    """Let the driver of this machine encode the maps."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Encoded.NONE
    context = ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or driver.cuCtxSetCurrent(context):
        return Encoded.NONE
    library.ask_driver(ctypes.cast(driver.cuTensorMapEncodeTiled, ctypes.c_void_p))
    major = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(major), CAPABILITY_MAJOR, 0)
    return Encoded.ALL if major.value >= BLACKWELL else Encoded.BYTES


def described(
    config: PairConfig, library: ctypes.CDLL, m: int, n: int, k: int
) -> tuple[Arguments, dict[str, Map], Launched]:
    """A call with rows further apart than they are long, the maps of its operands, and its launch."""
    pair = config.pair
    assert pair.a_format is not None
    a_bytes, b_bytes = (k * format.code.bits // 8 for format in (pair.a_format, pair.b_format))
    call = Arguments(**ADDRESSES, lda=a_bytes + 96, ldb=b_bytes + 96, ldd=n + 8, m=m, n=n, k=k, splits=1)
    maps, launched = (Map * MOST_MAPS)(), Launched()
    how = Launch(device=0, sm_count=SM_COUNT)
    count = library.describe(ctypes.byref(call), ctypes.byref(how), maps, MOST_MAPS, ctypes.byref(launched))
    roles = {address: role for role, address in ADDRESSES.items()}
    return call, {roles[x.address]: x for x in maps[:count] if x.address in roles}, launched


def differences(
    config: PairConfig, library: ctypes.CDLL, m: int, n: int, k: int, encoded: Encoded = Encoded.ALL
) -> Iterator[str]:
    """Each way in which maps and launch are not those of the call D[m, n] = A[m, k] B[n, k]."""
    call, maps, launched = described(config, library, m, n, k)
    wanted = {"a", "b", "a_sf", "b_sf", "d"}
    if set(maps) != wanted:
        yield f"maps of {', '.join(sorted(maps))}, expected those of {', '.join(sorted(wanted))}"
        return
    pair, (tile_m, tile_n, tile_k) = config.pair, config.design.tile_shape_mnk
    assert pair.a_format is not None
    for role, rows, stride, bits, tile in (
        ("a", m, call.lda, pair.a_format.code.bits, tile_m),
        ("b", n, call.ldb, pair.b_format.code.bits, tile_n),
    ):
        type_ = BYTES if bits == 8 else (SPREAD if config.mixes else PACKED)[bits]
        stored = 8 if config.mixes else bits
        yield from _of_rows(role, maps[role], (type_, k, rows, stride), (tile_k, tile, stored))
    yield from _of_rows("d", maps["d"], (HALVES[config.out_dtype], n, m, 2 * call.ldd), (tile_n, tile_m, 16))
    groups = -(-k // pair.b_format.group)
    for role, rows, tile in (("a_sf", m, tile_m), ("b_sf", n, tile_n)):
        yield from _of_scales(
            role, maps[role], prod(swizzled_shape(rows, groups)), max(tile, 128) * tile_k // pair.b_format.group
        )
    for role, one in maps.items():
        if one.driver and not (encoded is Encoded.BYTES and one.type in PACKED_TYPES):
            yield f"{role}: the driver refuses it with {one.driver}"
        if one.emulated > 0:
            yield f"{role}: packed_map.h refuses it with {one.emulated}"
    yield from _of_launch(config, launched, m, n)


def _of_rows(role: str, one: Map, call: tuple[int, int, int, int], tile: tuple[int, int, int]) -> Iterator[str]:
    type_, columns, rows, stride = call
    if one.type != type_:
        yield f"{role}: elements of type {one.type}, expected {type_}"
    dims, strides, box = one.dims[: one.rank], one.strides[: one.rank - 1], one.box[: one.rank]
    if dims[:2] != [columns, rows] or prod(dims[2:]) != 1:
        yield f"{role}: extents {dims}, expected {columns} columns and {rows} rows"
    if strides[0] != stride:
        yield f"{role}: rows {strides[0]} bytes apart, expected {stride}"
    tile_columns, tile_rows, bits = tile
    if tile_columns % box[0] or tile_rows % box[1] or prod(box[2:]) != 1:
        yield f"{role}: boxes {box} do not make tiles of {tile_rows} rows and {tile_columns} columns"
    if one.swizzle and box[0] * bits // 8 > SPANS[one.swizzle]:
        yield f"{role}: {box[0]} columns of {bits} bits do not fit {SPANS[one.swizzle]} swizzled bytes"
    yield from _of_any(role, one)


def _of_scales(role: str, one: Map, count: int, of_tile: int) -> Iterator[str]:
    size = {0: 1, 1: 2, 2: 4, 4: 8}.get(one.type, 0)
    dims, box = one.dims[: one.rank], one.box[: one.rank]
    if size * prod(dims) != count:
        yield f"{role}: {size} x {dims} bytes, expected {count} scales"
    if not size * prod(box) or of_tile % (size * prod(box)):
        yield f"{role}: boxes of {size} x {box} bytes do not make the {of_tile} scales of a tile"
    yield from _of_any(role, one)


def _of_any(role: str, one: Map) -> Iterator[str]:
    found = (set(one.element_strides[: one.rank]), one.interleave, one.fill)
    if found != ({1}, 0, 0):
        yield f"{role}: element strides, interleaving and filling {found}, expected steps of 1, none, zeros"


def _of_launch(config: PairConfig, launched: Launched, m: int, n: int) -> Iterator[str]:
    cluster, grid = list(launched.cluster), list(launched.grid)
    if cluster != list(config.design.cluster_shape_mnk):
        yield f"clusters of {cluster}, expected {config.design.cluster_shape_mnk}"
    if any(x % y for x, y in zip(grid, cluster, strict=True)):
        yield f"a grid of {grid} is no whole number of clusters of {cluster}"
    if launched.shared_bytes > config.arch.shared_memory_bytes:
        yield f"{launched.shared_bytes} bytes of shared memory, a CTA has {config.arch.shared_memory_bytes}"
    tile_m, tile_n = config.design.tile_mn
    tiles = -(-m // tile_m) * -(-n // tile_n) * (2 if config.design.sharing is Sharing.TWO_SM else 1)
    if prod(grid) < tiles:
        yield f"{prod(grid)} CTAs for {tiles} tiles: each is asked for by a CTA of its own"


def broken_maps(config: PairConfig, library: ctypes.CDLL) -> Iterator[str]:
    """Where the driver and packed_map.h disagree on maps of 4 and 6 bits that a slip broke."""
    _, maps, _ = described(config, library, 256, 256, 512)
    for role in ("a", "b"):
        if maps[role].emulated < 0:
            continue
        for field, at, value in (
            ("dims", 0, 448), ("dims", 0, 511), ("strides", 0, 272), ("strides", 0, 264), ("box", 0, 96), ("box", 0, 48),
            ("box", 1, 512), ("element_strides", 0, 2),
        ):  # fmt: skip
            one = Map.from_buffer_copy(maps[role])
            getattr(one, field)[at] = value
            library.encode(ctypes.byref(one))
            if bool(one.driver) != bool(one.emulated):
                yield f"{role}: {field}[{at}] = {value}: the driver says {one.driver}, packed_map.h {one.emulated}"


def least_k(config: PairConfig) -> int:
    """Of which K is a multiple where rows of codes begin at multiples of 16 bytes, of spread ones of 32."""
    assert config.pair.a_format is not None
    bits = min(config.pair.a_format.code.bits, config.pair.b_format.code.bits)
    return max(config.k_multiple, config.pair.b_format.group, 256 // bits)


def looked_at(config: PairConfig, library: ctypes.CDLL, encoded: Encoded) -> list[str]:
    """The differences of some calls of a kernel."""
    step = least_k(config)
    calls = ((300, 264, 4 * step), (1, 8, step), (4096, 7168, 16 * step))
    found = [
        f"M, N, K = {m}, {n}, {k}: {told}"
        for m, n, k in calls
        for told in differences(config, library, m, n, k, encoded)
    ]
    return found + (list(broken_maps(config, library)) if encoded is Encoded.ALL else [])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", type=Arch, choices=(Arch.SM100A, Arch.SM120F), action="append")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    configs = [config for arch in options.arch or (Arch.SM100A, Arch.SM120F) for config in configs_of(arch)]
    wrong, encoded = 0, Encoded.NONE
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        try:
            toolchain = find_toolchain()
            libraries = list(pool.map(lambda config: compiled(config, Path(folder), toolchain), configs))
        except BuildError as error:
            print(error, file=sys.stderr)
            return 2
        for config, library in zip(configs, libraries, strict=True):
            encoded = give_driver(library)
            found = looked_at(config, library, encoded)
            wrong += bool(found)
            print(to_name(config), *(found or ["ok"]), sep="\n  ", flush=True)
    print(f"{len(configs)} kernels, {wrong} with differences; maps {encoded}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
