"""One row, one result: calls that `gemmill verify --batch-invariant` does not make, ties of RMS norms and scales that lie in tiles of rows."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.formats.quantise import unswizzle

TIES, HIDDEN = 64, 4096
BATCHES = (1, 2, 33, 200, 257, 4096)


def rows_at_ties() -> Tensor:
    """f32 rows whose mean square lies at a tie of f32, or so little above that the order of f64 sums decides.

    In chunks of a row there are 2^24, 1, and two squares, each less than half a unit of the sum's f64, 2^-28, and together more.
    The scale of e4m3 shows which of both the mean is rounded to. 128 or 256 threads meet 2^24 before both, and lose them; 1024 threads add them to each other first.
    """
    random = torch.Generator().manual_seed(1)
    rows, every = torch.zeros(TIES, HIDDEN // 4, 4), torch.arange(TIES)
    lane = torch.randperm(128, generator=random)[:TIES]
    rows[every, lane, 0] = 2.0**12
    rows[every, (lane + 1) % 128, 0] = 1.0
    for block in (2, 6):
        exponents = -29.1 - 0.8 * torch.rand(TIES, generator=random)
        rows[every, 128 * block + lane, 1] = torch.exp2(exponents / 2)
    return rows.reshape(TIES, HIDDEN)


def by_threads(squares: Tensor, threads: int) -> Tensor:
    """f64 sums of a row's chunks by so many threads: each its own, then lanes of warps by halves, then warps."""
    sums = torch.zeros(len(squares), threads, dtype=torch.float64)
    for turn in squares.double().reshape(len(squares), -1, threads).unbind(1):
        sums = sums + turn
    lanes = sums.unflatten(1, (-1, 32))
    while lanes.numel() > len(squares):
        if lanes.shape[2] == 1:
            lanes = lanes.transpose(1, 2)
        half = lanes.shape[2] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes.reshape(len(squares))


def test_the_rows_at_ties_tell_orders_apart() -> None:
    squares = rows_at_ties().square().reshape(TIES, -1, 4).sum(-1)
    means = [(by_threads(squares, threads) / HIDDEN).float() for threads in (1024, 256, 128)]
    assert all(bool((mean != means[0]).all()) for mean in means[1:])


def normed(x: Tensor, residual: Tensor | None) -> tuple[Tensor, ...]:
    weight = torch.ones(HIDDEN, dtype=x.dtype, device=x.device)
    return gemmill.rms_norm_dynamic_per_token_quant(x, weight, 0.0, torch.float8_e4m3fn, None, residual)


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "unaligned"])
def test_a_mean_square_at_a_tie_is_the_same_in_every_batch_and_the_references(
    with_residual: bool, offset: int, device: torch.device
) -> None:
    if device.type == "cuda" and not gemmill.supports(
        "rms_norm_dynamic_per_token_quant", dtype="f32", out_dtype="e4m3"
    ):
        pytest.skip("the build lacks the variant")
    rows = rows_at_ties()
    residual = torch.zeros_like(rows) if with_residual else None
    codes, scales = normed(rows, residual)
    most = 64 if device.type == "cpu" else max(BATCHES)
    with gemmill.batch_invariant():
        for count in (count for count in BATCHES if count <= most):
            for first in (0, 5, 40):
                picked = (torch.arange(count) + first) % TIES
                memory = torch.zeros(count, HIDDEN + 4, device=device)
                x = memory[:, offset : offset + HIDDEN]
                x.copy_(rows[picked])
                got = normed(x, None if residual is None else residual[picked].to(device))
                assert torch.equal(got[1].cpu(), scales[picked]), (count, first)
                assert torch.equal(got[0].cpu().view(torch.uint8), codes[picked].view(torch.uint8)), (count, first)


def test_ties_are_the_same_in_rows_that_clusters_share_and_in_rows_that_are_read_again(device: torch.device) -> None:
    """Longer rows: of zeros behind the 4096 elements, whose mean square is at the same tie."""
    if device.type == "cuda" and not gemmill.supports(
        "rms_norm_dynamic_per_token_quant", dtype="f32", out_dtype="e4m3"
    ):
        pytest.skip("the build lacks the variant")
    for hidden in (1 << 14, 1 << 16, 1 << 18) if device.type == "cuda" else (1 << 14,):
        rows = torch.nn.functional.pad(rows_at_ties()[:8], (0, hidden - HIDDEN))
        weight = torch.ones(hidden)
        wanted = gemmill.rms_norm_dynamic_per_token_quant(rows, weight, 0.0, torch.float8_e4m3fn)
        with gemmill.batch_invariant():
            for count in (1, 3, 8, 300) if device.type == "cuda" else (1, 3):
                picked = torch.arange(count) % 8
                got = gemmill.rms_norm_dynamic_per_token_quant(
                    rows[picked].to(device), weight.to(device), 0.0, torch.float8_e4m3fn
                )
                for found, want in zip(got, wanted, strict=True):
                    assert torch.equal(found.cpu().view(torch.uint8), want[picked].view(torch.uint8)), (hidden, count)


GROUPS = {"nvfp4": 16, "mxfp4": 32, "mxfp6": 32, "mxfp8": 32}
IN_TILES: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "scaled_nvfp4_quant": lambda x: gemmill.scaled_nvfp4_quant(x, 300.0),
    "scaled_mxfp4_quant": gemmill.scaled_mxfp4_quant,
    "scaled_mxfp6_quant": gemmill.scaled_mxfp6_quant,
    "scaled_mxfp8_quant": gemmill.scaled_mxfp8_quant,
    "silu_and_mul_nvfp4_quant": lambda x: gemmill.silu_and_mul_nvfp4_quant(torch.cat([x, x], dim=1), 300.0),
    "silu_and_mul_mxfp4_quant": lambda x: gemmill.silu_and_mul_mxfp4_quant(torch.cat([x, x], dim=1)),
    "silu_and_mul_mxfp8_quant": lambda x: gemmill.silu_and_mul_mxfp8_quant(torch.cat([x, x], dim=1)),
    "scaled_mxfp8_gelu_quant": gemmill.scaled_mxfp8_gelu_quant,
    "scaled_mxfp8_modulate_quant": lambda x: gemmill.scaled_mxfp8_modulate_quant(x, x[-1] * 0 + 0.5, x[-1] * 0 - 1),
}


@pytest.mark.parametrize("op", IN_TILES)
def test_rows_whose_scales_lie_in_tiles_do_not_see_their_neighbours(op: str, device: torch.device) -> None:
    """Two rows at the ends of batches of any size, with neighbours of NaN and infinity; the last row is finite."""
    if device.type == "cuda" and not gemmill.supports(op, batch_invariant=True):
        pytest.skip("the build lacks the variant")
    hidden, random = 1056, torch.Generator().manual_seed(3)
    pair = torch.randn(2, hidden, generator=random).bfloat16()
    groups = hidden // GROUPS[next(name for name in GROUPS if name in op)]

    def rows_of(x: Tensor) -> tuple[Tensor, Tensor]:
        codes, scales = IN_TILES[op](x)
        return codes.view(torch.uint8), unswizzle(scales.view(torch.uint8), len(x), groups)

    with gemmill.batch_invariant():
        alone = [rows_of(row[None].to(device)) for row in pair]
        for count in (2, 3, 127, 129, 1000, 40_000) if device.type == "cuda" else (2, 129):
            x = torch.full((count, hidden), float("nan")).bfloat16()
            x[1::2] = float("inf")
            x[0], x[-1] = pair
            found = rows_of(x.to(device))
            for place, row in ((0, 0), (-1, 1)):
                for part, wanted in zip(found, alone[row], strict=True):
                    assert torch.equal(part[place], wanted[0]), (count, place)


EXPERTS = {
    "scaled_fp4_experts_quant": 16,
    "mxfp4_experts_quant": 32,
    "mxfp8_experts_quant": 32,
}


@pytest.mark.parametrize("op", EXPERTS)
def test_rows_of_experts_do_not_see_their_neighbours_or_their_place(op: str, device: torch.device) -> None:
    if device.type == "cuda" and not gemmill.supports(op, batch_invariant=True):
        pytest.skip("the build lacks the variant")
    hidden = 1024
    row = torch.randn(hidden, generator=torch.Generator().manual_seed(4)).bfloat16()
    groups = hidden // EXPERTS[op]

    def of_last(x: Tensor, ends: list[int]) -> tuple[Tensor, Tensor]:
        """Codes and scales of the last row, which is the last expert's."""
        offsets = torch.tensor(ends, dtype=torch.int32, device=device)
        given = [x.to(device)]
        if op == "scaled_fp4_experts_quant":
            given.append(torch.full((len(ends) - 1,), 300.0, device=device))
        codes, scales, starts = getattr(gemmill, op)(*given, offsets)
        first = int(starts[-2])
        count = ends[-1] - ends[-2]
        padded = scales.view(torch.uint8)[first : first + -(-count // 128) * 128]
        return codes.view(torch.uint8)[-1], unswizzle(padded, count, groups)[-1]

    with gemmill.batch_invariant():
        alone = of_last(row[None], [0, 0, 1])
        for count in (2, 130, 3000) if device.type == "cuda" else (2, 130):
            x = torch.full((count, hidden), float("nan")).bfloat16()
            x[-1] = row
            for begin in (0, count // 2, count - 1):
                for part, wanted in zip(of_last(x, [0, begin, count]), alone, strict=True):
                    assert torch.equal(part, wanted), (count, begin)
