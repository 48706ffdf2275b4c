"""The kernel bodies compile for sm90a without spilling; they have never run."""

import re
import subprocess
from pathlib import Path

import pytest

from gemmill.build.errors import BuildError
from gemmill.build.toolchain import find_toolchain

KERNELS = Path(__file__).parents[3] / "kernels"
SOURCES = {
    "hadamard_128": (
        """
        template __global__ void hadamard_128<__nv_bfloat16>(Hadamard128Args const);
        template __global__ void hadamard_128<__half>(Hadamard128Args const);
        """,
        {"HMMA": 16, "LDG.E.EF.128": 8, "STG.E.EF.128": 8},
    ),
    "decode_attention_4bit": (
        """
        template __global__ void decode_attention_4bit<16>(__grid_constant__ DecodeArgs const);
        template __global__ void decode_attention_4bit<128>(__grid_constant__ DecodeArgs const);
        """,
        {"HMMA": 64, "UBLKCP": 2, "PRMT": 2 * 96},
    ),
}
"""Instantiations, and how often machine instructions have to be found at least."""


@pytest.mark.compile
@pytest.mark.parametrize("name", SOURCES)
def test_a_body_compiles_without_spills(name: str, tmp_path: Path) -> None:
    try:
        toolchain = find_toolchain()
    except BuildError as error:
        pytest.skip(str(error))
    instances, instructions = SOURCES[name]
    source, binary = tmp_path / "body.cu", tmp_path / "body.cubin"
    source.write_text(f'#include "kv_cache/{name}.cuh"\nnamespace gemmill::kv_cache {{{instances}}}\n')
    command = [
        toolchain.nvcc,
        "-std=c++20",
        "-arch=sm_90a",
        "-cubin",
        "-Xptxas=-v",
        "-I",
        KERNELS,
        source,
        "-o",
        binary,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spilled = re.findall(r"(\d+) bytes spill stores", done.stderr)
    assert len(spilled) >= 2
    assert set(spilled) == {"0"}
    assert "warning" not in done.stderr
    cuobjdump = toolchain.nvcc.parent / "cuobjdump"
    sass = subprocess.run([cuobjdump, "-sass", binary], capture_output=True, text=True, check=True).stdout
    for instruction, count in instructions.items():
        assert len(re.findall(rf"\b{re.escape(instruction)}\b", sass)) >= count, instruction
