"""Block-scaled quantisation of rows sorted by expert, on the CPU."""

from itertools import pairwise

import pytest
import torch

import gemmill
from gemmill.families.quant.config import Activation
from gemmill.families.quant.reference import activated
from gemmill.formats.quantise import quantise, swizzle
from gemmill.vocab.format import MXFP4, MXFP8, NVFP4, Format

OPS = {NVFP4: "scaled_fp4_experts_quant", MXFP4: "mxfp4_experts_quant", MXFP8: "mxfp8_experts_quant"}
OFFSETS = [1, 4, 4, 140, 150]
ROWS = 153


def _rows(columns: int, rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).bfloat16()


def _whole(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _global_scales(format: Format) -> tuple[torch.Tensor, ...]:
    return (torch.tensor([100.0, 200.0, 300.0, 400.0]),) if format.has_global_scale else ()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("format", OPS, ids=str)
def test_each_expert_is_coded_as_a_matrix_of_its_own(format: Format, gated: bool) -> None:
    """By its own global scale; rows of none are zeros."""
    hidden = 3 * format.group
    x = _rows(2 * hidden if gated else hidden)
    op = getattr(gemmill, f"{'silu_and_mul_' if gated else ''}{OPS[format]}")
    codes, scales, starts = op(x, *_global_scales(format), _whole(OFFSETS))
    assert starts.tolist() == [0, 128, 128, 384, 512] and scales.shape == (640, 4)
    values = activated(x, Activation.SILU if gated else Activation.NONE)
    found, found_scales = codes.view(torch.uint8), scales.view(torch.uint8)
    for expert, (start, end) in enumerate(pairwise(OFFSETS)):
        given = _global_scales(format)[0][expert].reshape(1) if format.has_global_scale else None
        wanted = quantise(values[start:end], format, global_scale=given)
        assert torch.equal(found[start:end], wanted.codes)
        swizzled = swizzle(wanted.scales)
        assert torch.equal(found_scales[starts[expert] :][: swizzled.shape[0]], swizzled)
    assert not found[:1].any() and not found[150:].any()


def test_nothing_else_is_written() -> None:
    """Scales lie where they are said to, with gaps, in words; codes are padded to wider rows."""
    x, out = _rows(80), torch.full((ROWS, 64), 0x5A, dtype=torch.uint8)
    scales = torch.full((1024, 2), -1, dtype=torch.int32)
    starts = _whole([512, 0, 128, 768, 0])
    torch.ops.gemmill.scaled_fp4_experts_quant(out, scales, x, *_global_scales(NVFP4), _whole(OFFSETS), starts)
    narrow = gemmill.scaled_fp4_experts_quant(x, *_global_scales(NVFP4), _whole(OFFSETS))
    assert torch.equal(out[:, :40], narrow[0]) and not out[:, 40:].any()
    words = narrow[1].view(torch.int32)
    for start, rows, own in ((512, 128, 0), (128, 256, 128), (768, 128, 384)):
        assert torch.equal(scales[start : start + rows], words[own : own + rows])
        scales[start : start + rows] = -1
    assert (scales == -1).all()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"offsets": [0, 5, 3, 6, 8]},
            "offsets of experts are [0, 5, 3, 6, 8], expected ascending ones from 0 to 153, the rows",
        ),
        (
            {"offsets": [0, 5, 6, 7, 154]},
            "offsets of experts are [0, 5, 6, 7, 154], expected ascending ones from 0 to 153, the rows",
        ),
        (
            {"starts": [0, 0, 0, 128, 256]},
            "scales of experts begin at rows [0, 0, 0, 128] and take [128, 0, 256, 128], expected room for each within 640 rows: "
            "an expert's rows are padded to 128",
        ),
        (
            {"starts": [0, 0, 128, 640, 768]},
            "scales of experts begin at rows [0, 0, 128, 640] and take [128, 0, 256, 128], expected room for each within 640 "
            "rows: an expert's rows are padded to 128",
        ),
        ({"n": 3}, "n_experts is 3, and input_offset_by_experts has 5 values: expected one more"),
        (
            {"offsets": [0], "starts": [0]},
            "input_offset_by_experts has shape [1]: expected a value for each expert, and one for the end",
        ),
        (
            {"starts": [0, 128]},
            "output_scale_offset_by_experts has shape [2]: expected 5 values, one for each expert and one for the end",
        ),
        ({"columns": 8}, "output_scale is [640, 8], expected scale_columns = 4 in its dimension 1"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict, sentence: str) -> None:
    offsets = changes.get("offsets", OFFSETS)
    call = (
        torch.zeros(ROWS, 32, dtype=torch.uint8),
        torch.zeros(640, changes.get("columns", 4), dtype=torch.uint8),
        _rows(64),
        _whole(offsets),
        _whole(changes.get("starts", [0, 128, 128, 384, 512])),
        changes.get("n", len(offsets) - 1),
    )
    with pytest.raises(RuntimeError) as caught:
        torch.ops.gemmill.mxfp4_experts_quant(*call)
    assert str(caught.value) == f"mxfp4_experts_quant: {sentence}"


def test_every_expert_has_a_global_scale() -> None:
    call = torch.zeros(ROWS, 32, dtype=torch.uint8), torch.zeros(640, 4, dtype=torch.uint8), _rows(64), torch.ones(3)
    with pytest.raises(
        RuntimeError, match=r"input_global_scale has shape \[3\]: expected 4 values, one for each expert$"
    ):
        torch.ops.gemmill.scaled_fp4_experts_quant(*call, _whole(OFFSETS), _whole([0, 128, 128, 384, 512]))
