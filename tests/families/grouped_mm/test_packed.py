"""Grouped GEMMs of packed 4-bit weights on CPU tensors: packing, the reference, sentences, bounds, rules, names and the choice."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.grouped_mm.bounds import packed_tolerance
from gemmill.families.grouped_mm.cases.calls import CallSpec, arguments_of, make_given
from gemmill.families.grouped_mm.cases.checked import GroupedCase, of_config
from gemmill.families.grouped_mm.classes import classes_of
from gemmill.families.grouped_mm.config import PackedGroupedConfig
from gemmill.families.grouped_mm.reference import packed_exact_mm, unpacked
from gemmill.families.grouped_mm.rules import PACKED_RULES
from gemmill.families.grouped_mm.selections import packed, smoke
from gemmill.families.grouped_mm.tuning import TUNING
from gemmill.family import ShapedCall, first_rejection
from gemmill.formats.quantise import BlockScaled
from gemmill.quantize import experts as packing
from gemmill.quantize import prepack_experts
from gemmill.quantize.experts import stacked_blocks
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import MXFP4, MXFP8, NVFP4

BF16 = CallSpec(counts=(3, 0, 5), n=72, k=160, spare=2, dtype=DType.BF16, format=NVFP4, alpha=True, bias=True)
FOLDED = replace(BF16, dtype=DType.E4M3, format=MXFP4)
MASKED = replace(BF16, slot=6, spare=0)


def given(p: CallSpec) -> dict[str, Any]:
    shape = (len(p.counts), p.slot, p.n) if p.slot else (p.rows, p.n)
    return make_given(p, torch.device("cpu")) | {"out": torch.full(shape, torch.nan, dtype=torch.bfloat16)}


def call(p: CallSpec, arguments: dict[str, Any]) -> Tensor:
    getattr(torch.ops.gemmill, p.op).default(*arguments_of(p.op, arguments, arguments["out"]))
    return arguments["out"]


def experts(count: int, n: int = 72, k: int = 160) -> list[BlockScaled]:
    g = torch.Generator().manual_seed(3)
    codes = [torch.randint(0, 256, (n, k // 2), generator=g).to(torch.uint8) for _ in range(count)]
    scales = [torch.randint(124, 130, (n, k // 32), generator=g).to(torch.uint8) for _ in range(count)]
    return [BlockScaled(format=MXFP4, codes=x, scales=y) for x, y in zip(codes, scales, strict=True)]


def blank(format: Format) -> list[BlockScaled]:
    codes, scales = (
        torch.zeros(72, columns, dtype=torch.uint8) for columns in (format.code_bytes(160), format.scale_count(160))
    )
    return [BlockScaled(format=format, codes=codes, scales=scales)]


@pytest.mark.parametrize("activations", ["bf16", "e4m3"])
def test_packed_experts_are_the_weights_that_they_were(activations: str) -> None:
    weights = experts(3)
    packed = prepack_experts(weights, activations=activations)
    assert packed.blocks.shape[:2] == (3, 2) and packed.base.shape == (3, 72) and len(packed.reports) == 3
    for i, one in enumerate(weights):
        found = unpacked(packed.blocks[i], packed.base[i], MXFP4, 160, folded=activations == "e4m3")
        assert torch.equal(found, one.values())


@pytest.mark.parametrize(("format", "activations"), [(MXFP4, "bf16"), (NVFP4, "bf16"), (MXFP4, "e4m3")])
def test_an_equal_format_is_packed_alike(format: Format, activations: str) -> None:
    """A config read from a manifest is another object."""
    read = replace(format)
    assert read == format and read is not format
    g = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 256, (72, format.code_bytes(160)), generator=g).to(torch.uint8)
    least = 120 if format == MXFP4 else 48
    scales = torch.randint(least, least + 9, (72, format.scale_count(160)), generator=g).to(torch.uint8)
    first, second = (
        prepack_experts([BlockScaled(format=x, codes=codes, scales=scales)], activations=activations)
        for x in (format, read)
    )
    assert torch.equal(first.blocks, second.blocks) and torch.equal(first.base, second.base)
    folded = activations == "e4m3"
    assert torch.equal(*(unpacked(second.blocks[0], second.base[0], x, 160, folded=folded) for x in (format, read)))


@pytest.mark.parametrize(
    ("weights", "activations", "said"),
    [
        ([], "bf16", "there are no experts, expected the weights of one or more"),
        (experts(1), "f16", "activations are 'f16', expected 'bf16' or 'e4m3'"),
        (blank(NVFP4), "e4m3", "experts of nvfp4 for e4m3 activations, expected mxfp4"),
        (
            blank(MXFP8),
            "bf16",
            "experts of mxfp8 for bf16 activations, expected nvfp4 or mxfp4",
        ),
        (
            [*experts(1), *experts(1, 64)],
            "bf16",
            "expert 1 has codes of mxfp4 [64, 80] and expert 0 of mxfp4 [72, 80]: all are of one format and size",
        ),
    ],
)
def test_experts_that_cannot_be_packed(weights: list[BlockScaled], activations: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        prepack_experts(weights, activations=activations)
    assert str(error.value) == said


def test_an_expert_that_does_not_fold_is_named() -> None:
    weights = experts(2)
    weights[1].scales[5, 0] = 60
    with pytest.raises(ValueError, match=r"^expert 1: .*row 5"):
        prepack_experts(weights, activations="e4m3")


@pytest.mark.parametrize("p", [BF16, FOLDED, replace(BF16, format=MXFP4, alpha=False, bias=False)])
def test_rows_of_each_expert_are_multiplied_by_its_weights(p: CallSpec) -> None:
    x = given(p)
    out = call(p, x)
    a = x["a"].double() * (1 if x["a_scales"] is None else x["a_scales"].double())
    for begin, end, e in ((2, 5, 0), (5, 10, 2)):
        b = unpacked(x["b"][e], x["b_scales"][e], p.format, p.k, folded=p is FOLDED)
        wanted = a[begin:end] @ b.t()
        if p.alpha:
            wanted = wanted * x["alpha"][e].double() + x["bias"][e].double()
        assert torch.allclose(out[begin:end].double(), wanted, rtol=1e-2, atol=1e-4)
    assert bool(out[:2].isnan().all() and out[10:].isnan().all()), "rows of no expert are written"


def test_slots_rows_by_number_and_maps() -> None:
    plain, masked = replace(BF16, spare=0), given(MASKED)
    x = given(plain)
    wanted = call(plain, x).clone()
    masked |= {name: x[name] for name in ("b", "b_scales", "alpha", "bias")}
    masked["a"][0, :3], masked["a"][2, :5] = x["a"][:3], x["a"][3:]
    out = call(MASKED, masked)
    assert torch.equal(out[0, :3], wanted[:3]) and torch.equal(out[2, :5], wanted[3:])
    assert bool(out[1].isnan().all() and out[0, 3:].isnan().all())
    order = torch.tensor([7, 6, 5, 4, 3, 2, 1, 9], dtype=torch.int32)
    x["a"] = x["a"].flip(0).contiguous()
    gathered = call(plain, x | {"token_ids": order, "out": torch.full_like(wanted, torch.nan)})
    assert torch.equal(gathered[1:7], wanted[1:7]) and torch.equal(gathered[7], x["bias"][2]), "row 9 is none: zeros"
    moved = {name: x[name][[2, 0]] for name in ("b", "b_scales", "alpha", "bias")}
    mapped = {"expert_map": torch.tensor([1, -1, 0], dtype=torch.int32), "a": x["a"].flip(0).contiguous()}
    out = call(plain, x | moved | mapped | {"out": torch.full_like(wanted, torch.nan)})
    assert torch.equal(out, wanted)
    out = call(plain, x | {"expert_map": torch.tensor([-1] * 3, dtype=torch.int32), "out": torch.full_like(wanted, 7)})
    assert bool((out == 7).all())


def test_functions_take_packed_weights() -> None:
    x, p = given(BF16), BF16
    wanted = call(p, x)
    names = ("a", "b", "a_scales", "b_scales")
    out = gemmill.grouped_mm(
        *(x[name] for name in names), x["expert_offsets"], format="nvfp4", alpha=x["alpha"], bias=x["bias"], check=True
    )
    assert out.dtype is torch.bfloat16 and torch.equal(out[2:10], wanted[2:10])
    y = given(MASKED)
    masked = gemmill.grouped_mm_masked(*(y[name] for name in names), y["rows"], format="nvfp4", check=True)
    assert masked.shape == (3, 6, 72)
    many = torch.arange(1500) % 12
    offsets = torch.tensor([0, 500, 500, 1500])
    with_ids = gemmill.grouped_mm(*(x[name] for name in names), offsets, token_ids=many, format="nvfp4")
    assert torch.equal(with_ids[:12], with_ids[12:24]) and with_ids.shape == (1500, 72)
    with pytest.raises(RuntimeError) as error:
        gemmill.grouped_mm(x["a"], x["b"], None, None, x["expert_offsets"], format="nvfp4")
    assert str(error.value) == "grouped_mm: format is 'nvfp4' and b_scales is None: packed weights have bases"


SENTENCES = {
    "format": (BF16, {"format": "mxfp8"}, "format is 'mxfp8', expected 'nvfp4' or 'mxfp4'"),
    "nvfp4 by e4m3": (
        FOLDED,
        {"format": "nvfp4"},
        "a is float8_e4m3fn and format 'nvfp4': with e4m3, weights are mxfp4, which fold into it exactly",
    ),
    "scales of bf16": (
        BF16,
        {"a_scales": torch.ones(12, 1)},
        "a is bfloat16, and a_scales are given: activations of 16 bits have no scales",
    ),
    "no scales of e4m3": (
        FOLDED,
        {"a_scales": None},
        "a is float8_e4m3fn, and a_scales are not given: activations of 8 bits have them",
    ),
    "scales of rows": (
        FOLDED,
        {"a_scales": torch.ones(11, 1)},
        "a_scales has shape [11, 1] and strides [1, 1]: there is one value, or one for each of 12 rows, without gaps",
    ),
    "weights for other activations": (
        BF16,
        {"b": torch.zeros(3, 2, 2, 4608, dtype=torch.uint8)},
        "b is [3, 2, 2, 4608], expected [experts, 2, 4, 2304] for experts of 72 x 160 weights packed by "
        "gemmill.quantize.prepack_experts for bfloat16",
    ),
    "bases": (
        BF16,
        {"b_scales": torch.ones(3, 71)},
        "b_scales has shape [3, 71] and strides [71, 1]: expected bases of each expert's rows of weights ([3, 72], contiguous)",
    ),
    "group": (
        replace(FOLDED, k=160),
        {"a": torch.zeros(12, 144).to(torch.float8_e4m3fn)},
        "K is 144, which is not a multiple of mxfp4's group of 32",
    ),
    "alpha": (BF16, {"alpha": torch.ones(2)}, "alpha has shape [2], expected [weights] = [3]"),
    "bias": (BF16, {"bias": torch.ones(3, 72, dtype=torch.float16)}, "bias is float16, expected bfloat16"),
    "results": (BF16, {"out": torch.zeros(12, 72)}, "out is float32, expected bfloat16"),
    "offsets": (
        BF16,
        {"expert_offsets": torch.zeros(3, dtype=torch.int32)},
        "b is [3, 2, 4, 2304], weights of 3 experts, and there are 2: give an expert_map that says whose they are",
    ),
    "rows of a slot": (
        MASKED,
        {"rows": torch.zeros(2, dtype=torch.int32)},
        "rows has shape [2], expected [experts] = [3]",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_call_that_cannot_be_is_told_why(name: str) -> None:
    spec, changes, said = SENTENCES[name]
    arguments = given(spec)
    before = arguments["out"].clone()
    with pytest.raises(RuntimeError) as error:
        call(spec, arguments | changes)
    assert str(error.value) == f"{spec.op}: {said}"
    assert bool(arguments["out"].isnan().all() and before.isnan().all()), "something ran"


@pytest.mark.parametrize("folded", [False, True])
def test_a_bound_is_wide_enough_and_too_narrow_for_a_lost_step(folded: bool) -> None:
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=g).to(torch.float8_e4m3fn).double() for shape in ((4, 512), (32, 512)))
    exact, bound = packed_exact_mm(a, b, None), packed_tolerance(a, b, None, torch.bfloat16, folded=folded)
    assert bool(((exact.float().bfloat16().double() - exact).abs() <= bound).all())
    assert bool(((packed_exact_mm(a[:, :448], b[:, :448], None) - exact).abs() > bound).any())


def test_names_rules_and_classes() -> None:
    configs = list(packed(Arch.SM90A))
    assert len(configs) == 14 and list(packed(Arch.SM100A)) == []
    for config in configs:
        assert parse_name(to_name(config)) == config and first_rejection(PACKED_RULES, config)
        assert config.shared_bytes <= (113 if config.ctas_of_sm == 2 else 227) * 1024
        assert len(set(classes_of(config))) == 2, "in order and gathered"
    assert to_name(configs[0]) == "sm90a_groupedfp4_bf16_nvfp4_bf16_t8x64_s7"
    by_warps = list(packed(Arch.SM120F))
    assert len(by_warps) == 4
    for config in by_warps:
        assert config.by_warps and config.shared_bytes <= 99 * 1024 and config.ctas_of_sm == 1
        assert parse_name(to_name(config)) == config and first_rejection(PACKED_RULES, config)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sm100a_groupedfp4_bf16_nvfp4_bf16_t8x64_s7", "grouped kernels are written for sm90a, not for sm100a"),
        ("sm120f_groupedfp4_bf16_nvfp4_bf16_t32x128_s5", "grouped kernels are written for sm90a, not for sm120f"),
        (
            "sm120f_groupedfp4_bf16_nvfp4_bf16_t8x64_s7",
            "7 stages of 13312 bytes: 2 or more must fit in 101376 with 105984",
        ),
        (
            "sm90a_groupedfp4_e4m3_nvfp4_bf16_t16x128_s7",
            "e4m3 x nvfp4: packed weights are multiplied in bf16 x nvfp4, bf16 x mxfp4, e4m3 x mxfp4",
        ),
        ("sm90a_groupedfp4_bf16_nvfp4_f16_t8x64_s7", "results in f16: those of packed weights are bf16"),
        (
            "sm90a_groupedfp4_bf16_nvfp4_bf16_t32x64_s5",
            "tile of 32 x 64 of bf16: warps multiply 8 or 16 rows of bf16 by 64 of weights",
        ),
        (
            "sm90a_groupedfp4_bf16_nvfp4_bf16_t24x128_s5",
            "tile of 24 x 128: groups of 128 threads multiply 16 to 128 rows, in steps of 16, by 128 of weights",
        ),
        (
            "sm90a_groupedfp4_bf16_nvfp4_bf16_t128x128_s6",
            "6 stages of 41984 bytes: 2 or more must fit in 232448 with 264448",
        ),
    ],
)
def test_what_the_kernel_cannot_be_made_of(name: str, said: str) -> None:
    assert first_rejection(PACKED_RULES, parse_name(name)).reason == said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sm90a_groupedfp4_bf16_nvfp4_bf16_t8x64", "it ends before stages, expected s and a number"),
        ("sm90a_groupedfp4_bf16_mxfp6_bf16_t8x64_s7", "format 'mxfp6', expected nvfp4 or mxfp4"),
        ("sm90a_groupedfp4_bf16_nvfp4_bf16_t8_s7", "tile_n 't8', expected t and a number, x and a number"),
        ("sm90a_groupedfp4_bf16_nvfp4_bf16_t8x64_sauto", "stages 'sauto', expected s and a number"),
    ],
)
def test_names_that_cannot_be_read(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_name(name)


@pytest.mark.parametrize("config", [c for c in smoke(Arch.SM90A) if isinstance(c, PackedGroupedConfig)], ids=to_name)
def test_cases_pass_on_a_cpu(config: PackedGroupedConfig) -> None:
    for case in of_config(config):
        assert case.run("cpu").report == "", str(case)


def test_a_wrong_result_is_found() -> None:
    class Wrong(GroupedCase):
        def _made(self, device: str) -> tuple[Any, Any, list[Any]]:
            given, memory, arguments = super()._made(device)
            arguments[7] = arguments[7] + 1
            return given, memory, arguments

    assert "elements are wrong" in Wrong(spec=replace(BF16, data="integers")).run("cpu").report


@pytest.mark.parametrize(("dtype", "m", "tile_m"), [(DType.BF16, 8, 8), (DType.BF16, 65536, 128), (DType.E4M3, 8, 16)])
def test_the_model_gives_few_rows_small_tiles(dtype: DType, m: int, tile_m: int) -> None:
    call = ShapedCall(family="grouped_mm", call_class=0, sizes=(m, 4096, 7168, 32), alignments=(16, 16, 16))
    rows = [row for i, c in enumerate(packed(Arch.SM90A)) if c.dtype is dtype for row in TUNING.rows(c, i)]
    assert min(rows, key=lambda row: TUNING.model_ns(row, call, 132)).facts.tile_m == tile_m


@pytest.mark.parametrize("format", [NVFP4, MXFP4])
@pytest.mark.parametrize(("n", "at_once"), [(64, 1), (64, 3), (72, 3)])
def test_stacked_experts_are_packed_as_one_after_another(format: Format, n: int, at_once: int, monkeypatch) -> None:
    """Some together where rows of each are whole blocks; with rows in another order, too."""
    k, g = 96, torch.Generator().manual_seed(n)
    codes = torch.randint(0, 256, (5, n, k // 2), generator=g).to(torch.uint8)
    scales = torch.randint(100, 120, (5, n, k // format.group), generator=g).to(torch.uint8)
    scales[1, 3] = 0
    monkeypatch.setattr(packing, "CHUNK", at_once * n * k)
    order = torch.randperm(n, generator=g)
    for rows in (None, order):
        blocks, base = stacked_blocks(format, codes, scales, rows)
        given = (codes, scales) if rows is None else (codes[:, rows], scales[:, rows])
        each = [BlockScaled(format=format, codes=own, scales=its) for own, its in zip(*given, strict=True)]
        wanted = prepack_experts(each)
        assert torch.equal(blocks, wanted.blocks) and torch.equal(base, wanted.base)


def test_stacked_experts_that_do_not_pack_are_named() -> None:
    scales = torch.full((3, 64, 2), 127, dtype=torch.uint8)
    scales[2, 7, 0] = 0
    with pytest.raises(ValueError, match=r"^experts 0 to 2 of 64 rows, together: blocks take .* and row 135 has 127: "):
        stacked_blocks(MXFP4, torch.full((3, 64, 32), 0x22, dtype=torch.uint8), scales)
