"""Kernels behind one another on a stream, each reading the output of the one before it.

Each may begin while its predecessor ends (programmatic dependent launch). A chain is made many times over in the same
buffers with two inputs in turn, so that whoever reads too early reads the other input's values; what it must give is the
chain's own result with a wait after each step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.fused_experts.cases.calls import CallSpec, arguments_of, make_given
from gemmill.families.fused_experts.packing import PACKING_NAMES, PACKINGS
from gemmill.families.fused_experts.reference import GATE_UP, INTERLEAVED

ROUNDS = 40
SIZES = (256, 1024, 4096)
"""Columns of the chains: kernels of a few microseconds, which their successors overlap most, and longer ones."""
ops = torch.ops.gemmill
Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Steps from `x` to `out`."""

    x: Tensor
    steps: tuple[Step, ...]
    out: Tensor
    written: tuple[Tensor, ...]
    """All that the steps write, to be poisoned."""


def random(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator(device).manual_seed(sum(shape)), device=device)


def fp8(device: torch.device, *shape: int) -> Tensor:
    return random(device, *shape).clamp(-3, 3).to(torch.float8_e4m3fn)


def empty(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def per_token(m: int, width: int, device: torch.device) -> Chain:
    """Codes per token, GEMM, gate, codes, GEMM, as in a layer of a model."""
    x, gate, out = (empty(device, m, w, dtype=torch.bfloat16) for w in (width, 2 * width, width))
    codes, gated = (empty(device, m, width, dtype=torch.float8_e4m3fn) for _ in range(2))
    scales, gate_scales = empty(device, m, 1), empty(device, m, 1)
    up, down = fp8(device, 2 * width, width).t(), fp8(device, width, width).t()
    up_scales, down_scales = (torch.full((1, n), 0.01, device=device) for n in (2 * width, width))
    return Chain(
        x=x,
        out=out,
        written=(gate, out, codes, gated, scales, gate_scales),
        steps=(
            lambda: ops.dynamic_per_token_scaled_fp8_quant.default(codes, x, scales, None),
            lambda: ops.cutlass_scaled_mm.default(gate, codes, up, scales, up_scales, None),
            lambda: ops.silu_and_mul_per_token_quant.default(gated, gate, gate_scales, None),
            lambda: ops.cutlass_scaled_mm.default(out, gated, down, gate_scales, down_scales, None),
        ),
    )


def in_groups(m: int, width: int, device: torch.device) -> Chain:
    """RMS norm with scales in groups, GEMM, gate in groups, GEMM."""
    x, gate, out = (empty(device, m, w, dtype=torch.bfloat16) for w in (width, 2 * width, width))
    codes, gated = (empty(device, m, width, dtype=torch.float8_e4m3fn) for _ in range(2))
    rows, groups = m + -m % 4, width // 128
    scales, gate_scales = (empty(device, groups, rows).t()[:m] for _ in range(2))
    weight = torch.ones(width, dtype=torch.bfloat16, device=device)
    up, down = fp8(device, 2 * width, width).t(), fp8(device, width, width).t()
    up_scales, down_scales = (torch.full((n, groups), 0.01, device=device).t() for n in (2 * groups, groups))
    return Chain(
        x=x,
        out=out,
        written=(gate, out, codes, gated, scales, gate_scales),
        steps=(
            lambda: ops.rms_norm_per_block_quant.default(codes, x, weight, scales, 1e-6, None, None, 128, True),
            lambda: ops.cutlass_scaled_mm.default(gate, codes, up, scales, up_scales, None),
            lambda: ops.silu_and_mul_per_block_quant.default(gated, gate, gate_scales, 128, None, True),
            lambda: ops.cutlass_scaled_mm.default(out, gated, down, gate_scales, down_scales, None),
        ),
    )


def int8_with_zero_points(m: int, width: int, device: torch.device) -> Chain:
    """Codes with a zero point for each row, GEMM, twice."""
    x, middle, out = (empty(device, m, width, dtype=torch.bfloat16) for _ in range(3))
    codes, again = (empty(device, m, width, dtype=torch.int8) for _ in range(2))
    scales, azp, scales2, azp2 = (empty(device, m, 1, dtype=t) for t in (torch.float32, torch.int32) * 2)
    b = random(device, width, width).mul(20).to(torch.int8).t()
    b_scales, sums = torch.full((1, width), 0.001, device=device), b.sum(dim=0, dtype=torch.int32)
    return Chain(
        x=x,
        out=out,
        written=(middle, out, codes, again, scales, azp, scales2, azp2),
        steps=(
            lambda: ops.dynamic_scaled_int8_quant.default(codes, x, scales, azp),
            lambda: ops.cutlass_scaled_mm_azp.default(middle, codes, b, scales, b_scales, sums, azp, None),
            lambda: ops.dynamic_scaled_int8_quant.default(again, middle, scales2, azp2),
            lambda: ops.cutlass_scaled_mm_azp.default(out, again, b, scales2, b_scales, sums, azp2, None),
        ),
    )


def written_weights(m: int, width: int, device: torch.device) -> Chain:
    """A GEMM whose b the kernel before it writes: without the promise of constant weights it must wait for that."""
    x, out = empty(device, width, width, dtype=torch.bfloat16), empty(device, m, width, dtype=torch.bfloat16)
    codes, scales = empty(device, width, width, dtype=torch.float8_e4m3fn), empty(device, width, 1)
    a, a_scales = fp8(device, m, width), torch.full((m, 1), 0.01, device=device)
    return Chain(
        x=x,
        out=out,
        written=(out, codes, scales),
        steps=(
            lambda: ops.dynamic_per_token_scaled_fp8_quant.default(codes, x, scales, None),
            lambda: ops.cutlass_scaled_mm.default(out, a, codes.t(), a_scales, scales.t(), None),
        ),
    )


@cache
def layer_of_experts(width: int, device: torch.device, packing: str | None) -> dict[str, Any]:
    spec = CallSpec(tokens=257, hidden=width, inner=256, weights=3, topk=2, group_size=0 if packing else 128)
    packed = PACKINGS[PACKING_NAMES.index(packing)] if packing else None
    return make_given(replace(spec, packing=packed, order=INTERLEAVED if packing else GATE_UP), device)


def experts(m: int, width: int, device: torch.device, packing: str | None = None) -> Chain:
    """Two layers of fused experts: each reads the sums of the one before it."""
    x, middle, out = (empty(device, m, width, dtype=torch.bfloat16) for _ in range(3))
    given = layer_of_experts(width, device, packing)
    routed = {name: given[name][:m] for name in ("topk_ids", "topk_weights")}
    op = getattr(ops, "fused_fp4_experts" if packing else "fused_experts").default
    both = [arguments_of(given | routed | {"x": one, "out": other}) for one, other in ((x, middle), (middle, out))]
    return Chain(x=x, out=out, written=(middle, out), steps=tuple(partial(op, *arguments) for arguments in both))


packed_experts = partial(experts, packing="nvfp4")
folded_experts = partial(experts, packing="mxfp4_e4m3")
"""Whose rows of x and of results become codes."""
EXPERTS = {experts: "experts", packed_experts: "packed_experts", folded_experts: "folded_experts"}
CHAINS = (per_token, in_groups, int8_with_zero_points, *EXPERTS, written_weights)


def name_of(make: Callable[..., Chain]) -> str:
    return EXPERTS.get(make) or make.__name__


def offered(make: Callable[..., Chain]) -> bool:
    """Whether the build has the variants of a chain, as far as a smoke build may lack them."""
    if make in EXPERTS:
        call = make(1, SIZES[0], torch.device("cuda")).steps[0]
        return gemmill.explain(call.func.name().partition("::")[2], *call.args).entry is not None
    if make is int8_with_zero_points:
        return gemmill.supports("dynamic_scaled_int8_quant", dtype="bf16") and gemmill.supports("cutlass_scaled_mm_azp")
    return gemmill.supports("cutlass_scaled_mm", dtype="e4m3", group_size=128 if make is in_groups else 0)


@contextmanager
def constant_weights(assumed: bool) -> Iterator[None]:
    gemmill.assume_constant_weights(assumed)
    try:
        yield
    finally:
        gemmill.assume_constant_weights(False)


def run(chain: Chain, inputs: list[Tensor], rounds: int, wait: Step) -> list[Tensor]:
    results = []
    for turn in range(rounds):
        chain.x.copy_(inputs[turn % len(inputs)])
        for step in chain.steps:
            step()
            wait()
        results.append(chain.out.clone())
    return results


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("assumed", [False, True], ids=["weights-may-change", "constant-weights"])
@pytest.mark.parametrize("m", [1, 16, 64, 257])
@pytest.mark.parametrize("make", CHAINS, ids=name_of)
def test_each_reads_what_the_one_before_it_wrote(make, m: int, assumed: bool, device) -> None:
    if assumed and make is written_weights:
        pytest.skip("the promise of constant weights does not hold for this chain")
    on_gpu = device.type == "cuda"
    if on_gpu and not offered(make):
        pytest.skip("the build lacks the variants")
    for width in SIZES if on_gpu else SIZES[:1]:
        chain = make(m, width, device)
        inputs = [random(device, *chain.x.shape).mul(factor).to(torch.bfloat16) for factor in (1.0, -0.37)]
        wait: Step = torch.cuda.synchronize if on_gpu else lambda: None
        expected = run(chain, inputs, len(inputs), wait)
        assert not same_bits(*expected) and not any(each.isnan().any() for each in expected)
        for tensor in chain.written:
            tensor.view(torch.uint8 if tensor.element_size() == 1 else tensor.dtype).fill_(0x7F)
        with constant_weights(assumed):
            results = run(chain, inputs, ROUNDS if on_gpu else 2, lambda: None)
        wrong = [turn for turn, result in enumerate(results) if not same_bits(result, expected[turn % len(inputs)])]
        assert not wrong, f"width {width}"


@pytest.mark.needs_cuda
@pytest.mark.parametrize("assumed", [False, True], ids=["weights-may-change", "constant-weights"])
@pytest.mark.parametrize("make", CHAINS[:-1], ids=name_of)
def test_a_chain_in_a_graph(make, assumed: bool, device) -> None:
    """The edges between kernels of a graph are programmatic too."""
    if not offered(make):
        pytest.skip("the build lacks the variants")
    chain = make(16, 1024, device)
    inputs = [random(device, *chain.x.shape).mul(factor).to(torch.bfloat16) for factor in (1.0, -0.37)]
    expected = run(chain, inputs, len(inputs), torch.cuda.synchronize)
    graph = torch.cuda.CUDAGraph()
    with constant_weights(assumed), torch.cuda.graph(graph):
        for _ in range(4):
            for step in chain.steps:
                step()
    for turn in range(ROUNDS):
        chain.x.copy_(inputs[turn % 2])
        graph.replay()
        result = chain.out.clone()
        assert same_bits(result, expected[turn % 2])
