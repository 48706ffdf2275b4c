"""The kernel bodies compile for sm90a as they were meant to."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from gemmill.build.toolchain import ToolchainPaths

ROOT = Path(__file__).parents[4]
INSTANCES = {
    "WarpgroupProducts, Fp4Block<NvFp4>, 2, 2, 2, 64, 4": 61,
    "WarpgroupProducts, Fp4Block<NvFp4>, 2, 1, 2, 256, 3": 61,
    "WarpgroupProducts, Fp4Block<MxFp4>, 2, 2, 1, 16, 8": 31,
    "WarpProducts, Fp4Block<NvFp4>, 2, 4, 1, 8, 5": 132,
    "WarpProducts, Fp4Block<MxFp4>, 4, 2, 1, 16, 5": 124,
    "WarpgroupProducts, FoldedBlock<MxFp4Folded>, 2, 2, 1, 64, 6": 72,
    "WarpgroupProducts, FoldedBlock<NvFp4Rounded>, 2, 1, 1, 256, 5": 79,
    "WarpProducts, FoldedHalf<MxFp4Folded>, 1, 4, 1, 8, 6": 218,
    "WarpProducts, FoldedHalf<NvFp4Rounded>, 1, 4, 1, 16, 6": 180,
}
"""Who multiplies, what of a block, row groups, K groups, parts of each in a stage, tokens, stages; and the most instructions of the logic
unit in a turn of the main loop, which limit the kernel. Less what a turn has of its own, a block of 64 x 64 has 28 of nvfp4 and 26 of
mxfp4 in a group of 128 threads, and four times as many in a warp."""
BOTH = (
    "SkinnyMm, PieceOfRow<NvFp4Words>, PieceOfRow<NvFp4Words>, Bf16, cutlass::bfloat16_t, 16, 4, Factors::OfTensor, 4",
    "SkinnyMm, PieceOfRow<MxFp4Words>, PieceOfRow<MxFp4Words>, Bf16, cutlass::half_t, 8, 4, Factors::OfTensor, 4",
    "SkinnyMm, InOrder<Plain>, InOrder<MxFp8Codes<BehindCodes>>, F16, cutlass::half_t, 16, 4, Factors::OfRows, 3",
    "SkinnyCpAsyncMm, NvFp4Piece<false>, NvFp4Piece<false>, cutlass::bfloat16_t, 16, 4, 2, Factors::OfTensor, 4",
    "SkinnyCpAsyncMm, Plain, MxFp8Piece<Bf16>, cutlass::bfloat16_t, 8, 4, 2, Factors::OfRows, 2",
    "SkinnyTmaMm, NvFp4Piece<true>, cutlass::half_t, 16, 4, 3, 1",
    "SkinnyTmaMm, MxFp4InOrder, cutlass::half_t, 8, 4, 2, 2",
    "SkinnyTmaMm, MxFp6Piece<Bf16>, cutlass::bfloat16_t, 16, 4, 2, 2",
    "SkinnyTmaMm, MxFp8Piece<Bf16>, cutlass::bfloat16_t, 32, 4, 3, 1",
    "PackedPersistentMm, WarpgroupProducts<Fp4Block<MxFp4>, 1, 1, 256, 5, false>, cutlass::bfloat16_t, 2, 1",
    "PackedPersistentMm, WarpgroupProducts<FoldedBlock<NvFp4Rounded>, 1, 1, 256, 5, false>, cutlass::bfloat16_t, 2, 1",
    "LargeMm, NvFp4Words, cutlass::bfloat16_t, 128, 256",
    "LargePrefetchMm, NvFp4Words, cutlass::bfloat16_t, 128, 128, 3",
)
"""Instances that widen codes of rows: operands, the type of the result, rows of A, warps or rows of B."""
LOGIC = ("LOP3", "SHF", "PRMT")


@pytest.fixture(scope="module")
def compiled(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """ptxas's messages, and the SASS of each instance."""
    folder = tmp_path_factory.mktemp("fp4")
    source, binary = folder / "body.cu", folder / "body.cubin"
    source.write_text(
        '#include "gemm/packed_mm.cuh"\n#include "blockscaled/few_rows/skinny_tma_mm.cuh"\n#include "blockscaled/packed/packed_persistent_mm.cuh"\n#include "blockscaled/many_rows/large_prefetch_mm.cuh"\nnamespace gemmill::blockscaled {\n'
        + "".join(
            f'using Kernel{i} = {_kernel(name)};\nextern "C" __global__ void __launch_bounds__(Kernel{i}::kThreads, Kernel{i}::kCtas)\n'
            f"entry{i}(__grid_constant__ Kernel{i}::Params const params) {{\n"
            f"  extern __shared__ char shared[];\n  Kernel{i}::run(params, shared);\n}}\n"
            for i, name in enumerate((*INSTANCES, *BOTH))
        )
        + "}\n"
    )
    includes = [f"-isystem={path}" for path in (toolchain.cutlass_include, *toolchain.include_dirs)]
    flags = ["-std=c++17", "-O3", "-arch=sm_90a", "--expt-relaxed-constexpr", "-DNDEBUG", "-cubin", "-Xptxas=-v"]
    command = [toolchain.nvcc, *flags, f"-I{ROOT / 'kernels'}", *includes, source, "-o", binary]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    listing = subprocess.run([toolchain.cuobjdump, "-sass", binary], capture_output=True, text=True, check=True).stdout
    _, *parts = re.split(r"Function : (\S+)", listing)
    code = dict(zip(parts[::2], parts[1::2], strict=True))
    return done.stderr, {name: code[f"entry{i}"] for i, name in enumerate((*INSTANCES, *BOTH))}


def _kernel(name: str) -> str:
    if name in BOTH:
        body, _, arguments = name.partition(", ")
        return f"{body}<{arguments}>"
    products, block, rows, groups, each, tile, stages = name.split(", ")
    of_products = f"{products}<{', '.join((block, str(int(groups) * int(each)), each, tile, stages))}, false>"
    return f"PackedMm<{of_products}, cutlass::bfloat16_t, {rows}, {groups}>"


def _main_loop(sass: str) -> list[str]:
    """Instructions of the smallest loop with all of the tensor core's."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", sass)]
    products = [at for at, text in code if re.search(r"\b[HQ]G?MMA\b", text)]
    back = [(at, int(found[1], 16)) for at, text in code if (found := re.search(r"BRA.* 0x([0-9a-f]+)", text))]
    loops = [(start, end) for end, start in back if start <= products[0] and end >= products[-1]]
    start, end = min(loops, key=lambda loop: loop[1] - loop[0])
    return [text for at, text in code if start <= at <= end]


def test_it_compiles_without_spills_and_products_overlap(compiled) -> None:
    said, _ = compiled
    assert re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said) == [("0", "0")] * len(
        (*INSTANCES, *BOTH)
    )
    assert "serialized" not in said
    assert "warning" not in said


@pytest.mark.parametrize("name", INSTANCES)
def test_weights_reach_the_tensor_core_from_registers(compiled, name: str) -> None:
    sass, (products, block, _, _, each, tokens, _) = compiled[1][name], name.split(", ")
    assert not re.search(r"\b(LDL|STL)\b", sass)
    if products == "WarpProducts":
        product = r"\bHMMA\.16816\.F32\.BF16\b" if block.startswith("Fp4") else r"\bHMMA\.16816\.F32 "
        assert len(re.findall(product, sass)) == 2 * int(tokens) * int(each)
        return
    product = "H{}x16.F32.BF16" if block.startswith("Fp4") else "Q{}x32.F32.E4M3.E4M3"
    product = re.escape(product.format(f"GMMA.64x{tokens}"))
    products = re.findall(rf"\b{product} R\d+, R\d+, gdesc", sass)
    assert len(products) == len(re.findall(r"\b[HQ]GMMA\b", sass)) == 4 * int(each)


@pytest.mark.parametrize("name", BOTH)
def test_rows_reach_the_tensor_core(compiled, name: str) -> None:
    sass = compiled[1][name]
    assert not re.search(r"\b(LDL|STL)\b", sass)
    if name.startswith("LargeMm"):
        assert len(re.findall(r"\bHGMMA\.64x256x16\.F32\.BF16\b", sass)) == 4
        return
    if name.startswith("LargePrefetch"):  # a turn for each of two sets of registers
        assert len(re.findall(r"\bHGMMA\.64x128x16\.F32 ", sass)) == 8
        return
    if name.startswith("PackedPersistentMm"):
        product = r"\bHGMMA\.64x256x16\.F32\.BF16\b" if "Fp4Block" in name else r"\bQGMMA\.64x256x32\.F32\.E4M3\.E4M3\b"
        assert len(re.findall(product, sass)) == 4
        return
    rows = int(re.search(r"_t, (\d+),", name)[1])
    halves = ", F16," in name or "NvFp4Piece" in name or name.startswith("SkinnyTmaMm, MxFp4")
    product = r"\bHMMA\.16816\.F32 " if halves else r"\bHMMA\.16816\.F32\.BF16\b"
    steps = 2 if name.startswith("SkinnyTma") and "Fp4" in name else 1  # of 128 columns
    assert len(re.findall(product, sass)) == 4 * rows * steps
    if name.startswith("SkinnyTma"):  # codes, scales, and boxes of 64 columns of A
        loads = len(re.findall(r"\bUTMALDG\.2D\b", sass))
        assert loads >= 2 * (2 + 2 * steps) and loads % (2 + 2 * steps) == 0, "those ahead may be unrolled"


@pytest.mark.parametrize("name", INSTANCES)
def test_instructions_of_the_logic_unit(compiled, name: str) -> None:
    found = Counter(re.match(r"(?:@!?\w+ +)?(\w+)", text)[1] for text in _main_loop(compiled[1][name]))
    assert sum(found[kind] for kind in LOGIC) <= INSTANCES[name], found
    if "Fp4Block" in name:
        each = int(name.split(", ")[4]) * (4 if name.startswith("WarpP") else 1)
        assert found["HMUL2"] == 16 * each
        assert found["LDS"] == 2 * each
