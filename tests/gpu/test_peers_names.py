"""Functions under DeepGEMM's names and vLLM's grouped GEMMs of 4 bits on a GPU: the bits of exact results, eager and in graphs."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from deep_gemm_operands import BF16, E, Fp4, N, Operands, packed_words, rounded
from gemmill.compat import deep_gemm, packed_once
from gemmill.formats.quantise import quantise_experts, swizzle
from gemmill.quantize import quantize_weight
from gemmill.vocab.format import MXFP4, NVFP4, Format

ROWS = (140, 0, 33)
OWNERS = [0] * 140 + [-1] * 4 + [2] * 33 + [-1] * 7
M = len(OWNERS)
PADDING = [140, 141, 142, 143, 177, 178, 179, 180, 181, 182, 183]
"""With multiples of 8 rows begin at 0, 144 and 144, and are padded up to 184."""
Call = Callable[[Tensor], object]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    packed_once.forget_packed_weights()
    deep_gemm.set_mk_alignment_for_contiguous_layout(8)
    yield
    packed_once.forget_packed_weights()
    deep_gemm.set_mk_alignment_for_contiguous_layout(128)


def check(call: Call, expected: Tensor, device: torch.device) -> None:
    """A call writes the expected values, NaN standing for old ones; and so does a graph of it."""
    out = torch.full_like(expected, torch.nan, device=device)

    def judge() -> None:
        found = out.cpu()
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))

    call(out)
    judge()
    if device.type == "cpu":
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(out)
    out.fill_(torch.nan)
    graph.replay()
    judge()


def on(device: torch.device, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.to(device) for x in tensors)


@pytest.mark.parametrize("by_ends", [True, False])
@pytest.mark.parametrize("kind", ["fp8", "fp8 packed", "fp8 nn", "bf16", "bf16 nn", "fp4"])
def test_contiguous_rows(kind: str, by_ends: bool, device: torch.device) -> None:
    of, w, named = Operands(M), None, {"use_psum_layout": by_ends}
    layout = torch.tensor([140, 144, 177] if by_ends else OWNERS, dtype=torch.int32, device=device)
    a = on(device, of.a, packed_words(of.a_scales) if "packed" in kind else of.a_scales)
    b = on(device, of.b, of.b_scales)
    if kind.startswith("bf16"):
        a, b = on(device, of.x.to(BF16), of.w.to(BF16))
    elif kind == "fp4":
        fp4 = Fp4()
        b, w = on(device, fp4.b, fp4.b_scales), fp4.w
        named |= {"recipe_a": (1, 128), "recipe_b": (1, 32)}
    if kind.endswith("nn"):
        b = b.mT.contiguous() if isinstance(b, Tensor) else tuple(part.mT.contiguous() for part in b)
    gemm = getattr(
        deep_gemm,
        f"m_grouped_{kind[:4].strip()}_gemm_{'nn' if 'nn' in kind else 'nt'}_contiguous".replace("fp4", "fp8_fp4"),
    )
    weights = of.w if w is None else w
    rows = [rounded(of.x[i] @ weights[e].t()) if e >= 0 else torch.zeros(N, dtype=BF16) for i, e in enumerate(OWNERS)]
    check(lambda out: gemm(a, b, out, layout, **named), torch.stack(rows), device)


@pytest.mark.parametrize("kind", ["fp8", "bf16", "fp4"])
def test_masked_rows(kind: str, device: torch.device) -> None:
    of, rows = Operands(E * 40), torch.tensor([40, 0, 7], dtype=torch.int32, device=device)
    a, a_scales, x = (part.unflatten(0, (E, 40)) for part in (of.a, of.a_scales, of.x))
    a_scales, w, named = a_scales.mT.contiguous().mT, of.w, {}
    operands = on(device, a, a_scales), on(device, of.b, of.b_scales)
    if kind == "bf16":
        operands = on(device, x.to(BF16), w.to(BF16))
    elif kind == "fp4":
        fp4 = Fp4()
        operands, w = (operands[0], on(device, fp4.b, fp4.b_scales)), fp4.w
        named = {"recipe_a": (1, 128), "recipe_b": (1, 32)}
    expected = rounded(x @ w.mT)
    for expert, count in enumerate(rows.tolist()):
        expected[expert, count:] = torch.nan
    gemm = getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_masked".replace("fp4", "fp8_fp4"))
    check(lambda out: gemm(*operands, out, rows, 8, **named), expected, device)


@pytest.mark.parametrize("form", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("kind", ["fp8", "fp8 by rows", "bf16", "fp4"])
@pytest.mark.parametrize("adds", [True, False])
def test_dense(kind: str, form: str, adds: bool, device: torch.device) -> None:
    of, named, w = Operands(M, b_rows=1 if "rows" in kind else 128), {}, None
    a, b = on(device, of.a, of.a_scales), on(device, of.b[0], of.b_scales[0])
    if kind == "bf16":
        a, b = on(device, of.x.to(BF16), of.w[0].to(BF16))
    elif "rows" in kind:
        named = {"recipe": (1, 1, 128)}
    elif kind == "fp4":
        if form[1] == "n":
            pytest.skip("4-bit codes lie in pairs along K")
        fp4 = Fp4()
        b, w = on(device, fp4.b[0], fp4.b_scales[0]), fp4.w[0]
        named = {"recipe_a": (1, 128), "recipe_b": (1, 32)}
    expected = rounded(of.x @ (of.w[0] if w is None else w).t())
    if adds:
        c = torch.arange(M * N).remainder(31).view(M, N).to(BF16)
        named["c"], expected = c.to(device), rounded(c.double() + expected.double())

    def turned(x: Any, is_turned: bool) -> Any:
        if not is_turned:
            return x
        return x.mT.contiguous() if isinstance(x, Tensor) else tuple(part.mT.contiguous() for part in x)

    a, b = turned(a, form[0] == "t"), turned(b, form[1] == "n")
    gemm = getattr(deep_gemm, f"{kind[:4].strip()}_gemm_{form}".replace("fp4", "fp8_fp4"))
    check(lambda out: gemm(a, b, out, **named), expected, device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", [NVFP4, MXFP4], ids=str)
def test_vllms_groups_of_4_bits(format: Format, dtype: torch.dtype, device: torch.device) -> None:
    """Within two roundings of bfloat16, one of float16 and those of K sums in f32, of the same codes on the CPU."""
    import_module("gemmill.compat.vllm.ops")
    n, k, generator = 192, 512, torch.Generator().manual_seed(1)
    x = torch.randn(M, k, generator=generator)
    offsets = torch.tensor([0, 140, 140, 173])
    ones = torch.ones(E) if format == NVFP4 else None
    rows = quantise_experts(x, offsets, format, global_scales=ones)
    weights = [quantize_weight(torch.randn(n, k, generator=generator), str(format)) for _ in range(E)]
    kind = torch.float8_e4m3fn if format == NVFP4 else torch.uint8
    b, b_scales = torch.stack([w.codes for w in weights]), torch.stack([swizzle(w.scales) for w in weights]).view(kind)
    alphas = (torch.tensor([0.7, 1.1, 1.3]) / 512,) if format == NVFP4 else ()
    sizes = torch.tensor([[count, n, k] for count in ROWS], dtype=torch.int32)
    operands = on(device, rows.codes, b, rows.scales.view(kind), b_scales, *alphas)
    laid = on(device, sizes, offsets[:-1].int(), rows.scale_offsets[:-1])
    gemm = torch.ops._C.cutlass_fp4_group_mm if format == NVFP4 else torch.ops._C.cutlass_mxfp4_group_mm
    reference, cpu = torch.full((M, n), torch.nan, dtype=dtype), torch.device("cpu")
    gemm(reference, *on(cpu, *operands, *laid))
    sizes_of_terms = torch.zeros(M, n, dtype=dtype)  # of codes without signs
    unsigned = operands[0] & 0x77, operands[1] & 0x77, *operands[2:]
    gemm(sizes_of_terms, *on(cpu, *unsigned, *laid))
    bound = 2**-7 * reference.double().abs() + k * 2**-23 * sizes_of_terms.double()
    out = torch.full((M, n), torch.nan, dtype=dtype, device=device)

    def judge() -> None:
        found, wanted = out.cpu()[:173].double(), reference[:173].double()
        assert bool(out[173:].isnan().all()) and not found.isnan().any()
        assert bool(((found - wanted).abs() <= bound[:173]).all())

    gemm(out, *operands, *laid)
    judge()
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gemm(out, *operands, *laid)
        out.fill_(torch.nan)
        graph.replay()
        judge()
