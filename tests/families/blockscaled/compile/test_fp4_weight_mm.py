"""The kernel body of 4-bit weights compiles for sm90a as it was meant to."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from gemmill.build.toolchain import ToolchainPaths

ROOT = Path(__file__).parents[4]
INSTANCES = {
    "WarpgroupProducts, NvFp4, 2, 2, 2, 64, 4": 61,
    "WarpgroupProducts, NvFp4, 2, 1, 2, 256, 3": 61,
    "WarpgroupProducts, MxFp4, 2, 2, 1, 16, 8": 31,
    "WarpProducts, NvFp4, 2, 4, 1, 8, 5": 132,
    "WarpProducts, MxFp4, 4, 2, 1, 16, 5": 124,
}
"""Who multiplies, format, row groups, K groups, blocks of each in a stage, tokens, stages; and the most instructions of the logic
unit in a turn of the main loop, which limit the kernel. Less what a turn has of its own, a block has 28 of nvfp4 and 26 of
mxfp4 in a group of 128 threads, and four times as many in a warp."""
BOTH = (
    "WidenedFewMm, NvFp4Words, cutlass::bfloat16_t, 16, 4",
    "WidenedFewMm, MxFp4Words, cutlass::half_t, 8, 4",
    "WidenedManyMm, NvFp4Words, cutlass::bfloat16_t, 128, 256",
)
"""Instances with both operands of codes: format, type of the result, rows of A, warps or rows of B."""
LOGIC = ("LOP3", "SHF", "PRMT")


@pytest.fixture(scope="module")
def compiled(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """What ptxas said, and the SASS of each instance."""
    folder = tmp_path_factory.mktemp("fp4")
    source, binary = folder / "body.cu", folder / "body.cubin"
    source.write_text(
        '#include "blockscaled/fp4_weight_mm.cuh"\n#include "blockscaled/widened_many_mm.cuh"\nnamespace gemmill::blockscaled {\n'
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
    products, format, rows, groups, each, tile, stages = name.split(", ")
    of_products = f"{products}<{', '.join((format, str(int(groups) * int(each)), each, tile, stages))}>"
    return f"Fp4WeightMm<{of_products}, {rows}, {groups}>"


def _main_loop(sass: str) -> list[str]:
    """Instructions of the smallest loop that has all of the tensor core's."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", sass)]
    products = [at for at, text in code if re.search(r"\bH[G]?MMA\b", text)]
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
    sass, (products, _, _, _, each, tokens, _) = compiled[1][name], name.split(", ")
    assert not re.search(r"\b(LDL|STL)\b", sass)
    if products == "WarpProducts":
        assert len(re.findall(r"\bHMMA\.16816\.F32\.BF16\b", sass)) == 2 * int(tokens) * int(each)
        return
    products = re.findall(rf"\bHGMMA\.64x{tokens}x16\.F32\.BF16 R\d+, R\d+, gdesc", sass)
    assert len(products) == len(re.findall(r"\bHGMMA\b", sass)) == 4 * int(each)


@pytest.mark.parametrize("name", BOTH)
def test_both_operands_reach_the_tensor_core(compiled, name: str) -> None:
    sass, (body, _, _, rows, _) = compiled[1][name], name.split(", ")
    assert not re.search(r"\b(LDL|STL)\b", sass)
    product = r"\bHMMA\.16816\.F32\.BF16\b" if body == "WidenedFewMm" else r"\bHGMMA\.64x256x16\.F32\.BF16\b"
    assert len(re.findall(product, sass)) == (4 * int(rows) if body == "WidenedFewMm" else 4)


@pytest.mark.parametrize("name", INSTANCES)
def test_instructions_of_the_logic_unit(compiled, name: str) -> None:
    found = Counter(re.match(r"(?:@!?\w+ +)?(\w+)", text)[1] for text in _main_loop(compiled[1][name]))
    assert sum(found[kind] for kind in LOGIC) <= INSTANCES[name], found
    each = int(name.split(", ")[4]) * (4 if name.startswith("WarpP") else 1)
    assert found["HMUL2"] == 16 * each
    assert found["LDS"] == 2 * each
