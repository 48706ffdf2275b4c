"""2:4 sparse weights as kernels read them: how threads of a warp decode a block, byte by byte."""

import pytest
import torch

from gemmill.formats.fp4_blocks import BITS
from gemmill.formats.sparse_blocks import CODE_BYTES, PLACE_BYTES
from gemmill.formats.sparse_fp4 import SparseFp4, from_transposed_2to4
from gemmill.quantize import prepack_gated_experts, prune_to_fp4, quantize_weight
from gemmill.quantize.sparse_blocks import to_sparse_blocks
from gemmill.vocab.float_type import E2M1

N, K = 72, 96


def weights(group: int) -> SparseFp4:
    """Of one expert with two parts; scales of 8 columns differ."""
    g = torch.Generator().manual_seed(group)
    made, _ = prune_to_fp4([[torch.randn(N // 2, K, generator=g) * 2**i for i in range(2)]])
    if group == 16:
        return made
    tensors = made.transposed_2to4()
    scales = tensors["scale_T"].view(torch.uint8).repeat_interleave(2, dim=1)
    scales[:, 1::2] = (scales[:, 1::2].int() - 8).clamp(min=1).to(torch.uint8)
    return from_transposed_2to4(tensors | {"scale_T": scales.view(torch.float8_e4m3fn)})


def made_by_threads(block: list[int], group: int) -> torch.Tensor:
    """The 64 x 64 weights of a block's bytes, as the sparse tensor core takes them from registers."""
    codes, places, scales = (
        block[:CODE_BYTES],
        block[CODE_BYTES : CODE_BYTES + PLACE_BYTES],
        block[CODE_BYTES + PLACE_BYTES :],
    )
    found = torch.zeros(64, 64)
    for thread in range(128):
        warp, row, t = thread // 32, thread % 32 // 4, thread % 4
        word = int.from_bytes(bytes(codes[8 * thread : 8 * thread + 8]), "little")
        own = [0] * 16
        for code, bit, at in BITS:
            own[code] |= (word >> at & 1) << bit
        for i, value in enumerate(own):
            step, half_of_columns, half, parity = i // 8, i // 4 % 2, i // 2 % 2, i % 2
            of_step = t + 4 * half_of_columns
            teller = thread - t + 2 * step + half_of_columns
            told = int.from_bytes(bytes(places[4 * teller : 4 * teller + 4]), "little")
            place = told >> 16 * half + 4 * (of_step % 4) + 2 * parity & 3
            column, pair = 32 * step + 4 * of_step + place, warp * 8 + row
            of_row = scales[(t // 2 * 256 if group == 8 else 0) + 8 * pair + 4 * half :]
            byte = of_row[[0, 2, 1, 3][2 * step + half_of_columns]]
            scale = 2.0 ** ((byte >> 3) - 10) * (1 + (byte & 7) / 8)
            found[16 * warp + row + 8 * half, column] += E2M1.value(value) * scale
    return found


@pytest.mark.parametrize("group", [16, 8])
def test_threads_make_what_is_kept_where_it_was(group: int) -> None:
    sparse = weights(group)
    packed = to_sparse_blocks(sparse, 0)
    assert packed.blocks.shape[:2] == (2, 4) and packed.group == group
    whole = torch.cat([torch.cat([made_by_threads(b.tolist(), group) for b in row], dim=1) for row in packed.blocks])
    wanted = torch.zeros_like(whole)
    wanted[:N, :K] = sparse.values(0) / sparse.weight_scale_2[0].repeat_interleave(N // 2)[:, None]
    torch.testing.assert_close(whole, wanted, rtol=0, atol=1e-6)
    assert torch.equal(packed.base, sparse.weight_scale_2[0].repeat_interleave(N // 2)), "gate's and up's are each kept"


@pytest.mark.parametrize("group", [16, 8])
def test_blocks_give_the_weights_back(group: int) -> None:
    sparse = weights(group)
    again, base = to_sparse_blocks(sparse, 0).weights()
    torch.testing.assert_close(again.values(0) * base[:, None], sparse.values(0), rtol=1e-6, atol=0)
    assert torch.equal(again.patterns, sparse.patterns)


def test_sparse_layers_that_cannot_be_packed() -> None:
    both = weights(16)
    down, _ = prune_to_fp4([[torch.randn(K, 64)]])
    with pytest.raises(
        ValueError, match=r"^expert 0: w13 is 72 x 96 and w2 96 x 64, expected w13 of 128 x 96 for this w2$"
    ):
        prepack_gated_experts(both, down)
    gates, _ = prune_to_fp4([[torch.randn(64, K), torch.randn(64, K)]])
    with pytest.raises(ValueError, match=r"^2:4 sparse weights with scales of 16 and 16 columns for e4m3 activations"):
        prepack_gated_experts(gates, down, activations="e4m3")
    dense = quantize_weight(torch.randn(K, 64), "nvfp4")
    from gemmill.formats.quantise import BlockScaled
    from gemmill.vocab.format import NVFP4

    with pytest.raises(
        ValueError, match=r"^one of w13 and w2 is 2:4 sparse and the other is dense: both are, or none$"
    ):
        prepack_gated_experts(gates, [BlockScaled(format=NVFP4, codes=dense.codes, scales=dense.scales)])
