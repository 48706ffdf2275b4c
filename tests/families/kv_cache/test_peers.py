"""Peers: the arguments of vLLM's Triton kernels, with files that stand for vLLM's sources; the result of prefilling by restored vectors."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gemmill.families.kv_cache.vllm_codebooks import vllm_codebook
from harness.contenders import FieldError
from peers import flash_attention, vllm_turboquant
from timed.kv_cache.calls import KvCacheMaker, workload_of
from timed.kv_cache.contenders import KvCacheContender, PrefillPeer

OPS = "vllm/v1/attention/ops"


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that return their arguments."""
    (tmp_path / OPS).mkdir(parents=True)
    for what in ("decode", "store"):
        function = "triton_turboquant_" + ("decode_attention" if what == "decode" else "store")
        text = f"from vllm.triton_utils import tl, triton\ndef {function}(*given): return given\n"
        (tmp_path / OPS / f"triton_turboquant_{what}.py").write_text(text)
    triton = ModuleType("triton")
    triton.language = ModuleType("triton.language")
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", triton.language)
    before = set(sys.modules)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm" and name not in before]:
        del sys.modules[name]


def calls(folder: Path, kind: str, shape: tuple[int, ...]) -> list[object]:
    """The arguments of each peer that takes a workload of this kind."""
    parser = ArgumentParser()
    vllm_turboquant.add_options(parser)
    options, notes = parser.parse_args(["--vllm-sources", str(folder)]), []
    workload = workload_of(kind, shape)
    operands = KvCacheMaker(torch.device("cpu"), 1).make(workload)
    peers = vllm_turboquant.contenders("kv_cache", options, notes)
    assert len(notes) == 1 and "in 32 splits" in notes[0]
    return [peer.bind(operands.given[0], workload)() for peer in peers if peer.takes(workload)]


def test_attention_reads_the_same_slots(sources: Path) -> None:
    (given,) = calls(sources, "attend turboquant_k3v4_nc", (2, 33))
    q, cache, table, lengths, rotation, centroids, scale, bits, key_bytes, value_bits, is_fp8, corrects = given[:12]
    assert q.shape == (2, 32, 128) and cache.shape == (2, 64, 8, 118) and cache.is_contiguous()
    assert table.shape == (2, 1) and lengths.tolist() == [33, 33] and scale == 128**-0.5
    assert torch.allclose(rotation @ rotation.T, torch.eye(128), atol=1e-5)
    assert torch.equal(centroids, torch.tensor(vllm_codebook(128, 3).centroids))
    assert (bits, key_bytes, value_bits, is_fp8, corrects) == (3, 50, 4, False, True)
    ((*_, of_fp8, corrects),) = [x[:12] for x in calls(sources, "attend turboquant_k8v4", (1, 3))]
    assert of_fp8 and not corrects
    assert calls(sources, "attend k_eden4_v_eden4", (1, 3)) == [] == calls(sources, "decode 4 bits", (1, 3))


def test_a_store_writes_slots_of_its_own(sources: Path) -> None:
    (given,) = calls(sources, "store 4 bits", (5,))
    keys, values, cache, slots, _, middles, bits, key_bytes, value_bits = given
    assert keys.shape == values.shape == (5, 8, 128) and len(slots) == 5
    assert cache.shape[2:] == (8, 134) and len(middles) == 15 and (bits, key_bytes, value_bits) == (4, 66, 4)
    assert int(slots.max()) < cache.shape[0] * cache.shape[1]


def test_prefilling_restores_the_pages_that_are_attended_over() -> None:
    """By hand and by the cache's class, both as the op does it; formats of packed vectors are not for them."""
    workload = workload_of("prefill 4 bits", (2, 33))
    operands = KvCacheMaker(torch.device("cpu"), 1).make(workload)
    KvCacheContender(name="gemmill", namespace="gemmill").call(operands, 0)()
    peers = flash_attention.contenders("kv_cache", Namespace(fa3_so=None), [])
    restoring = {peer.name: peer for peer in peers if isinstance(peer, PrefillPeer)}
    assert list(restoring) == ["restored_sdpa", "class_sdpa"]
    for peer in restoring.values():
        assert peer.takes(workload)
        assert not peer.takes(workload_of("prefill k_eden4_v_eden4", (2, 33)))
        found, wanted = peer.bind(operands.given[0], workload)(), operands.given[0]["out"].float()
        assert found.shape == wanted.shape and (found.float() - wanted).norm() < 0.02 * wanted.norm()


def test_sources_that_are_not_there_are_one_sentence(tmp_path: Path, sources: Path) -> None:
    (sources / OPS / "triton_turboquant_store.py").unlink()
    with pytest.raises(FieldError, match=rf"vLLM's sources below {sources} cannot be used: No module named "):
        vllm_turboquant.contenders("kv_cache", Namespace(vllm_sources=str(sources)), [])
    assert vllm_turboquant.contenders("grouped_mm", Namespace(vllm_sources=str(sources)), []) == []
    assert vllm_turboquant.contenders("kv_cache", Namespace(vllm_sources=None), []) == []
