"""Grouped GEMMs of 16-bit operands and of gathered rows on CPU tensors, and the checks of `check=True`."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.families.grouped_mm import functions
from gemmill.families.grouped_mm.bounds import tolerance
from gemmill.families.grouped_mm.cases.calls import CallSpec, arguments_of, make_given
from gemmill.families.grouped_mm.cases.checked import GroupedCase
from gemmill.families.grouped_mm.config import SCALE_GROUPS, Operands
from gemmill.families.grouped_mm.dsl.plan import Plan
from gemmill.families.grouped_mm.reference import exact_mm, gathered, segment_mm
from gemmill.families.grouped_mm.selections import tiled
from gemmill.formats.routed_rows import most_gathered
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Accumulation, Arch, DType
from making import changed

BLOCKS_128, BLOCKS_32, ROWS_32 = SCALE_GROUPS
SCALED = CallSpec(counts=(3, 0, 5), n=64, k=160, spare=2)
PLAIN = replace(SCALED, dtype=DType.BF16, out_dtype=DType.BF16)
INDEXED = replace(SCALED, indexed=True)


def given(p: CallSpec) -> dict[str, Any]:
    shape = (len(p.counts), p.slot, p.n) if p.slot else (p.rows, p.n)
    dtype = getattr(torch, p.out_dtype.torch_name)
    return make_given(p, torch.device("cpu")) | {"out": torch.full(shape, torch.nan, dtype=dtype)}


def call(p: CallSpec, arguments: dict[str, Any]) -> Tensor:
    getattr(torch.ops.gemmill, p.op).default(*arguments_of(p.op, arguments, arguments["out"]))
    return arguments["out"]


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
@pytest.mark.parametrize("slot", [0, 6])
def test_operands_of_16_bits_have_no_scales(dtype: DType, slot: int) -> None:
    spec = replace(PLAIN, dtype=dtype, out_dtype=dtype, slot=slot, spare=0)
    x = given(spec)
    out = call(spec, x)
    assert x["a_scales"] is None and x["b_scales"] is None
    for expert, rows in ((0, 3), (2, 5)):
        a = x["a"][expert, :rows] if slot else x["a"][expert and 3 :][:rows]
        wanted = (a.double() @ x["b"][expert].double().t()).to(out.dtype)
        assert torch.equal(out[expert, :rows] if slot else out[expert and 3 :][:rows], wanted)


@pytest.mark.parametrize("kind", ["channel", "groups", "plain", "one value"])
def test_gathered_rows_are_those_in_order(kind: str) -> None:
    """The same as gathering first; a row that there is not is of zeros."""
    spec = replace(
        PLAIN if kind == "plain" else SCALED,
        groups=BLOCKS_128 if kind == "groups" else None,
        one_value=kind == "one value",
    )
    spec = replace(spec, indexed=True, wide_offsets=kind == "groups")
    x = given(spec)
    ids = x["token_ids"]
    assert bool((ids < 0).any() and (ids >= spec.tokens).any()) and ids.dtype is (
        torch.int64 if kind == "groups" else torch.int32
    )
    out = call(spec, x).clone()
    known = (ids >= 0) & (ids < spec.tokens)
    taken = ids.clamp(0, spec.tokens - 1).long()
    codes = x["a"].float()[taken]
    codes[~known] = 0
    in_order = x | {"token_ids": None, "a": codes.to(x["a"].dtype), "out": torch.full_like(x["out"], torch.nan)}
    if kind in ("channel", "groups"):
        in_order["a_scales"] = x["a_scales"][taken]
    wanted = call(replace(spec, indexed=False), in_order)
    assert torch.equal(out.nan_to_num(7), wanted.nan_to_num(7))
    assert bool((out[2:10][~known[2:10]] == 0).all())


def test_rows_that_are_not_there_are_zeros() -> None:
    x = torch.arange(1, 7).reshape(3, 2)
    assert gathered(x, torch.tensor([2, -1, 0, 3])).tolist() == [[5, 6], [0, 0], [1, 2], [0, 0]]


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("most", [7, 1 << 20], ids=["selected", "gathered"])
@pytest.mark.parametrize("kind", ["channel", "groups", "one value"])
def test_no_scale_reaches_a_row_that_is_not_there(
    kind: str, most: int, poison: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(
        SCALED, groups=BLOCKS_128 if kind == "groups" else None, one_value=kind == "one value", indexed=True, spare=0
    )
    x = given(spec)
    x["a_scales"][0] = poison
    x["token_ids"].fill_(spec.tokens)
    x["token_ids"][::2] = -1
    monkeypatch.setattr(functions, "most_gathered", lambda experts: most)
    operands = (x[name] for name in ("a", "b", "a_scales", "b_scales", "expert_offsets"))
    assert not gemmill.grouped_mm(*operands, token_ids=x["token_ids"]).any()


def test_many_experts_gather_more_rows() -> None:
    """16 of each hide behind the weights (H200, 2026-11-28); packed weights, of which nobody timed it, count as no experts."""
    assert [most_gathered(experts) for experts in (0, 8, 64, 128, 512)] == [1024, 1024, 1024, 2048, 8192]


def test_functions_take_their_result_from_their_operands() -> None:
    x = given(PLAIN)
    out = gemmill.grouped_mm(x["a"], x["b"], None, None, x["expert_offsets"])
    assert out.dtype is torch.bfloat16 and out.shape == (12, 64)
    half = gemmill.grouped_mm(x["a"].half(), x["b"].half(), None, None, x["expert_offsets"])
    assert half.dtype is torch.float16
    y = given(INDEXED)
    operands = (y[name] for name in ("a", "b", "a_scales", "b_scales", "expert_offsets"))
    assert gemmill.grouped_mm(*operands, token_ids=y["token_ids"]).shape == (12, 64)


@pytest.mark.parametrize("kind", ["channel", "groups", "plain", "one value"])
def test_many_rows_are_selected_before_they_are_multiplied(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(
        PLAIN if kind == "plain" else SCALED,
        groups=BLOCKS_128 if kind == "groups" else None,
        one_value=kind == "one value",
    )
    x = given(replace(spec, indexed=True, spare=0))
    operands = [x[name] for name in ("a", "b", "a_scales", "b_scales", "expert_offsets")]
    asked = []

    def op(*arguments: Any) -> None:
        asked.append(arguments[7])
        torch.ops.gemmill.grouped_mm.default(*arguments)

    monkeypatch.setattr(functions, "_GROUPED_MM", op)
    gathered_ones = gemmill.grouped_mm(*operands, token_ids=x["token_ids"])
    monkeypatch.setattr(functions, "most_gathered", lambda experts: 7 if experts == len(x["b"]) else 1 << 20)
    selected = gemmill.grouped_mm(*operands, token_ids=x["token_ids"])
    assert asked[0] is x["token_ids"] and asked[1] is None
    assert torch.equal(selected, gathered_ones)
    with pytest.raises(RuntimeError, match="token_ids is float32, expected int32 or int64"):
        gemmill.grouped_mm(*operands, token_ids=x["token_ids"].float())


SENTENCES = {
    "scales of bf16": (
        PLAIN,
        {"a_scales": torch.ones(12, 1)},
        "a is bfloat16, and a_scales or b_scales are given: operands of 16 bits have no scales",
    ),
    "e4m3 without scales": (
        SCALED,
        {"b_scales": None},
        "a is float8_e4m3fn, and a_scales or b_scales are not given: operands of 8 bits have both",
    ),
    "another result of bf16": (
        PLAIN,
        {"out": torch.zeros(12, 64, dtype=torch.float16)},
        "out is float16, expected bfloat16 as a and b are",
    ),
    "fewer rows": (
        SCALED,
        {"out": torch.zeros(11, 64, dtype=torch.bfloat16)},
        "out is [11, 64] and a is [12, 160]: without token_ids both have the same rows",
    ),
    "fewer ids": (
        INDEXED,
        {"token_ids": torch.zeros(11, dtype=torch.int32)},
        "token_ids has shape [11], expected [M] = [12]",
    ),
    "ids of floats": (
        INDEXED,
        {"token_ids": torch.zeros(12)},
        "token_ids is float32, expected int32 or int64",
    ),
    "scales of rows of the result": (
        INDEXED,
        {"a_scales": torch.ones(12, 1)},
        "a_scales has shape [12, 1] and strides [1, 1]: with scales of columns there is one value, or one for each of 9 rows, "
        "without gaps",
    ),
    "no rows to take": (
        INDEXED,
        {"a": torch.zeros(0, 160).to(torch.float8_e4m3fn), "a_scales": torch.ones(1)},
        "a is [0, 160]: token_ids name 12 rows, and it has none",
    ),
    "scales in groups of the result": (
        replace(INDEXED, groups=BLOCKS_128),
        {"a_scales": torch.ones(12, 2)},
        "a_scales has shape [12, 2], expected [9, 2]: a scale of each row for each 128 along K, as b_scales of [3, 1, 2] has them",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_call_that_cannot_be_is_told_why(name: str) -> None:
    spec, changes, said = SENTENCES[name]
    x = given(spec) | changes
    before = x["out"].clone()
    with pytest.raises(RuntimeError) as error:
        call(spec, x)
    assert str(error.value) == f"{spec.op}: {said}"
    assert torch.equal(x["out"].nan_to_num(7), before.nan_to_num(7)), "the result is touched"


LOOKED_AT = {
    "offsets that decrease": (
        {"expert_offsets": torch.tensor([2, 5, 4, 10])},
        "grouped_mm: expert_offsets[1] is 5 and expert_offsets[2] is 4: offsets must not decrease, each is the end of the expert "
        "before and the first row of the next",
    ),
    "offsets beyond the rows": (
        {"expert_offsets": torch.tensor([2, 5, 5, 13])},
        "grouped_mm: expert_offsets[3] is 13, expected 0 to 12: a row, or the end of all rows",
    ),
    "offsets below 0": (
        {"expert_offsets": torch.tensor([-1, 5, 5, 10])},
        "grouped_mm: expert_offsets[0] is -1, expected 0 to 12: a row, or the end of all rows",
    ),
    "a map to nowhere": (
        {"expert_map": torch.tensor([0, 3, -1], dtype=torch.int32)},
        "grouped_mm: expert_map[1] is 3, expected -1 to 2: weights of an expert, or -1 for none",
    ),
    "ids of no row": (
        {"token_ids": torch.tensor([*range(9), 9, 0, -1])},
        "grouped_mm: token_ids[9] is 9, expected 0 to 8: one of a's rows",
    ),
}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_values_are_looked_at_where_a_caller_asks(name: str) -> None:
    changes, said = LOOKED_AT[name]
    x = given(INDEXED) | {"token_ids": torch.arange(12, dtype=torch.int32) % 9} | changes
    names = "a b a_scales b_scales expert_offsets expert_map".split()
    operands, ids = [x[name] for name in names], x["token_ids"]
    gemmill.grouped_mm(*operands, token_ids=ids)
    with pytest.raises(RuntimeError) as error:
        gemmill.grouped_mm(*operands, token_ids=ids, check=True)
    assert str(error.value) == said


def test_rows_of_slots_are_looked_at_too() -> None:
    x = given(replace(SCALED, slot=6, spare=0))
    operands = [x[name] for name in ("a", "b", "a_scales", "b_scales")]
    gemmill.grouped_mm_masked(*operands, x["rows"], check=True)
    with pytest.raises(RuntimeError) as error:
        gemmill.grouped_mm_masked(*operands, torch.tensor([6, 0, 7]), check=True)
    assert str(error.value) == "grouped_mm_masked: rows[2] is 7, expected 0 to 6: rows of an expert's slot"


def test_a_bound_of_bf16_is_wide_enough_and_too_narrow_for_a_lost_step() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=g).bfloat16() for shape in ((4, 512), (32, 512)))
    exact, bound = exact_mm(a, b), tolerance(a, b, None, None, torch.bfloat16, promoted=False)
    assert bool(((segment_mm(a, b, None, None, torch.bfloat16).double() - exact).abs() <= bound).all())
    assert bool(((exact_mm(a[:, :480], b[:, :480]) - exact).abs() > bound).any())


@pytest.mark.parametrize(
    ("dtype", "indexed", "words"),
    [
        (DType.BF16, False, "bf16_bf16_plain_t"),
        (DType.F16, True, "f16_f16_plain_indexed_t"),
        (DType.S8, True, "s8_bf16_channel_indexed_t"),
    ],
)
def test_kinds_have_kernels_and_names(dtype: DType, indexed: bool, words: str) -> None:
    configs = [c for c in tiled(Arch.SM90A) if (c.operands.dtype, c.operands.indexed) == (dtype, indexed)]
    names = [to_name(config) for config in configs]
    assert len(configs) >= 4 and any(words in name for name in names)
    assert [parse_name(name) for name in names] == configs
    for config in configs:
        plan = Plan(config)
        assert plan.copying_threads == (32 * plan.scale_warps if indexed else 0)
        assert plan.tma_bytes == (plan.x_bytes + plan.y_bytes - (plan.a_bytes if indexed else 0))
        assert plan.stages >= 3 or not indexed
        assert (128 if plan.moves_registers else 0) * plan.producer_registers + plan.consumers * (
            plan.consumer_registers if plan.moves_registers else 0
        ) <= 65536


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accumulation": Accumulation.PROMOTED}, "sums of bf16 are kept in float32: nothing is to be promoted"),
        ({"group_size": 128}, "scales in groups come with e4m3, not with bf16"),
        ({"out_dtype": DType.F16}, "bf16 gives bf16, not f16"),
        (
            {"indexed": True, "cluster_shape_mnk": (1, 2, 1)},
            "cluster (1, 2, 1): rows that are gathered come by copies of threads, which no CTA shares",
        ),
    ],
)
def test_what_the_kernel_cannot_be_made_of(changes: dict[str, Any], reason: str) -> None:
    config = next(
        c
        for c in tiled(Arch.SM90A)
        if c.operands == Operands(dtype=DType.BF16, out_dtype=DType.BF16) and not c.design.swap_ab
    )
    with pytest.raises(ValueError) as error:
        Plan(changed(config, **changes))
    assert str(error.value) == reason


def test_a_wrong_row_is_found() -> None:
    class Wrong(GroupedCase):
        def _made(self, device: str) -> tuple[Any, Any, list[Any]]:
            given, memory, arguments = super()._made(device)
            arguments[7] = (arguments[7] + 1) % 9
            return given, memory, arguments

    assert "elements are wrong" in Wrong(spec=replace(INDEXED, data="integers")).run("cpu").report
