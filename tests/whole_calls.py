"""A right call of every op with everything that it may be given, and what autograd must see of it."""

import random
from typing import Any

import pytest
import torch

from families.quant.problems import Breakage, some_call
from gemmill.families.scaled_mm.ops import GEMM_OPS, VLLM_OPS
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import Kind, OpSchema

Call = dict[str, Any]


def whole_call(op: OpSchema, device: torch.device | str = "cpu") -> Call:
    """The arguments by name: each tensor is given, each has values, and a quantisation op's input is bfloat16."""
    call = _gemm_call(op) if op in (*GEMM_OPS, *VLLM_OPS) else _quant_call(op)
    return {name: moved(value, device) if isinstance(value, torch.Tensor) else value for name, value in call.items()}


def moved(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """There with the same strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)


def _quant_call(op: OpSchema) -> Call:
    for seed in range(10_000):
        arguments = some_call(op.name, random.Random(seed), Breakage.NONE)
        call = dict(zip(op.arguments, arguments, strict=True))
        tensors = [call[p.name] for p in op.parameters if p.kind is Kind.TENSOR]
        if all(tensor is not None and tensor.numel() for tensor in tensors) and call["input"].dtype is torch.bfloat16:
            checks.check(op, operands.of_arguments(op, arguments))
            return call
    raise AssertionError(f"no whole call of {op.name} was found")


def _gemm_call(op: OpSchema) -> Call:
    m, n, k = 16, 32, 64
    everything = {
        "out": torch.zeros(m, n, dtype=torch.bfloat16),
        "a": torch.ones(m, k, dtype=torch.int8),
        "b": torch.ones(n, k, dtype=torch.int8).t(),
        "a_scales": torch.ones(m, 1),
        "b_scales": torch.ones(1, n),
        "azp_adj": torch.ones(n, dtype=torch.int32),
        "azp": torch.ones(m, dtype=torch.int32),
        "bias": torch.ones(n, dtype=torch.bfloat16),
    }
    return {name: everything[name] for name in op.arguments}


def check_refusals(namespace: Any, op: OpSchema, device: torch.device | str = "cpu") -> None:
    """Each tensor that requires grad is refused by name while grad mode is enabled, before anything is written."""
    refused = 0
    for name, tensor in whole_call(op, device).items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            continue
        call = whole_call(op, device)
        call[name].requires_grad_()
        before = versions(call)
        with pytest.raises(RuntimeError) as caught:
            getattr(namespace, op.name).default(*call.values())
        assert str(caught.value) == (
            f"{op.name}: {name} requires grad while grad mode is enabled, and the op has no gradient: call it under "
            f"torch.no_grad(), or with {name}.detach()"
        )
        assert versions(call) == before
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                getattr(namespace, op.name).default(*call.values())
        refused += 1
    assert refused >= 2


def check_versions(namespace: Any, op: OpSchema, device: torch.device | str = "cpu") -> None:
    """A call counts as a write of the tensors that the schema says are written, once or more, and of no others."""
    call = whole_call(op, device)
    before = versions(call)
    getattr(namespace, op.name).default(*call.values())
    written = {parameter.name for parameter in op.parameters if parameter.written}
    assert {name for name, version in versions(call).items() if version != before[name]} == written


def versions(call: Call) -> dict[str, int]:
    """How often each tensor was written, as far as autograd was told."""
    return {name: value._version for name, value in call.items() if isinstance(value, torch.Tensor)}


def check_saved_tensors(namespace: Any, op: OpSchema, device: torch.device | str = "cpu") -> None:
    """What autograd saved for a gradient may not be overwritten unseen."""
    call = whole_call(op, device)
    name = next(p.name for p in op.parameters if p.written and call[p.name].dtype in (torch.float32, torch.bfloat16))
    weight = torch.ones((), dtype=call[name].dtype, requires_grad=True)
    product = weight * call[name]
    getattr(namespace, op.name).default(*call.values())
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        product.sum().backward()
