"""vLLM's names: capability queries are answered by the active build, and ops that its library has in another form."""

from importlib import import_module

import pytest
import torch

from builds import TableOnly
from gemmill.families.quant.config import Activation
from gemmill.families.quant.reference import product_as_vllm
from gemmill.formats.layout import swizzled_shape
from gemmill.formats.quantise import swizzle
from gemmill.formats.vllm_blocks import quantise_as_vllm
from gemmill.runtime import ops
from gemmill.vocab import DType
from gemmill.vocab.format import MXFP4, NVFP4


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
    import_module("gemmill.compat.vllm.ops")
    kept = [c for c in smoke_configs if c.operands.group_size in groups and c.operands.a_dtype in dtypes]
    monkeypatch.setattr(ops, "_active", TableOnly(make_manifest(*kept), table_of(*kept)))
    queries = [getattr(torch.ops._C, f"cutlass_scaled_mm_supports_{what}") for what in ("fp8", "block_fp8")]
    assert tuple(query(90) for query in queries) == answers
    assert not any(query(capability) for query in queries for capability in (80, 89, 100, 120))


@pytest.mark.parametrize("swizzled", [True, False])
def test_fp4_codes_and_scales_in_vllms_tensors(swizzled: bool) -> None:
    import_module("gemmill.compat.vllm.ops")
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    factor = torch.tensor([300.0])
    wanted = quantise_as_vllm(x, NVFP4, global_scale=factor)
    codes, scales = wanted.codes, swizzle(wanted.scales) if swizzled else wanted.scales
    found = torch.ops._C.scaled_fp4_quant(x, factor, swizzled)
    shape, dtype = ((128, 2), torch.int32) if swizzled else ((5, 6), torch.uint8)
    assert (found[1].shape, found[1].dtype) == (shape, dtype)
    into = torch.zeros_like(found[0]), torch.zeros_like(found[1])
    torch.ops._C.scaled_fp4_quant.out(x, factor, swizzled, output=into[0], output_scale=into[1])
    for made in (found, into):
        assert torch.equal(made[0], codes)
        assert torch.equal(made[1].view(torch.uint8), scales)
    fake = torch.ops._C.scaled_fp4_quant(x.to("meta"), factor.to("meta"), swizzled)
    assert [(y.shape, y.dtype) for y in fake] == [(y.shape, y.dtype) for y in found]


def test_fp4_codes_and_scales_of_a_padded_output() -> None:
    """As vLLM's `padded_n` asks for them."""
    import_module("gemmill.compat.vllm.ops")
    x, factor = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)).bfloat16(), torch.tensor([300.0])
    wanted = quantise_as_vllm(torch.nn.functional.pad(x, (0, 32)), NVFP4, global_scale=factor)
    into = torch.full((5, 64), 0x55, dtype=torch.uint8), torch.full((128, 2), -1, dtype=torch.int32)
    torch.ops._C.scaled_fp4_quant.out(x, factor, True, output=into[0], output_scale=into[1])
    assert torch.equal(into[0], wanted.codes) and torch.equal(into[1].view(torch.uint8), swizzle(wanted.scales))


def test_fp4_codes_and_scales_as_vllms_callers_make_room_for_them() -> None:
    """Scales are words of four: of a gated call, and of experts in a tensor with room for more."""
    import_module("gemmill.compat.vllm.ops")
    x, factor = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)).bfloat16(), torch.tensor([300.0])
    wanted = quantise_as_vllm(product_as_vllm(x, Activation.SILU), NVFP4, global_scale=factor)
    into = torch.zeros(5, 24, dtype=torch.uint8), torch.full((128, 1), -1, dtype=torch.int32)
    torch.ops._C.silu_and_mul_nvfp4_quant(
        result=into[0], result_block_scale=into[1], input=x, input_global_scale=factor
    )
    assert torch.equal(into[0], wanted.codes) and torch.equal(into[1].view(torch.uint8), swizzle(wanted.scales))
    offsets, starts = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 128, 256], dtype=torch.int32)
    factors = torch.tensor([300.0, 200.0])
    for name, format, scaled, count in (
        ("scaled_fp4_experts_quant", NVFP4, (factors,), ()),
        ("mxfp4_experts_quant", MXFP4, (), (2,)),
    ):
        words = swizzled_shape(0, 96 // format.group)[1] // 4
        into = torch.zeros(5, 48, dtype=torch.uint8), torch.full((1024, words), -1, dtype=torch.int32)
        getattr(torch.ops._C, name)(*into, x, *scaled, offsets, starts, *count)
        for expert, rows in enumerate((slice(0, 2), slice(2, 5))):
            factor = factors[expert].reshape(1) if scaled else None
            wanted = quantise_as_vllm(x[rows], format, global_scale=factor)
            found = into[1][expert * 128 : (expert + 1) * 128].view(torch.uint8)
            assert torch.equal(into[0][rows], wanted.codes) and torch.equal(found, swizzle(wanted.scales))


def test_nvfp4_products_under_vllms_name(monkeypatch, home) -> None:
    import_module("gemmill.compat.vllm.ops")
    x, w = (torch.randn(rows, 64, generator=torch.Generator().manual_seed(rows)).bfloat16() for rows in (5, 32))
    factor = torch.tensor([300.0])
    (a, a_sf), (b, b_sf) = (torch.ops._C.scaled_fp4_quant(y, factor, True) for y in (x, w))
    a_sf, b_sf = (scales.view(torch.float8_e4m3fn) for scales in (a_sf, b_sf))
    out = torch.empty(5, 32, dtype=torch.bfloat16)
    torch.ops._C.cutlass_scaled_fp4_mm(out, a, b, a_sf, b_sf, 1 / factor.square())
    wanted = x.double() @ w.double().t()
    assert 0.05 < (out.double() - wanted).norm() / wanted.norm() < 0.2
    monkeypatch.setattr(ops, "_active", None)
    assert not torch.ops._C.cutlass_scaled_mm_supports_fp4(90), "there is no build"


def test_sparse_products_under_vllms_names(monkeypatch, home) -> None:
    import_module("gemmill.compat.vllm.ops")
    weights = torch.tensor([[1.0, 0, 0, -2], [0, 0, 3, 0]]).repeat(8, 16).to(torch.float8_e4m3fn)
    x = torch.arange(-64, 64).reshape(2, 64).to(torch.int8).float().to(torch.float8_e4m3fn)
    values, meta = torch.ops._C.cutlass_sparse_compress(weights)
    out, one = torch.empty(2, 16, dtype=torch.bfloat16), torch.ones(1, 1)
    torch.ops._C.cutlass_scaled_sparse_mm(out, x, values, meta, one, one, None)
    assert torch.equal(out, (x.float() @ weights.float().t()).bfloat16())
    monkeypatch.setattr(ops, "_active", None)
    assert not torch.ops._C.cutlass_sparse_scaled_mm_supported(90), "there is no build"


@pytest.mark.parametrize(
    ("quantise", "product"),
    [
        ("nvfp4 nvfp4", "nvfp4"),
        ("mxfp4 mxfp4", "mxfp4"),
        ("mxfp8 mxfp8", "mxfp8"),
        ("mxfp8 mxfp6", "mxfp6_mxfp8"),
        ("mxfp8 mxfp4", "mxfp4_mxfp8"),
    ],
)
def test_lightx2vs_functions(quantise: str, product: str) -> None:
    theirs = import_module("gemmill.compat.lightx2v")
    x, w = (torch.randn(rows, 128, generator=torch.Generator().manual_seed(rows)).bfloat16() for rows in (5, 32))
    factor, of_nvfp4 = torch.tensor([500.0]), product == "nvfp4"
    (a, a_sf), (b, b_sf) = (
        getattr(theirs, f"scaled_{name}_quant")(y, *((factor,) if of_nvfp4 else ()))
        for name, y in zip(quantise.split(), (x, w), strict=True)
    )
    assert a.dtype is b.dtype is torch.uint8
    assert a_sf.dtype is (torch.float8_e4m3fn if of_nvfp4 else torch.float8_e8m0fnu) and a_sf.shape[0] == 128
    alpha = 1 / factor.square() if of_nvfp4 else torch.ones(1)
    bias = torch.ones(1, 32).bfloat16()
    out = getattr(theirs, f"cutlass_scaled_{product}_mm")(a, b, a_sf, b_sf, alpha, bias)
    wanted = x.double() @ w.double().t() + 1
    assert (out.double() - wanted).norm() / wanted.norm() < 0.2


@pytest.mark.parametrize("shape", [(32,), (5, 32)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_lightx2vs_gated_residual(shape: tuple[int, ...], biased: bool) -> None:
    """residual + gate * product, in f32 of products of bfloat16, written to the residual."""
    theirs = import_module("gemmill.compat.lightx2v")
    generator = torch.Generator().manual_seed(3)
    x, w, residual = (
        torch.randn(rows, columns, generator=generator).bfloat16() for rows, columns in ((5, 64), (32, 64), (5, 32))
    )
    gate, bias = (torch.randn(*size, generator=generator).bfloat16() for size in (shape, (32,)))
    (a, a_sf), (b, b_sf) = theirs.scaled_mxfp8_quant(x), theirs.scaled_mxfp8_quant(w)
    operands, named = (a, b, a_sf, b_sf, torch.tensor(0.5)), {"bias": bias} if biased else {}
    product = theirs.cutlass_scaled_mxfp8_mm(*operands, **named)
    expected = (residual.float() + product.float() * gate.float()).bfloat16()
    out = theirs.cutlass_scaled_mxfp8_mm_residual_gate(*operands, residual=residual, gate=gate, **named)
    assert out is residual and torch.equal(residual, expected)
    zero = theirs.cutlass_scaled_mxfp8_mm_residual_gate(*operands, residual, torch.zeros_like(gate), **named)
    assert torch.equal(zero, expected)


def test_lightx2vs_gated_residual_of_other_shapes() -> None:
    theirs = import_module("gemmill.compat.lightx2v")
    (a, a_sf), (b, b_sf) = (theirs.scaled_mxfp8_quant(torch.ones(rows, 64).bfloat16()) for rows in (5, 32))
    residual, gate = torch.ones(5, 32).bfloat16(), torch.ones(32).bfloat16()
    wrong = (
        ({"residual": residual.float()}, "residual is torch.float32 [5, 32], expected torch.bfloat16 [5, 32]"),
        ({"residual": residual[:4]}, "residual is torch.bfloat16 [4, 32], expected torch.bfloat16 [5, 32]"),
        (
            {"gate": gate[:1]},
            "gate is torch.bfloat16 [1] on cpu, expected torch.bfloat16 [32] or [5, 32] on cpu",
        ),
        (
            {"gate": gate.half()},
            "gate is torch.float16 [32] on cpu, expected torch.bfloat16 [32] or [5, 32] on cpu",
        ),
    )
    for changed, told in wrong:
        given = {"residual": residual, "gate": gate} | changed
        with pytest.raises(RuntimeError) as error:
            theirs.cutlass_scaled_mxfp8_mm_residual_gate(a, b, a_sf, b_sf, torch.ones(1), **given)
        assert str(error.value) == f"cutlass_scaled_mxfp8_mm_residual_gate: {told}"
    assert bool((residual == 1).all()), "something is written"
