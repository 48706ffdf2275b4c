"""Checks and times kernels/blockscaled/fp4_weight_mm.cuh, which no build has yet.

    python tools/time_fp4_weights.py build fp4_weights.so                     # needs the toolchain, no GPU
    python tools/time_fp4_weights.py run fp4_weights.so --out times.json      # needs torch and a Hopper GPU, no toolchain

`run` first holds every instance against the reference, bit for bit: rows of the identity, which read single weights, and
small integers, whose sums are exact in f32 in any order. Then it times all instances that give 90 to 300 CTAs, by
gemmill.tune's timer, over weights that together are larger than the L2 cache. docs/notes/fp4_weights.md has what came out.
"""

import argparse
import ctypes
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from gemmill.families.blockscaled.reference import weight_mm
from gemmill.formats.codes import pack
from gemmill.formats.quantise import BlockScaled
from gemmill.quantize.fp4_blocks import Fp4Blocks, to_blocks
from gemmill.quantize.prepack import prepack
from gemmill.tune.timing import Graph
from gemmill.vocab.format import MXFP4, NVFP4, Format

SHAPES = ((8192, 8192), (4096, 14336), (28672, 4096))
"""N x K of the goals."""
ROWS = (1, 16, 32, 64, 128, 256)
SPLITS = (1, 2, 4)
CALLS, ROUNDS = 40, 5
L2_BYTES = 200_000_000
"""Rotated weights are at least so large."""
FORMATS = {"NvFp4": NVFP4, "MxFp4": MXFP4}


class Call(ctypes.Structure):
    """`Call` of time_fp4_weights.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tokens", "weights", "alpha", "base", "d")),
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "blocks", "splits", "constant_weights")),
    ]


class Entry(ctypes.Structure):
    """`Instance` of time_fp4_weights.cu."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("format", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in ("rows", "tile_k", "tile_m")),
        ("launch", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call), ctypes.c_void_p)),
    ]


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A compiled instance of the kernel."""

    name: str
    """Format, row groups, K groups, blocks of each in a stage, tokens, stages."""
    format: Format
    rows: int
    """Of weights in a tile."""
    tile_k: int
    """Columns of a stage."""
    tile_m: int
    """Tokens of a tile."""
    launch: Callable[[object, int], int]

    def ctas(self, m: int, n: int, splits: int) -> int:
        """Of a call."""
        return -(-n // self.rows) * -(-m // self.tile_m) * splits

    def __call__(self, tokens: Tensor, weights: Fp4Blocks, alpha: Tensor, d: Tensor, *, splits: int) -> None:
        """d [M, N] = alpha * tokens [M, K] times weights [N, K], on the current stream. Raises RuntimeError."""
        call = Call(
            tokens=tokens.data_ptr(),
            weights=weights.blocks.data_ptr(),
            alpha=alpha.data_ptr(),
            base=weights.base.data_ptr(),
            d=d.data_ptr(),
            m=tokens.shape[0],
            n=weights.n,
            k=weights.k,
            blocks=weights.blocks.shape[1],
            splits=splits,
            constant_weights=1,
        )
        if status := self.launch(ctypes.byref(call), torch.cuda.current_stream().cuda_stream):
            raise RuntimeError(f"{self.name} returned CUDA error {status}")


def build(library: Path) -> None:
    """Compile the instances."""
    from gemmill.build.toolchain import find_toolchain  # not where there is only a GPU

    toolchain = find_toolchain()
    kernels = Path(__file__).parents[1] / "kernels"
    includes = [f"-isystem={folder}" for folder in (toolchain.cutlass_include, *toolchain.include_dirs)]
    flags = ["-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "--expt-relaxed-constexpr", "-DNDEBUG"]
    link = ["-shared", "-Xcompiler=-fPIC", "-cudart=static", *(f"-L{folder}" for folder in toolchain.lib_dirs)]
    source = Path(__file__).with_suffix(".cu")
    subprocess.run([toolchain.nvcc, *flags, f"-I{kernels}", *includes, *link, source, "-o", library], check=True)


def instances(library: Path) -> list[Instance]:
    """Of a compiled library."""
    table = ctypes.CDLL(str(library.resolve())).instances
    table.restype = ctypes.POINTER(Entry)
    count = ctypes.c_int32()
    entries = table(ctypes.byref(count))
    return [
        Instance(
            name=entry.name.decode(),
            format=FORMATS[entry.format.decode()],
            **{name: getattr(entry, name) for name in ("rows", "tile_k", "tile_m", "launch")},
        )
        for entry in entries[: count.value]
    ]


def random_weights(n: int, k: int, format: Format, scales: tuple[int, int]) -> BlockScaled:
    """All codes, and scale bytes from the first to before the last, on the GPU."""
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device="cuda")
    drawn = torch.randint(*scales, (n, k // format.group), dtype=torch.uint8, device="cuda")
    return BlockScaled(format=format, codes=pack(codes, 4), scales=drawn)


def packed(weights: BlockScaled, k_multiple: int) -> Fp4Blocks:
    """As the kernel reads them."""
    return to_blocks(prepack(weights, for_op="fp4_weight_mm"), k_multiple=k_multiple)


def checks(instance: Instance, m: int, n: int, k: int) -> Iterator[tuple[Tensor, BlockScaled]]:
    """Tokens and weights whose product is exact in f32."""
    nv = instance.format is NVFP4
    identity = torch.zeros(m, k, dtype=torch.bfloat16, device="cuda")
    identity[torch.arange(m), torch.randint(0, k, (m,))] = 1.0
    yield identity, random_weights(n, k, instance.format, (0, 127) if nv else (90, 150))
    integers = torch.randint(-4, 5, (m, k), device="cuda").bfloat16()
    weights = random_weights(n, k, instance.format, (6, 9) if nv else (126, 129))
    if nv:
        weights.scales.mul_(8)  # powers of two: 2^-1 to 2^1
    yield integers, weights


def check(instance: Instance) -> None:
    """Raises RuntimeError where an instance is not the reference."""
    alpha, tile = torch.ones(1, device="cuda"), instance.tile_m
    shapes = [(tile, 512, 1024, 2), (max(tile - 3, 1), 320, 1568, 1), (2 * tile + 1, 448, 4096, 4)]
    for m, n, k, splits in shapes:
        for tokens, weights in checks(instance, m, n, k):
            d = torch.full((m, n), torch.nan, dtype=torch.bfloat16, device="cuda")
            instance(tokens, packed(weights, instance.tile_k), alpha, d, splits=splits)
            wanted = weight_mm(tokens, weights)
            if not torch.equal(d, wanted):
                wrong = int((d != wanted).sum())
                raise RuntimeError(f"{instance.name}: {wrong} of {m} x {n} are wrong at K = {k} with {splits} splits")
    print(f"{instance.name}: equals the reference", flush=True)


def candidates(known: Sequence[Instance], format: Format, m: int, n: int) -> list[tuple[Instance, int]]:
    """Instances whose tile suits so many rows, and how often to split K."""
    return [
        (instance, splits)
        for instance, splits in product(known, SPLITS)
        if instance.format is format
        and min(m, 64) <= instance.tile_m <= max(16, 2 * m)
        and 90 <= instance.ctas(m, n, splits) <= 300
    ]


def time_all(known: Sequence[Instance]) -> Iterator[dict[str, object]]:
    """A record of each instance, shape and number of splits."""
    alpha = torch.ones(1, device="cuda")
    for format, (n, k) in product((NVFP4, MXFP4), SHAPES):
        copies = max(3, -(-L2_BYTES // (n * k * 9 // 16)))
        scales = (48, 80) if format is NVFP4 else (120, 130)
        drawn = [random_weights(n, k, format, scales) for _ in range(copies)]
        of_stage = {
            tile_k: [packed(weights, tile_k) for weights in drawn] for tile_k in {instance.tile_k for instance in known}
        }
        for m in ROWS:
            tokens = torch.randn(m, k, device="cuda").bfloat16()
            d = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
            for instance, splits in candidates(known, format, m, n):
                calls = [
                    partial(instance, tokens, weights, alpha, d, splits=splits) for weights in of_stage[instance.tile_k]
                ]
                graph = Graph(calls, CALLS)
                us = sorted(graph.round() for _ in range(ROUNDS))[ROUNDS // 2]
                graph.close()
                yield {
                    "format": str(format),
                    "m": m,
                    "n": n,
                    "k": k,
                    "instance": instance.name,
                    "splits": splits,
                    "us": us,
                }


def run(library: Path, out: Path | None) -> None:
    """Check all instances, then time them and print the best of each shape."""
    known = instances(library)
    for instance in known:
        check(instance)
    records = list(time_all(known))
    if out is not None:
        out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "times": records}, indent=1) + "\n")
    shapes = {(record["format"], record["m"], record["n"], record["k"]) for record in records}
    for format, m, n, k in sorted(shapes, key=str):
        of_shape = [r for r in records if (r["format"], r["m"], r["n"], r["k"]) == (format, m, n, k)]
        best = min(of_shape, key=lambda record: record["us"])
        print(f"{format} {m} x {n} x {k}: {best['us']:.1f} us, {best['instance']}, {best['splits']} splits")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("build", "run"):
        verbs.add_parser(verb).add_argument("library", type=Path)
    verbs.choices["run"].add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "build":
        build(arguments.library)
    else:
        run(arguments.library, arguments.out)


if __name__ == "__main__":
    main()
