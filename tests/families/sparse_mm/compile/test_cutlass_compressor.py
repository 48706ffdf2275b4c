"""Kept values and metadata against CUTLASS's own compressor, compiled for the host."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from gemmill.build.toolchain import ToolchainPaths
from gemmill.formats.two_to_four import compress, decompress, kept_columns, meta_shape

_SOURCE = Path(__file__).parent / "cutlass_compressor.cpp"
_KINDS = {torch.float8_e4m3fn: "8", torch.int8: "i", torch.bfloat16: "b", torch.float16: "h"}
_POISON = 0xA5


@pytest.fixture(scope="module")
def cutlass(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("cutlass") / "compressor.so"
    includes = [f"-isystem{folder}" for folder in (toolchain.cutlass_include, *toolchain.include_dirs)]
    command = [toolchain.gxx, "-std=c++17", "-O1", "-w", "-fPIC", "-shared", *includes, _SOURCE, "-o", library]
    subprocess.run([*map(str, command), "-lpthread"], check=True)
    return ctypes.CDLL(str(library))


def sparse(n: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    """Two of four at any places, in groups of which some have fewer, with zeros of both signs."""
    g = torch.Generator().manual_seed(n * k)
    x = torch.randint(1, 100, (n, k // 4, 4), generator=g).float()
    x *= torch.randint(0, 2, x.shape, generator=g) * 2 - 1
    lost = torch.rand(x.shape, generator=g).argsort(dim=-1) >= 2
    lost |= torch.rand(x.shape, generator=g) < 0.3
    zeros = (torch.randint(0, 2, x.shape, generator=g) * 2 - 1) * 0.0
    return torch.where(lost, zeros, x).flatten(1).to(dtype)


@pytest.mark.parametrize("dtype", _KINDS, ids=_KINDS.values())
@pytest.mark.parametrize(("n", "k"), [(1, 64), (8, 128), (64, 256), (70, 416), (130, 160)])
def test_bytes_are_those_of_cutlass(cutlass: ctypes.CDLL, dtype: torch.dtype, n: int, k: int) -> None:
    x = sparse(n, k, dtype)
    wanted_values = torch.zeros(n, kept_columns(k, x.element_size()), dtype=dtype)
    wanted_meta = torch.full(meta_shape(n, k), _POISON, dtype=torch.uint8)
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, wanted_values, wanted_meta))
    a, values_at, meta_at = pointers
    cutlass.cutlass_compress(ctypes.c_char(_KINDS[dtype].encode()), a, n, k, ctypes.c_int64(k), values_at, meta_at)
    values, meta = compress(x)
    bits = torch.uint8 if x.element_size() == 1 else torch.int16
    assert torch.equal(meta, wanted_meta)
    assert torch.equal(values.view(bits), wanted_values.view(bits))
    assert torch.equal(decompress(wanted_values, wanted_meta, k).float(), x.float())
