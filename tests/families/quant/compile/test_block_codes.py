"""The kernels' codes and scales of block-scaled formats, compiled for the host, against the definition; and their layout against
CUTLASS's own."""

import ctypes
import subprocess
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from gemmill.build.toolchain import ToolchainPaths
from gemmill.families.quant.reference import modulated
from gemmill.formats.codes import pack
from gemmill.formats.layout import swizzled_offset
from gemmill.formats.quantise import BlockScaled, dequantise, global_scale_of, quantise
from gemmill.formats.vllm_blocks import quantise_as_vllm
from gemmill.locations import kernels_dir
from gemmill.vocab.format import MXFP4, MXFP6, MXFP8, NVFP4, Format, ScaleRounding

HERE = Path(__file__).parent
LETTER = {NVFP4: "n", MXFP4: "4", MXFP6: "6", MXFP8: "8"}
IN = {torch.bfloat16: "b", torch.float16: "h", torch.float32: "f"}
VLLMS = {NVFP4: "N", MXFP4: "M"}
"""Formats that vLLM's kernels code in a way of their own. A rounding of None stands for theirs."""
ROUNDINGS = [
    (NVFP4, ScaleRounding.UP),
    *product((MXFP4, MXFP6, MXFP8), ScaleRounding),
    *((format, None) for format in VLLMS),
]
GLOBAL_SCALES = (1.0, 448.0, 0.37, 1e-3, 3e8, 2.0**-100, 3e38)


@pytest.fixture(scope="module")
def codes(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("codes") / "codes.so"
    includes = [f"-I{kernels_dir()}", *(f"-isystem{folder}" for folder in toolchain.include_dirs)]
    options = ["-std=c++17", "-O2", "-mfma", "-ffp-contract=off", "-w", "-fPIC", "-shared"]
    command = [toolchain.gxx, *options, *includes, HERE / "block_codes.cpp", "-o", library]
    subprocess.run(list(map(str, command)), check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.wrong_sixths.restype = loaded.wrong_quotients.restype = ctypes.c_int64
    return loaded


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _check(
    codes: ctypes.CDLL, x: torch.Tensor, format: Format, rounding: ScaleRounding | None, global_scale: float
) -> None:
    """x [groups, group], each row a group."""
    found = torch.empty(x.shape[0], format.code_bytes(format.group), dtype=torch.uint8)
    scales = torch.empty(x.shape[0], 1, dtype=torch.uint8)
    codes.quantise_groups(
        ctypes.c_char((VLLMS if rounding is None else LETTER)[format].encode()),
        ctypes.c_char(IN[x.dtype].encode()),
        _pointer(x),
        ctypes.c_int64(x.shape[0]),
        ctypes.c_float(global_scale),
        rounding is ScaleRounding.UP,
        _pointer(found),
        _pointer(scales),
    )
    given = torch.tensor([global_scale]) if format.has_global_scale else None
    if rounding is None:
        wanted = quantise_as_vllm(x, format, global_scale=given)
    else:
        wanted = quantise(x, format, global_scale=given, rounding=rounding)
    assert torch.equal(scales, wanted.scales)
    assert torch.equal(found, wanted.codes)


def _every(dtype: torch.dtype) -> torch.Tensor:
    """Every element of 16 bits."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("format", "rounding"), ROUNDINGS, ids=str)
def test_every_element_by_every_scale(
    codes, format: Format, rounding: ScaleRounding | None, dtype: torch.dtype
) -> None:
    """Groups of every element below a largest one, which takes every exponent with mantissas about the largest code's: NaN,
    infinity and signs among them."""
    every = _every(dtype)
    largest = every[:0x8000][every[:0x8000].isfinite()]
    largest = largest[::499]
    scales_of = GLOBAL_SCALES if format.has_global_scale else (1.0,)
    generator = torch.Generator().manual_seed(0)
    for most, global_scale in zip(largest, (scales_of * len(largest))[: len(largest)], strict=True):
        below = every[~(every.float().abs() > most.float())]
        below = below[torch.randperm(len(below), generator=generator)][: 4096 // format.group * (format.group - 1)]
        below = below[: len(below) // (format.group - 1) * (format.group - 1)].reshape(-1, format.group - 1)
        if len(below):
            _check(codes, torch.cat([most.expand(len(below), 1), below], dim=1), format, rounding, global_scale)


@pytest.mark.parametrize(("format", "rounding"), ROUNDINGS, ids=str)
def test_every_bf16_as_the_largest_and_alone(codes, format: Format, rounding: ScaleRounding | None) -> None:
    """Every bf16 in a group of its own, and all in turn in groups of neighbours."""
    every = _every(torch.bfloat16)
    for global_scale in GLOBAL_SCALES if format.has_global_scale else (1.0,):
        alone = torch.nn.functional.pad(every.unsqueeze(1).view(torch.int16), (3, format.group - 4)).view(
            torch.bfloat16
        )
        _check(codes, alone, format, rounding, global_scale)
        _check(codes, every.reshape(-1, format.group), format, rounding, global_scale)


@pytest.mark.parametrize(("format", "rounding"), ROUNDINGS, ids=str)
def test_values_of_f32_near_boundaries(codes, format: Format, rounding: ScaleRounding | None) -> None:
    """Values of an activation: those within two units of every boundary between codes by every scale of nvfp4, or by powers of
    two; then random ones, and NaN and infinity among them."""
    kind = format.code
    values = torch.tensor(sorted({v for v in kind.values if v == v and abs(v) != float("inf")}), dtype=torch.float64)
    ends = torch.cat([values, (values[1:] + values[:-1]) / 2])
    steps = (
        torch.tensor(format.scale.values[1:127], dtype=torch.float64)
        if format.has_global_scale
        else 2.0 ** torch.arange(-126, 100.0, 5)
    )
    exact = (ends[:, None] * steps[None]).float()
    bits = exact.view(torch.int32)[..., None] + torch.arange(-2, 3, dtype=torch.int32)
    near = torch.where(exact[..., None] == 0, exact[..., None], bits.view(torch.float32))
    near = near.permute(1, 0, 2).flatten(1)  # of one step in a row
    width = format.group - 1
    near = torch.nn.functional.pad(near, (0, -near.shape[1] % width)).reshape(len(steps), -1, width)
    largest = (steps.float() * kind.maximum).view(torch.int32)
    for unit in (-1, 0, 1):
        most = (largest + unit).view(torch.float32)[:, None, None].expand(-1, near.shape[1], 1)
        _check(codes, torch.cat([most, near], dim=2).reshape(-1, format.group), format, rounding, 1.0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4096, format.group, generator=generator) * 2.0 ** torch.randint(
        -60, 60, (4096, 1), generator=generator
    )
    x[::7, 3], x[::11, 5], x[1::7, 1], x[::13] = float("nan"), -float("nan"), -float("inf"), -0.0
    for global_scale in (1.0, 0.37, float(global_scale_of(x[torch.isfinite(x).all(dim=1)]))):
        _check(codes, x, format, rounding, global_scale)


@pytest.mark.parametrize(("format", "rounding"), ROUNDINGS, ids=str)
def test_each_largest_near_the_largest_code_has_its_own_scale(
    codes, format: Format, rounding: ScaleRounding | None
) -> None:
    """One unit above the largest code at a power of two, the next power is the scale."""
    exact = (2.0 ** torch.arange(-100, 100, dtype=torch.float64) * format.code.maximum).float()
    near = (exact.view(torch.int32)[:, None] + torch.arange(-2, 3, dtype=torch.int32)).view(torch.float32)
    alone = torch.nn.functional.pad(near.reshape(-1, 1), (0, format.group - 1))
    _check(codes, alone, format, rounding, 1.0)


def test_quotients_by_six_are_correctly_rounded(codes) -> None:
    assert codes.wrong_sixths(127) == codes.wrong_sixths(128) == 0


def test_scales_lie_where_the_layout_has_them(codes) -> None:
    """tests/families/blockscaled/compile holds that layout against CUTLASS's own function."""
    for rows, groups in product((1, 31, 33, 127, 128, 129, 257, 384), (1, 3, 4, 5, 8, 28)):
        found = torch.empty(rows * groups, dtype=torch.int64)
        codes.swizzled_offsets(ctypes.c_int64(rows), ctypes.c_int64(groups), _pointer(found))
        assert found.tolist() == [swizzled_offset(row, group, groups) for row in range(rows) for group in range(groups)]


@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", IN, ids=str)
def test_a_global_scale_that_is_no_number_above_zero_makes_every_scale_nan(
    codes, value: float, dtype: torch.dtype
) -> None:
    """And every code zero, whatever the values."""
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
    x[0], x[1, 3], x[2, 4] = 0.0, float("nan"), -float("inf")
    x, found, scales = x.to(dtype), torch.full((64, 8), 0x55, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8)
    kind = ctypes.c_char(IN[dtype].encode())
    of = ctypes.c_char(b"n"), kind, _pointer(x), ctypes.c_int64(64), ctypes.c_float(value), 1
    codes.quantise_groups(*of, _pointer(found), _pointer(scales))
    assert (scales == 0x7F).all() and not found.any()


@pytest.mark.parametrize(
    "offsets", [[0, 5], [2, 2, 2, 9], [0, 0, 0], [0, 3, 3, 7, 7, 7, 12], [1, *range(4, 60, 3)]], ids=str
)
def test_a_row_belongs_to_the_expert_that_begins_at_it_or_before(codes, offsets: list[int]) -> None:
    """Experts without rows have none; rows before the first and from the end on have no expert."""
    rows = offsets[-1] + 3
    found = torch.full((rows,), 99, dtype=torch.int32)
    given = torch.tensor(offsets, dtype=torch.int32)
    codes.experts_of(_pointer(given), ctypes.c_int32(len(offsets) - 1), ctypes.c_int64(rows), _pointer(found))
    wanted = [-1] * rows
    for expert, (start, end) in enumerate(pairwise(offsets)):
        wanted[start:end] = [expert] * (end - start)
    assert found.tolist() == wanted


def test_modulated_values_are_the_definitions(codes) -> None:
    """Neither product nor sum is contracted."""
    x, scale, shift = torch.randn(3, 4096, generator=torch.Generator().manual_seed(2)).bfloat16().float()
    found = torch.full((4096,), float("nan"))
    codes.modulate(_pointer(x), _pointer(scale), _pointer(shift), ctypes.c_int64(4096), _pointer(found))
    assert torch.equal(found, modulated(x, scale, shift))


@pytest.mark.parametrize("global_scale", [1.0, 0.37, 2.0**-100, 3e38, 2.0**-140])
@pytest.mark.parametrize("format", LETTER, ids=str)
def test_values_of_every_code_by_every_scale(codes, format: Format, global_scale: float) -> None:
    """Scales of numbers; values are zero, subnormal, infinite and NaN among others."""
    if global_scale != 1.0 and not format.has_global_scale:
        return
    every = torch.arange(1 << format.code.bits, dtype=torch.uint8)
    width = -(-len(every) // format.group) * format.group
    of_row = pack(every.repeat(width)[:width].reshape(-1, format.group), format.code.bits)
    scales = torch.arange(format.scale.last_code + 1, dtype=torch.uint8)
    packed = of_row.repeat(len(scales), 1)
    of_groups = scales.repeat_interleave(len(of_row))
    found = torch.full((len(packed), format.group), 7.0)
    letter, count = ctypes.c_char(LETTER[format].encode()), ctypes.c_int64(len(packed))
    codes.dequantise_groups(
        letter, _pointer(packed), _pointer(of_groups), count, ctypes.c_float(global_scale), _pointer(found)
    )
    given = torch.tensor([global_scale]) if format.has_global_scale else None
    wanted = dequantise(BlockScaled(format=format, codes=packed, scales=of_groups[:, None]), global_scale=given)
    assert torch.equal(found.isnan(), wanted.isnan())
    numbers = ~wanted.isnan()
    assert torch.equal(found[numbers].view(torch.int32), wanted[numbers].view(torch.int32))


@pytest.mark.parametrize(
    ("format", "global_scale"), [(x, 1.0) for x in LETTER] + [(NVFP4, 0.0), (NVFP4, -1.0)], ids=str
)
def test_values_by_a_scale_that_is_no_number_are_nan(codes, format: Format, global_scale: float) -> None:
    """Of the byte, or of the global scale."""
    packed = torch.arange(format.code_bytes(format.group), dtype=torch.uint8)
    byte = torch.tensor([100 if global_scale != 1.0 else 255], dtype=torch.uint8)
    found = torch.zeros(format.group)
    letter = ctypes.c_char(LETTER[format].encode())
    codes.dequantise_groups(
        letter, _pointer(packed), _pointer(byte), ctypes.c_int64(1), ctypes.c_float(global_scale), _pointer(found)
    )
    assert found.isnan().all()


def test_quotients_by_global_scales_are_correctly_rounded(codes) -> None:
    """All mantissas of an nvfp4 code times scale, by all of a global scale."""
    assert codes.wrong_quotients() == 0
