"""4-bit weights in the order of Hopper's kernel: its threads decode code times scale, and the way back."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gemmill.formats import fp4_blocks as module
from gemmill.formats.codes import pack, unpack
from gemmill.formats.fp4_blocks import BITS, Fp4Blocks
from gemmill.formats.quantise import BlockScaled
from gemmill.quantize.fp4_blocks import to_blocks
from gemmill.quantize.prepack import Prepacked, prepack
from gemmill.vocab.format import MXFP4, MXFP8, NVFP4, Format

u8 = torch.uint8
BODY = (Path(__file__).parents[3] / "kernels" / "gemm" / "widen_e2m1.cuh").read_text()
FORMATS = pytest.mark.parametrize("format", [NVFP4, MXFP4], ids=str)


def constants(format: Format) -> tuple[int, int, float]:
    """Of the kernel's struct of a format: the factor of a byte, the addend, and the factor of sums."""
    struct = BODY[BODY.index(f"struct {'NvFp4' if format is NVFP4 else 'MxFp4'} {{") :]
    spread = 1 << int(re.search(r"kSpread = 1 << (\d+);", struct)[1])
    short = float(re.search(r"kShort = ([\d.]+)f", struct)[1])
    added = re.search(r"bytes \* spread \+ \(([\d +()-]+) << 7\) \* 0x10001u", struct)[1]
    return spread, (sum(map(int, re.findall(r"-?\d+", added.replace("- ", "-")))) << 7) * 0x10001, short


def rotated(x: torch.Tensor, by: int) -> torch.Tensor:
    return (x >> by | x << 32 - by) & 0xFFFFFFFF


def halves(x: torch.Tensor) -> torch.Tensor:
    """The two bf16 of words, exactly."""
    both = torch.stack([x & 0xFFFF, x >> 16], dim=-1)
    return both.to(torch.int16).view(torch.bfloat16).double()


def pairs_of(first: torch.Tensor, second: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """As `widen`: the same rotations and masks, on int64."""
    mask, left = (int(bits, 16) for bits in re.search(r"kMask = (0x\w+)u, kLeft = (0x\w+)u", BODY).groups())
    rest = first & left | second << 2 & ~left & 0xFFFFFFFF
    x = [first & mask, rotated(first, 6) & mask, first << 4 & mask, rest << 6 & mask]
    y = [second & mask, rotated(second, 6) & mask, second << 4 & mask, rotated(rest, 4) & mask]
    return x, y


def block_values(block: torch.Tensor, format: Format) -> torch.Tensor:
    """Operand A of 128 threads, float64 [64, 64], times kShort; rows and columns as PTX has those of m64k16."""
    spread, added, short = constants(format)
    thread = torch.arange(128)
    code_bytes, scale_bytes = block[:2048].long().view(128, 4, 4), block[2048:].long()
    words = (code_bytes << torch.tensor([0, 8, 16, 24])).sum(dim=-1)
    rows = 2 if format is NVFP4 else 1
    of_thread = scale_bytes.view(32, rows, 4)[thread // 4]
    out = torch.full((64, 64), torch.nan, dtype=torch.float64)
    for step in range(4):
        pairs = pairs_of(words[:, step & 2], words[:, step | 1])[step % 2]
        for j, pair in enumerate(pairs):
            lower, half = j % 2, step // 2
            word = of_thread[:, lower % rows]
            factors = halves((word[:, half] | word[:, half + 2] << 16) * spread + added)
            factor = factors[:, step % 2 if format is NVFP4 else lower]
            product = halves(pair) * factor[:, None]
            assert torch.equal(product.bfloat16().double(), product), "exact"
            assert ((product == 0) | (product.abs() >= 2.0**-126)).all(), "a normal number"
            row = thread // 32 * 16 + thread % 32 // 4 + j % 2 * 8
            column = step * 16 + thread % 4 * 2 + j // 2 * 8
            out[row, column], out[row, column + 1] = product[:, 0], product[:, 1]
    assert not out.isnan().any()
    return out * short


def kernel_values(packed: Fp4Blocks) -> torch.Tensor:
    """All blocks' values, with padding and without bases."""
    rows = [torch.cat([block_values(b, packed.format) for b in blocks], dim=1) for blocks in packed.blocks]
    return torch.cat(rows)


def weights_of(n: int, k: int, format: Format) -> BlockScaled:
    codes = torch.randint(0, 16, (n, k), dtype=u8)
    low, high = (1, 127) if format is NVFP4 else (100, 129)
    scales = torch.randint(low, high, (n, k // format.group), dtype=u8)
    return BlockScaled(format=format, codes=pack(codes, 4), scales=scales)


def packed_for_bf16(weights: BlockScaled) -> Prepacked:
    return prepack(weights, for_op="fp4_weight_mm")


@FORMATS
def test_threads_make_every_code_times_every_scale(format: Format) -> None:
    groups = 64 * 512 // format.group
    scales = torch.arange(groups, dtype=torch.int64) % 127 + (0 if format is NVFP4 else 2)
    every_code = torch.stack([torch.randperm(16).repeat(format.group // 16) for _ in range(groups)])
    weights = BlockScaled(
        format=format, codes=pack(every_code.to(u8).view(64, 512), 4), scales=scales.to(u8).view(64, -1)
    )
    packed = to_blocks(packed_for_bf16(weights), k_multiple=256)
    assert torch.equal(packed.base, torch.ones(64))
    assert torch.equal(kernel_values(packed), weights.values())


@FORMATS
@pytest.mark.parametrize(
    ("n", "k", "k_multiple"), [(32, 32, 64), (64, 64, 64), (96, 320, 256), (160, 96, 128), (128, 512, 512)]
)
def test_padding_is_zero_and_the_way_back(format: Format, n: int, k: int, k_multiple: int) -> None:
    weights = weights_of(n, k, format)
    packed = to_blocks(packed_for_bf16(weights), k_multiple=k_multiple)
    columns = -(-k // k_multiple) * k_multiple
    assert packed.blocks.shape == (-(-n // 64), columns // 64, 2304 if format is NVFP4 else 2176)
    wanted = torch.zeros(packed.blocks.shape[0] * 64, columns, dtype=torch.float64)
    wanted[:n, :k] = weights.values()
    assert torch.equal(kernel_values(packed), wanted)
    back, base = packed.weights()
    assert torch.equal(back.codes, weights.codes)
    assert torch.equal(back.scales, weights.scales)
    assert torch.equal(base, torch.ones(n))


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that nobody wrote has all bits set."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@FORMATS
def test_every_byte_is_written_and_none_of_the_input(poisoned: None, format: Format) -> None:
    assert (torch.empty(1000, dtype=u8) == 255).all(), "poison"
    weights = packed_for_bf16(weights_of(96, 160, format))
    before = [weights.weights.codes.clone(), weights.weights.scales.clone(), weights.base.clone()]
    packed = to_blocks(weights, k_multiple=128)
    assert not packed.blocks[1, :, :2048].view(4, 4, 512)[:, 2:].any(), "rows from 96 on"
    assert not packed.blocks[:, 3].any(), "columns from 192 on"
    packed.weights()
    assert all(map(torch.equal, before, [weights.weights.codes, weights.weights.scales, weights.base]))


@FORMATS
def test_parts_at_a_time(monkeypatch: pytest.MonkeyPatch, format: Format) -> None:
    weights = packed_for_bf16(weights_of(224, 128, format))
    whole = to_blocks(weights, k_multiple=128)
    monkeypatch.setattr(module, "CHUNK", 1)
    assert torch.equal(to_blocks(weights, k_multiple=128).blocks, whole.blocks)
    assert torch.equal(whole.weights()[0].codes, weights.weights.codes)


@FORMATS
def test_a_format_is_known_by_what_it_is(format: Format) -> None:
    """One that a manifest was read into is another object."""
    weights = weights_of(96, 128, format)
    if format is MXFP4:
        weights.scales[3] += 110  # then a base of its own
    wanted = to_blocks(packed_for_bf16(weights))
    found = to_blocks(packed_for_bf16(replace(weights, format=replace(format))))
    assert torch.equal(found.blocks, wanted.blocks) and torch.equal(found.base, wanted.base)
    assert torch.equal(found.weights()[0].scales, wanted.weights()[0].scales)


@pytest.mark.parametrize(("n", "k"), [(0, 64), (64, 0)])
@FORMATS
def test_nothing(format: Format, n: int, k: int) -> None:
    packed = to_blocks(packed_for_bf16(weights_of(n, k, format)), k_multiple=64)
    assert packed.blocks.shape[:2] == (n // 64, k // 64)
    assert packed.weights()[0].codes.shape == (n, k // 2)


def test_every_bit_has_a_place_of_its_own() -> None:
    assert sorted((code, bit) for code, bit, _ in BITS) == [(code, bit) for code in range(16) for bit in range(4)]
    assert sorted(place for _, _, place in BITS) == list(range(64))


def test_codes_of_a_zero_scale_are_zeros() -> None:
    weights = weights_of(64, 64, NVFP4)
    weights.scales[:, 1] = 0
    packed = to_blocks(packed_for_bf16(weights), k_multiple=64)
    assert torch.equal(kernel_values(packed), weights.values())
    back, _ = packed.weights()
    assert torch.equal(back.scales, weights.scales)
    assert not unpack(back.codes, 4)[:, 16:32].any()


@pytest.mark.parametrize(("low", "high", "base"), [(-125, 1, 0), (-105, 21, 20), (-13, 113, 112), (0, 120, 119)])
def test_mxfp4_is_lowered_to_a_base_of_its_own(low: int, high: int, base: int) -> None:
    """Zeros take no part: their scales are the smallest and the largest in turn."""
    weights = weights_of(64, 128, MXFP4)
    weights.scales[3] = torch.tensor([low + 127, high + 127, 0, 254], dtype=u8)
    weights.codes[3, 32:] = 0x80
    packed = to_blocks(packed_for_bf16(weights), k_multiple=128)
    assert packed.base.tolist() == [2.0**base if row == 3 else 1.0 for row in range(64)]
    assert torch.equal(kernel_values(packed) * packed.base.double()[:, None], weights.values())
    back, bases = packed.weights()
    assert torch.equal(back.values() * bases.double()[:, None], weights.values())


def test_mxfp4_that_spreads_too_far() -> None:
    weights = weights_of(64, 64, MXFP4)
    weights.scales[5] = torch.tensor([127 - 110, 127 + 17], dtype=u8)
    with pytest.raises(ValueError) as caught:
        to_blocks(packed_for_bf16(weights), k_multiple=64)
    assert str(caught.value) == (
        "blocks take scales of mxfp4 that spread over at most 126 binary orders in a row, and row 5 has 127: set its smallest "
        "groups to zero"
    )


def test_what_no_kernel_reads() -> None:
    f16 = prepack(weights_of(64, 64, NVFP4), for_op="fp4_weight_mm", activations="f16")
    grouped = prepack(weights_of(64, 64, MXFP4), for_op="mxfp4_fp8_mm", base_per_group=True, fallback="bf16")
    e4m3 = BlockScaled(format=MXFP8, codes=torch.zeros(64, 64, dtype=u8), scales=torch.full((64, 2), 127, dtype=u8))
    good = packed_for_bf16(weights_of(64, 64, NVFP4))
    sentences = {
        (
            f16,
            64,
        ): "blocks are for weights that become bf16 on a base for each row, got f16 on a base of 1 dimensions: prepack "
        "for fp4_weight_mm with activations='bf16'",
        (
            grouped,
            64,
        ): "blocks are for weights that become bf16 on a base for each row, got bf16 on a base of 2 dimensions: "
        "prepack for fp4_weight_mm with activations='bf16'",
        (packed_for_bf16(e4m3), 64): "blocks hold 4-bit codes, those of nvfp4 and mxfp4, got mxfp8",
        (good, 96): "k_multiple is 96, expected columns of whole blocks: a multiple of 64",
        (good, 0): "k_multiple is 0, expected columns of whole blocks: a multiple of 64",
    }
    for (weights, k_multiple), sentence in sentences.items():
        with pytest.raises(ValueError) as caught:
            to_blocks(weights, k_multiple=k_multiple)
        assert str(caught.value) == sentence


def test_words_do_not_depend_on_how_many_are_made_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = torch.randint(256, (128, 96), dtype=u8, generator=torch.Generator().manual_seed(3))
    at_once = module.in_words(codes)
    assert torch.equal(module.codes_of(at_once), unpack(codes, 4))
    for words in (7, 1, 1 << 20):
        monkeypatch.setattr(module, "_WORDS_AT_ONCE", words)
        assert torch.equal(module.in_words(codes), at_once)
