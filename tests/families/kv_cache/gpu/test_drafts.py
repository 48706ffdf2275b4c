"""vLLM's backend with drafts: one captured CUDA graph of a uniform batch serves all lengths and page tables."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

import gemmill
from engines import vllm_modules

HEADS, KV_HEADS, HEAD_DIM, PAGE, SLOT, NAME = 8, 2, 128, 16, 134, "turboquant_4bit_nc"
OWN = "gemmill.compat.vllm.attention"
LATER = ((300, 100), (5, 299), (4, 64), (0, 300))


@pytest.fixture
def plugin(monkeypatch):
    for name, module in vllm_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, OWN, raising=False)
    yield importlib.import_module(OWN)
    sys.modules.pop(OWN, None)


@pytest.mark.parametrize("rows", [2, 4, 12])
def test_a_graph_of_drafts_serves_all_lengths(plugin, rows: int, device: torch.device) -> None:
    """12 rows of 4 heads are more than a call of the format's kernel takes."""
    torch.manual_seed(rows)
    impl = plugin.GemmillTurboQuantImpl()
    told = {"kv_cache_dtype": NAME, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_size": HEAD_DIM, "scale": 0.1}
    for name, value in told.items():
        setattr(impl, name, value)
    pages = -(-300 // PAGE)
    cache = torch.zeros(2 * pages, PAGE, KV_HEADS, SLOT, dtype=torch.uint8, device=device)
    new = torch.randn(2, 2 * pages * PAGE, KV_HEADS, HEAD_DIM, device=device).bfloat16()
    impl._store_kv(*new, cache, torch.arange(new.shape[1], device=device), None)
    begins = torch.arange(3, dtype=torch.int32) * rows
    lengths = torch.tensor([1, 1], dtype=torch.int32, device=device)
    table = torch.arange(2 * pages, dtype=torch.int32, device=device).reshape(2, pages)
    config = SimpleNamespace(num_speculative_tokens=rows - 1)
    batch = {"query_start_loc_cpu": begins, "seq_lens": lengths, "block_table_tensor": table, "num_reqs": 2}
    batch |= {"max_query_len": rows, "num_actual_tokens": 2 * rows, "seq_lens_cpu_upper_bound": None}
    meta = plugin.GemmillTurboQuantBuilder(None, [], config, device).build(0, SimpleNamespace(**batch))
    q = torch.randn(2 * rows, HEADS, HEAD_DIM, device=device).bfloat16()

    def call() -> torch.Tensor:
        (out,) = impl.forward(None, q, None, None, cache, meta)
        return out

    out = call()
    assert not isinstance(out, str), f"vLLM would serve it: {impl._failed}"
    replay = None
    if device.type == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call()
        replay = graph.replay
    keys, values = gemmill.vllm_cache(cache.cpu(), NAME, HEAD_DIM)
    for now in LATER:
        lengths.copy_(torch.tensor(now, dtype=torch.int32))
        table.copy_(torch.randperm(2 * pages).int().reshape(2, pages))
        q.normal_()
        out = call() if replay is None else out.fill_(torch.nan)
        if replay is not None:
            replay()
        given = q.cpu().unflatten(0, (2, rows)), keys, values, lengths.cpu(), table.cpu(), NAME
        wanted = gemmill.kv_attention(*given, scale=0.1)[0].flatten(0, 1).float()
        difference = (out.cpu().float() - wanted).norm() / wanted.norm()
        assert difference < 2.0**-7, (now, float(difference))
