"""One captured CUDA graph serves all lengths, page tables and slots: they are on the device. A call twice has the same bits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gemmill.families.kv_cache.cases.calls import CompressCase, DecodeCase
from gemmill.families.kv_cache.cases.judging import parts, report
from gemmill.families.kv_cache.cases.packed_calls import AttendCase

LENGTHS = (1000, 300)
CASES = {
    "pages": DecodeCase(lengths=LENGTHS, rows=2, heads=8, kv_heads=2),
    "slots": AttendCase(lengths=LENGTHS, rows=2, heads=8, kv_heads=2, format="k_unit_centroids4_v_uniform4"),
    "any format": AttendCase(lengths=LENGTHS, rows=2, heads=8, kv_heads=2),
}
LATER = ((5, 999), (0, 64), (1000, 1), (10**6, -3))


def given_of(case: Any, device: torch.device) -> dict[str, Any]:
    return dict(zip(case.schema.arguments, case.arguments(device), strict=True))


def captured(case: Any, given: dict[str, Any], device: torch.device) -> Callable[[], None]:
    """The call, captured; on a CPU itself."""
    op = getattr(torch.ops.gemmill, case.schema.name).default

    def call() -> None:
        op(*given.values())

    if device.type == "cpu":
        return call
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def poisoned(given: dict[str, Any]) -> list[Tensor]:
    written = [given["out"], given["lse"]]
    for tensor in written:
        tensor.fill_(torch.nan)
    return written


@pytest.mark.parametrize("name", CASES)
def test_a_graph_serves_all_lengths_and_tables(name: str, device: torch.device) -> None:
    case = CASES[name]
    given = given_of(case, device)
    stored = [given[name] for name in ("cache", "keys", "values") if name in given]
    for tensor in stored:  # pages that no token was stored in are finite too: any of them may be read
        tensor.masked_fill_(tensor == 0xFF, 1)
    pages = len(stored[0])
    replay, random = captured(case, given, device), torch.Generator().manual_seed(0)
    for lengths in LATER:
        given["seq_lens"].copy_(torch.tensor(lengths, dtype=torch.int32))
        given["block_table"].copy_(torch.randint(pages, given["block_table"].shape, generator=random))
        written = poisoned(given)
        replay()
        first = [tensor.clone() for tensor in written]
        assert not report(parts(case.schema.name, given, given)), lengths
        poisoned(given)
        replay()
        assert all(map(torch.equal, (x.nan_to_num(7.0) for x in first), (x.nan_to_num(7.0) for x in written))), lengths


@pytest.mark.parametrize("rotated", [False, True])
def test_a_graph_serves_all_slots(rotated: bool, device: torch.device) -> None:
    case = CompressCase(tokens=70, format="k_eden4_v_eden4", kv_heads=2, rotated_keys=rotated, rotated_values=rotated)
    given = given_of(case, device)
    replay = captured(case, given, device)
    for seed in range(3):
        order = torch.randperm(len(given["cache"]) * case.page, generator=torch.Generator().manual_seed(seed))
        given["slot_mapping"].copy_(order[:70])
        given["slot_mapping"][seed::5] = -1
        given["cache"].fill_(0xFF)
        before = given | {"cache": given["cache"].clone()}
        replay()
        assert not report(parts(case.schema.name, before, given)), seed
