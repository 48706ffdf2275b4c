"""Gated GEMMs in the benchmarks: operands of dense layers and of experts, and a wrong result that is not timed."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

from gemmill.families.gated_mm.selections import sweep
from gemmill.families.scaled_mm import selections as scaled_mm
from gemmill.runtime.variant_table import make_variant_table
from gemmill.vocab import Arch
from harness.contenders import WrongResult
from timed.gated_mm import BENCHMARK
from timed.gated_mm.calls import DRAWN, GatedMaker, workloads_of
from timed.gated_mm.contenders import GatedContender, Separate, check, first_by_model

OPTIONS = Namespace(op="groups", layers="1", rows="4", tokens="1,9", expert_layers="4x2x256x256", draw=None, draws=5)
KINDS = [
    f"experts_{kind}{scales}{way}"
    for kind in ("groups", "static", "bf16_swiglu")
    for scales in ("", "_of_blocks")
    for way in ("", "_gathered")
]


PLAIN_GEMMS = list(scaled_mm.default(Arch.SM90A))


class Once:
    """A timer that makes each call once."""

    def prepare(self, calls, fewest):
        return [call() for call in calls]


@pytest.mark.parametrize(
    "kind",
    [
        "groups",
        "static_of_blocks",
        "groups_int8",
        "bf16_swiglu_int8",
        "groups_of_blocks_32",
        "static_swiglu_of_blocks_32",
        *KINDS,
    ],
)
def test_all_contenders_take_what_is_made(kind: str) -> None:
    for workload in map(BENCHMARK.tiny, workloads_of(replace_op(kind))):
        x = GatedMaker(torch.device("cpu"), 1).make(workload)
        subject = GatedContender(name="gemmill", namespace="gemmill")
        assert subject.takes(workload) and len(subject.prepare(x, Once(), 1)) == x.copies
        for with_op in (False, True):
            separate = Separate(name="separate", with_op=with_op)
            assert not separate.takes(workload) or len(separate.prepare(x, Once(), 1)) == x.copies


@pytest.mark.parametrize(
    ("kind", "has"),
    [
        ("groups", True),
        ("groups_of_blocks", True),
        ("static_int8", True),
        ("bf16", False),
        ("groups_of_blocks_32", False),
        ("experts_groups", False),
    ],
)
def test_vllms_ops_get_what_they_take(monkeypatch, kind: str, has: bool) -> None:
    """Scales of blocks column by column, and no experts. Here a recorder stands in for its library."""
    made: list[tuple[str, tuple[object, ...]]] = []

    def recorder(name: str) -> SimpleNamespace:
        return SimpleNamespace(default=lambda *given: made.append((name, given)))

    names = ("cutlass_scaled_mm", "silu_and_mul_quant", "silu_and_mul_per_block_quant")
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(**{name: recorder(name) for name in names}))
    workload = BENCHMARK.tiny(workloads_of(replace_op(kind))[-1]).resized(k=384)
    vllm = Separate(name="vllm", namespace="_C", with_op=True, complete=True)
    assert vllm.takes(workload) is has
    if has:
        x = GatedMaker(torch.device("cpu"), 1).make(workload)
        vllm.call(x, 0)()
        (product, given), (op, of_op) = made
        assert product == "cutlass_scaled_mm" and op == names[2 if workload.of.result.group else 1]
        assert given[0] is of_op[1] is x.product and of_op[0] is x.out
        b_scales = given[4]
        assert torch.equal(b_scales, x.b_scales) and (b_scales.stride(0) == 1 or not workload.of.in_groups)


@pytest.mark.parametrize("kind", ["groups", "static_int8", "experts_groups", "experts_static_gathered"])
def test_a_wrong_result_is_not_timed(kind: str) -> None:
    workload = BENCHMARK.tiny(workloads_of(replace_op(kind))[-1])
    x = GatedMaker(torch.device("cpu"), 1).make(workload)

    def wrong() -> None:
        x.call(torch.ops.gemmill, 0)()
        x.out.view(torch.uint8)[:, -3] ^= 0x33

    check(x, x.call(torch.ops.gemmill, 0))
    with pytest.raises(WrongResult):
        check(x, wrong)


def test_layers_may_be_named() -> None:
    found = workloads_of(Namespace(**vars(OPTIONS) | {"op": "groups_of_blocks_32", "layers": "2304x5120,96x64"}))
    assert [(p.hidden, p.k, p.of.group, p.of.result.group) for p in found] == [(2304, 5120, 32, 32), (96, 64, 32, 32)]
    with pytest.raises(
        ValueError, match=r"^layer \(2304,\) has 1 numbers, expected results x K, or a number of layers$"
    ):
        workloads_of(Namespace(**vars(OPTIONS) | {"layers": "2304,96x64"}))


def test_random_calls_are_those_of_their_seed() -> None:
    first, again, other = (
        [(p.m, p.hidden, p.k) for p in workloads_of(Namespace(**vars(OPTIONS) | {"draw": seed}))] for seed in (3, 3, 4)
    )
    assert first == again != other and len(set(first)) == 5
    for sizes in [*first, *other]:
        assert all(least <= size <= most for size, (least, most) in zip(sizes, DRAWN, strict=True))
        assert sizes[1] % 128 == sizes[2] % 128 == 0


def test_experts_have_all_their_tokens() -> None:
    found = workloads_of(replace_op("experts_groups,groups"))
    assert [(p.of.of_experts, p.m) for p in found] == [(False, 4), (True, 2), (True, 18)]
    with pytest.raises(ValueError, match=r"^layer \(4, 2, 256\) has 3 numbers, expected experts x top x results x K$"):
        workloads_of(Namespace(**vars(replace_op("experts_groups")) | {"expert_layers": "4x2x256"}))
    assert str(found[1].resized(m=4)) == "experts_groups 2 tokens, top 2 of 4 x (2 x 256) x 256"


def replace_op(op: str) -> Namespace:
    return Namespace(**vars(OPTIONS) | {"op": op})


@pytest.mark.parametrize(
    ("kind", "one", "parts"),
    [
        ("groups_of_blocks", None, "sm90a_gatedparts_"),
        ("groups_of_blocks_32", None, "sm90a_gatedparts_"),
        ("groups", "sm90a_gatedmm_", "sm90a_gatedparts_"),
        ("experts_groups_gathered", "sm90a_gatedmm_", None),
    ],
)
def test_each_way_is_a_variant_of_its_kind(make_manifest, kind: str, one: str | None, parts: str | None) -> None:
    entries = make_manifest(*sweep(Arch.SM90A), *PLAIN_GEMMS).entries
    table = make_variant_table(entries, sorted({entry.symbol for entry in entries}), ())
    workload = workloads_of(replace_op(kind))[-1]
    found = [first_by_model(table, workload, in_parts=in_parts) for in_parts in (False, True)]
    for name, begin in zip(found, (one, parts), strict=True):
        assert name is None if begin is None else name is not None and name.startswith(begin)
