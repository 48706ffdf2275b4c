"""Fused experts of packed 4-bit weights on CPU tensors: packing, the reference, sentences, workspace, rules, names and the choice."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.fused_experts.cases.calls import ALL, NONE, CallSpec, arguments_of, make_given, wanted_of
from gemmill.families.fused_experts.cases.checked import of_config
from gemmill.families.fused_experts.config import FP4_FORMATS, PackedExpertsConfig, PackedOperands
from gemmill.families.fused_experts.functions import fused_experts_workspace
from gemmill.families.fused_experts.main_loop import LOOPS, ExpertLoop
from gemmill.families.fused_experts.packed_ops import FUSED_FP4_EXPERTS
from gemmill.families.fused_experts.packing import PACKING_NAMES, PACKINGS, Packing
from gemmill.families.fused_experts.reference import INTERLEAVED
from gemmill.families.fused_experts.rules import PACKED_RULES
from gemmill.families.fused_experts.selections import default, packed, sweep
from gemmill.families.fused_experts.serving import layer_of
from gemmill.families.fused_experts.tuning import TUNING
from gemmill.family import ShapedCall, first_rejection
from gemmill.formats.fp4_blocks import CODE_BYTES, SCALE_BYTES
from gemmill.formats.layout import SIDE
from gemmill.formats.quantise import BlockScaled
from gemmill.formats.sparse_blocks import block_bytes
from gemmill.fuzz.breakages import draw_call
from gemmill.numerics.call import CPU_LIMITS
from gemmill.numerics.memory import Memory
from gemmill.numerics.values import Pools
from gemmill.quantize import prepack_gated_experts
from gemmill.runtime import checks
from gemmill.runtime.operands import of_arguments
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, DType, Format
from gemmill.vocab.format import MXFP8, NVFP4

NV = CallSpec(
    tokens=5,
    hidden=96,
    inner=48,
    weights=4,
    topk=2,
    dtype=DType.U8,
    packing=PACKINGS[0],
    order=INTERLEAVED,
    biased=True,
)
MX = replace(NV, packing=PACKINGS[1], inner=64, biased=False)
OTHERS = [replace(NV, packing=packing, inner=64) for packing in PACKINGS[2:]]


def given(p: CallSpec) -> dict[str, Any]:
    out = torch.full((p.tokens, p.hidden), torch.nan, dtype=torch.bfloat16)
    return make_given(p, torch.device("cpu")) | {"out": out}


def call(arguments: dict[str, Any]) -> Tensor:
    torch.ops.gemmill.fused_fp4_experts.default(*arguments_of(arguments))
    out: Tensor = arguments["out"]
    return out


def weights_of(format: Format, rows: int, k: int, count: int = 3, seed: int = 3) -> list[BlockScaled]:
    g = torch.Generator().manual_seed(seed)
    one = 56 if format is NVFP4 else 127
    return [
        BlockScaled(
            format=format,
            codes=torch.randint(0, 256, (rows, format.code_bytes(k)), generator=g).to(torch.uint8),
            scales=torch.randint(one - 3, one + 3, (rows, format.scale_count(k)), generator=g).to(torch.uint8),
        )
        for _ in range(count)
    ]


def layer_by_hand(w13: Tensor, w2: Tensor, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """Of gates before ups, pair by pair, in float64 with the roundings to bf16 in between."""
    total = torch.zeros(x.shape)
    for token, experts in enumerate(ids.tolist()):
        for slot, e in enumerate(experts):
            gate, up = (x[token].double() @ w13[e].t()).bfloat16().float().chunk(2)
            inner = (gate / (1 + torch.exp(-gate)) * up).bfloat16()
            total[token] += weights[token, slot] * (inner.double() @ w2[e].t()).float()
    return total


@pytest.mark.parametrize("format", FP4_FORMATS)
@pytest.mark.parametrize("order", ["gate_up", "up_gate", "interleaved"])
def test_a_packed_layer_is_that_of_its_weights(format: Format, order: str) -> None:
    k, inner = 96, 64
    w13, w2 = weights_of(format, 2 * inner, k), weights_of(format, k, inner, seed=4)
    of_w13, of_w2 = torch.tensor([[64.0, 128.0]] * 3), torch.tensor([32.0, 64.0, 128.0])
    ready = prepack_gated_experts(w13, w2, order=order, w13_global_scales=of_w13, w2_global_scales=of_w2)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, k, generator=g).bfloat16()
    ids, weights = torch.tensor([[0, 1], [2, 0], [1, 1], [2, 1]]), torch.rand(4, 2, generator=g)
    found = gemmill.fused_experts(
        x, ready.w13.blocks, ready.w2.blocks, ready.w13.base, ready.w2.base, ids, weights, order="interleaved", format=str(format)
    )  # fmt: skip
    rows = [each.values() for each in w13]
    if order == "interleaved":
        rows = [torch.cat((each[::2], each[1::2])) for each in rows]
    elif order == "up_gate":
        rows = [torch.cat(each.chunk(2)[::-1]) for each in rows]
    of_rows = torch.tensor([64.0, 128.0]).repeat_interleave(inner)[:, None]
    plain = torch.stack([each / of_rows for each in rows])
    second = torch.stack([each.values() / scale for each, scale in zip(w2, of_w2.tolist(), strict=True)])
    wanted = layer_by_hand(plain, second, x, ids, weights)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=2**-7, atol=float(wanted.abs().max()) * 2**-8)


@pytest.mark.parametrize("p", [NV, MX, replace(MX, data="integers"), *OTHERS], ids=lambda p: f"{p.packing} {p.data}")
def test_the_reference_is_within_the_bound_and_a_wrong_result_is_not(p: CallSpec) -> None:
    x = given(p)
    wanted, found = wanted_of(x, exactly=p.data == "integers"), call(x)
    assert wanted.compare(found).ok
    for name in ("w13", "w2"):
        blocks = x[name].clone()
        codes = slice(512 if p.packing is not None and p.packing.sparse_group else CODE_BYTES)
        blocks[..., codes] = blocks[..., codes].roll(64, dims=3)
        rolled = x | {name: blocks, "out": torch.empty_like(found)}
        assert not wanted.compare(call(rolled)).ok, f"codes of {name} that moved pass"
        other = x | {f"{name}_scales": x[f"{name}_scales"].roll(1, dims=1), "out": torch.empty_like(found)}
        assert not wanted.compare(call(other)).ok, f"bases of {name} of other rows pass"


def test_float64_weights_are_those_that_were_packed() -> None:
    layer = layer_of(given(replace(NV, routed=ALL)))
    assert layer.is_packed and not layer.is_coded and layer.group == 0
    assert layer.w13.shape == (4, 96, 96) and layer.w2.shape == (4, 96, 48) and layer.w13_scales is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"order": "down"}, "order is 'down', expected 'gate_up', 'up_gate' or 'interleaved'"),
        ({"w2": weights_of(NVFP4, 96, 64, 2)}, "w13 has 3 experts and w2 has 2: each expert has both"),
        (
            {"w2": weights_of(NVFP4, 96, 48)},
            "expert 0: w13 is 128 x 96 and w2 96 x 48, expected w13 of 96 x 96 for this w2",
        ),
        ({"w13_global_scales": torch.ones(3, 3)}, "w13_global_scales has shape [3, 3], expected [3] or [3, 2]"),
        ({"w2_global_scales": torch.ones(6)}, "w2_global_scales has shape [6], expected [3]"),
        (
            {"w13": weights_of(MXFP8, 128, 96), "w2": weights_of(MXFP8, 96, 64)},
            "experts of mxfp8 for bf16 activations, expected nvfp4 or mxfp4",
        ),
    ],
)
def test_layers_that_cannot_be_packed(changes: dict[str, Any], said: str) -> None:
    plain: dict[str, Any] = {"w13": weights_of(NVFP4, 128, 96), "w2": weights_of(NVFP4, 96, 64)}
    with pytest.raises(ValueError) as error:
        prepack_gated_experts(**plain | changes)
    assert str(error.value) == said


SENTENCES = {
    "format": (
        {"format": 6},
        "format is 6, expected 0 (nvfp4), 1 (mxfp4), 2 (nvfp4_2to4), 3 (nvfp4_2to4_8), 4 (mxfp4_e4m3) or 5 (nvfp4_e4m3)",
    ),
    "order": (
        {"order": 0},
        "order is 0: packed weights have each gate before its up (2), as gemmill.quantize.prepack_gated_experts weaves them",
    ),
    "other format": (
        {"format": 1},
        "rows of w13 and w2 have 96 and 48 elements, which are not both multiples of the format's group of 32",
    ),
    "x": ({"x": torch.zeros(5, 96, dtype=torch.float16)}, "x is float16, expected bfloat16"),
    "bases": (
        {"w13_scales": torch.ones(4, 72)},
        "w13_scales is [4, 72], bases of 72 gates and ups: expected a multiple of 32",
    ),
    "bases of w2": ({"w2_scales": torch.ones(4, 80)}, "w2_scales is [4, 80], expected [weights, K] = [4, 96]"),
    "blocks": (
        {"w2": torch.zeros(4, 1, 4, 2304, dtype=torch.uint8)},
        "w2 is [4, 1, 4, 2304], expected [4, 2, 4, 2304] for experts of 96 x 48 weights packed by gemmill.quantize.prepack_gated_experts",
    ),
    "blocks that lie apart": (
        {"w13": torch.zeros(4, 2, 4, 4608, dtype=torch.uint8)[..., ::2]},
        "w13 has strides [36864, 18432, 4608, 2]: weights must be contiguous",
    ),
    "topk": (
        {"topk_ids": torch.zeros(5, 5, dtype=torch.int32), "topk_weights": torch.zeros(5, 5)},
        "topk_ids is [5, 5], 5 experts of each token, and there are 4: give an expert_map where others are elsewhere",
    ),
    "workspace": (
        {"workspace": torch.empty(1000, dtype=torch.uint8)},
        f"workspace has [1000] bytes, expected {fused_experts_workspace(5, 96, 48, 2, 4, packed=True)} or more: "
        "gemmill.fused_experts_workspace says how many",
    ),
    "bias": (
        {"w13_bias": torch.zeros(4, 48, dtype=torch.bfloat16)},
        "w13_bias has shape [4, 48] and strides [48, 1], expected [4, 96], contiguous",
    ),
    "activation": (
        {"activation": "relu"},
        "activation is 'relu', expected 'silu', 'gelu', 'gelu_tanh' or 'swiglu'",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_call_that_cannot_be_is_told_why(name: str) -> None:
    changes, said = SENTENCES[name]
    arguments = given(NV) | changes
    with pytest.raises(RuntimeError) as error:
        call(arguments)
    assert str(error.value) == f"fused_fp4_experts: {said}"
    assert bool(arguments["out"].isnan().all()), "something ran"


def test_the_function_says_what_packed_weights_lack() -> None:
    x = given(NV)
    operands = [x[name] for name in "x w13 w2 w13_scales w2_scales topk_ids topk_weights".split()]
    with pytest.raises(ValueError) as error:
        gemmill.fused_experts(*operands, format="fp4")
    names = ", ".join(map(repr, PACKING_NAMES[:-1]))
    assert (
        str(error.value)
        == f"format is 'fp4', expected {names} or 'nvfp4_e4m3', or None for weights that are not packed"
    )
    for format, rounded in (("nvfp4_e4m3", False), ("nvfp4", True)):
        with pytest.raises(ValueError) as error:
            gemmill.fused_experts(*operands, format=format, rounded=rounded)
        assert str(error.value) == (
            f"rounded is {rounded} and format is {format!r}: rounded=True says that 'nvfp4_e4m3' may lose bits of weights, and goes "
            "with no other format"
        )
    operands[4] = None
    with pytest.raises(RuntimeError) as refused:
        gemmill.fused_experts(*operands, order="interleaved", format="nvfp4")
    assert str(refused.value) == "fused_experts: format is 'nvfp4' and w2_scales is None: packed weights have bases"


def test_a_workspace_is_as_large_as_the_contract_says() -> None:
    for p in (NV, MX, replace(NV, tokens=0, biased=False), replace(MX, tokens=33, topk=4), *OTHERS):
        judged = checks.check(FUSED_FP4_EXPERTS, of_arguments(FUSED_FP4_EXPERTS, arguments_of(given(p))))
        sizes = p.tokens, p.hidden, p.inner, p.topk, p.weights
        is_coded = p.packing is not None and p.packing.is_coded
        wanted = judged["bytes_folded" if is_coded else "bytes_packed"]
        assert fused_experts_workspace(*sizes, packed=True, coded=is_coded) == wanted


@pytest.mark.parametrize("i", range(len(PACKINGS)), ids=PACKING_NAMES)
def test_contracts_compute_what_packings_say(i: int) -> None:
    p = replace(NV, packing=PACKINGS[i], inner=64, biased=False)
    judged = checks.check(FUSED_FP4_EXPERTS, of_arguments(FUSED_FP4_EXPERTS, arguments_of(given(p))))
    assert p.packing is not None and (
        not p.packing.sparse_group or p.packing.block_bytes == block_bytes(p.packing.sparse_group)
    )
    told = judged["group"], judged["block_columns"], judged["block_bytes"]
    assert told == (PACKINGS[i].multiple, PACKINGS[i].block_columns, PACKINGS[i].block_bytes)


def test_tokens_without_experts_are_zero() -> None:
    assert torch.equal(call(given(replace(NV, routed=NONE))), torch.zeros(5, 96, dtype=torch.bfloat16))
    assert call(given(replace(NV, tokens=0))).shape == (0, 96)


def test_random_calls_have_scales_that_are_packed() -> None:
    """Kernels read larger bytes as infinity or NaN, which the reference does not."""
    seen = set()
    for index in range(60):
        legal, _ = draw_call(FUSED_FP4_EXPERTS.name, 1, index, CPU_LIMITS)
        packing = PACKINGS[legal.plain["format"]]
        if packing.format is not NVFP4 or packing.is_coded:
            continue
        memory = Memory(legal.slots, torch.device("cpu"))
        Pools(torch.device("cpu")).fill(memory, legal.offsets)
        scales = SIDE * SIDE // (packing.sparse_group or NVFP4.group)
        for name in ("w13", "w2"):
            assert set(memory.tensor(name)[..., -scales:].unique().tolist()) <= set(SCALE_BYTES), (index, str(packing))
        seen.add(str(packing))
    assert seen == {"nvfp4", "nvfp4_2to4", "nvfp4_2to4_8"}


def test_a_tile_is_of_one_body_which_tells_all_of_it() -> None:
    """Its stages, groups of rows and time; and the classes of products of the weights that it has."""
    for loop, bodies in LOOPS.items():
        for packing in PACKINGS:
            tiles = [tile for body in bodies for tile in body.stages.get(packing, {})]
            assert len(tiles) == len(set(tiles)), (loop, packing)
        for body in bodies:
            tiles = {tile for stages in body.stages.values() for tile in stages}
            assert body.row_groups.keys() >= tiles <= {*body.tile_ps, *body.column_ps}, (loop, body.header)
            for packing in body.stages if any(body.products) else ():
                assert body.products[bool(packing.sparse_group)], (loop, body.header, packing)


def test_kernels_by_warps_on_sm120f() -> None:
    """Their stages and sums fit 99 KB; names and tiles are Hopper's."""
    found = [config for config in default(Arch.SM120F) if isinstance(config, PackedExpertsConfig)]
    assert len(found) == 9 and all(first_rejection(PACKED_RULES, config).ok for config in found)
    stages = {to_name(config).split("fp4experts_")[1]: config.stages for config in found}
    assert stages["nvfp4_t8"] == 6 and stages["nvfp4_t8w"] == 3 and stages["nvfp4_sparse16_t16"] == 5
    for config in packed(Arch.SM90A):
        moved = replace(config, arch=Arch.SM120F)
        assert config.stages == config.tiles[config.tile_tokens] and parse_name(to_name(moved)) == moved
        if not config.by_warps:
            reason = first_rejection(PACKED_RULES, moved).reason
            assert reason == "fused experts are written for sm90a, not for sm120f"


def test_names_rules_and_selections() -> None:
    configs = list(packed(Arch.SM90A))
    assert len(configs) == 52 and not list(packed(Arch.SM100A))
    chosen = {to_name(config).split("fp4experts_")[1] for config in set(configs) & set(default(Arch.SM90A))}
    assert {"nvfp4_t8", "nvfp4_t8w", "nvfp4_sparse16_t8w", "mxfp4_e4m3_t16"} < chosen and "mxfp4_t64" not in chosen
    assert set(configs) < set(sweep(Arch.SM90A)) and set(default(Arch.SM90A)) < set(sweep(Arch.SM90A))
    for config in configs:
        assert parse_name(to_name(config)) == config and first_rejection(PACKED_RULES, config).ok
    assert to_name(configs[0]) == "sm90a_fusedfp4experts_nvfp4_t8"
    wrong = first_rejection(PACKED_RULES, replace(configs[0], design=replace(configs[0].design, tile_tokens=24)))
    assert wrong.reason == "gathered tile of 24 rows: there are 8, 16, 32, 64, 128"
    for loop, tiles in (
        (ExpertLoop.GATHERED, {8, 16, 32, 64, 128}),
        (ExpertLoop.WIDE, {8}),
        (ExpertLoop.PERSISTENT, {8, 16, 32, 48, 64, 112, 224}),
        (ExpertLoop.BOXED, {16, 32, 64, 128}),
    ):
        assert {config.tile_tokens for config in configs if config.main_loop is loop} == tiles
    assert {
        "mxfp4_e4m3_t8o",
        "mxfp4_e4m3_t224o",
        "nvfp4_t64wo",
        "nvfp4_t128wo",
        "nvfp4_sparse16_t64wo",
    } < chosen and "mxfp4_t32o" not in chosen
    wrong = first_rejection(
        PACKED_RULES, replace(configs[0], design=replace(configs[0].design, main_loop=ExpertLoop.PERSISTENT))
    )
    assert wrong.reason == "persistent tile of 8 rows: there are none"
    for name, said in (
        ("sm90a_fusedfp4experts_nvfp4", "it ends before main_loop, expected "),
        ("sm90a_fusedfp4experts_mxfp6_t8", "format 'mxfp6', expected nvfp4 or mxfp4"),
        ("sm90a_fusedfp4experts_mxfp4_sparse16_t8", "weights packed as mxfp4_2to4: there are "),
        (
            "sm90a_fusedfp4experts_nvfp4_8",
            "main_loop '8', expected ",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            parse_name(name)
    with pytest.raises(ValueError, match="format=mxfp8: packed weights are nvfp4 or mxfp4"):
        PackedOperands(format=MXFP8)


def test_the_model_gives_few_rows_small_tiles() -> None:
    configs = [config for config in packed(Arch.SM90A) if config.packing == PACKINGS[0]]
    rows = [row for i, config in enumerate(configs) for row in TUNING.rows(config, i)]
    chosen = []
    for pairs in (1, 64, 1024, 65536):
        call = ShapedCall(family="fused_experts", call_class=0, sizes=(pairs, 768, 2048, 128), alignments=(16, 16, 16))
        chosen.append(min(rows, key=lambda row, c=call: TUNING.model_ns(row, c, 132)).facts.tile_tokens)
    assert chosen == sorted(chosen) and chosen[0] == 8 and chosen[-1] >= 64


@pytest.mark.parametrize(
    ("tokens", "layer", "tiles"),
    [
        (1, (64, 10, 1280, 13568), {8, 16}),  # 111 and 113 us; 143 by tiles of 48
        (16, (64, 10, 1280, 13568), {8, 16}),  # 419 us; 532 by tiles of 32
        (64, (64, 10, 1280, 13568), {16}),  # 533 us; 719 by tiles of 8, 607 by tiles of 32
        (64, (128, 8, 2048, 10752), {8, 16}),  # 1070 and 1096 us; 1226 by tiles of 32
        (64, (128, 10, 5504, 3328), {8, 16}),  # 947 and 929 us; 1027 by tiles of 32
        (64, (128, 8, 2048, 768), {8}),  # 105 us; 110 by tiles of 16 and 48
        (64, (512, 6, 6912, 384), {8}),
        (16, (16, 10, 1408, 2304), {32, 48}),  # 55 and 56 us; 63 by tiles of 16, 72 by tiles of 8
        (1024, (256, 10, 3712, 2176), {48, 64}),  # 1410 and 1401 us; 1638 by tiles of 112, 2163 by tiles of 32
        (1024, (32, 8, 2688, 12800), {224}),
    ],
)
def test_mxfp4_tiles_with_e4m3_are_the_fastest_that_were_timed(
    tokens: int, layer: tuple[int, int, int, int], tiles: set[int]
) -> None:
    assert chosen_tile("mxfp4_e4m3", tokens, layer) in tiles


@pytest.mark.parametrize(
    ("tokens", "layer", "tiles"),
    [
        (16, (8, 6, 2688, 10880), {128}),  # 136 us; 154 by tiles of 32, 156 by tiles of 64
        (256, (32, 8, 1408, 384), {128}),  # 44.7 us; 51.4 by tiles of 32, 61.0 by tiles of 64
        (16, (32, 8, 1408, 384), {8, 32, 128}),  # 25.9 to 26.8 us
        (1024, (128, 8, 2048, 768), {128}),  # 261 us; 274 by tiles of 64, 328 by tiles of 32
        (8192, (128, 8, 2048, 768), {128}),
    ],
)
def test_nvfp4_tiles_are_the_fastest_that_were_timed(
    tokens: int, layer: tuple[int, int, int, int], tiles: set[int]
) -> None:
    assert chosen_tile("nvfp4", tokens, layer) in tiles


def chosen_tile(packing: str, tokens: int, layer: tuple[int, int, int, int]) -> int:
    """Rows of the tile that the model puts first of the default selection's on an H200; a layer is experts, top, hidden, inner."""
    experts, top, hidden, inner = layer
    configs = [c for c in default(Arch.SM90A) if isinstance(c, PackedExpertsConfig) and str(c.packing) == packing]
    rows = [row for i, config in enumerate(configs) for row in TUNING.rows(config, i)]
    sizes = (tokens * top, inner, hidden, experts)
    call = ShapedCall(family="fused_experts", call_class=0, sizes=sizes, alignments=(16, 16, 16))
    return min(rows, key=lambda row: TUNING.model_ns(row, call, 132)).facts.tile_tokens


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_cases_pass_on_a_cpu(packing: Packing) -> None:
    config = next(config for config in packed(Arch.SM90A) if config.packing == packing)
    for case in of_config(config):
        if case.spec.weights < 20:
            assert case.run("cpu").report == "", str(case)
