"""Where rows of 4-bit and 6-bit codes next to mxfp8 activations must begin for Blackwell's TMA, which spreads them to bytes."""

import pytest
import torch

from gemmill.families.blockscaled.config import PairConfig
from gemmill.families.blockscaled.pairs import SPREAD_PAIRS
from gemmill.families.blockscaled.shaped_call import shaped_call_of
from gemmill.families.blockscaled.tuning import TUNING
from gemmill.registry import REGISTRY
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import Arch

M, N, K = 3, 16, 128
MXFP4, MXFP6, MXFP8 = "cutlass_scaled_mxfp4_mxfp8_mm", "cutlass_scaled_mxfp6_mxfp8_mm", "cutlass_scaled_mxfp8_mm"
BITS = {MXFP4: 4, MXFP6: 6, MXFP8: 8}


CODES = (torch.float8_e4m3fn, torch.uint8)
"""Both dtypes that an op takes codes of e4m3 in."""


def alignment_of_b(op: str, pitch: int, shift: int, of_a: torch.dtype) -> int:
    """Of rows `pitch` bytes apart that begin `shift` bytes behind a multiple of 32."""
    columns = K * BITS[op] // 8
    memory = torch.zeros(N * pitch + shift + 64, dtype=torch.uint8)
    b = memory[-memory.data_ptr() % 32 + shift :].as_strided((N, columns), (pitch, 1))
    a = torch.zeros(M, K, dtype=torch.uint8).view(of_a)
    scales = [torch.zeros(128, 4, dtype=torch.uint8) for _ in range(2)]
    b = b.view(torch.float8_e4m3fn) if op == MXFP8 else b
    given = [torch.empty(M, N, dtype=torch.bfloat16), a, b, *scales, torch.ones(1, dtype=torch.float32), None]
    judged = check(BY_NAME[op], of_arguments(BY_NAME[op], given))
    return shaped_call_of(judged).alignments[1]


@pytest.mark.parametrize("of_a", CODES, ids=str)
@pytest.mark.parametrize(
    ("op", "pitch", "shift", "wanted"),
    [
        (MXFP4, 64, 0, 32),
        (MXFP4, 64, 16, 16),
        (MXFP4, 80, 0, 16),
        (MXFP4, 72, 0, 8),
        (MXFP6, 96, 0, 32),
        (MXFP6, 96, 16, 16),
        (MXFP6, 192, 0, 32),
        (MXFP6, 128, 0, 16),  # no whole number of elements of 6 bits
        (MXFP6, 144, 0, 16),
        (MXFP8, 128, 0, 16),
    ],
)
def test_rows_begin_at_multiples_of(op: str, pitch: int, shift: int, wanted: int, of_a: torch.dtype) -> None:
    assert alignment_of_b(op, pitch, shift, of_a) == wanted


def test_kernels_of_blackwell_want_them_and_no_others() -> None:
    found: dict[bool, set[int]] = {True: set(), False: set()}
    for config in REGISTRY.named("blockscaled").selections["default"](Arch.SM120F):
        for row in TUNING.rows(config, 0) if isinstance(config, PairConfig) else ():
            found[config.pair in SPREAD_PAIRS].add(row.alignments[1])
    assert found == {True: {32}, False: {16}}
