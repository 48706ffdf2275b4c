"""The errors that quantisation makes in a layer, in figures."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gemmill.formats.quantise import BlockScaled
from gemmill.quantize.folding import exact_shifts
from gemmill.quantize.prepack import prepack
from gemmill.quantize.weights import QuantizedWeight, chunks
from gemmill.vocab.float_type import E2M1, E4M3
from gemmill.vocab.format import MXFP4

SHOWN_ROWS = 5
"""The most rows that a sentence names. The layer's figures have all."""


@dataclass(frozen=True, kw_only=True)
class LayerError:
    """The error of a quantised layer relative to its source."""

    name: str
    format: str
    n: int
    k: int
    weights: float
    """Sum of the squared changes of weights over the sum of their squares; 0 where all weights are zero."""
    outputs: float | None = None
    """The same ratio for the layer's outputs, for inputs from the caller."""
    unfolded: int | None = None
    """How many rows of mxfp4 have scales that do not fold exactly into e4m3; None for other formats."""
    spread: int | None = None
    """Binary orders between the largest and the smallest scale of a row of mxfp4, in the worst row."""
    unfolded_rows: Sequence[Sequence[int]] | None = None
    """The number and the spread of each row of mxfp4 that does not fold, in order; None for other formats."""

    def __post_init__(self) -> None:
        if self.unfolded_rows is not None:  # lists, where they come from JSON
            object.__setattr__(self, "unfolded_rows", tuple((row, spread) for row, spread in self.unfolded_rows))

    @property
    def folding(self) -> str:
        """Which rows of mxfp4 fold exactly into e4m3, in words; "" for another format."""
        if self.unfolded_rows is None:
            return ""
        if not self.unfolded_rows:
            return f"every row folds (spread {self.spread} at most)"
        count = len(self.unfolded_rows)
        shown = ", ".join(f"{row} (spread {spread})" for row, spread in self.unfolded_rows[:SHOWN_ROWS])
        more = f" and {count - SHOWN_ROWS} more" if count > SHOWN_ROWS else ""
        return f"{count} of {self.n} rows {'does' if count == 1 else 'do'} not fold: {shown}{more}"

    def __str__(self) -> str:
        outputs = "" if self.outputs is None else f", outputs {self.outputs:.2e}"
        folding = f", {self.folding}" if self.folding else ""
        return f"{self.name}: {self.n} x {self.k} to {self.format}, weights {self.weights:.2e}{outputs}{folding}"


def layer_error(name: str, weight: Tensor, quantized: QuantizedWeight, inputs: Tensor | None = None) -> LayerError:
    """The error of a weight [N, K] in a format, in bounded memory. `inputs` [tokens, K] are recorded inputs of the
    layer.

    Changes are in f32, their sums in f64. Raises ValueError where shapes disagree.
    """
    n, k, weight = quantized.n, quantized.k, weight.detach()
    if tuple(weight.shape) != (n, k):
        raise ValueError(f"{name} is {list(weight.shape)} and its quantised form {n} x {k}: they are not one layer's")
    if inputs is not None and (inputs.dim() != 2 or inputs.shape[1] != k):
        raise ValueError(f"inputs of {name} are {list(inputs.shape)}, expected [tokens, {k}]")
    sums = torch.zeros(4, dtype=torch.float64, device=weight.device)
    for rows in chunks(weight):
        before = weight[rows].float()
        change = quantized.values(rows) - before
        sums[0] += change.square().sum(dtype=torch.float64)
        sums[1] += before.square().sum(dtype=torch.float64)
        if inputs is not None:
            seen = inputs.to(before)
            sums[2] += (seen @ change.t()).square().sum(dtype=torch.float64)
            sums[3] += (seen @ before.t()).square().sum(dtype=torch.float64)
    changed, squared, changed_outputs, outputs = sums.tolist()
    unfolded, spread = _folding(quantized) if quantized.format == "mxfp4" else (None, None)
    return LayerError(
        name=name,
        format=quantized.format,
        n=n,
        k=k,
        weights=_ratio(changed, squared),
        outputs=None if inputs is None else _ratio(changed_outputs, outputs),
        unfolded=None if unfolded is None else len(unfolded),
        spread=spread,
        unfolded_rows=unfolded,
    )


def _folding(weight: QuantizedWeight) -> tuple[list[list[int]], int]:
    """Rows that do not fold into e4m3 with their spreads, and the widest spread."""
    scaled = BlockScaled(format=MXFP4, codes=weight.codes, scales=weight.scales)
    report = prepack(scaled, for_op="mxfp4_fp8_mm", fallback="bf16").report
    assert report.spread is not None
    most = len(exact_shifts(E2M1, E4M3)) - 1
    of_row = report.spread.amax(dim=1)
    rows = (of_row > most).nonzero().flatten()
    return torch.stack((rows, of_row[rows].long()), dim=1).tolist(), report.widest[1]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
