"""vLLM's grouped GEMMs of two 4-bit operands, by gemmill's: on the CPU, of codes and scales whose products are known."""

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from gemmill.compat import packed_once
from gemmill.compat.vllm import fp4_groups as vllm_fp4_groups
from gemmill.formats.codes import pack
from gemmill.formats.quantise import BlockScaled, swizzle, unswizzle
from gemmill.vocab.format import MXFP4, NVFP4, Format

E, N, K, M = 4, 136, 96, 150
ROWS = (5, 0, 131, 7)
BEGINS = (0, 5, 5, 140)
"""Rows 136 to 139, and those from 147 on, are nobody's."""
SCALES_BEGIN = (0, 128, 128, 384)
NAMES = {NVFP4: "cutlass_fp4_group_mm", MXFP4: "cutlass_mxfp4_group_mm"}
NAN = torch.nan


@pytest.fixture(scope="module")
def vllm() -> Any:
    import_module("gemmill.compat.vllm.ops")
    return torch.ops._C


@pytest.fixture(autouse=True)
def nothing_packed() -> None:
    packed_once.forget_packed_weights()


def drawn(format: Format, rows: int, seed: int) -> BlockScaled:
    """Any codes, and scales of three binary orders."""
    generator = torch.Generator().manual_seed(seed)
    codes = pack(torch.randint(0, 16, (rows, K), generator=generator), 4).to(torch.uint8)
    low, step = {NVFP4: (48, 8), MXFP4: (126, 1)}[format]
    steps = torch.randint(0, 3, (rows, K // format.group), generator=generator)
    return BlockScaled(format=format, codes=codes, scales=(low + step * steps).to(torch.uint8))


class Call:
    """The arguments of a call, and its output."""

    def __init__(self, format: Format, dtype: torch.dtype = torch.bfloat16) -> None:
        self.format = format
        kind = torch.float8_e4m3fn if format == NVFP4 else torch.uint8
        weights = [drawn(format, N, seed) for seed in range(E)]
        rows = [drawn(format, count, 10 + seed) for seed, count in enumerate(ROWS)]
        self.a = torch.full((M, K // 2), 0x77, dtype=torch.uint8)
        scales = torch.full((640, swizzle(weights[0].scales).shape[1]), 255, dtype=torch.uint8)
        self.alphas = torch.tensor([1.0, 2.0, 0.5, 4.0]) if format == NVFP4 else None
        self.expected = torch.full((M, N), NAN, dtype=dtype)
        for expert, (begin, of, w) in enumerate(zip(BEGINS, rows, weights, strict=True)):
            slot, swizzled = SCALES_BEGIN[expert], swizzle(of.scales)
            self.a[begin : begin + len(of.codes)] = of.codes
            scales[slot : slot + len(swizzled)] = swizzled
            alpha = 1.0 if self.alphas is None else float(self.alphas[expert])
            product = (of.values() @ w.values().t() * alpha).float().to(torch.bfloat16)
            self.expected[begin : begin + len(of.codes)] = product.to(dtype)
        self.a_scales = scales.view(kind)
        self.b = torch.stack([w.codes for w in weights])
        self.b_scales = torch.stack([swizzle(w.scales) for w in weights]).view(kind)
        self.sizes = torch.tensor([[count, N, K] for count in ROWS], dtype=torch.int32)
        self.begins, self.scales_begin = torch.tensor(BEGINS, dtype=torch.int32), torch.tensor(SCALES_BEGIN).int()
        self.out = torch.full((M, N), NAN, dtype=dtype)

    def arguments(self, **changed: Any) -> list[Any]:
        names = "out a b a_scales b_scales alphas sizes begins scales_begin".split()
        given = [changed.get(name, getattr(self, name)) for name in names]
        return given if self.format == NVFP4 else given[:5] + given[6:]


def check(call: Call) -> None:
    """Rows of experts are right to the bit, the others are as they were."""
    assert torch.equal(call.out.isnan(), call.expected.isnan())
    assert torch.equal(call.out.nan_to_num(7), call.expected.nan_to_num(7))


@pytest.mark.parametrize("format", NAMES)
def test_more_experts_than_a_kernel_takes_are_several_launches(
    vllm: Any, format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_fp4_groups, "MOST_APART", 3)
    call = Call(format)
    getattr(vllm, NAMES[format])(*call.arguments())
    check(call)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("format", list(NAMES), ids=str)
def test_rows_of_experts(vllm: Any, format: Format, dtype: torch.dtype) -> None:
    """Scales of rows that nobody has are no numbers, and are not read."""
    call = Call(format, dtype)
    getattr(vllm, NAMES[format])(*call.arguments())
    check(call)
    (kept,) = packed_once._kept.values()
    call.out.fill_(NAN)
    getattr(vllm, NAMES[format])(*call.arguments())
    check(call)
    assert list(packed_once._kept.values()) == [kept], "weights are packed once"


def test_as_vllms_layer_of_experts_calls(vllm: Any) -> None:
    """Its data for the calls, its quantisation of each expert's rows, then the GEMM of the codes."""
    tokens, top, experts, n = 11, 2, 3, 64
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(tokens, K, generator=generator).bfloat16()
    ids = torch.rand(tokens, experts, generator=generator).topk(top).indices.int()
    offsets, sf_offsets = (torch.zeros(experts + 1, dtype=torch.int32) for _ in range(2))
    sizes, sizes2 = (torch.zeros(experts, 3, dtype=torch.int32) for _ in range(2))
    into, back = (torch.zeros(tokens * top, dtype=torch.int32) for _ in range(2))
    vllm.get_cutlass_moe_mm_data(ids, offsets, sizes, sizes2, into, back, experts, n // 2, K, sf_offsets, True)
    rows, scale = x[into.long()], torch.tensor([40.0, 50.0, 60.0])
    codes, scales = torch.zeros(tokens * top, K // 2).byte(), torch.zeros(1024, 2, dtype=torch.int32)
    vllm.scaled_fp4_experts_quant(codes, scales, rows, scale, offsets, sf_offsets)
    weights = [drawn(NVFP4, n, expert) for expert in range(experts)]
    b, b_scales = (torch.stack(part) for part in zip(*((w.codes, swizzle(w.scales)) for w in weights), strict=True))
    out, alphas = torch.full((tokens * top, n), NAN).bfloat16(), 1 / scale
    swizzled = scales.view(torch.float8_e4m3fn), b_scales.view(torch.float8_e4m3fn)
    with torch.inference_mode():
        vllm.cutlass_fp4_group_mm(out, codes, b, *swizzled, alphas, sizes, offsets[:-1], sf_offsets[:-1])
    for i, row in enumerate(back.tolist()):
        expert = int(ids.flatten()[i])
        first, place = int(sf_offsets[expert]), row - int(offsets[expert])
        of_expert = scales.view(torch.uint8)[first : first + 128]
        coded = BlockScaled(
            format=NVFP4, codes=codes[row : row + 1], scales=unswizzle(of_expert, 128, K // 16)[place : place + 1]
        )
        product = coded.values()[0] @ weights[expert].values().t() * float(alphas[expert])
        assert bool(((out[row].double() - product).abs() <= 2**-8 * product.abs()).all()), "bfloat16 has 8 bits"
        values = coded.values()[0] / float(scale[expert])
        assert (values - x[i // top].double()).norm() < 0.2 * x[i // top].double().norm(), "another token's row"


WRONG = [
    (
        {"a": torch.zeros(M, K // 2)},
        "a is torch.float32 [150, 48], expected torch.uint8 of 2 dimensions, contiguous: two codes in each",
    ),
    (
        {"b": torch.zeros(E, N, 40).byte()},
        "a is [150, 48] and b [4, 136, 40], expected codes of one K, a multiple of nvfp4's group of 16",
    ),
    (
        {"out": torch.empty(M, N)},
        "out is torch.float32 [150, 136], expected torch.bfloat16 or torch.float16 [150, 136]",
    ),
    (
        {"a_scales": torch.zeros(130, 8).byte()},
        "a_blockscale is torch.uint8 [130, 8], expected bytes [a multiple of 128, 8], swizzled and contiguous",
    ),
    (
        {"b_scales": torch.zeros(E, N, 6).byte()},
        "b_blockscales is torch.uint8 [4, 136, 6], expected bytes [4, 256, 8], swizzled and contiguous",
    ),
    (
        {"sizes": torch.zeros(E, 2).int()},
        "problem_sizes has shape [4, 2], expert_offsets [4] and sf_offsets [4], expected [4, 3] and an offset for each of 4 experts",
    ),
    (
        {"begins": torch.zeros(3).int()},
        "problem_sizes has shape [4, 3], expert_offsets [3] and sf_offsets [4], expected [4, 3] and an offset for each of 4 experts",
    ),
    (
        {"b_scales": torch.full((E, 256, 8), 127).byte()},
        "scale [0, 0] of nvfp4 is byte 127, which is no ue4m3 number: bytes 0 to 126 are",
    ),
]


@pytest.mark.parametrize(("changed", "told"), WRONG, ids=[next(iter(changed)) for changed, _ in WRONG])
def test_wrong_arguments(vllm: Any, changed: dict[str, Tensor], told: str) -> None:
    call = Call(NVFP4)
    with pytest.raises(RuntimeError) as error:
        vllm.cutlass_fp4_group_mm(*call.arguments(**changed))
    assert str(error.value) == f"cutlass_fp4_group_mm: {told}"
    assert bool(call.out.isnan().all()), "something is written"


def test_schemas_are_told_apart_and_fakes_write_nothing(vllm: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    call = Call(MXFP4)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in call.arguments()]
        assert vllm.cutlass_mxfp4_group_mm(*fake) is None
    arguments = [x.name for x in vllm.cutlass_fp4_group_mm.default._schema.arguments]
    assert [x for x in arguments if x != "alphas"] == [
        x.name for x in vllm.cutlass_mxfp4_group_mm.default._schema.arguments
    ]


@pytest.mark.parametrize(("capability", "loaded", "by"), [(9, True, "ours"), (10, True, "vLLM's"), (12, False, "ours")])
def test_blackwells_calls_are_vllms(monkeypatch: Any, capability: int, loaded: bool, by: str) -> None:
    """Where vLLM's library has the op, whose kernels run there."""

    class OnGpu(Tensor):
        is_cuda = True

    names: list[str] = []

    def found(name: str) -> tuple[Any, None]:
        names.append(name)
        return (lambda *given: "vLLM's") if loaded else None, None

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    monkeypatch.setattr(torch._C, "_jit_get_operation", found)
    monkeypatch.setitem(vllm_fp4_groups.ANSWERS, "cutlass_fp4_group_mm", lambda *given: "ours")
    out = torch.zeros(1).as_subclass(OnGpu)
    assert vllm_fp4_groups.answer("_C", "cutlass_fp4_group_mm", out, out) == by
    assert names == ["_C::cutlass_fp4_group_mm"] * (capability > 9)
    assert vllm_fp4_groups.answer("_C", "cutlass_fp4_group_mm", torch.zeros(1)) == "ours"
