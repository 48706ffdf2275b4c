"""How many slices the tokens of a sequence are: a launch setting, chosen by a model or by measured times."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gemmill.families.kv_cache import NAME
from gemmill.families.kv_cache.call import shaped_call_of
from gemmill.families.kv_cache.cases import CASES
from gemmill.families.kv_cache.cases.calls import CompressCase, DecodeCase, of_config
from gemmill.families.kv_cache.cases.latent_calls import LatentCase
from gemmill.families.kv_cache.cases.measured import AttentionMaker
from gemmill.families.kv_cache.cases.packed_calls import AttendCase
from gemmill.families.kv_cache.classes import class_of_config
from gemmill.families.kv_cache.config import (
    HALF_WAVES,
    MANY_ROWS,
    SLICES,
    KernelKind,
    KvCacheConfig,
    Operands,
    Slots,
    offered_kinds,
)
from gemmill.families.kv_cache.model import LEAST_STAGES, RowFacts, deal_of, parts_of, shared_of, slices_of
from gemmill.families.kv_cache.selections import default
from gemmill.families.kv_cache.serving import SERVING
from gemmill.families.kv_cache.sweep import SWEEP, MeasuredOp
from gemmill.families.kv_cache.tuning import TUNING
from gemmill.family import Order, Row, ShapedCall
from gemmill.numerics.measured import results_of
from gemmill.runtime import checks, operands
from gemmill.runtime.choosing import Trust
from gemmill.runtime.invariance import Invariance
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.select import select
from gemmill.space.names import parse_name, symbol_of, to_name
from gemmill.tuner.workloads import workload_of
from gemmill.vocab import Arch, DType

SMS = 132
DECODE = KvCacheConfig(
    kind=KernelKind.DECODE, operands=Operands(dtype=DType.BF16, head_dim=128, key_bits=4, value_bits=4)
)
TINY = {"batch": 2, "rows": 2, "heads": 4, "kv_heads": 2, "length": 70}


def configs_of(op: MeasuredOp) -> list[KvCacheConfig]:
    """Those for few rows that serve a measured class, with as many slices as fill the device."""
    offered = (config for config in default(Arch.SM90A) if op.number in TUNING.offers(config) and not config.slices)
    return [config for config in offered if not config.tile_rows]


def row_of(config: KvCacheConfig) -> Row:
    (row,) = TUNING.rows(config, 0)
    return row


def call_of(op: MeasuredOp, **sizes: int) -> ShapedCall:
    (measured,) = (x for x in SWEEP.measured if x.name == op)
    return measured.call({"batch": 1, "rows": 1, "heads": 32, "kv_heads": 8} | sizes)


def asked(case: Any) -> ShapedCall:
    schema = BY_NAME[case.schema.name]
    return shaped_call_of(checks.check(schema, operands.of_arguments(schema, case.arguments("meta"))))


def test_settings_are_of_a_launch_and_of_attention_alone() -> None:
    settings = [KvCacheConfig(**(vars(DECODE) | {"half_waves": n})) for n in HALF_WAVES]
    assert [to_name(config).rpartition("_")[2] for config in settings] == ["k4v4", "w1", "w4", "w8"]
    assert {config.compiled for config in settings} == {DECODE} and len({symbol_of(c) for c in settings}) == 1
    assert all(parse_name(to_name(config)) == config for config in settings)
    assert [row_of(config).facts.half_waves for config in settings] == list(HALF_WAVES)
    with pytest.raises(ValueError, match=r"half_waves=4 contradict kind=pack, which has 2 \(half_waves\)"):
        KvCacheConfig(kind=KernelKind.PACK, operands=Operands(dtype=DType.BF16, head_dim=128), half_waves=4)
    with pytest.raises(ValueError, match=r"half_waves=3 contradict kind=decode, which has 2, 1, 4, 8"):
        KvCacheConfig(**(vars(DECODE) | {"half_waves": 3}))
    cases = list(of_config(settings[1]))
    assert 2 < len(cases) < len(list(of_config(DECODE))) and all(max(case.lengths) >= 300 for case in cases)


def test_fixed_slices_are_of_a_launch_and_have_an_order() -> None:
    settings = [KvCacheConfig(**(vars(DECODE) | {"slices": n})) for n in SLICES]
    assert [to_name(config).rpartition("_")[2] for config in settings] == ["s1", "s4", "s16", "s32", "s64", "s128"]
    assert {config.compiled for config in settings} == {DECODE} and {symbol_of(c) for c in settings} == {
        symbol_of(DECODE)
    }
    assert all(parse_name(to_name(config)) == config for config in settings)
    assert [row_of(config).facts.slices for config in settings] == list(SLICES) and row_of(DECODE).facts.slices == 0
    orders = [TUNING.order(config) for config in settings]
    assert len(set(orders)) == len(SLICES) and None not in orders and TUNING.order(DECODE) is None
    assert str(orders[1]) == (
        "mma.sync to f32, 4 slices of whole 64 joined in float32, in the order of tokens, softmax"
    )
    for wrong in ({"slices": 3}, {"slices": 4, "half_waves": 4}, {"slices": 4, "kind": KernelKind.COMPRESS}):
        with pytest.raises(ValueError, match=r"slices=\d contradict kind=.* \(fixed_slices\)"):
            KvCacheConfig(**(vars(DECODE) | wrong))


@pytest.mark.parametrize("op", MeasuredOp)
def test_an_attention_holds_one_number_of_slices_whatever_the_batch(
    op: MeasuredOp, table_of: Callable[..., Any]
) -> None:
    configs = [config for config in default(Arch.SM90A) if op.number in TUNING.offers(config)]
    table = table_of(*configs)

    def held(first: ShapedCall, sm_count: int) -> set[int]:
        fresh = Invariance(table, (), (), SMS)
        batches = [call_of(op, batch=batch, length=length) for batch in (1, 7, 300) for length in (64, 5000, 100_000)]
        return {table.entries[fresh.choose(call, sm_count)[0]].config.slices for call in (first, *batches)}

    alone = held(call_of(op, length=64), SMS)
    assert len(alone) == 1 and alone <= set(SLICES)
    assert held(call_of(op, batch=300, length=100_000), 78) == alone
    free = {select(table, call_of(op, batch=batch, length=65536), SMS).entry.config.slices for batch in (1, 7, 300)}
    assert not free <= alone, "else this test can see nothing"
    many = Invariance(table, (), (), SMS).held(call_of(op, rows=2048, length=5000))
    assert many is not None and many.order.slices == 1, "rows of a sequence are part of its class"
    assert many.over == "batch of 1 to 64 and length of 1024 to 65536"


def test_a_free_choice_passes_over_fixed_slices_where_lengths_deal_tokens_out(table_of: Callable[..., Any]) -> None:
    """The model takes all sequences as long as the longest, and would choose 16 slices at these calls."""
    table = table_of(*(config for config in default(Arch.SM90A) if MeasuredOp.DECODE_4.number in TUNING.offers(config)))
    for batch, length in ((17, 32591), (18, 31629)):
        call = call_of(MeasuredOp.DECODE_4, batch=batch, length=length)
        rows = [row for row in table.rows if row.call_class == call.call_class]
        assert min(rows, key=lambda row: TUNING.model_ns(row, call, SMS)).facts.slices == 16, (
            "else this test can see nothing"
        )
        assert select(table, call, SMS).entry.config.slices == 0


@pytest.mark.parametrize("op", MeasuredOp)
@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 8), (24, 4), (2, 1)])
def test_chunks_of_a_prompt_hold_one_order_in_one_slice(
    op: MeasuredOp, heads: int, kv_heads: int, table_of: Callable[..., Any]
) -> None:
    """Slices are shares of the tokens that a chunk has, so chunks in several would have other bits than the whole prompt."""
    table = table_of(*(config for config in default(Arch.SM90A) if op.number in TUNING.offers(config)))

    def held(rows: int) -> Order:
        fresh, call = Invariance(table, (), (), SMS), call_of(op, rows=rows, length=5000)
        sizes = TUNING.named(call.sizes) | {"heads": heads, "kv_heads": kv_heads}
        found = fresh.held(replace(call, sizes=TUNING.ordered(sizes)))
        assert found is not None
        return found.order

    orders = {held(rows) for rows in (33, 77, 512, 4096, 16384)}
    assert len(orders) == 1 and orders.pop().slices == 1
    assert held(32).slices > 1, "a step with drafts is none"


@pytest.mark.parametrize(
    ("tiles", "stages", "half_waves", "slices"),
    [(8, 256, 2, 16), (8, 256, 1, 8), (8, 10, 8, 10), (200, 64, 2, 1), (200, 64, 4, 1), (200, 64, 8, 2), (0, 0, 2, 1)],
)
def test_slices_fill_the_device(tiles: int, stages: int, half_waves: int, slices: int) -> None:
    assert slices_of(tiles, stages, SMS, half_waves) == slices
    assert slices_of(tiles, stages, SMS, half_waves, 16) == 16
    assert deal_of(tiles, stages, SMS, half_waves) == (slices, slices, 1)


@pytest.mark.parametrize(
    ("batch", "blocks_of_part", "stages", "half_waves", "fixed", "parts"),
    [
        (1, 8, 256, 2, 0, 16),
        (8, 8, 256, 2, 0, 16),
        (9, 8, 256, 2, 0, 24),
        (64, 8, 1, 2, 0, 64),
        (1, 200, 64, 1, 0, 1),
        (2, 8, 256, 2, 4, 8),
        (7, 8, 256, 2, 1, 7),
        (0, 8, 0, 2, 0, 0),
    ],
)
def test_sequences_have_as_many_parts_more_as_fill_the_device(
    batch: int, blocks_of_part: int, stages: int, half_waves: int, fixed: int, parts: int
) -> None:
    assert parts_of(batch, blocks_of_part, stages, SMS, half_waves, fixed) == parts


@pytest.mark.parametrize(
    ("tiles", "stages", "fixed", "blocks"),
    [
        (8, 256, 16, 16),
        (64, 256, 16, 2),
        (256, 64, 16, 1),
        (8, 64, 16, 8),
        (8, 2048, 32, 16),
        (24, 256, 16, 4),
        (1, 7, 128, 1),
    ],
)
def test_blocks_share_fixed_slices_as_the_device_wants(tiles: int, stages: int, fixed: int, blocks: int) -> None:
    """Slices and their least length are the same for any number of tiles and on any device."""
    assert deal_of(tiles, stages, SMS, 2, fixed) == (fixed, blocks, LEAST_STAGES)
    for other in (1, 5, 1000):
        assert deal_of(other, stages, 78, 8, fixed)[::2] == (fixed, LEAST_STAGES)


@pytest.mark.parametrize(
    ("tiles", "stages", "groups", "blocks"),
    [(8, 256, 4, 16), (64, 256, 4, 2), (256, 64, 4, 1), (512, 128, 4, 1), (8, 64, 2, 8), (8, 1024, 2, 16)],
)
def test_groups_of_a_block_share_its_slices(tiles: int, stages: int, groups: int, blocks: int) -> None:
    """A block of half as many slices as groups is as busy as one of more; one slice is a whole block's."""
    assert deal_of(tiles, stages, SMS, 2, 32, groups) == (32, blocks, LEAST_STAGES)
    assert deal_of(tiles, stages, SMS, 2, 1, groups) == (1, 1, 1)
    assert shared_of(32, 4, 4) == (2, 4) and shared_of(32, 16, 4) == (1, 2) and shared_of(32, 32, 4) == (1, 2)


@pytest.mark.parametrize("op", MeasuredOp)
def test_the_model_fills_the_device_once(op: MeasuredOp, table_of: Callable[..., Any]) -> None:
    table = table_of(*configs_of(op))
    chosen = select(table, call_of(op, length=16384), SMS)
    assert chosen.trust is Trust.MODEL and chosen.entry.config.half_waves == 2
    assert len(chosen.trace) == 3 and all("the model prefers another (model: " in x.reason for x in chosen.trace)
    # 100 tiles leave 32 of 132 multiprocessors idle, unless each is of several slices. Where lengths deal them out, the device knows better.
    wide = select(table, call_of(op, batch=100, kv_heads=1, heads=8, length=65536), SMS)
    assert (wide.entry.config.half_waves > 2) == (row_of(wide.entry.config).facts.sum_ps == 0)


@pytest.mark.parametrize(
    ("op", "batch", "length", "half_waves"),
    [
        (MeasuredOp.NC4, 1, 6159, 1),
        (MeasuredOp.NC4, 2, 2518, 1),
        (MeasuredOp.NC4, 16, 10_560, 1),
        (MeasuredOp.NC4, 1, 10_561, 2),
        (MeasuredOp.NC4, 2, 10_561, 2),
        (MeasuredOp.NC4, 17, 2518, 2),
        (MeasuredOp.DECODE_4, 1, 6159, 2),
        (MeasuredOp.DECODE_4, 2, 2518, 2),
    ],
)
def test_few_short_sequences_of_slots_fill_half_a_wave(
    op: MeasuredOp, batch: int, length: int, half_waves: int, table_of: Callable[..., Any]
) -> None:
    chosen = select(table_of(*configs_of(op)), call_of(op, batch=batch, length=length), SMS)
    assert chosen.entry.config.half_waves == half_waves


@pytest.mark.parametrize("head_dim", [64, 256])
def test_slots_that_a_build_has_no_kernel_of_come_to_that_of_any_format(
    head_dim: int, table_of: Callable[..., Any]
) -> None:
    """Where it has one, that one is taken, however short and many sequences are."""
    every = [
        KvCacheConfig(kind=KernelKind.ATTEND, operands=Operands(dtype=DType.BF16, head_dim=head_dim, slots=slots))
        for slots in (Slots.ANY, Slots.NC4)
    ]
    calls = [
        ShapedCall(family=NAME, call_class=class_of_config(every[1]), sizes=sizes, alignments=())
        for sizes in product((1, 500), (1, 4), (8, 32), (4, 8), (1, 100_000))
    ]
    for table, wanted in ((table_of(every[0]), every[0]), (table_of(*every), every[1])):
        assert {select(table, call, SMS).entry.config for call in calls} == {wanted}


def test_a_measured_row_is_taken_before_the_model(table_of: Callable[..., Any], tuned_row: Callable[..., Any]) -> None:
    op = MeasuredOp.DECODE_4
    slow = next(config for config in configs_of(op) if config.half_waves == 8)
    table = table_of(*configs_of(op), tuned=(tuned_row(op, slow),))
    found = select(table, call_of(op, length=16384), SMS)
    assert (found.entry.config, found.trust) == (slow, Trust.EXACT)
    assert found.measured == {"batch": 1, "rows": 1, "heads": 32, "kv_heads": 8, "length": 16384}
    assert select(table, call_of(op, length=9000), SMS).trust is Trust.EXACT, "a row serves up to its length"
    for sizes in ({"length": 8000}, {"batch": 2, "length": 16384}, {"heads": 16, "length": 16384}, {"length": 16385}):
        assert select(table, call_of(op, **sizes), SMS).trust is Trust.MODEL, sizes


@pytest.fixture
def tuned_row() -> Callable[..., Any]:
    from gemmill.runtime.tuned import TunedChoice

    def make(op: MeasuredOp, config: KvCacheConfig) -> TunedChoice:
        sizes = {"batch": 1, "rows": 1, "heads": 32, "kv_heads": 8, "length": 16384}
        return TunedChoice(family=NAME, call_class=op.number, sizes=sizes, names=(to_name(config),), exact=True)

    return make


def test_a_call_tells_what_the_choice_depends_on() -> None:
    """Of lengths, which are on the device, the room in the page table; of a window its length."""
    decode = DecodeCase(lengths=(100, 3), rows=2, heads=8, kv_heads=2, page=32)
    assert asked(decode).sizes == (2, 2, 8, 2, 128)
    assert asked(DecodeCase(**(vars(decode) | {"window": 40}))).sizes == (2, 2, 8, 2, 42)
    assert asked(AttendCase(lengths=(100, 3), heads=4, kv_heads=1, is_plain=True)).sizes == (2, 1, 4, 1, 105)
    assert asked(DecodeCase(lengths=())).sizes == (1, 0, 1, 1, 0), "nothing is launched"
    assert asked(CompressCase(tokens=5, format="k_eden4_v_eden4")).sizes == (1, 1, 1, 1, 0)
    assert (
        row_of(KvCacheConfig(kind=KernelKind.HADAMARD, operands=Operands(dtype=DType.BF16, head_dim=64))).facts
        == RowFacts()
    )


@pytest.mark.parametrize("op", MeasuredOp)
def test_operands_are_computed_right_and_wrong_ones_are_seen(op: MeasuredOp) -> None:
    assert CASES.measured is AttentionMaker
    x = AttentionMaker(torch.device("cpu"), 1).make(workload_of(op, TINY))
    assert x.copies == 1 and AttentionMaker(torch.device("cpu"), 1).exact(x) is None
    expected = x.expected()
    results = results_of(x, getattr(torch.ops.gemmill, x.op).default(*x.arguments(0)))
    assert expected.compare(results).ok
    slots: Mapping[str, Any] = x.slots(8)
    assert slots["out"].strides == (2 * 4 * 136, 4 * 136, 136, 1) and slots["lse"].shape == (2, 4, 2)
    results["out"][0, -1, 3] += 0.5
    found = expected.compare(results)
    assert not found.ok and found.wrong > 0 and "elements of out" in found.report
    results["lse"].fill_(torch.nan)
    assert expected.compare(results).unwritten


@pytest.mark.parametrize("op", MeasuredOp)
def test_each_class_is_known_by_its_calls(op: MeasuredOp) -> None:
    call = call_of(op, length=16384)
    assert TUNING.measured_as(call) == op and call.alignments == ()
    found = configs_of(op)
    assert [config.half_waves for config in found] == list(HALF_WAVES) and len({c.compiled for c in found}) == 1
    (config,) = {config.compiled for config in found}
    assert (config.operands.slots is Slots.ANY) == bool(op.bits)
    (measured,) = (x for x in SWEEP.measured if x.name == op)
    sizes = {"batch": 2, "rows": 1, "heads": 32, "kv_heads": 8, "length": 100}
    bytes_of_token = {MeasuredOp.DECODE_4: 132, MeasuredOp.NC4: 134, MeasuredOp.K8V4: 196, MeasuredOp.PROD3: 86}.get(
        op, op.token_bytes
    )
    assert measured.bytes(sizes) == 2 * (100 * 8 * bytes_of_token + 4 * 32 * 128)


def test_blackwell_has_the_kernels_that_fit_its_shared_memory() -> None:
    assert offered_kinds(Arch.SM100A) == tuple(KernelKind)
    assert set(KernelKind) - set(offered_kinds(Arch.SM120F)) == {
        KernelKind.DECODE,
        KernelKind.ATTEND,
        KernelKind.SCORES,
        KernelKind.LATENT,
    }
    found = list(default(Arch.SM120F))
    assert {config.arch for config in found} == {Arch.SM120F}
    longest = {kind: max(c.operands.head_dim for c in found if c.kind is kind) for kind in offered_kinds(Arch.SM120F)}
    assert longest == dict.fromkeys(longest, 512) | {KernelKind.COMPRESS: 256}
    with pytest.raises(ValueError, match="up to 232448 bytes of shared memory, a block has 101376 there"):
        KvCacheConfig(**(vars(DECODE) | {"arch": Arch.SM120F}))


def test_a_kernel_without_room_is_no_build_away() -> None:
    manifest = SimpleNamespace(build_id="0123456789ab", arch="sm120f")
    op = BY_NAME["kv_compress"]
    call = operands.of_arguments(op, CompressCase(tokens=3, format="k_eden4_v_eden4", head_dim=512).arguments("cpu"))
    assert SERVING.lacks(manifest, op, call, None) == (
        "build 0123456789ab lacks a variant for such calls, and none can be built: kernels of 512 elements take up to 146432 "
        "bytes of shared memory, a block of sm120f has 101376; call kv_compress_keys and kv_compress_values"
    )


def test_rotary_parts_in_e4m3_are_no_build_away_without_wgmma() -> None:
    """On sm90a a build has them, of f16 queries the sweep's."""
    for arch, dtype, told in (
        ("sm100a", DType.BF16, "kernels of sm90a alone, and this build is of sm100a; store them in the queries' type"),
        ("sm90a", DType.F16, "sm90a_kvcache_latent_f16_d512_rotarye4m3_k4v4_r16"),
    ):
        manifest = SimpleNamespace(
            build_id="0123456789ab", arch=arch, selection="smoke", filter="", rejected=(), entries=()
        )
        case = LatentCase(lengths=(9,), dtype=dtype, rotary=DType.E4M3)
        call = operands.of_arguments(case.schema, case.arguments("cpu"))
        assert told in SERVING.lacks(manifest, case.schema, call, None)


def test_many_rows_are_attended_by_wgmma_and_few_are_not(table_of: Callable[..., Any]) -> None:
    """Rows of a step of decoding or of drafts, and those of a chunk of a prompt; a chunk of few tiles has several slices."""
    op = MeasuredOp.DECODE_4
    many = [
        config
        for config in default(Arch.SM90A)
        if op.number in TUNING.offers(config) and not config.slices and config.tile_rows
    ]
    table = table_of(*configs_of(op), *many)
    for rows, is_many in ((1, False), (4, False), (128, True), (4096, True)):
        chosen = select(table, call_of(op, rows=rows, length=65536), SMS)
        assert (chosen.entry.config.tile_rows == MANY_ROWS) is is_many, rows


def test_latents_have_tiles_of_16_rows_up_to_16_and_of_32_beyond(table_of: Callable[..., Any]) -> None:
    """By WGMMA on sm90a; mma.sync is for architectures without it."""
    table = table_of(
        *(x for x in default(Arch.SM90A) if x.kind is KernelKind.LATENT and x.operands.dtype is DType.BF16)
    )
    for batch, rows, heads, tile in ((16, 1, 16, 16), (1, 1, 8, 16), (16, 1, 128, 32), (16, 2, 16, 32)):
        call = asked(LatentCase(lengths=(8192,) * batch, rows=rows, heads=heads))
        assert select(table, call, SMS).entry.config.tile_rows == tile, (batch, rows, heads)
        call = asked(LatentCase(lengths=(8192,) * batch, rows=rows, heads=heads, rotary=DType.E4M3))
        chosen = select(table, call, SMS).entry.config
        assert (chosen.tile_rows, chosen.operands.rotary) == (tile, DType.E4M3), (batch, rows, heads)
    assert not any(x.tile_rows for x in default(Arch.SM100A) if x.kind is KernelKind.LATENT)
