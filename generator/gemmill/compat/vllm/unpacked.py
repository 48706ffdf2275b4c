"""The rows for which an nvfp4 layer's weights become bf16 at each call: a GEMM of bf16 takes less time for many.

The plugin times both ways after loading. Within torch.compile an op asks, as `contest`'s does, so that one graph is right for any
number of rows. A call that a CUDA graph captures stays packed, for its temporary would stay in the graph's memory; so does one under
batch invariance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

import gemmill
from gemmill.compat import invariance
from gemmill.compat.linear import Linear, unusable
from gemmill.compat.vllm import contest
from gemmill.formats.layout import SIDE
from gemmill.runtime import holding
from gemmill.runtime.notices import LOG

LEAST_ROWS = MappingProxyType({4096: 3072, 8192: 6144})
"""The numbers of rows that are timed, in turn, each with the least rows for which it stands: about halfway from the half."""
MARGIN = 0.97
"""Unpacking serves rows for which it takes less than this part of the packed GEMM's time."""
_TIMED_BYTES, _FEWEST_COLUMNS = 300_000_000, 1024


@dataclass(frozen=True, kw_only=True)
class Unpacking:
    """The rows for which a layer's weights are unpacked."""

    least: int | None = None
    """The least number of them; None for a layer that stays packed."""
    times: str = ""
    """Both ways' times, in words."""

    def __str__(self) -> str:
        rows = "packed" if self.least is None else f"those of {self.least} and more by weights unpacked to bf16"
        return f"all rows, {rows} ({self.times})"


_found: dict[str, Unpacking] = {}
"""By a layer's name."""


def name_of(layer: Linear, bias: Tensor | None) -> str:
    """The name by which a layer's calls look up its rows: variants differ with the bias."""
    return f"{layer}{'' if bias is None else ', bias'}"


def unpacking(
    layer: Linear, blocks: Tensor, base: Tensor, alpha: Tensor | None, bias: Tensor | None
) -> Unpacking | None:
    """The rows for which a layer is unpacked, timed once for each shape. None without a measurement: it stays packed.

    The operands are `nvfp4_mm`'s. Raises nothing.
    """
    if layer.format != "nvfp4" or layer.codes is not torch.bfloat16 or not contest.can_time(blocks):
        return None
    if invariance.vllm_asks() or holding.holds_here():
        return None
    name = name_of(layer, bias)
    if name not in _found:
        try:
            _found[name] = _timed(layer, blocks, base, alpha, bias)
        except Exception as error:  # whatever is wrong, the packed call has passed
            LOG.warning("gemmill serves a %s packed, untimed: %s", layer, unusable(error))
            _found[name] = Unpacking()
    return _found[name] if _found[name].times else None


def forget() -> None:
    """Time again, as a new process does."""
    _found.clear()


def _timed(layer: Linear, *operands: Tensor | None) -> Unpacking:
    """More rows are timed where fewer leave the layer packed, for they take the most memory."""
    told: list[str] = []
    for rows, least in LEAST_ROWS.items():
        unpacked, packed = times_us(layer, rows, *operands)
        told.append(f"{rows}: {unpacked:.1f} and {packed:.1f}")
        times = f"us of unpacked and of packed weights at {', '.join(told)}"
        if unpacked < MARGIN * packed:
            return Unpacking(least=least, times=times)
    return Unpacking(times=times)


def times_us(layer: Linear, rows: int, *operands: Tensor | None) -> tuple[float, float]:
    """The shortest times of both ways, unpacked first. All rows are timed, because unpacking takes as long for few, but of the columns
    of the result those for which a load has room."""
    blocks, base, alpha, bias = operands
    assert blocks is not None and base is not None
    n = timed_columns(layer, rows)
    operands = blocks[: -(-n // SIDE)], base[:n], alpha, None if bias is None else bias[:n]
    random = torch.Generator(blocks.device).manual_seed(rows)
    a = torch.randn((rows, layer.k), generator=random, dtype=layer.codes, device=blocks.device)
    return contest.shortest_us(
        lambda: unpacked_mm(a, *operands), lambda: packed_mm(a, *operands), cold=False, device=blocks.device
    )


def timed_columns(layer: Linear, rows: int) -> int:
    """As many columns of the result as leave _TIMED_BYTES to them, their weights in bf16 and the rows, but a few tiles of them.

    4,096 columns of a layer's 6,144 or 28,672 can mislead: unpacking took 1.07 of the packed time of these, in another run 0.93 to 0.96 of
    all.
    """
    left = _TIMED_BYTES - 2 * rows * layer.k
    return min(layer.n, max(_FEWEST_COLUMNS, left // (2 * (layer.k + rows)) // _FEWEST_COLUMNS * _FEWEST_COLUMNS))


Mm = Callable[..., Tensor]
"""Of (a, blocks, base, alpha, bias): a [M, K] of bf16 times weights [N, K] of `packed_fp4`, [M, N] of bf16."""


def packed_mm(a: Tensor, blocks: Tensor, base: Tensor, alpha: Tensor | None, bias: Tensor | None) -> Tensor:
    """By the GEMM that reads the weights as they are."""
    return gemmill.fp4_weight_mm(a, blocks, base, alpha, bias, format="nvfp4")


def unpacked_mm(a: Tensor, blocks: Tensor, base: Tensor, alpha: Tensor | None, bias: Tensor | None) -> Tensor:
    """By weights in bf16, 2 N K bytes for the call. nvfp4's bases are 1, and alpha scales in the epilogue: values are exact."""
    weights = gemmill.nvfp4_weight_dequant(blocks, base.shape[0], a.shape[1])
    one = torch.ones(1, dtype=torch.float32, device=a.device)
    return gemmill.cutlass_scaled_mm(a, weights.t(), one, one if alpha is None else alpha, a.dtype, bias)


def by_found(a: Tensor, blocks: Tensor, base: Tensor, alpha: Tensor | None, bias: Tensor | None, layer: str) -> Tensor:
    """The op: packed where the layer, named last, has no such rows in this process."""
    known = _found.get(layer)
    unpacks = known is not None and known.least is not None and a.shape[0] >= known.least
    mm: Mm = unpacked_mm if unpacks and not (holding.holds_here() or _captures(a)) else packed_mm
    return mm(a, blocks, base, alpha, bias)


def _captures(a: Tensor) -> bool:
    return a.is_cuda and torch.cuda.is_current_stream_capturing()


def _empty(a: Tensor, blocks: Tensor, base: Tensor, *rest: object) -> Tensor:
    return a.new_empty((a.shape[0], base.shape[0]))


_LIBRARY = torch.library.Library("gemmill_engines", "FRAGMENT")
_LIBRARY.define("nvfp4_mm(Tensor a, Tensor blocks, Tensor base, Tensor? alpha, Tensor? bias, str layer) -> Tensor")
for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("nvfp4_mm", by_found, _key)
_LIBRARY._register_fake("nvfp4_mm", _empty)
nvfp4_mm: Mm = torch.ops.gemmill_engines.nvfp4_mm.default
"""The same with the layer's name as the last operand, either way by the rows of a."""
