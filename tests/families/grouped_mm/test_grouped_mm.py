"""Grouped GEMMs on CPU tensors: the reference, sentences for bad input, bounds, rules, names and the choice."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.grouped_mm.bounds import tolerance
from gemmill.families.grouped_mm.cases.calls import CallSpec, arguments_of, make_given
from gemmill.families.grouped_mm.cases.checked import GroupedCase, of_config
from gemmill.families.grouped_mm.classes import classes_of
from gemmill.families.grouped_mm.config import (
    SCALE_GROUPS,
    AnyConfig,
    GroupedConfig,
    Operands,
    PackedGroupedConfig,
    UnalignedGroupedConfig,
)
from gemmill.families.grouped_mm.dsl.plan import Plan
from gemmill.families.grouped_mm.model import model_ns
from gemmill.families.grouped_mm.reference import exact_mm, segment_mm, segments
from gemmill.families.grouped_mm.rules import RULES, UNALIGNED_RULES
from gemmill.families.grouped_mm.selections import default, smoke, tiled
from gemmill.families.grouped_mm.tuning import TUNING
from gemmill.family import ShapedCall, first_rejection
from gemmill.gemm.config import Design
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Accumulation, Arch, DType, KernelSchedule, ScaleGroups
from making import changed

BLOCKS_128, BLOCKS_32, ROWS_32 = SCALE_GROUPS
CONTIGUOUS = CallSpec(counts=(3, 0, 5), n=64, k=160, spare=2)
MASKED = replace(CONTIGUOUS, slot=6, spare=0)
IN_GROUPS = replace(CONTIGUOUS, groups=BLOCKS_128)
FAST = GroupedConfig(
    operands=Operands(dtype=DType.E4M3, out_dtype=DType.BF16),
    design=Design(
        tile_shape_mnk=(128, 128, 128), kernel_schedule=KernelSchedule.COOPERATIVE, accumulation=Accumulation.FAST
    ),
)


def given(p: CallSpec) -> dict[str, Any]:
    shape = (len(p.counts), p.slot, p.n) if p.slot else (p.rows, p.n)
    return make_given(p, torch.device("cpu")) | {"out": torch.full(shape, torch.nan, dtype=torch.bfloat16)}


def call(p: CallSpec, arguments: dict[str, Any]) -> Tensor:
    getattr(torch.ops.gemmill, p.op).default(*arguments_of(p.op, arguments, arguments["out"]))
    return arguments["out"]


def sentence(p: CallSpec, **changes: Any) -> str:
    arguments = given(p) | changes
    with pytest.raises(RuntimeError) as error:
        call(p, arguments)
    return str(error.value)


@pytest.mark.parametrize("groups", [None, *SCALE_GROUPS])
def test_rows_of_each_expert_are_multiplied_by_its_weights(groups: ScaleGroups | None) -> None:
    x = given(replace(CONTIGUOUS, groups=groups))
    out = call(CONTIGUOUS, x)
    a, b = x["a"].double(), x["b"].double()
    if groups is not None:
        a = a * x["a_scales"].double().repeat_interleave(groups.size, 1)[:, :160]
        of_b = x["b_scales"].double().repeat_interleave(groups.size, 2)[:, :, :160]
        b = b * of_b.repeat_interleave(1 if groups == ROWS_32 else groups.size, 1)[:, :64]
    else:
        a, b = a * x["a_scales"].double(), b * x["b_scales"].double()[:, :, None]
    assert torch.allclose(out[2:5].double(), a[2:5] @ b[0].t(), rtol=2e-2, atol=1e-4)
    assert torch.allclose(out[5:10].double(), a[5:10] @ b[2].t(), rtol=2e-2, atol=1e-4)
    assert bool(out[:2].isnan().all() and out[10:].isnan().all()), "rows of no expert are written"


def test_slots_are_segments_with_room() -> None:
    masked, x = given(MASKED), given(replace(CONTIGUOUS, spare=0))
    for name in ("a", "a_scales"):
        masked[name] = torch.zeros_like(masked[name].float()).to(masked[name].dtype)
        masked[name][0, :3], masked[name][2, :5] = x[name][:3], x[name][3:]
    masked |= {name: x[name] for name in ("b", "b_scales")}
    out, wanted = call(MASKED, masked), call(replace(CONTIGUOUS, spare=0), x)
    assert torch.equal(out[0, :3], wanted[:3]) and torch.equal(out[2, :5], wanted[3:])
    assert bool(out[1].isnan().all() and out[0, 3:].isnan().all())


def test_a_map_tells_whose_weights() -> None:
    x = given(CONTIGUOUS)
    wanted = call(CONTIGUOUS, x).clone()
    x["out"].fill_(torch.nan)
    moved = x | {"b": x["b"][[2, 0]], "b_scales": x["b_scales"][[2, 0]]}
    out = call(CONTIGUOUS, moved | {"expert_map": torch.tensor([1, -1, 0], dtype=torch.int32)})
    assert torch.equal(out[2:10], wanted[2:10])
    x["out"].fill_(torch.nan)
    out = call(CONTIGUOUS, x | {"expert_map": torch.tensor([-1, 1, -1], dtype=torch.int32)})
    assert bool(out.isnan().all())


@pytest.mark.parametrize(
    ("offsets", "slot", "found"),
    [
        ([0, 4, 4, 9], 0, [(0, 4, 0), (4, 9, 2)]),
        ([-3, 4, 2, 99], 0, [(0, 4, 0), (2, 10, 2)]),
        ([5, 0, 7], 5, [(0, 5, 0), (10, 15, 2)]),
    ],
)
def test_what_lies_outside_is_cut_off(offsets: list[int], slot: int, found: list[tuple[int, int, int]]) -> None:
    spans = segments(torch.tensor(offsets), 15 if slot else 10, 3, slot=slot)
    assert [(x.begin, x.end, x.weights) for x in spans] == found


def test_functions_allocate() -> None:
    x = given(CONTIGUOUS)
    operands = [x[name] for name in ("a", "b", "a_scales", "b_scales", "expert_offsets")]
    out = gemmill.grouped_mm(*operands, out_dtype=torch.float16)
    assert out.dtype is torch.float16 and out.shape == (12, 64)
    y = given(MASKED)
    masked = gemmill.grouped_mm_masked(*(y[name] for name in ("a", "b", "a_scales", "b_scales", "rows")))
    assert masked.dtype is torch.bfloat16 and masked.shape == (3, 6, 64)


SENTENCES = {
    "b has strides [10240, 1, 64], rows": (
        CONTIGUOUS,
        {"b": torch.zeros(3, 160, 64).to(torch.float8_e4m3fn).transpose(1, 2)},
        "b of [3, 64, 160] has strides [10240, 1, 64]: its last stride must be 1, and rows must follow one another at one stride",
    ),
    "offsets of two experts": (
        CONTIGUOUS,
        {"expert_offsets": torch.zeros(3, dtype=torch.int32)},
        "b is [3, 64, 160], weights of 3 experts, and there are 2: give an expert_map that says whose they are",
    ),
    "no offsets": (
        CONTIGUOUS,
        {"expert_offsets": torch.zeros(0, dtype=torch.int32)},
        "expert_offsets is empty, expected the first row of each expert and the end of the last",
    ),
    "scales of columns": (
        CONTIGUOUS,
        {"b_scales": torch.ones(3, 63)},
        "b_scales has shape [3, 63]: for weights of [3, 64, 160] there are scales of each expert ([3]), of each column ([3, 64], "
        "contiguous), or of each 128 x 128 ([3, 1, 2]), 32 x 32 ([3, 2, 5]) or 1 x 32 ([3, 64, 5])",
    ),
    "mixed kinds of scales": (
        CONTIGUOUS,
        {"b_scales": torch.ones(3, 1, 2)},
        "a_scales has shape [12, 1], expected [12, 2]: a scale of each row for each 128 along K, as b_scales of [3, 1, 2] has them",
    ),
    "scales of 32 beside 128": (
        CONTIGUOUS,
        {"a_scales": torch.ones(12, 2), "b_scales": torch.ones(3, 2, 5)},
        "a_scales has shape [12, 2], expected [12, 5]: a scale of each row for each 32 along K, as b_scales of [3, 2, 5] has them",
    ),
    "scales of 128 beside rows in groups of 32": (
        MASKED,
        {"a_scales": torch.ones(3, 6, 2), "b_scales": torch.ones(3, 64, 5)},
        "a_scales has shape [3, 6, 2], expected [3, 6, 5], all rows at one stride: a scale of each row for each 32 along K, as "
        "b_scales of [3, 64, 5] has them",
    ),
    "scales of blocks of 64": (
        CONTIGUOUS,
        {"b_scales": torch.ones(3, 1, 3)},
        "b_scales has shape [3, 1, 3]: for weights of [3, 64, 160] there are scales of each expert ([3]), of each column ([3, 64], "
        "contiguous), or of each 128 x 128 ([3, 1, 2]), 32 x 32 ([3, 2, 5]) or 1 x 32 ([3, 64, 5])",
    ),
    "scales of rows": (
        CONTIGUOUS,
        {"a_scales": torch.ones(11, 1)},
        "a_scales has shape [11, 1] and strides [1, 1]: with scales of columns there is one value, or one for each of 12 rows, "
        "without gaps",
    ),
    "integers in groups": (
        replace(IN_GROUPS, dtype=DType.S8),
        {},
        "a is int8: scales in groups come with float8_e4m3fn",
    ),
    "dtypes": (
        CONTIGUOUS,
        {"b": torch.zeros(3, 64, 160, dtype=torch.int8)},
        "b is int8, expected float8_e4m3fn",
    ),
    "rows of a slot": (
        MASKED,
        {"rows": torch.zeros(2, dtype=torch.int32)},
        "rows has shape [2], expected [experts] = [3]",
    ),
    "expected rows": (MASKED, {"expected_rows": -1}, "expected_rows is -1, expected a number of rows, or 0 for any"),
    "too many experts": (
        replace(CONTIGUOUS, counts=(0,) * 513),
        {},
        "there are 513 experts: a kernel finds rows of 512 at most",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_call_that_cannot_be_is_told_why(name: str) -> None:
    spec, changes, said = SENTENCES[name]
    assert sentence(spec, **changes) == f"{spec.op}: {said}"


def test_a_bound_is_wide_enough_for_a_right_kernel_and_too_narrow_for_a_wrong_one() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=g).to(torch.float8_e4m3fn) for shape in ((4, 512), (32, 512)))
    channel = torch.rand(4, 1, generator=g), torch.rand(32, generator=g)
    groups = torch.rand(4, 4, generator=g), torch.rand(1, 4, generator=g)
    for scales in (channel, groups):
        exact = exact_mm(a, b, *scales)
        bound = tolerance(a, b, *scales, torch.bfloat16, promoted=True)
        assert bool(((segment_mm(a, b, *scales, torch.bfloat16).double() - exact).abs() <= bound).all())
        lost = exact_mm(a[:, :480], b[:, :480], *scales)
        assert bool(((lost - exact).abs() > bound).any()), "a step that is left out would not be found"


@pytest.mark.parametrize(
    "config", [c for c in smoke(Arch.SM90A) if not isinstance(c, PackedGroupedConfig)][::2], ids=to_name
)
def test_cases_pass_on_a_cpu(config: AnyConfig) -> None:
    for case in of_config(config):
        assert case.run("cpu").report == "", str(case)


def test_a_wrong_result_is_found() -> None:
    class Wrong(GroupedCase):
        def _made(self, device: str) -> tuple[Any, Any, list[Any]]:
            given, memory, arguments = super()._made(device)
            arguments[5] = arguments[5] + 1
            return given, memory, arguments

    assert "elements are wrong" in Wrong(spec=replace(CONTIGUOUS, data="integers")).run("cpu").report


def test_names_and_rules() -> None:
    for config in default(Arch.SM90A):
        assert parse_name(to_name(config)) == config
        if isinstance(config, UnalignedGroupedConfig):
            assert first_rejection(UNALIGNED_RULES, config)
            continue
        if isinstance(config, PackedGroupedConfig):
            continue  # test_packed.py
        assert first_rejection(RULES, config)
        plan = Plan(config)
        assert plan.stages >= 2 and plan.shared_bytes <= 227 * 1024
    assert list(default(Arch.SM100A)) == []
    of_any_layout = [config for config in default(Arch.SM120F) if isinstance(config, UnalignedGroupedConfig)]
    assert len(of_any_layout) == len(list(default(Arch.SM120F))) - 4 == 24


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sm90a_groupedunaligned_s8_bf16_group128", "scales in groups come with e4m3, not with s8"),
        ("sm90a_groupedunaligned_bf16_f16_plain", "bf16 gives bf16, not f16"),
        ("sm100a_groupedunaligned_bf16_bf16_plain", "grouped kernels are written for sm90a, not for sm100a"),
    ],
)
def test_what_the_kernel_for_any_layout_cannot_be_made_of(name: str, said: str) -> None:
    assert first_rejection(UNALIGNED_RULES, parse_name(name)).reason == said


def test_the_model_knows_what_gathering_takes() -> None:
    """Where weights are read once, tiles of few rows; beyond, wide ones, and CTAs that share rows of A where K is long."""

    def chosen(group: int, indexed: bool, m: int, n: int, k: int) -> GroupedConfig:
        kinds = [c for c in tiled(Arch.SM90A) if (c.operand_dtype, c.out_dtype) == (DType.E4M3, DType.BF16)]
        call = ShapedCall(family="grouped_mm", call_class=0, sizes=(m, n, k, 32), alignments=(16, 16, 16))
        configs = [c for c in kinds if (c.group_size, c.operands.indexed) == (group, indexed)]
        return min(configs, key=lambda config: model_ns(next(iter(TUNING.rows(config, 0))), call, 132))

    assert chosen(128, True, 1024, 4096, 7168).design.tile_shape_mnk == (128, 32, 256)
    assert chosen(128, True, 8192, 4096, 7168).design.tile_shape_mnk == (128, 128, 128)
    assert chosen(0, True, 8192, 4096, 7168).design.tile_shape_mnk == (128, 128, 128)
    assert chosen(32, False, 16, 4608, 5120).design.tile_shape_mnk == (64, 16, 256)
    assert chosen(32, False, 65536, 4608, 5120).design.tile_shape_mnk[:2] in ((64, 128), (128, 128))
    assert chosen(128, False, 65536, 4096, 7168).design.cluster_shape_mnk == (1, 2, 1)
    assert chosen(128, False, 65536, 7168, 2048).design.cluster_shape_mnk == (1, 1, 1)
    assert chosen(128, False, 8192, 4096, 7168).design.cluster_shape_mnk == (1, 1, 1), (
        "an expert has fewer tiles than a band"
    )
    assert chosen(128, False, 65536, 4096, 4096).design.cluster_shape_mnk == (1, 2, 1)
    assert chosen(128, False, 65536, 640, 16256).design.cluster_shape_mnk == (1, 1, 1), (
        "pairs would make six tiles of five"
    )
    assert chosen(128, False, 65536, 768, 16256).design.cluster_shape_mnk == (1, 2, 1)


@pytest.mark.parametrize(
    "kind",
    sorted(
        {(c.operand_dtype, c.out_dtype, c.group_size, c.rows_scaled, c.operands.indexed) for c in tiled(Arch.SM90A)}
    ),
)
def test_one_kernel_takes_every_layout_and_is_chosen_last(kind: tuple[DType, DType, int, bool, bool]) -> None:
    one = next(
        c
        for c in tiled(Arch.SM90A)
        if (c.operand_dtype, c.out_dtype, c.group_size, c.rows_scaled, c.operands.indexed) == kind
    )
    (number,) = classes_of(one)
    rows = [row for i, config in enumerate(default(Arch.SM90A)) for row in TUNING.rows(config, i)]
    rows = [row for row in rows if row.call_class == number]
    (fallback,) = [row for row in rows if row.alignments == (1, 1, 1)]
    odd = ShapedCall(family="grouped_mm", call_class=number, sizes=(5, 33, 7, 2), alignments=(1, 1, 2))
    assert fallback.least == (0, 0, 0, 0) and TUNING.refuses(fallback, odd) is None
    rng = random.Random(0)
    for _ in range(200):
        m, n, k, experts = (int(2 ** rng.uniform(0, most)) for most in (16, 12, 11, 9))
        call = ShapedCall(
            family="grouped_mm", call_class=number, sizes=(m, 8 * n, 16 * k, experts), alignments=(16, 16, 16)
        )
        assert min(rows, key=lambda row: model_ns(row, call, 132)) is not fallback, call.sizes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arch": Arch.SM100A}, "grouped kernels are written for sm90a, not for sm100a"),
        ({"group_size": 128}, "accumulation of e4m3 with groups of 128 is promoted, not fast"),
        (
            {"cluster_shape_mnk": (2, 1, 1)},
            "cluster (2, 1, 1): two CTAs side by side share rows of A, others share nothing",
        ),
        (
            {"tile_shape_mnk": (64, 128, 128)},
            "tile 64x128x128: rows are a multiple of 128, columns of 16 up to 256, and K of 128 bytes",
        ),
        ({"tile_shape_mnk": (256, 256, 128)}, "sums of a tile take 256 registers of a thread, there are 192"),
        (
            {
                "group_size": 32,
                "rows_scaled": True,
                "accumulation": Accumulation.PROMOTED,
                "tile_shape_mnk": (128, 192, 128),
            },
            "tile 128x192x128 has no registers left for scales of each row of the weights: 128x128 has",
        ),
        ({"kernel_schedule": KernelSchedule.MMA_SYNC}, "grouped kernels have no mmasync schedule"),
        ({"stages": 40}, "40 stages of 32784 bytes: 2 or more must fit in 207232"),
    ],
)
def test_what_the_kernel_cannot_be_made_of(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as error:
        Plan(changed(FAST, **changes))
    assert str(error.value) == reason


@pytest.mark.parametrize(("m", "tile_m"), [(8, 16), (128, 16), (1024, 64), (8192, 128), (65536, 128)])
def test_the_model_gives_few_rows_small_tiles(m: int, tile_m: int) -> None:
    call = ShapedCall(family="grouped_mm", call_class=0, sizes=(m, 4096, 7168, 32), alignments=(16, 16, 16))
    rows = [
        row
        for i, config in enumerate(tiled(Arch.SM90A))
        for row in TUNING.rows(config, i)
        if config.operands == Operands(dtype=DType.E4M3, out_dtype=DType.BF16, indexed=config.operands.indexed)
    ]
    assert min(rows, key=lambda row: model_ns(row, call, 132)).facts.tile_m == tile_m


@pytest.mark.parametrize(("n", "k", "us"), [(4608, 5120, 4359), (5120, 2304, 2147)])
def test_the_model_knows_what_promotions_of_groups_of_32_take(n: int, k: int, us: int) -> None:
    """24,576 rows of V4.1's 384 experts by tiles of 128 rows (H200, 2026-11-27, 144bc97a): it told 2,366 and 1,222 us."""
    groups_32 = Operands(dtype=DType.E4M3, out_dtype=DType.BF16, group_size=32)
    config = next(
        c for c in tiled(Arch.SM90A) if c.operands == groups_32 and c.design.tile_shape_mnk == (128, 128, 128)
    )
    row = next(iter(TUNING.rows(config, 0)))
    call = ShapedCall(family="grouped_mm", call_class=row.call_class, sizes=(24576, n, k, 384), alignments=(16, 16, 16))
    assert model_ns(row, call, 132) / 1e3 == pytest.approx(us, rel=0.1)


@pytest.mark.parametrize(("group_size", "rows_scaled"), [(64, False), (128, True), (0, True)])
def test_groups_that_there_are_not(group_size: int, rows_scaled: bool) -> None:
    with pytest.raises(ValueError) as error:
        Operands(dtype=DType.E4M3, out_dtype=DType.BF16, group_size=group_size, rows_scaled=rows_scaled)
    assert str(error.value) == (
        f"group_size={group_size}, rows_scaled={rows_scaled}: scales of weights in groups are of 128 x 128, 32 x 32 or 1 x 32, or "
        "group_size is 0 for all of K"
    )


@pytest.mark.parametrize("groups", [BLOCKS_32, ROWS_32])
def test_a_bound_of_groups_is_wide_enough_and_too_narrow_for_another_scale(groups: ScaleGroups) -> None:
    x = given(replace(CONTIGUOUS, groups=groups, k=512))
    operands = x["a"], x["b"][0], x["a_scales"], x["b_scales"][0]
    exact, bound = exact_mm(*operands), tolerance(*operands, torch.bfloat16, promoted=False)
    assert bool(((segment_mm(*operands, torch.bfloat16).double() - exact).abs() <= bound).all())
    wrong = exact_mm(*operands[:3], operands[3].roll(1, 1))
    assert bool(((wrong - exact).abs() > bound).any())
