"""The order of folded weights against the kernel's decoding: kernels/gemm/fold_e2m1.cuh, by hand on int64."""

import itertools
import re
from pathlib import Path

import pytest
import torch

from gemmill.formats import fp4_blocks
from gemmill.formats.codes import decode, encode, pack
from gemmill.formats.folded_blocks import CODE_BYTES, LISTED, FoldedBlocks, rounded_rows
from gemmill.formats.quantise import BlockScaled
from gemmill.quantize.folded_blocks import to_folded_blocks
from gemmill.quantize.packed_rows import to_rows
from gemmill.quantize.prepack import prepack
from gemmill.vocab.float_type import E2M1, E4M3
from gemmill.vocab.format import MXFP4, NVFP4, Format

BODY = (Path(__file__).parents[3] / "kernels" / "gemm" / "fold_e2m1.cuh").read_text()
u8 = torch.uint8
MAGNITUDES = torch.tensor(E2M1.values[:8], dtype=torch.float64)


def table_of(scale: torch.Tensor) -> torch.Tensor:
    """As `magnitudes`: bytes of e4m3 for each scale."""
    return encode((scale[:, None] * MAGNITUDES).float(), E4M3).long()


def mxfp4_tables(byte: torch.Tensor) -> torch.Tensor:
    """As `MxFp4Folded::table`: linear words, and listed ones where the block says so."""
    low, high = (int(word, 16) for word in re.search(r"kLow = (0x\w+)u - .*kHigh = (0x\w+)u - ", BODY).groups())
    words = [byte * 0x01010100 + low - 64 * 0x01010100, byte * 0x01010101 + high - 64 * 0x01010101]
    linear = torch.stack([word >> shift & 0xFF for word in words for shift in (0, 8, 16, 24)], dim=-1)
    listed = table_of(torch.exp2(torch.arange(15).double() - 8))[((byte & ~LISTED) // 8).clamp(max=14)]
    return torch.where((byte & LISTED != 0)[:, None], listed, linear)


def nvfp4_tables(byte: torch.Tensor) -> torch.Tensor:
    offset = int(re.search(r"entry / 8 - (\d+)", BODY)[1])
    entry = torch.arange(256)
    return table_of(torch.exp2((entry // 8 - offset).double()) * (1 + entry % 8 / 8))[byte]


def block_values(block: torch.Tensor, format: Format) -> torch.Tensor:
    """Operand A of 128 threads, float64 [64, 128]; rows and columns as PTX has those of m64k32."""
    thread, of_row = torch.arange(128), 128 // format.group
    codes, scales = block[:CODE_BYTES].long().view(2, 128, 2, 2, 4), block[CODE_BYTES:].long().view(32, 2, of_row)
    out = torch.full((64, 128), torch.nan, dtype=torch.float64)
    for step in range(4):
        for lower in range(2):
            bytes_ = codes[step // 2, :, step % 2, lower]
            word = (bytes_ << torch.tensor([0, 8, 16, 24])).sum(dim=-1)
            for half in range(2):
                which = step if format is MXFP4 else 2 * step + half
                byte = scales[thread // 4, lower, which]
                table = mxfp4_tables(byte) if format is MXFP4 else nvfp4_tables(byte)
                places = (word & 0x77777777) >> 16 * half
                signs = word << 4 * half
                for j in range(4):
                    found = table.gather(1, (places >> 4 * j & 7)[:, None])[:, 0] | (signs >> 8 * j & 0x80)
                    row, column = (
                        thread // 32 * 16 + thread % 32 // 4 + 8 * lower,
                        32 * step + 16 * half + thread % 4 * 4 + j,
                    )
                    out[row, column] = decode(found.to(u8), E4M3, torch.float64)
    assert not out.isnan().any()
    return out


def half_tables(byte: torch.Tensor) -> torch.Tensor:
    """As `MxFp4Folded::Half`: high bytes of f16 for each scale, without the bit that lists it."""
    half = BODY[BODY.index("struct Half {") :]
    kept, low, high = (
        int(re.search(pattern, half)[1], 16)
        for pattern in (r">> 1 & (0x\w\w)\w+u", r"kLow = (0x\w+)u - 32", r"kHigh = (0x\w+)u - 32")
    )
    quarters = byte >> 1 & kept
    words = [quarters * 0x01010100 + low - 32 * 0x01010100, quarters * 0x01010101 + high - 32 * 0x01010101]
    return torch.stack([word >> shift & 0xFF for word in words for shift in (0, 8, 16, 24)], dim=-1)


def half_values(block: torch.Tensor) -> torch.Tensor:
    """Operand A of four turns of 32 lanes, float64 [64, 128] of f16: two products of m16n8k16 to a step of 32 columns."""
    lane, out = torch.arange(32), torch.full((64, 128), torch.nan, dtype=torch.float64)
    codes, scales = block[:CODE_BYTES].long().view(2, 128, 2, 2, 4), block[CODE_BYTES:].long().view(32, 2, 4)
    for half, i, step, lower in itertools.product(range(2), range(4), range(2), range(2)):
        thread = i * 32 + lane
        word = (codes[half, thread, step, lower] << torch.tensor([0, 8, 16, 24])).sum(dim=-1)
        table = half_tables(scales[thread // 4, lower, 2 * half + step])
        for part, j in itertools.product(range(2), range(4)):
            found = table.gather(1, (word >> 16 * part + 4 * j & 7)[:, None])[:, 0]
            byte = found | (word << 4 * part >> 8 * j & 0x80)
            column = 64 * half + 32 * step + 16 * part + lane % 4 * 4 + j
            bits = (byte << 8).to(torch.int32).to(torch.int16)
            out[16 * i + lane // 4 + 8 * lower, column] = bits.view(torch.float16).double()
    assert not out.isnan().any()
    return out


def kernel_values(packed: FoldedBlocks) -> torch.Tensor:
    rows = [torch.cat([block_values(b, packed.format) for b in blocks], dim=1) for blocks in packed.blocks]
    return torch.cat(rows)[: packed.n, : packed.k]


def weights_of(n: int, k: int, format: Format, low: int, high: int) -> BlockScaled:
    scales = torch.randint(low, high, (n, k // format.group), dtype=u8)
    return BlockScaled(format=format, codes=pack(torch.randint(0, 16, (n, k), dtype=u8), 4), scales=scales)


@pytest.mark.parametrize(("low", "is_listed"), [(122, False), (119, True)])
def test_threads_make_every_code_times_every_scale_of_mxfp4(low: int, is_listed: bool) -> None:
    torch.manual_seed(0)
    weights = weights_of(70, 352, MXFP4, low, 134)
    packed = to_folded_blocks(prepack(weights, for_op="mxfp4_fp8_mm"))
    assert packed.blocks.shape == (2, 4, 4352)
    assert bool((packed.blocks[..., CODE_BYTES:] & LISTED).any()) is is_listed
    assert torch.equal(kernel_values(packed) * packed.base[:, None], weights.values())
    assert torch.equal(packed.values(), weights.values())


def test_threads_round_every_code_times_every_scale_of_nvfp4() -> None:
    torch.manual_seed(0)
    weights = weights_of(70, 304, NVFP4, 0, 127)
    ready = prepack(weights, for_op="nvfp4_fp8_mm_rounded", global_scale=torch.tensor([3.0]))
    packed = to_folded_blocks(ready)
    assert packed.blocks.shape == (2, 4, 4608)
    assert torch.equal(kernel_values(packed), ready.operand_values())
    assert torch.equal(packed.values(), ready.values())


def test_rows_unpacked_have_the_kernels_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of two tiles, the last of one."""
    torch.manual_seed(0)
    weights = weights_of(150, 304, NVFP4, 0, 127)
    weights.codes[5], weights.codes[7, :8] = 0x88, 0  # zeros with a sign, a group without
    packed = to_folded_blocks(prepack(weights, for_op="nvfp4_fp8_mm_rounded", global_scale=torch.tensor([3.0])))
    monkeypatch.setattr(fp4_blocks, "CHUNK", 2 * 64 * 512)
    rows = rounded_rows(packed.blocks)
    assert (rows.dtype, rows.shape) == (torch.float8_e4m3fn, (192, 512)) and rows.is_contiguous()
    assert torch.equal(rows[:150, :304].double(), kernel_values(packed))
    assert not rows[150:].view(u8).any() and not rows[:, 304:].view(u8).any(), "padding is zero"


def test_groups_of_zeros_and_padding_are_not_listed() -> None:
    weights = weights_of(3, 64, MXFP4, 127, 128)
    weights.codes[1, :16], weights.scales[1, 0] = 0x80, 0
    packed = to_folded_blocks(prepack(weights, for_op="mxfp4_fp8_mm"))
    assert not (packed.blocks[..., CODE_BYTES:] & LISTED).any() and packed.base.eq(1).all()
    assert torch.equal(packed.values(), weights.values())


def test_weights_that_do_not_fold_stay_in_rows() -> None:
    torch.manual_seed(0)
    weights = weights_of(5, 96, MXFP4, 90, 134)
    packed = to_folded_blocks(prepack(weights, for_op="mxfp4_fp8_mm", fallback="bf16"))
    assert packed.blocks.shape == (5, 64) and packed.blocks[:, 51:].eq(0).all()
    assert torch.equal(packed.values(), weights.values())


def test_what_is_packed_for_another_op_is_refused() -> None:
    weights = weights_of(3, 64, MXFP4, 127, 128)
    with pytest.raises(ValueError) as caught:
        to_folded_blocks(prepack(weights, for_op="fp4_weight_mm"))
    assert str(caught.value) == (
        "folded blocks are for mxfp4_fp8_mm and nvfp4_fp8_mm_rounded, got weights packed for fp4_weight_mm"
    )
    with pytest.raises(ValueError) as caught:
        to_rows(prepack(weights, for_op="mxfp4_fp8_mm"))
    assert str(caught.value) == "packed rows are for fp4_weight_mm, got weights packed for mxfp4_fp8_mm"


@pytest.mark.parametrize("low", [122, 119])
def test_lanes_make_the_same_of_mxfp4_in_f16(low: int) -> None:
    """Of every shift, listed ones too: f16 has no subnormal numbers there."""
    torch.manual_seed(1)
    packed = to_folded_blocks(prepack(weights_of(64, 256, MXFP4, low, 134), for_op="mxfp4_fp8_mm"))
    for block in packed.blocks[0]:
        assert torch.equal(half_values(block), block_values(block, MXFP4))
