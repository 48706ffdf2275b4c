"""Batch invariance: the orders of variants, and the choices that hold one."""

import threading
from dataclasses import replace

import pytest

import gemmill
from gemmill.cli.explain import _of_order
from gemmill.families.scaled_mm.classes import Need, class_code, scales_code
from gemmill.families.scaled_mm.config import Launch
from gemmill.family import EXACT, Order, ShapedCall
from gemmill.manifest import KernelEntry
from gemmill.registry import REGISTRY
from gemmill.runtime import holding
from gemmill.runtime.choosing import Trust
from gemmill.runtime.invariance import ROWS, Invariance, _mean_over_rows, order_of
from gemmill.runtime.select import passed_over, select
from gemmill.runtime.tuned import Machine, load_tuned, shipped_rows
from gemmill.runtime.variant_table import VariantTable, make_variant_table
from gemmill.space.names import symbol_of, to_name
from gemmill.tuner.workloads import workload_of
from gemmill.vocab import SCALE_GROUPS, Arch, DType, KernelSchedule, TileScheduler

SM_COUNT = 132
FAMILIES = ("scaled_mm", "blockscaled", "grouped_mm", "gated_mm", "sparse_mm")
"""Those that choose among several variants, and hold an order."""


def entries_of(*families: str) -> list[KernelEntry]:
    return [
        KernelEntry(
            name=to_name(config), family=name, config=config, symbol=symbol_of(config), ops=REGISTRY.ops_of(config)
        )
        for name in families
        for config in dict.fromkeys(REGISTRY.named(name).selections["default"](Arch.SM90A))
    ]


def made(entries: list[KernelEntry]) -> tuple[VariantTable, Invariance]:
    tuned = load_tuned(entries, Machine(arch=Arch.SM90A, device=None, driver=None))
    symbols = sorted({entry.symbol for entry in entries})
    table = make_variant_table(entries, symbols, tuned.choices, tuned.quarantined)
    return table, Invariance(table, tuned.choices, shipped_rows(Arch.SM90A), SM_COUNT)


@pytest.fixture(scope="module")
def gemms() -> tuple[VariantTable, Invariance]:
    return made(entries_of("scaled_mm"))


def call_of(m: int, n: int, k: int, *, operand: str = "float8_e4m3fn", aligned: int = 16) -> ShapedCall:
    number = class_code(Need.BIAS, operand, "bfloat16")
    return ShapedCall(family="scaled_mm", call_class=number, sizes=(m, n, k), alignments=(aligned,) * 3)


def configs(family: str = "scaled_mm") -> list:
    return list(dict.fromkeys(REGISTRY.named(family).selections["default"](Arch.SM90A)))


ORDER = REGISTRY.named("scaled_mm").tuning.order


# Orders --------------------------------------------------------------------------------------------------------------


def test_launch_settings_tiles_and_backends_do_not_move_an_order():
    fast = [
        config
        for config in configs()
        if config.operand_dtype is DType.E4M3
        and not config.group_size
        and config.design.tile_scheduler is TileScheduler.PERSISTENT
        and config.design.accumulation == "fast"
    ]
    assert len({config.backend for config in fast}) == 2 and len({config.design.tile_shape_mnk for config in fast}) > 5
    assert len({ORDER(config) for config in fast}) == 1
    assert all(
        ORDER(replace(config, launch=Launch(raster_order="alongn", swizzle=8))) == ORDER(config) for config in fast
    )


def test_one_slice_of_split_k_has_the_order_of_no_slices_and_more_slices_another():
    by_slices = {
        (config.launch.splits, config.design.tile_shape_mnk[2]): ORDER(config)
        for config in configs()
        if config.operand_dtype is DType.BF16
        and config.design.tile_scheduler is TileScheduler.SPLIT_K
        and config.design.slice_step is None
    }
    plain = Order(instruction="wgmma", accumulator=DType.F32)
    assert {order for (slices, _), order in by_slices.items() if slices == 1} == {plain}
    several = [order for (slices, _), order in by_slices.items() if slices > 1]
    assert len(set(several)) == len(several) > 5 and plain not in several


def test_slices_have_one_order_in_a_cluster_in_memory_and_in_registers():
    """Kernels of other depths deal K in the step of those that split it for few rows."""
    found: dict[tuple[TileScheduler, int], Order | None] = {}
    for config in configs():
        design, splits = config.design, config.launch.splits
        deals = (design.slice_step or design.tile_shape_mnk[2]) == 128
        if config.operand_dtype is DType.BF16 and deals and splits > 1 and design.kernel_schedule.uses_tma:
            assert found.setdefault((design.tile_scheduler, splits), ORDER(config)) == ORDER(config)
    schedulers = {TileScheduler.SPLIT_K, TileScheduler.SPLIT_K_PARALLEL, TileScheduler.RESTARTED}
    assert {scheduler for scheduler, _ in found} == schedulers
    assert len({found[scheduler, 4] for scheduler in schedulers}) == 1
    assert str(found[TileScheduler.RESTARTED, 4]) == (
        "wgmma to f32, 4 slices of whole 128 joined in float32, in the order of K"
    )


@pytest.mark.parametrize("n", [576, 768, 1344])
def test_scales_in_groups_have_an_order_of_slices_for_few_rows_and_many(gemms, n: int):
    """At few columns and a long K one slice takes several times as long (docs/invariance.md)."""
    table, invariance = gemms
    call = workload_of("fp8_groups", {"m": 4, "n": n, "k": 32256}).call
    held = invariance.held(call)
    assert held is not None and held.order.slices > 1 and held.order.promoted_k == 128
    assert held.loss < 0.11 and held.worst < 0.36, (
        "the free choice has six slices of 256 x 128, which no order of a few rows has"
    )
    chosen = {m: select(table, replace(call, sizes=(m, n, 32256)), SM_COUNT, None, invariance).entry for m in (1, 4096)}
    designs = {m: entry.config.design for m, entry in chosen.items()}
    assert designs[1].tile_scheduler is TileScheduler.SPLIT_K
    assert designs[4096].tile_scheduler is TileScheduler.RESTARTED


def test_rows_above_128_have_three_fifths_of_the_weight():
    """Whatever their number: a loss of 2 there and of 1 elsewhere is 2^0.6."""
    ratios = [1.0 if rows <= 128 else 2.0 for rows in ROWS]
    assert _mean_over_rows(ratios) == pytest.approx(2**0.6, rel=1e-12)
    assert _mean_over_rows([3.0] * len(ROWS)) == pytest.approx(3, rel=1e-12)


def bounds(order: Order, length: int) -> list[int]:
    """Where slices end, by the rule that the kernels have."""
    steps = -(-length // order.slice_step)
    return [min(steps * (s + 1) // order.slices * order.slice_step, length) for s in range(order.slices)]


def test_an_order_over_a_length_is_that_of_its_bounds():
    """No two orders become one whose slices end elsewhere, and those of equal slices do whatever their steps."""
    lengths = (64, 128, 1000, 4096, 6800, 12224, 16384, 18480, 26096, 28672)
    for length in lengths:
        by_order: dict[Order, list[int]] = {}
        for slices in range(2, 9):
            for step in (64, 128, 256, 512):
                order = Order(instruction="wgmma", accumulator=DType.F32, slices=slices, slice_step=step, joined="f32")
                ends = bounds(order, length)
                over = order.over(length)
                assert by_order.setdefault(over, ends) == ends == bounds(over, length)
    orders = [
        Order(instruction="wgmma", accumulator=DType.F32, slices=4, slice_step=step, joined="f32")
        for step in (64, 128, 256, 512)
    ]
    assert {order.over(16384).slice_step for order in orders} == {4096}
    assert [order.over(18480).slice_step for order in orders] == [64, 128, 256, 512]
    plain = Order(instruction="wgmma", accumulator=DType.F32)
    assert plain.over(4096) == plain


def test_slices_that_no_other_variant_has_are_chosen_freely(gemms):
    """With scales in groups: 128 x 64 in three slices, which is 1.23 times as fast as the rest at 510 rows (docs/notes/tables.md)."""
    table, _ = gemms
    scales = scales_code(SCALE_GROUPS[0], mn_major=False)
    number = class_code(Need.BIAS, "float8_e4m3fn", "bfloat16", scales)
    of_class = [
        (row.held_only, e.config) for row, e in zip(table.rows, table.entries, strict=True) if row.call_class == number
    ]
    of_order = [(held, config) for held, config in of_class if config.design.slice_step is not None]
    free = {
        (c.design.tile_shape_mnk[:2], str(c.design.tile_scheduler), c.launch.splits) for held, c in of_order if not held
    }
    assert free == {((128, 64), "restarted", 3), ((64, 64), "splitk", 3), ((128, 128), "splitk", 3)}
    others = {
        (c.design.tile_shape_mnk[:2], c.design.tile_scheduler) for _, c in of_class if c.design.slice_step is None
    }
    assert not others & {
        ((128, 64), TileScheduler.PERSISTENT),
        ((64, 64), TileScheduler.SPLIT_K),
        ((128, 128), TileScheduler.SPLIT_K),
    }
    call = ShapedCall(family="scaled_mm", call_class=number, sizes=(510, 2112, 7168), alignments=(16,) * 3)
    design = select(table, call, SM_COUNT).entry.config.design
    assert (design.tile_shape_mnk[:2], design.tile_scheduler) == ((128, 64), TileScheduler.RESTARTED)


def test_variants_for_an_order_are_never_chosen_freely(gemms):
    """Tables may name them, and the model may think them fast."""
    from gemmill.runtime.tuned import TunedChoice

    table, invariance = gemms
    held_only = {i for i, row in enumerate(table.rows) if row.held_only}
    assert {table.entries[i].config.design.tile_scheduler for i in held_only} >= {TileScheduler.RESTARTED}
    chosen = set()
    for n, k in ((2048, 16384), (3760, 26096), (1536, 18480), (8192, 8192)):
        for m in (1, 100, 700, 4096):
            call = call_of(m, n, k, operand="bfloat16")
            free, held = select(table, call, SM_COUNT), select(table, call, SM_COUNT, None, invariance)
            assert free.row not in held_only
            chosen.add(held.row in held_only)
    assert chosen == {True, False}
    call = call_of(4096, 2048, 16384, operand="bfloat16")
    names = [table.entries[i].name for i in sorted(held_only) if table.rows[i].call_class == call.call_class]
    entries = [entry for entry in entries_of("scaled_mm") if entry.config.operand_dtype is DType.BF16]
    choice = TunedChoice(
        family="scaled_mm", call_class=call.call_class, sizes={"n": 2048, "k": 16384, "m": 4096}, names=tuple(names)
    )
    told = make_variant_table(entries, sorted({entry.symbol for entry in entries}), [choice])
    assert not told.tuned and select(told, call, SM_COUNT).entry.name not in names
    rejected = next(r for r in select(told, call, SM_COUNT).trace if r.name == names[0])
    assert rejected.reason.startswith("it fits, it is chosen under batch invariance alone (model: ")


def test_the_instruction_the_promotion_and_the_groups_of_scales_are_parts_of_an_order():
    found = {
        (config.design.kernel_schedule is KernelSchedule.MMA_SYNC, config.design.accumulation, config.group_size): str(
            ORDER(config)
        )
        for config in configs()
        if config.operand_dtype is DType.E4M3 and config.design.tile_scheduler is TileScheduler.PERSISTENT
    }
    assert found[False, "fast", 0] == "wgmma to f32"
    assert found[False, "promoted", 0] == found[False, "promoted", 128] == "wgmma to f32, promoted every 128"
    assert found[False, "promoted", 64] == "wgmma to f32, promoted every 64"
    assert found[True, "promoted", 0] == "mma.sync to f32, promoted every 128"


def test_integer_sums_have_one_order_and_stream_k_of_floats_none():
    assert {ORDER(c) for c in configs() if c.operand_dtype is DType.S8 and not c.group_size} == {EXACT}
    streamed = [
        c
        for c in configs()
        if c.operand_dtype is DType.E4M3 and c.design.tile_scheduler is TileScheduler.STREAM_K and c.launch.splits == 1
    ]
    assert streamed and {ORDER(config) for config in streamed} == {None}


def test_what_follows_from_the_batch_promises_nothing():
    quant, cache = REGISTRY.named("quant"), REGISTRY.named("kv_cache")
    by_batch = {(str(c.scaling), c.vllm) for c in configs("quant") if quant.tuning.order(c) is None}
    assert by_batch == {("tensor", False), ("tensor", True), ("rmsgroup", True), ("rmsstatic", True)}
    of_cache = {str(c.kind): cache.tuning.order(c) for c in configs("kv_cache") if not c.slices}
    assert {name for name, order in of_cache.items() if order is None} == {"decode", "attend", "latent"}
    assert {c.slices for c in configs("kv_cache") if c.attends and cache.tuning.order(c) is None} == {0}


def test_an_order_is_without_contradiction():
    with pytest.raises(ValueError) as caught:
        Order(instruction="wgmma", accumulator=DType.F32, slices=2)
    assert str(caught.value) == (
        "slices=2 contradicts slice_step=0 joined='': both are given exactly where there are several slices"
    )


# Choices -------------------------------------------------------------------------------------------------------------


def shapes_of_table() -> list[tuple[int, int]]:
    rows = [row for row in shipped_rows(Arch.SM90A) if row.op in ("fp8", "bf16")]
    return sorted({(row.sizes["n"], row.sizes["k"]) for row in rows})


def test_calls_of_a_weight_have_one_order_whatever_their_rows(gemms):
    table, invariance = gemms
    shapes = shapes_of_table()
    assert len(shapes) >= 40
    for n, k in [*shapes[::3], (1111, 2222), (2048, 16384), (96, 40_000)]:
        for operand in ("float8_e4m3fn", "bfloat16"):
            found = set()
            for m in (1, 3, 16, 17, 64, 200, 1000, 4096, 9000):
                index, _, _ = invariance.choose(call_of(m, n, k, operand=operand), SM_COUNT)
                assert index >= 0 and table.rows[index].call_class == call_of(m, n, k, operand=operand).call_class
                found.add(invariance.order(index, call_of(m, n, k, operand=operand)))
            assert len(found) == 1 and None not in found


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_of_gemms_holds_one_order_in_every_class_on_any_number_of_multiprocessors(family):
    needed = ("scaled_mm", "grouped_mm") if family == "gated_mm" else ()  # whose GEMMs gated ones launch
    table, invariance = made(entries_of(family, *needed))
    tuning = REGISTRY.named(family).tuning
    for number in sorted({row.call_class for _, row, _ in table.of(family)})[::3]:
        found = set()
        for m in (1, 16, 100, 5000):
            sizes = {"m": m, "n": 4096, "k": 4096, "experts": 8}
            call = ShapedCall(
                family=family,
                call_class=number,
                sizes=tuple(sizes[name] for name in tuning.sizes),
                alignments=(16,) * len(tuning.aligned),
            )
            for sm_count in (SM_COUNT, 78, 264):
                index, _, _ = invariance.choose(call, sm_count)
                assert index >= 0, invariance.refusal(call)
                found.add(invariance.order(index, call))
        assert len(found) == 1 and None not in found


def test_the_order_is_the_same_on_devices_with_other_numbers_of_multiprocessors(gemms):
    """Nor is the expected loss another, by which orders are compared."""
    table, _ = gemms

    def held_by(chosen_on: int, usual: int) -> list[object]:
        found: list[object] = []
        for n, k in ((4096, 4096), (2048, 16384), (640, 20_000), (256, 40_000)):
            fresh, calls = (
                Invariance(table, (), (), usual),
                [call_of(m, n, k, operand="bfloat16") for m in (1, 64, 2048)],
            )
            orders = {fresh.order(fresh.choose(call, chosen_on)[0], call) for call in calls}
            held = fresh.held(calls[0])
            assert held is not None and orders == {held.order}
            found.append(held)
        return found

    here = held_by(SM_COUNT, SM_COUNT)
    assert all(held_by(sm_count, SM_COUNT) == here for sm_count in (16, 78, 114, 264))
    assert held_by(78, 78) != here, "else this test can see nothing"


def test_the_order_does_not_depend_on_the_number_of_rows_that_came_first():
    entries = [entry for entry in entries_of("scaled_mm") if entry.config.operand_dtype is DType.BF16]
    for n, k in ((2048, 16384), (1024, 9216)):
        assert len({made(entries)[1].held(call_of(first, n, k, operand="bfloat16")) for first in (1, 4096, 33)}) == 1


def test_the_order_is_one_that_few_and_many_rows_can_have(gemms):
    _, invariance = gemms
    for operand in ("float8_e4m3fn", "bfloat16"):  # of 16 tiles of 128, few rows want slices of K, many none
        held = invariance.held(call_of(1, 2048, 16384, operand=operand))
        assert held is not None
        assert str(held.order) == "wgmma to f32, 4 slices of whole 4096 joined in float32, in the order of K"
        assert 0.0 <= held.loss <= held.worst < 0.1 and held.worst_at[0] in ROWS
    free = invariance.held(call_of(1, 8192, 8192))
    assert free is not None and str(free.order) == "wgmma to f32" and free.loss < 0.01


def test_user_tables_choose_within_the_order_alone(gemms):
    table, invariance = gemms
    measured = replace_choices(invariance, table)
    call = call_of(16, 8192, 8192)
    assert measured.held(call) == invariance.held(call)
    index, trust, tuned = measured.choose(call, SM_COUNT)
    assert trust is Trust.EXACT and tuned is not None
    assert measured.order(index, call) == measured.held(call).order


def replace_choices(invariance: Invariance, table: VariantTable) -> Invariance:
    """The same with a measured choice at 16 rows, whose winner is sliced."""
    from gemmill.runtime.tuned import TunedChoice

    call = call_of(16, 8192, 8192)
    rows = [i for i, row, _ in table.of("scaled_mm") if row.call_class == call.call_class]
    sliced = next(i for i in rows if (order := invariance.order(i, call)) is not None and order.slices > 1)
    whole = next(i for i in rows if str(invariance.order(i, call)) == "wgmma to f32")
    choice = TunedChoice(
        family="scaled_mm",
        call_class=call.call_class,
        sizes={"n": 8192, "k": 8192, "m": 16},
        names=(table.entries[sliced].name, table.entries[whole].name),
    )
    return Invariance(table, [choice], shipped_rows(Arch.SM90A), SM_COUNT)


# Refusals ------------------------------------------------------------------------------------------------------------


def test_a_pinned_variant_of_another_order_is_refused_in_a_sentence(gemms):
    table, invariance = gemms
    call = call_of(16, 4096, 4096)
    other = next(
        entry.name
        for i, (entry, row) in enumerate(zip(table.entries, table.rows, strict=True))
        if row.call_class == call.call_class
        and (order := invariance.order(i, call)) is not None
        and (order.slices, order.slice_step) == (2, 2048)
    )
    assert select(table, call, SM_COUNT, other).entry is not None
    choice = select(table, call, SM_COUNT, other, invariance)
    assert (choice.entry, choice.trust) == (None, Trust.PINNED)
    assert choice.trace[0].reason == (
        "its order is wgmma to f32, 2 slices of whole 2048 joined in float32, in the order of K, batch invariance holds "
        "wgmma to f32: pin a variant of that order, or leave `gemmill.batch_invariant`"
    )
    held = invariance.choose(call, SM_COUNT)[0]
    assert select(table, call, SM_COUNT, table.entries[held].name, invariance).row == held


def test_a_class_without_an_order_is_refused_in_a_sentence():
    table, invariance = made(entries_of("quant"))
    config = next(config for config in configs("quant") if config.scaling == "tensor")
    number = REGISTRY.named("quant").tuning
    row = next(number.rows(config, 0))
    call = ShapedCall(family="quant", call_class=row.call_class, sizes=(), alignments=())
    choice = select(table, call, SM_COUNT, None, invariance)
    assert choice.entry is None and choice.held is None
    assert choice.refused == (
        f"batch invariance is asked for, and of {number.describe(row.call_class)} no variant of the build sums in an order that is "
        "independent of the batch: leave `gemmill.batch_invariant` for this op"
    )
    assert passed_over(call, load_tuned(table.entries, Machine(arch=Arch.SM90A, device=None, driver=None))) is None, (
        "explain asks it of a call without a variant"
    )
    token = next(config for config in configs("quant") if config.scaling == "token")
    by_row = ShapedCall(family="quant", call_class=next(number.rows(token, 0)).call_class, sizes=(), alignments=())
    only = select(table, by_row, SM_COUNT, None, invariance)
    assert only.entry is not None
    assert _of_order(only) == (
        "batch invariance holds the order: rows apart to f32; no other variant takes such calls, so it costs nothing"
    )


def test_orders_that_few_rows_alone_have_are_refused_in_a_sentence():
    entries = [entry for entry in entries_of("scaled_mm") if entry.config.operand_dtype is DType.BF16][:1]
    table, invariance = made(entries)
    aligned = call_of(16, 64, 8, operand="bfloat16", aligned=2)
    choice = select(table, aligned, SM_COUNT, None, invariance)
    assert choice.entry is None and choice.refused is None  # no variant takes it: the family's sentence says so
    assert invariance.refusal(aligned) == (
        "batch invariance is asked for, and of bf16 x bf16 to bf16 with a bias no order of the build (wgmma to f32) takes M x N x K "
        "of 16 x 64 x 8 aligned to 2, 2, 2 bytes at each of 1 to 4096 rows: leave `gemmill.batch_invariant`, or build variants of "
        "one order for few and many rows"
    )


def test_a_choice_says_its_order_and_the_others_differ(gemms):
    table, invariance = gemms
    choice = select(table, call_of(16, 4096, 4096), SM_COUNT, None, invariance)
    assert choice.held is not None and choice.cost is not None and choice.cost >= 1.0
    assert select(table, call_of(16, 4096, 4096), SM_COUNT).held is None
    assert any("batch invariance holds wgmma to f32 (model: " in other.reason for other in choice.trace)


# Who asks ------------------------------------------------------------------------------------------------------------


def test_blocks_nest_and_threads_do_not_see_one_another():
    seen: list[bool] = []

    def look() -> None:
        thread = threading.Thread(target=lambda: seen.append(holding.holds_here()))
        thread.start()
        thread.join()

    with gemmill.batch_invariant():
        assert holding.holds_here()
        look()
        with gemmill.batch_invariant(False):
            assert not holding.holds_here()
        assert holding.holds_here()
    assert not holding.holds_here()
    gemmill.set_batch_invariant()
    look()
    with gemmill.batch_invariant(False):
        assert not holding.holds_here()
    assert holding.holds_here() and seen == [False, True]


def test_a_build_that_is_too_old_is_refused_in_a_sentence():
    old = holding.Holding(object(), lambda *_: (-1, Trust.MODEL), "0123456789ab")
    for ask in (gemmill.set_batch_invariant, lambda: gemmill.batch_invariant().__enter__()):
        with pytest.raises(Exception) as caught:
            ask()
        assert str(caught.value) == (
            "build 0123456789ab cannot hold batch invariance, which is asked for: it is too old, make it again with `gemmill build`"
        )
    assert not holding.holds_here()
    with gemmill.batch_invariant(False):
        pass
    del old


def test_classes_whose_model_knows_no_times_hold_an_order() -> None:
    table, invariance = made(entries_of("kv_cache"))
    tuning = REGISTRY.choices["kv_cache"]
    classes = {row.call_class for _, row, entry in table.of("kv_cache") if order_of(entry) is not None}
    assert classes
    for number in classes:
        sizes, alignments = (64,) * len(tuning.sizes), (16,) * len(tuning.aligned)
        held = invariance.held(ShapedCall(family="kv_cache", call_class=number, sizes=sizes, alignments=alignments))
        assert held is None or held.loss >= 0
