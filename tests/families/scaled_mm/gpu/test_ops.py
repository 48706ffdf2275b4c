"""The ops as a user calls them: any shape without a pin, torch.compile, opcheck, and bad input."""

from dataclasses import replace
from itertools import product

import pytest
import torch

import gemmill
from families.scaled_mm.gpu.shapes import FIRST, FIXED, UNALIGNED
from gemmill.families.scaled_mm.cases.calls import CallSpec, compare, make_call
from gemmill.families.scaled_mm.config import RESULTS_OF
from gemmill.families.scaled_mm.reference import scaled_mm
from gemmill.numerics.comparison import Wanted
from gemmill.vocab import Accumulation, DType

KINDS = (
    (DType.E4M3, "none"),
    (DType.S8, "none"),
    (DType.BF16, "none"),
    (DType.F16, "none"),
    (DType.S8, "row"),
    (DType.S8, "token"),
)


def op_of(call):
    return getattr(torch.ops.gemmill, call.spec.op).default


def spec_of(kind, shape, **settings):
    a_dtype, azp = kind
    m, n, k = shape
    settings = {"out_dtype": RESULTS_OF[a_dtype][0]} | settings
    return CallSpec(m=m, n=n, k=k, a_dtype=a_dtype, azp=azp, **settings)


@pytest.mark.parametrize(
    ("kind", "out_dtype"),
    [(kind, out_dtype) for kind in KINDS for out_dtype in RESULTS_OF[kind[0]]],
    ids=lambda value: value if isinstance(value, DType) else "-".join(value),
)
@pytest.mark.parametrize("layout", ["tight", "padded", "odd", "shifted"])
def test_every_shape_has_an_answer(kind, out_dtype, layout, device):
    """M, N and K from 0 up, in whatever rows: the choice falls on a variant that gives the right result."""
    if device.type != "cpu" and not gemmill.supports(spec_of(kind, FIRST).op, dtype=kind[0], out_dtype=out_dtype):
        pytest.skip(f"the build has no {kind[0]} kernels with {out_dtype} results")
    zero = ((0, 16, 16), (16, 0, 16), (16, 16, 0))
    for i, shape in enumerate((FIRST, *FIXED, *UNALIGNED, *zero)):
        call = make_call(spec_of(kind, shape, out_dtype=out_dtype, layout=layout, bias=i % 2 == 0), device)
        op_of(call)(*call.arguments)
        comparison = compare(call, Accumulation.FAST)
        assert comparison.ok, f"{call.spec}: {comparison.report}"
        assert call.guards_hold()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind))
def test_functional_form(kind, device):
    call = make_call(spec_of(kind, FIRST, data="integers", bias=True), device)
    if kind[1] == "none":
        result = gemmill.cutlass_scaled_mm(call.a, call.b, call.a_scales, call.b_scales, call.out.dtype, call.bias)
    else:
        result = gemmill.cutlass_scaled_mm_azp(
            call.a, call.b, call.a_scales, call.b_scales, torch.bfloat16, call.azp_adj, call.azp, call.bias
        )
    call.out.copy_(result)
    assert compare(call, Accumulation.FAST).ok


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.needs_cuda)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind))
def test_compiles_without_a_graph_break(kind, backend, device):
    """torch.compile(fullgraph=True), the result read by a later op."""
    torch.compiler.reset()  # each kind and backend is a compilation of its own, of which torch allows eight
    call = make_call(spec_of(kind, FIRST, data="integers", bias=True), device)
    op = op_of(call)

    def step(*arguments):
        op(*arguments)
        return arguments[0] * 2

    doubled = torch.compile(step, fullgraph=True, backend=backend)(*call.arguments)
    assert compare(call, Accumulation.FAST).ok
    assert torch.equal(doubled, call.out * 2)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind))
def test_opcheck(kind, device):
    call = make_call(spec_of(kind, FIRST, bias=True), device)
    # test_schema compares arguments before and after by arithmetic that torch does not have for FP8.
    checks = ("test_faketensor",) if kind[0] is DType.E4M3 else ("test_schema", "test_faketensor")
    torch.library.opcheck(op_of(call), call.arguments, test_utils=checks)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("of_a", ["none", "tensor", "token"])
@pytest.mark.parametrize("shape", [(1, 128, 256), (16, 4096, 2048), (70, 136, 272), (257, 520, 4096), (2048, 256, 512)])
def test_zero_points_of_weights(shape, of_a, out_dtype, device):
    """Decoded operands, multiplied in float64: scales are powers of two, so that the result is rounded once."""
    if device.type != "cpu" and not gemmill.supports("scaled_mm_zero_points", dtype="s8", out_dtype=out_dtype):
        pytest.skip(f"the build has no kernels of scaled_mm_zero_points with {out_dtype} results")
    m, n, k = shape
    generator = torch.Generator(device=device).manual_seed(m)

    def whole(*size, dtype=torch.int32):
        return torch.randint(-128, 128, size, dtype=dtype, device=device, generator=generator)

    a, b, b_zp = whole(m, k, dtype=torch.int8), whole(n, k, dtype=torch.int8).t(), whole(n if m % 2 else 1)
    azp = {"none": None, "tensor": whole(1), "token": whole(m)}[of_a]
    scales = 2.0 ** -(whole(m, 1).float() % 5 + 9), 2.0 ** -(whole(1, n).float() % 5)
    bias = whole(n).to(out_dtype) if m % 2 else None
    given = {}
    if azp is not None:
        sums = b.sum(dim=0, dtype=torch.int32) - k * b_zp
        given = {"azp_adj": sums, "azp": azp} if of_a == "token" else {"azp_adj": sums * azp}
    found = gemmill.scaled_mm_zero_points(a, b, *scales, out_dtype, b_zp, bias=bias, **given)
    exact = ((a.double() - (0 if azp is None else azp.reshape(-1, 1))) @ (b.double() - b_zp)) * scales[0] * scales[1]
    assert torch.equal(found, (exact if bias is None else exact + bias.double()).float().to(out_dtype))


@pytest.mark.needs_build
def test_pin_of_an_unknown_name(device):
    with (
        pytest.raises((RuntimeError, ValueError, KeyError), match="no_such_variant"),
        gemmill.use_variant("no_such_variant"),
    ):
        pass


@pytest.mark.needs_build
def test_explain_names_a_choice(device):
    call = make_call(spec_of(KINDS[0], FIRST), device)
    assert gemmill.explain(call.spec.op, *call.arguments) is not None


def with_argument(call, name, value):
    """The call with one tensor exchanged."""
    return replace(call, **{name: value})


def overlapping_out(call):
    """A result that would be written over A."""
    elements = call.out.numel()
    memory = torch.zeros(max(2 * elements, call.a.numel()), dtype=torch.uint8, device=call.a.device)
    a = torch.as_strided(memory, call.a.shape, call.a.stride()).view(call.a.dtype)
    out = torch.as_strided(memory.view(call.out.dtype), call.out.shape, (call.out.shape[1], 1))
    return replace(call, a=a, out=out)


BAD_SCALED = {
    "a of another dtype": ("a", lambda c: with_argument(c, "a", c.a.view(torch.int8))),
    "b of another dtype": ("b", lambda c: with_argument(c, "b", c.b.to(torch.bfloat16))),
    "out of float32": ("out", lambda c: with_argument(c, "out", torch.empty(c.out.shape, device=c.out.device))),
    "a_scales of bf16": ("a_scales", lambda c: with_argument(c, "a_scales", c.a_scales.to(torch.bfloat16))),
    "b_scales of float64": ("b_scales", lambda c: with_argument(c, "b_scales", c.b_scales.to(torch.float64))),
    "bias of another dtype": ("bias", lambda c: with_argument(c, "bias", c.bias.to(torch.float32))),
    "a of three dimensions": ("a", lambda c: with_argument(c, "a", c.a[None])),
    "b of one dimension": ("b", lambda c: with_argument(c, "b", c.b[:, 0])),
    "a with another K": ("a", lambda c: with_argument(c, "a", c.a[:, :-16])),
    "out with too few rows": ("out", lambda c: with_argument(c, "out", c.out[:-1])),
    "out with too few columns": ("out", lambda c: with_argument(c, "out", c.out[:, :-8])),
    "a column-major": ("a", lambda c: with_argument(c, "a", column_major(c.a))),
    "b row-major": ("b", lambda c: with_argument(c, "b", column_major(c.b.t()).t())),
    "out column-major": ("out", lambda c: with_argument(c, "out", column_major(c.out))),
    "out with rows on one another": ("out", lambda c: with_argument(c, "out", c.out[:1].expand(c.out.shape))),
    "too few a_scales": ("a_scales", lambda c: with_argument(c, "a_scales", c.a_scales[:-1])),
    "too many b_scales": ("b_scales", lambda c: with_argument(c, "b_scales", c.b_scales.repeat(1, 2))),
    "a_scales with gaps": ("a_scales", lambda c: with_argument(c, "a_scales", c.a_scales.repeat(1, 2)[:, :1])),
    "too short a bias": ("bias", lambda c: with_argument(c, "bias", c.bias[:-1])),
    "bias with gaps": ("bias", lambda c: with_argument(c, "bias", c.bias.repeat(2)[::2])),
    "out over a": ("out", overlapping_out),
}
BAD_AZP = {
    "azp_adj of int64": ("azp_adj", lambda c: with_argument(c, "azp_adj", c.azp_adj.to(torch.int64))),
    "too short an azp_adj": ("azp_adj", lambda c: with_argument(c, "azp_adj", c.azp_adj[:-1])),
    "azp of float32": ("azp", lambda c: with_argument(c, "azp", c.azp.to(torch.float32))),
    "too many values of azp": ("azp", lambda c: with_argument(c, "azp", c.azp.repeat(2, 1))),
}
OTHER_DEVICE = ("a", "b", "a_scales", "b_scales", "bias")


def column_major(matrix):
    """The same values, columns contiguous."""
    return (
        matrix.view(torch.uint8 if matrix.element_size() == 1 else torch.int16).t().contiguous().t().view(matrix.dtype)
    )


def refused(bad, good, word):
    """A call raises, names the argument, writes nothing, and leaves a context in which the good call is right."""
    before = bad.out.clone()
    with pytest.raises((RuntimeError, ValueError, TypeError, NotImplementedError), match=rf"\b{word}\b"):
        op_of(bad)(*bad.arguments)
    if bad.out.is_cuda:
        torch.cuda.synchronize()
    as_bytes = (x.contiguous().view(torch.uint8) for x in (bad.out, before))
    assert torch.equal(*as_bytes), "out was written"
    op_of(good)(*good.arguments)
    assert compare(good, Accumulation.FAST).ok, "the good call after the bad one is wrong"


@pytest.mark.parametrize("case", BAD_SCALED)
def test_bad_input(case, device):
    word, spoil = BAD_SCALED[case]
    spec = CallSpec(m=48, n=64, k=208, bias=True)  # more than one group along K: a single one may have gaps
    refused(spoil(make_call(spec, device)), make_call(spec, device), word)


@pytest.mark.parametrize("case", BAD_AZP)
def test_bad_input_of_azp(case, device):
    word, spoil = BAD_AZP[case]
    spec = CallSpec(m=48, n=64, k=80, bias=True, azp="token", a_dtype=DType.S8)
    refused(spoil(make_call(spec, device)), make_call(spec, device), word)


@pytest.mark.needs_cuda
@pytest.mark.parametrize("name", OTHER_DEVICE)
def test_operands_on_two_devices(name, device):
    spec = CallSpec(m=48, n=64, k=80, bias=True)
    call = make_call(spec, device)
    refused(with_argument(call, name, getattr(call, name).cpu()), make_call(spec, device), name)


@pytest.mark.needs_cuda
def test_captured_without_a_pin(device):
    """Selection and workspace are safe inside a capture, the first call of a shape included."""
    for kind, shape in product(KINDS, ((48, 264, 4096), (5, 72, 144))):
        call = make_call(spec_of(kind, shape, data="integers"), device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            op_of(call)(*call.arguments)
        call.poison()
        graph.replay()
        expected = scaled_mm(
            call.a, call.b, call.a_scales, call.b_scales, call.out.dtype, call.bias, azp_adj=call.azp_adj, azp=call.azp
        )
        assert Wanted(rounded=expected).compare(call.out).ok
