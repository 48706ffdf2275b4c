"""Batch invariance that vLLM asks for: layers hold an order, or stay with vLLM."""

import importlib
from types import ModuleType

import torch

import gemmill
from engines import fp8_config
from gemmill.compat import linear
from gemmill.runtime import holding, ops
from gemmill.runtime.choosing import Trust

E4M3 = torch.float8_e4m3fn


def kernels() -> ModuleType:
    return importlib.import_module("gemmill.compat.vllm.kernels")


def test_vllms_batch_invariance_is_gemmills_contract(vllm, served) -> None:
    layer = linear.Linear(n=4096, k=4096, codes=E4M3, out_dtype=torch.bfloat16)
    assert kernels().GemmillFP8Linear.is_supported(90) == (True, None)
    assert not holding.holds_here() and ops.explain(*layer.call(16)).held is None
    vllm.envs.VLLM_BATCH_INVARIANT = True
    assert kernels().GemmillFP8Linear.is_supported(90) == (True, None)
    assert holding.holds_here() and str(ops.explain(*layer.call(16)).held.order) == "wgmma to f32"
    assert linear.refusal(layer) is None


def test_a_build_that_is_too_old_for_batch_invariance_leaves_layers_to_vllm(vllm, served) -> None:
    old = holding.Holding(object(), lambda *_: (-1, Trust.MODEL), served.build_id)
    vllm.envs.VLLM_BATCH_INVARIANT = True
    assert kernels().GemmillFP8Linear.is_supported(90) == (
        False,
        f"VLLM_BATCH_INVARIANT is set, and build {served.build_id} cannot hold batch invariance, which is asked for: it is too old, "
        "make it again with `gemmill build`",
    )
    assert not holding.holds_here()
    del old


def test_rows_of_a_layer_are_not_dealt_out_to_two_kernels_under_batch_invariance(vllm, served, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(kernels(), "first_call_passes", lambda *_: True)
    monkeypatch.setattr(kernels(), "split", lambda *_: asked.append(1))
    monkeypatch.setattr(kernels(), "take", lambda *_: None)
    layer = linear.Linear(n=64, k=64, codes=E4M3, out_dtype=torch.bfloat16)
    for is_set in (False, True):
        vllm.envs.VLLM_BATCH_INVARIANT = is_set
        kernel = kernels().GemmillFP8Linear(fp8_config(), [])
        kernels()._contest(kernel, layer, None, *[None] * 7)
        assert kernel._taken and kernel._split is None and len(asked) == 1


def test_the_answer_about_a_layer_is_not_kept_for_the_other_mode(served) -> None:
    """A layer with unaligned columns has a variant, of which another order may be needed."""
    layer = linear.Linear(n=4096, k=4096, codes=torch.int8, out_dtype=torch.bfloat16, azp=True)
    linear.forget()
    free = linear.refusal(layer)
    with gemmill.batch_invariant():
        served.invariance.held = lambda call: None
        held = linear.refusal(layer)
    assert free is None and held.startswith("batch invariance is asked for, and of s8 x s8 to bf16 with zero points")
    assert linear.refusal(layer) is None
