"""Attention over latents by WGMMA, whole, on the CPU against its reference (host_kernels.py says how)."""

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch

from families.kv_cache.compile.host_kernels import assert_right, launched, library
from gemmill.build.toolchain import ToolchainPaths
from gemmill.families.kv_cache.cases.judging import parts, report
from gemmill.families.kv_cache.cases.latent_calls import LatentCase
from gemmill.vocab import DType

NAMES = ("latent_bf16_d512_k4v4_r16", "latent_f16_d512_k4v4_r32")
OF_E4M3 = ("latent_f16_d512_rotarye4m3_k4v4_r16", "latent_bf16_d512_rotarye4m3_k4v4_r32")
SIZES: tuple[dict[str, Any], ...] = (
    {"lengths": (37,), "heads": 16},
    {"lengths": (130, 0, 1), "heads": 5, "stays_rotated": True},
    {"lengths": (100, 2), "rows": 3, "heads": 11},
    {"lengths": (210,), "rows": 2, "heads": 7, "causal": False, "is_rotated": True},
    {"lengths": (460,), "heads": 3},
)


@pytest.fixture(scope="module")
def kernels(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library((*NAMES, *OF_E4M3), toolchain, tmp_path_factory.mktemp("tiles"))


@pytest.mark.parametrize("which", range(len(SIZES)))
@pytest.mark.parametrize("name", NAMES)
def test_attends_over_latents(kernels: ctypes.CDLL, name: str, which: int) -> None:
    """In one slice and in several; in more warpgroups than a slice has stages, and in fewer."""
    page, format = (16, 32, 64, 128)[which % 4], ("eden4", "turboquant_mse4")[which % 2]
    case = LatentCase(page=page, format=format, dtype=DType(name.split("_")[1]), **SIZES[which])
    assert_right(kernels, name, case, sm_count=1 if which % 2 == NAMES.index(name) else 20)


@pytest.mark.parametrize("which", range(len(SIZES)))
@pytest.mark.parametrize("name", OF_E4M3)
def test_attends_with_rotary_parts_in_e4m3(kernels: ctypes.CDLL, name: str, which: int) -> None:
    """Of tokens that lie elsewhere than those of 16 bits, with a scale and without."""
    page, format = (128, 64, 32, 16)[which % 4], ("turboquant_mse4", "eden4")[which % 2]
    case = LatentCase(page=page, format=format, dtype=DType(name.split("_")[1]), **SIZES[which])
    case = replace(case, rotary=DType.E4M3, has_scale=which != OF_E4M3.index(name))
    assert_right(kernels, name, case, sm_count=1 if which % 2 == OF_E4M3.index(name) else 20)


def test_every_code_of_e4m3_is_a_rotary_element(kernels: ctypes.CDLL) -> None:
    """A code for each token, NaN left out, with a query that another element has by itself: scores differ where a code or its place is wrong."""
    codes = torch.tensor([x for x in range(256) if x % 128 != 127], dtype=torch.uint8)
    case = LatentCase(lengths=(254,), heads=8, page=16, rotary=DType.E4M3, dtype=DType.F16)
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    given["q"].zero_()
    for head in range(8):
        given["q"][0, 0, head, 512 + 9 * head] = 0.125
    given["cache"].flatten(0, 1)[..., 272:] = 0
    table = given["block_table"][0].long()
    tokens = table.repeat_interleave(16)[:254] * 16 + torch.arange(254) % 16
    for head in range(8):
        given["cache"].flatten(0, 1)[tokens, 272 + 9 * head] = codes.roll(31 * head)
    before, after = launched(kernels, OF_E4M3[0], given)
    assert not report(parts(case.schema.name, before, after))


def test_nan_of_a_latent_or_a_rotary_part_shows_in_rows_that_see_it(kernels: ctypes.CDLL) -> None:
    """In the last token, which the second of two rows alone sees; and behind the length."""
    for byte, name, rotary in ((256, NAMES[0], None), (272, NAMES[0], None), (272, OF_E4M3[1], DType.E4M3)):
        case = LatentCase(lengths=(9,), rows=2, heads=2, page=16, rotary=rotary)
        given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
        given["cache"][0, 8:, byte : byte + 2] = 0xFF
        before, after = launched(kernels, name, given)
        assert bool(after["out"][0, 1].isnan().all()) and not bool(after["out"][0, 0].isnan().any())
        assert not report(parts(case.schema.name, before, after))


def test_pages_and_lengths_that_the_cache_has_not(kernels: ctypes.CDLL) -> None:
    case = LatentCase(lengths=(40, 40, 5), heads=2, page=16)
    lengths = torch.tensor([1000, -7, 5], dtype=torch.int32)
    table = torch.tensor([[0, -5, 10**9], [0, 0, 0], [2**31 - 1, 0, 0]], dtype=torch.int32)
    assert_right(kernels, NAMES[0], case, seq_lens=lengths, block_table=table)
