"""The peak memory of loading a layer of nvfp4 experts: the packed layer, the dense one, and one expert's conversion."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from builds import TableOnly
from gemmill.compat import linear
from gemmill.compat.vllm import fp4_experts as vllm_fp4_experts
from gemmill.compat.vllm import fused_fp4_experts
from gemmill.families.fused_experts.selections import packed
from gemmill.quantize import experts as experts_packing
from gemmill.runtime import ops
from gemmill.vocab import Arch

N, K = 256, 256
OF_CODE, OF_GROUP = 2, 16


@pytest.fixture(autouse=True)
def served(make_manifest, table_of, monkeypatch) -> None:
    """A loaded build of fused experts of packed weights alone."""
    configs = list(packed(Arch.SM90A))
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*configs), table_of(*configs)))
    linear.forget()
    monkeypatch.setattr(vllm_fp4_experts, "_is_plain", lambda layer: True)


def checkpoint(experts: int) -> dict[str, Tensor]:
    """A layer's tensors as a ModelOpt checkpoint has them."""
    g = torch.Generator().manual_seed(experts)
    named = {}
    for name, (n, k) in (("w13", (2 * N, K)), ("w2", (K, N))):
        named[name] = torch.randint(0, 256, (experts, n, k // OF_CODE), generator=g).to(torch.uint8)
        scales = torch.randint(40, 64, (experts, n, k // OF_GROUP), generator=g).to(torch.uint8)
        named[f"{name}_scale"], named[f"{name}_scale_2"] = scales.view(torch.float8_e4m3fn), torch.ones(experts)
    return named


def prepared(named: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The weights that the plugin keeps in place of the engine's."""
    config = SimpleNamespace(activation=SimpleNamespace(value="silu"))
    layer = SimpleNamespace(moe_config=config, params_dtype=torch.bfloat16)
    made: tuple[Tensor, ...] = vllm_fp4_experts.before_preparation(lambda **given: None)(layer=layer, **named)
    return made


def size_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def peak_of(named: dict[str, Tensor]) -> tuple[int, int]:
    """Bytes of torch's CPU allocator at the peak of a conversion, beyond those before it, and those that stay."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        made = prepared(named)
    live = peak = 0
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak, size_of(made)


@pytest.mark.parametrize("pruned", [False, True])
def test_peak_is_one_layer_more(pruned: bool, monkeypatch) -> None:
    """Beyond the packed layer it holds one expert's conversion, or that of experts packed together, however many experts there are."""
    monkeypatch.setattr(experts_packing, "CHUNK", N * K)  # one at a time
    monkeypatch.setenv("GEMMILL_FP4_EXPERTS", "2:4" if pruned else "1")
    # the first call is tried: by the reference, whose memory is none of the kernels'
    monkeypatch.setattr(gemmill, "fused_experts", lambda x, *given, **named: x)
    prepared(checkpoint(2))  # made once
    found = {experts: peak_of(checkpoint(experts)) for experts in (3, 12)}
    (peak, kept), (of_more, kept_of_more) = found.values()
    assert kept < peak < kept + 32 * 3 * N * K, (
        "beside the packed layer there is one expert's, some of it in wide types"
    )
    assert of_more - peak <= kept_of_more - kept, "nothing of an expert is kept but what is packed"
    assert pruned or kept_of_more <= size_of(checkpoint(12).values()) * 1.05, (
        "a packed layer is no larger than the dense one"
    )


def test_nothing_keeps_dense_tensors(monkeypatch) -> None:
    """They are freed as soon as the engine lets go of them."""
    monkeypatch.setenv("GEMMILL_FP4_EXPERTS", "1")
    named = checkpoint(3)
    alive = [weakref.ref(tensor) for tensor in named.values()]
    inside = {tensor.untyped_storage().data_ptr() for tensor in named.values()}
    made = prepared(named)
    assert not inside & {tensor.untyped_storage().data_ptr() for tensor in made}
    del named
    gc.collect()
    assert [tensor() for tensor in alive] == [None] * len(alive)
    assert fused_fp4_experts.is_packed(made[0], made[1])
