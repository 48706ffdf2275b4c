"""The rows of a layer that gemmill serves, and those that an engine's own kernel serves: the plugin times both after
loading.

Both multiply by the same weights, so a call may go to either by its rows. Within torch.compile an op asks, so that one graph is right
for any number of rows. It names the layer: a cached graph gets the split of the process that runs it.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

import gemmill
from gemmill import settings
from gemmill.compat.linear import Linear, row_of, unusable
from gemmill.runtime.notices import LOG

TIMED_ROWS = (1, 16, 64, 256, 4096)
_BOUNDS = (4, 32, 128, 1024)
"""The most rows for which each of TIMED_ROWS but the last stands: about halfway to the next, by ratios."""
MARGIN = 0.98
"""An engine's kernel serves rows for which it takes less than this part of gemmill's time."""
_TURNS, _FEW_TURNS = 9, 3
"""Each kernel's calls that are timed: few of many rows, which take most of the time and vary least."""
_COLD_BYTES = 80 * 2**20
"""More than the L2 of a GPU, so that weights come from memory, as they do between layers: an H200's is of 60 MB."""
_LEAD_CYCLES = 400_000
"""Of a GPU that waits while the host, which may start more engines, makes the two calls that are timed: about 0.2 ms."""
FEW_ROWS = 1024
"""Above these, multiplying takes much longer than reading weights, and results as large as L2 stand between two calls."""
_ALIGNMENT = 16
"""N and K are multiples of it in layers whose weights an engine's kernel does not pad."""

Gemm = Callable[..., Tensor]
"""Of (a, b, a_scales, b_scales, out_dtype, azp_adj, azp, bias), as an engine has them: a [M, K] times b [K, N], of out_dtype [M, N]."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """The server of each range of a layer's rows."""

    ours_first: bool
    """Whether gemmill serves one row."""
    changes: tuple[int, ...] = ()
    """The most rows of each of the two in turns; the last has no most."""
    times: str = ""
    """Both kernels' times, in words."""

    def __post_init__(self) -> None:
        if list(self.changes) != sorted(set(self.changes)):
            raise ValueError(f"changes are {self.changes}: expected ascending numbers of rows")

    def is_ours(self, rows: int) -> bool:
        """Whether gemmill serves a call of so many rows."""
        return (bisect_left(self.changes, rows) % 2 == 0) == self.ours_first

    @property
    def is_engines(self) -> bool:
        """Whether no call is gemmill's."""
        return not (self.ours_first or self.changes)

    def __str__(self) -> str:
        edges = [0, *self.changes]
        spans = [f"{below + 1} to {most}" for below, most in pairwise(edges)]
        mine = [*spans, f"{edges[-1] + 1} and more"][0 if self.ours_first else 1 :: 2]
        return f"{', '.join(mine) or 'no'} rows ({self.times})"


def split_of(times_us: dict[int, tuple[float, float]]) -> Split:
    """The server of each range of rows, by the times of gemmill's kernel and the engine's at each of TIMED_ROWS."""
    mine = [theirs >= MARGIN * ours for ours, theirs in times_us.values()]
    changes = [bound for bound, (one, other) in zip(_BOUNDS, pairwise(mine), strict=True) if one != other]
    told = ", ".join(f"{rows}: {ours:.1f} and {theirs:.1f}" for rows, (ours, theirs) in times_us.items())
    return Split(ours_first=mine[0], changes=tuple(changes), times=f"us of gemmill's kernel and the engine's at {told}")


_splits: dict[str, tuple[Split, Gemm]] = {}
"""By a layer's name: its split, and the engine's kernel."""


def split(layer: Linear, theirs: Gemm, *operands: Tensor | None) -> Split | None:
    """The server of each range of a layer's rows, timed once for each shape. None without a measurement: gemmill serves
    all rows.

    `operands` are b, and for one row a_scales, b_scales, azp_adj, azp and bias. Raises nothing.
    """
    b = operands[0]
    if b is None or not can_time(b) or layer.n % _ALIGNMENT or layer.k % _ALIGNMENT:
        return None
    if str(layer) not in _splits:
        try:
            times = {rows: times_us(layer, rows, theirs, *operands) for rows in TIMED_ROWS}
        except Exception as error:  # whatever is wrong, gemmill's first call has passed
            LOG.warning("gemmill serves a %s untimed: %s", layer, unusable(error))
            return None
        _splits[str(layer)] = split_of(times), theirs
    return _splits[str(layer)][0]


def can_time(weight: Tensor) -> bool:
    """Whether to time both kernels here."""
    return weight.is_cuda and settings.times_layers()


def forget() -> None:
    """Time again, as a new process does."""
    _splits.clear()


def timed_rows(rows: int, n: int, itemsize: int) -> int:
    """As many rows as stand for `rows` of a result with n columns: no more than _COLD_BYTES of it, but a few.

    A load of a model has no room for more than a layer.
    """
    return rows if rows <= FEW_ROWS else max(FEW_ROWS, min(rows, _COLD_BYTES // (n * itemsize) // 256 * 256))


def times_us(layer: Linear, rows: int, theirs: Gemm, *operands: Tensor | None) -> tuple[float, float]:
    """The shortest times of gemmill's kernel and of the engine's, in turns, of random codes, with L2 full of something else."""
    b, a_scales, b_scales, azp_adj, azp, bias = operands
    assert b is not None and a_scales is not None
    rows = timed_rows(rows, layer.n, layer.out_dtype.itemsize)
    a = random_codes(rows, layer, b.device)
    azp = None if azp is None else _of_rows(azp, rows)
    given = a, b, _of_rows(a_scales, rows), b_scales, layer.out_dtype, azp_adj, azp, bias
    return shortest_us(lambda: own_mm(*given), lambda: theirs(*given), cold=rows <= FEW_ROWS, device=b.device)


def random_codes(rows: int, layer: Linear, device: torch.device) -> Tensor:
    """Activations [rows, K] of a layer, none of them a NaN."""
    return torch.randint(0, 120, (rows, layer.k), dtype=torch.uint8, device=device).view(layer.codes)


def shortest_us(
    ours: Callable[[], object], theirs: Callable[[], object], *, cold: bool, device: torch.device
) -> tuple[float, float]:
    """The shortest time of each of two calls, in turns. `cold` fills L2 with something else before each, once the host is ahead."""
    other = torch.empty(_COLD_BYTES if cold else 0, dtype=torch.uint8, device=device)
    taken: tuple[list[tuple[torch.cuda.Event, torch.cuda.Event]], ...] = ([], [])
    for turn in range((_TURNS if cold else _FEW_TURNS) + 1):
        for number in (0, 1) if turn % 2 else (1, 0):
            if cold:
                torch.cuda._sleep(_LEAD_CYCLES)
            other.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            (ours, theirs)[number]()
            end.record()
            if turn:
                taken[number].append((begin, end))
    torch.cuda.synchronize(device)
    mine, its = (1000 * min(begin.elapsed_time(end) for begin, end in events) for events in taken)
    return mine, its


def _of_rows(of_one: Tensor, rows: int) -> Tensor:
    """The inputs of one row, [1, ...], repeated for more rows, groups along K M-major; one value for all stays."""
    return of_one if of_one.dim() < 2 else of_one.t().repeat_interleave(rows, dim=1).t()


def own_mm(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    out_dtype: torch.dtype,
    azp_adj: Tensor | None,
    azp: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """gemmill's GEMM of an engine's operands: scales of channels [N, 1], or with scales of a in groups [K/128, N/128]."""
    scales = b_scales if a_scales.dim() == 2 and a_scales.shape[1] > 1 else row_of(b_scales)
    if azp_adj is None:
        return gemmill.cutlass_scaled_mm(a, b, a_scales, scales, out_dtype, bias)
    return gemmill.cutlass_scaled_mm_azp(a, b, a_scales, scales, out_dtype, azp_adj.reshape(-1), azp, bias)


def by_split(a: Tensor, *operands: object) -> Tensor:
    """The op: by gemmill where the layer, named last, has no split in this process."""
    *rest, layer = operands
    known = _splits.get(str(layer))
    gemm = own_mm if known is None or known[0].is_ours(a.shape[0]) else known[1]
    return gemm(a, *rest)


def _empty(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, out_dtype: torch.dtype, *rest: object) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)


_LIBRARY = torch.library.Library("gemmill_engines", "FRAGMENT")
_LIBRARY.define(
    "scaled_mm(Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, ScalarType out_dtype, Tensor? azp_adj, Tensor? azp, "
    "Tensor? bias, str layer) -> Tensor"
)
for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("scaled_mm", by_split, _key)
_LIBRARY._register_fake("scaled_mm", _empty)
by_rows: Gemm = torch.ops.gemmill_engines.scaled_mm.default
"""The same with the layer's name as the last operand, for either kernel by the rows of a."""
