"""Attention of tiles of many query rows by WGMMA, and of 16 by twelve warps, whole, on the CPU against its reference (host_kernels.py says how)."""

import ctypes
from typing import Any

import pytest
import torch

from families.kv_cache.compile.host_kernels import assert_right, assert_same_however_dealt, launched, library
from gemmill.build.toolchain import ToolchainPaths
from gemmill.families.kv_cache.cases.calls import DecodeCase
from gemmill.families.kv_cache.cases.judging import parts, report
from gemmill.families.kv_cache.ops import DECODE
from gemmill.vocab import DType

MANY = {
    "decode_bf16_d128_k4v4_r128": "k_turboquant_mse4_v_turboquant_mse4",
    "decode_f16_d128_k4v3_r128": "k_eden4_v_eden3",
    "decode_f16_d64_k3v3_r128": "k_turboquant_mse3_v_turboquant_mse3",
}
FEW = {
    "decode_bf16_d128_k4v4_r16": "k_eden4_v_eden4",
    "decode_f16_d64_k3v3_r16": "k_turboquant_mse3_v_turboquant_mse3",
}
FORMATS = MANY | FEW
FIRST = next(iter(MANY))
SIZES: tuple[dict[str, Any], ...] = (
    {"lengths": (300,), "rows": 70, "heads": 2, "kv_heads": 1, "page": 64},
    {"lengths": (140, 0, 1), "rows": 3, "heads": 4, "kv_heads": 1, "page": 16},
    {"lengths": (150, 2), "rows": 40, "heads": 4, "kv_heads": 1, "page": 128, "has_sinks": True, "softcap": 1.5},
    {"lengths": (210,), "rows": 130, "heads": 1, "kv_heads": 1, "page": 32, "window": 40},
    {"lengths": (330,), "rows": 2, "heads": 4, "kv_heads": 2, "page": 128, "causal": False, "stays_rotated": True},
    {"lengths": (90,), "rows": 90, "heads": 2, "kv_heads": 2, "page": 64, "is_rotated": True},
)


@pytest.fixture(scope="module")
def kernels(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library(tuple(FORMATS), toolchain, tmp_path_factory.mktemp("many"))


def _case(name: str, **sizes: Any) -> DecodeCase:
    _, dtype, head_dim, *_ = name.split("_")
    return DecodeCase(dtype=DType(dtype), head_dim=int(head_dim[1:]), format=FORMATS[name], **sizes)


@pytest.mark.parametrize("which", range(len(SIZES)))
@pytest.mark.parametrize("name", MANY)
def test_attends_with_many_rows(kernels: ctypes.CDLL, name: str, which: int) -> None:
    """By one slice, which writes results, or by several, whose sums are added."""
    is_sliced = (which + list(MANY).index(name)) % 2 == 0
    assert_right(kernels, name, _case(name, **SIZES[which]), sm_count=6 if is_sliced else 1)


@pytest.mark.parametrize("sizes", SIZES[1:3], ids=["few", "more"])
@pytest.mark.parametrize("name", FEW)
def test_attends_with_tiles_of_16_rows(kernels: ctypes.CDLL, name: str, sizes: dict[str, Any]) -> None:
    for rows, sm_count in ((4, 40), (9, 1)):
        assert_right(kernels, name, _case(name, **sizes | {"rows": rows}), sm_count=sm_count)


@pytest.mark.parametrize("name", FORMATS)
def test_a_sequence_has_the_same_bits_however_its_slices_are_dealt(kernels: ctypes.CDLL, name: str) -> None:
    """Tiles of 16 rows take runs of slices; of 128 rows each slice has a block, and more slices than stages leave some empty."""
    assert_same_however_dealt(kernels, name, _case(name, lengths=(1100, 0, 100), rows=3, heads=4, kv_heads=1, page=64))


def test_a_chunk_gives_the_bits_of_the_whole(kernels: ctypes.CDLL) -> None:
    """Rows of a prompt in two chunks, of which neither ends at a tile of rows or of tokens."""
    case = _case(FIRST, lengths=(170,), rows=170, heads=2, kv_heads=1)
    given = dict(zip(DECODE.arguments, case.arguments("cpu"), strict=True))
    _, whole = launched(kernels, FIRST, dict(given), sm_count=1)
    expected = whole["out"].clone()
    for begin, end in ((0, 77), (77, 170)):
        own = given | {"q": given["q"][:, begin:end], "seq_lens": torch.tensor([end], dtype=torch.int32)}
        own |= {"out": torch.full_like(expected[:, begin:end], torch.nan), "lse": torch.zeros(1, 2, end - begin)}
        _, chunk = launched(kernels, FIRST, own, sm_count=1)
        assert torch.equal(chunk["out"], expected[:, begin:end])


def test_nan_shows_where_it_is_seen_and_nowhere_else(kernels: ctypes.CDLL) -> None:
    """Norms of NaN of a key and of a value; half of the rows end before the one, or see the other no longer."""
    case = _case(FIRST, lengths=(140,), rows=100, heads=1, kv_heads=1, page=64, window=60)
    given = dict(zip(DECODE.arguments, case.arguments("cpu"), strict=True))
    fields = given["cache"][:, 0].flatten(1)
    first, second = (int(page) for page in given["block_table"][0, :2])
    fields[second, 64 * 64 :][: 64 * 2].view(torch.float16)[30] = torch.nan  # the key of token 94
    fields[first, 64 * 130 :].view(torch.float16)[10] = torch.nan  # the value of token 10
    before, after = launched(kernels, FIRST, given)
    hit = [bool(row.isnan().any()) for row in after["out"][0, :, 0]]
    assert hit == [position - 60 < 94 <= position or position - 60 < 10 <= position for position in range(40, 140)]
    assert not report(parts(DECODE.name, before, after))
