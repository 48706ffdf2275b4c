"""Attention over latents by WGMMA, whole, on the CPU against its reference (host_kernels.py says how)."""

import ctypes
from typing import Any

import pytest
import torch

from families.kv_cache.compile.host_kernels import assert_right, launched, library
from gemmill.build.toolchain import ToolchainPaths
from gemmill.families.kv_cache.cases.judging import parts, report
from gemmill.families.kv_cache.cases.latent_calls import LatentCase
from gemmill.vocab import DType

NAMES = ("latent_bf16_d512_k4v4_r16", "latent_f16_d512_k4v4_r32")
SIZES: tuple[dict[str, Any], ...] = (
    {"lengths": (37,), "heads": 16},
    {"lengths": (130, 0, 1), "heads": 5, "stays_rotated": True},
    {"lengths": (100, 2), "rows": 3, "heads": 11},
    {"lengths": (210,), "rows": 2, "heads": 7, "causal": False, "is_rotated": True},
    {"lengths": (460,), "heads": 3},
)


@pytest.fixture(scope="module")
def kernels(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library(NAMES, toolchain, tmp_path_factory.mktemp("tiles"))


@pytest.mark.parametrize("which", range(len(SIZES)))
@pytest.mark.parametrize("name", NAMES)
def test_attends_over_latents(kernels: ctypes.CDLL, name: str, which: int) -> None:
    """In one slice and in several; in more warpgroups than a slice has stages, and in fewer."""
    page, format = (16, 32, 64, 128)[which % 4], ("eden4", "turboquant_mse4")[which % 2]
    case = LatentCase(page=page, format=format, dtype=DType(name.split("_")[1]), **SIZES[which])
    assert_right(kernels, name, case, sm_count=1 if which % 2 == NAMES.index(name) else 20)


def test_nan_of_a_latent_or_a_rotary_part_shows_in_rows_that_see_it(kernels: ctypes.CDLL) -> None:
    """In the last token, which the second of two rows alone sees; and behind the length."""
    for byte in (256, 272):
        case = LatentCase(lengths=(9,), rows=2, heads=2, page=16)
        given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
        given["cache"][0, 8:, byte : byte + 2] = 0xFF
        before, after = launched(kernels, NAMES[0], given)
        assert bool(after["out"][0, 1].isnan().all()) and not bool(after["out"][0, 0].isnan().any())
        assert not report(parts(case.schema.name, before, after))


def test_pages_and_lengths_that_the_cache_has_not(kernels: ctypes.CDLL) -> None:
    case = LatentCase(lengths=(40, 40, 5), heads=2, page=16)
    lengths = torch.tensor([1000, -7, 5], dtype=torch.int32)
    table = torch.tensor([[0, -5, 10**9], [0, 0, 0], [2**31 - 1, 0, 0]], dtype=torch.int32)
    assert_right(kernels, NAMES[0], case, seq_lens=lengths, block_table=table)
