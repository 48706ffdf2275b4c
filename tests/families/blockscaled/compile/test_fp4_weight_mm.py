"""The kernel body of 4-bit weights compiles for sm90a as it was meant to."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from gemmill.build.toolchain import ToolchainPaths

ROOT = Path(__file__).parents[4]
INSTANCES = {
    "NvFp4, 2, 2, 2, 8, 4": 61,
    "NvFp4, 2, 2, 2, 64, 4": 61,
    "MxFp4, 2, 2, 1, 16, 8": 31,
}
"""Format, row groups, K groups, blocks of each in a stage, tokens, stages; and the most instructions of the logic unit in a turn
of the main loop, which limit the kernel. Less what a turn has of its own, a block has 28 of nvfp4 and 26 of mxfp4."""
LOGIC = ("LOP3", "SHF", "PRMT")


@pytest.fixture(scope="module")
def compiled(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """What ptxas said, and the SASS of each instance."""
    folder = tmp_path_factory.mktemp("fp4")
    source, binary = folder / "body.cu", folder / "body.cubin"
    source.write_text(
        '#include "blockscaled/fp4_weight_mm.cuh"\nnamespace gemmill::blockscaled {\n'
        "template <class Kernel> __global__ void __launch_bounds__(Kernel::kThreads, Kernel::kCtas)\n"
        "entry(__grid_constant__ typename Kernel::Params const params) {\n"
        "  extern __shared__ char shared[];\n  Kernel::run(params, shared);\n}\n"
        + "".join(
            f"template __global__ void entry<Fp4WeightMm<{name}>>(__grid_constant__ Fp4WeightMm<{name}>::Params const);\n"
            for name in INSTANCES
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
    return done.stderr, {name: _only(code, name) for name in INSTANCES}


def _only(code: dict[str, str], name: str) -> str:
    """The function of an instance, by its mangled arguments."""
    format, *sizes = name.split(", ")
    (function,) = [f for f in code if f"{len(format)}{format}E{''.join(f'Li{size}E' for size in sizes)}" in f]
    return code[function]


def _main_loop(sass: str) -> list[str]:
    """Instructions of the smallest loop that has all of the tensor core's."""
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", sass)]
    products = [at for at, text in code if "HGMMA" in text]
    back = [(at, int(found[1], 16)) for at, text in code if (found := re.search(r"BRA.* 0x([0-9a-f]+)", text))]
    loops = [(start, end) for end, start in back if start <= products[0] and end >= products[-1]]
    start, end = min(loops, key=lambda loop: loop[1] - loop[0])
    return [text for at, text in code if start <= at <= end]


def test_it_compiles_without_spills_and_products_overlap(compiled) -> None:
    said, _ = compiled
    assert re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said) == [("0", "0")] * len(INSTANCES)
    assert "serialized" not in said
    assert "warning" not in said


@pytest.mark.parametrize("name", INSTANCES)
def test_weights_reach_the_tensor_core_from_registers(compiled, name: str) -> None:
    sass, (_, _, _, each, tokens, _) = compiled[1][name], name.split(", ")
    products = re.findall(rf"\bHGMMA\.64x{tokens}x16\.F32\.BF16 R\d+, R\d+, gdesc", sass)
    assert len(products) == len(re.findall(r"\bHGMMA\b", sass)) == 4 * int(each)
    assert not re.search(r"\b(LDL|STL)\b", sass)


@pytest.mark.parametrize("name", INSTANCES)
def test_instructions_of_the_logic_unit(compiled, name: str) -> None:
    found = Counter(re.match(r"(?:@!?\w+ +)?(\w+)", text)[1] for text in _main_loop(compiled[1][name]))
    assert sum(found[kind] for kind in LOGIC) <= INSTANCES[name], found
    each = int(name.split(", ")[3])
    assert found["HMUL2"] == 16 * each
    assert found["LDS"] == 2 * each
