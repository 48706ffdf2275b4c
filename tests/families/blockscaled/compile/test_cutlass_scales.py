"""The scale layout and the codes against CUTLASS's layout function and CUDA's conversions, compiled for the host."""

import ctypes
import math
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from gemmill.build.toolchain import ToolchainPaths
from gemmill.formats.codes import encode
from gemmill.formats.layout import swizzled_offset, swizzled_shape
from gemmill.formats.quantise import quantise
from gemmill.vocab.float_type import E2M1, E2M3, E3M2, E4M3, E5M2, FloatType
from gemmill.vocab.format import MXFP4, MXFP8, Format, ScaleRounding

_SOURCE = Path(__file__).parent / "cutlass_scales.cpp"


@pytest.fixture(scope="module")
def cutlass(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("cutlass") / "scales.so"
    includes = [f"-isystem{folder}" for folder in (toolchain.cutlass_include, *toolchain.include_dirs)]
    command = [toolchain.gxx, "-std=c++17", "-O1", "-w", "-fPIC", "-shared", *includes, _SOURCE, "-o", library]
    subprocess.run(list(map(str, command)), check=True)
    return ctypes.CDLL(str(library))


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@pytest.mark.parametrize("of_b", [False, True], ids=["SFA", "SFB"])
@pytest.mark.parametrize("group", [16, 32])
def test_every_scale_lies_where_cutlass_has_it(cutlass: ctypes.CDLL, group: int, of_b: bool) -> None:
    for rows, groups in product((1, 31, 32, 33, 127, 128, 129, 257, 384), (1, 2, 3, 4, 5, 8, 11, 28)):
        found = torch.full((rows * groups + 1,), -1, dtype=torch.int64)
        cutlass.scale_offsets(group, of_b, rows, 77, groups * group, _pointer(found))
        wanted = [swizzled_offset(row, scale, groups) for row in range(rows) for scale in range(groups)]
        assert found[:-1].tolist() == wanted, (rows, groups)
        assert found[-1] == math.prod(swizzled_shape(rows, groups)), (rows, groups)


def _encoded(cutlass: ctypes.CDLL, kind: str, x: torch.Tensor) -> torch.Tensor:
    codes = torch.empty(x.numel(), dtype=torch.uint8)
    cutlass.encode_all(ctypes.c_char(kind.encode()), _pointer(x), ctypes.c_int64(x.numel()), _pointer(codes))
    return codes


def _numbers() -> torch.Tensor:
    """Every finite bf16, every middle of two neighbours, one f32 to either side of each; infinity and NaN."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    every = every[every.isfinite()]
    exact = torch.cat([every, every[1:] / 2 + every[:-1] / 2]).numpy()
    near = [np.nextafter(exact, np.float32(end)) for end in (-np.inf, np.inf)]
    return torch.cat([torch.from_numpy(np.concatenate([exact, *near])), torch.tensor([np.inf, -np.inf, np.nan])])


def _maxima(least: float) -> torch.Tensor:
    """Of groups: the finite numbers of _numbers from `least` on."""
    amax = _numbers().abs().unique()
    return amax[amax.isfinite() & (amax >= least)]


def _groups(amax: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(amax.unsqueeze(1), (0, 31))


@pytest.mark.parametrize(("kind", "letter"), [(E2M1, "4"), (E2M3, "3"), (E3M2, "6"), (E4M3, "8"), (E5M2, "5")], ids=str)
def test_codes_are_cudas(cutlass: ctypes.CDLL, kind: FloatType, letter: str) -> None:
    x = _numbers()
    assert torch.equal(encode(x, kind), _encoded(cutlass, letter, x))


@pytest.mark.parametrize("format", [MXFP4, MXFP8], ids=str)
def test_scales_rounded_up_are_cudas(cutlass: ctypes.CDLL, format: Format) -> None:
    """Where the quotient is a normal number, so that rounding it leads to no other power of two."""
    amax = _maxima(least=2.0**-126 * format.code.maximum)
    divided = amax / torch.full_like(amax, format.code.maximum)
    assert torch.equal(quantise(_groups(amax), format).scales.flatten(), _encoded(cutlass, "u", divided))


def test_scales_of_the_specification_are_cudas(cutlass: ctypes.CDLL) -> None:
    """2^(floor(log2 amax) - 2) is amax / 4 rounded towards zero to a power of two."""
    amax = _maxima(least=2.0**-124)
    found = quantise(_groups(amax), MXFP4, rounding=ScaleRounding.OCP).scales.flatten()
    assert torch.equal(found, _encoded(cutlass, "d", amax / 4))
