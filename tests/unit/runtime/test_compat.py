"""vLLM's names: capability queries are answered by the active build, and ops that its library has in another form."""

from importlib import import_module

import pytest
import torch

from builds import TableOnly
from gemmill import scaled_nvfp4_quant
from gemmill.runtime import ops
from gemmill.vocab import DType


@pytest.mark.parametrize(
    ("groups", "dtypes", "answers"),
    [
        ((0, 128), list(DType), (True, True)),
        ((0,), list(DType), (True, False)),
        ((128,), list(DType), (False, True)),
        ((0, 128), [DType.S8], (False, False)),
    ],
)
def test_queries(
    groups: tuple, dtypes: list, answers: tuple, smoke_configs, table_of, make_manifest, monkeypatch
) -> None:
    import_module("gemmill.compat.vllm")
    kept = [c for c in smoke_configs if c.problem.group_size in groups and c.problem.a_dtype in dtypes]
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*kept), table_of(*kept)))
    queries = [getattr(torch.ops._C, f"cutlass_scaled_mm_supports_{what}") for what in ("fp8", "block_fp8")]
    assert tuple(query(90) for query in queries) == answers
    assert not any(query(capability) for query in queries for capability in (80, 89, 100, 120))


@pytest.mark.parametrize("swizzled", [True, False])
def test_fp4_codes_and_scales_in_vllms_tensors(swizzled: bool) -> None:
    import_module("gemmill.compat.vllm")
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    factor = torch.tensor([300.0])
    codes, scales = scaled_nvfp4_quant(x, factor, swizzled)
    found = torch.ops._C.scaled_fp4_quant(x, factor, swizzled)
    shape, dtype = ((128, 2), torch.int32) if swizzled else ((5, 6), torch.uint8)
    assert (found[1].shape, found[1].dtype) == (shape, dtype)
    into = torch.zeros_like(found[0]), torch.zeros_like(found[1])
    torch.ops._C.scaled_fp4_quant.out(x, factor, swizzled, output=into[0], output_scale=into[1])
    for made in (found, into):
        assert torch.equal(made[0], codes)
        assert torch.equal(made[1].view(torch.uint8), scales.view(torch.uint8))
    fake = torch.ops._C.scaled_fp4_quant(x.to("meta"), factor.to("meta"), swizzled)
    assert [(y.shape, y.dtype) for y in fake] == [(y.shape, y.dtype) for y in found]
