"""A captured CUDA graph serves every routing: its grid depends on sizes that the host knows."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

import pytest
import torch

from gemmill.families.moe.cases.calls import Problem, arguments_of, make_given, wanted_of
from gemmill.vocab import DType

ROWS, EXPERTS = 300, 6
FIRST = Problem(counts=(50,) * EXPERTS, n=160, k=288, data="integers")
PROBLEMS = {
    "channel": FIRST,
    "groups": replace(FIRST, grouped=True),
    "integers": replace(FIRST, dtype=DType.S8),
    "bf16": replace(FIRST, dtype=DType.BF16),
    "gathered": replace(FIRST, indexed=True),
    "gathered in groups": replace(FIRST, grouped=True, indexed=True),
    "gathered bf16": replace(FIRST, dtype=DType.BF16, indexed=True),
    "slots": replace(FIRST, slot=ROWS, counts=(50,) * EXPERTS),
    "slots of bf16": replace(FIRST, slot=ROWS, dtype=DType.BF16),
}
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


def told(p: Problem) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Offsets, or rows of slots, and a map."""
    for counts in ROUTINGS:
        for mapped in MAPS:
            values = counts if p.slot else tuple(accumulate(counts, initial=0))
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


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_graph_serves_every_routing(name: str, device: torch.device) -> None:
    problem = PROBLEMS[name]
    given = make_given(problem, device) | {"expert_map": torch.zeros(EXPERTS, dtype=torch.int32, device=device)}
    shape = (EXPERTS, problem.slot, problem.n) if problem.slot else (problem.rows, problem.n)
    out = torch.empty(shape, dtype=torch.bfloat16, device=device)
    where = "rows" if problem.slot else "expert_offsets"
    op = getattr(torch.ops.gemmill, problem.op).default
    replay = once(lambda: op(*arguments_of(problem.op, given, out)), device)
    for segments, mapped in told(problem):
        given[where].copy_(segments)
        given["expert_map"].copy_(mapped)
        out.fill_(torch.nan)
        wanted = wanted_of(problem.op, given, out, exactly=True, promoted=False)
        replay()
        comparison = wanted.compare(out.reshape(-1, problem.n))
        assert comparison.ok, f"{segments.tolist()}, {mapped.tolist()}: {comparison.report}"
