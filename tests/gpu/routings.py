"""Routings with which every grouped GEMM is tried, and calls captured once for all of them."""

from collections.abc import Callable, Iterator
from itertools import accumulate

import torch

ROWS, EXPERTS = 300, 6
ROUTINGS = (
    (ROWS, 0, 0, 0, 0, 0),
    (0, 0, 0, 0, 0, ROWS),
    (0, 0, 0, 0, 0, 0),
    (1, 1, 1, 1, 1, 1),
    (17, 0, 130, 1, 0, 152),
    (64, 64, 64, 64, 43, 1),
)
"""Rows of each expert."""
MAPS = ((0, 1, 2, 3, 4, 5), (5, -1, 3, -1, 0, 1))


def told(*, slots: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Offsets, or rows of slots, and a map."""
    for counts in ROUTINGS:
        for mapped in MAPS:
            values = counts if slots else tuple(accumulate(counts, initial=0))
            yield torch.tensor(values, dtype=torch.int32), torch.tensor(mapped, dtype=torch.int32)


def once(call: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The call, captured; on a CPU itself."""
    if device.type == "cpu":
        return call
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
