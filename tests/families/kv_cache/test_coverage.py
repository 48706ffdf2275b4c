"""The sizes and options of the calls that check kernels: each that docs/kv_cache.md promises is a case or a random call's."""

from functools import cache

import pytest

from gemmill.families.kv_cache.cases.calls import DecodeCase, of_config
from gemmill.families.kv_cache.cases.drawn import drawn
from gemmill.families.kv_cache.cases.packed_calls import AttendCase
from gemmill.families.kv_cache.config import MOST_OF_ANY, SLOT_FORMATS, KernelKind, KvCacheConfig, Slots
from gemmill.families.kv_cache.formats import HEAD_DIMS, PAGE_SIZES
from gemmill.families.kv_cache.ops import DECODE
from gemmill.families.kv_cache.packed import KEY_FORMATS, VALUE_FORMATS
from gemmill.families.kv_cache.packed_ops import ATTENTION
from gemmill.families.kv_cache.selections import sweep
from gemmill.numerics.call import CPU_LIMITS, LegalCall
from gemmill.numerics.draw import Draw
from gemmill.vocab import Arch

ROUNDS = 400
OF_ANY = {head_dim for head_dim in HEAD_DIMS if head_dim <= MOST_OF_ANY}
ATTENTIONS = {"pages": DECODE.name, "any format": ATTENTION.name, "slots": ATTENTION.name}


@cache
def checked() -> dict[str, dict[KvCacheConfig, list[DecodeCase | AttendCase]]]:
    """Calls of each attention's kernels over keys and values, settings of launches left out."""
    found: dict[str, dict[KvCacheConfig, list[DecodeCase | AttendCase]]] = {name: {} for name in ATTENTIONS}
    for config in sweep(Arch.SM90A):
        if config.attends and config.kind is not KernelKind.LATENT and config == config.compiled:
            cases = [case for case in of_config(config) if isinstance(case, DecodeCase | AttendCase)]
            name = (
                "slots"
                if config.operands.slots is not Slots.ANY
                else "pages"
                if config.operands.key_bits
                else "any format"
            )
            found[name][config] = cases
    return found


@cache
def calls(op: str) -> list[LegalCall]:
    return [drawn(op, Draw(op, 0, i), CPU_LIMITS) for i in range(ROUNDS)]


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_each_kernel_is_checked_with_every_option(attention: str) -> None:
    for config, cases in checked()[attention].items():
        lengths = [length for case in cases for length in case.lengths]
        assert 0 in lengths and 1 in lengths and any(length % 16 for length in lengths if length > 128), config
        assert {case.causal for case in cases} == {case.has_sinks for case in cases} == {True, False}, config
        assert any(case.window for case in cases) and any(case.softcap for case in cases), config
        assert () in {tuple(case.lengths) for case in cases} and {1, 3} < {case.rows for case in cases}, config
        rows = [case.rows * case.heads // case.kv_heads for case in cases]
        assert min(rows) <= 2 and max(rows) > 16, config
    assert {config.operands.head_dim for config in checked()["pages"]} == set(HEAD_DIMS)
    assert {config.operands.head_dim for config in checked()["any format"]} == OF_ANY
    assert {config.operands.head_dim for config in checked()["slots"]} == set(SLOT_FORMATS)


def test_pages_of_every_size_are_checked_by_each_kernel() -> None:
    for config, cases in checked()["pages"].items():
        assert {case.page for case in cases} == set(PAGE_SIZES), config


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_512_sequences_are_checked(attention: str) -> None:
    """By one kernel of each, in 4 bits: the others have the same arithmetic of sequences."""
    found = [config for config, cases in checked()[attention].items() if max(len(c.lengths) for c in cases) == 512]
    assert len(found) == 1 and found[0].operands.slots is (Slots.NC4 if attention == "slots" else Slots.ANY)


@pytest.mark.parametrize("op", [DECODE.name, ATTENTION.name])
def test_heads_rows_and_head_dims_are_drawn(op: str) -> None:
    groups, head_dims, batches, rows = set(), set(), set(), set()
    for call in calls(op):
        batch, of_rows, heads, head_dim = call.slots["q"].shape
        page_of = call.slots["cache" if op == DECODE.name else "keys"].shape
        groups.add(heads // page_of[1 if op == DECODE.name else 2])
        head_dims.add(head_dim), batches.add(batch), rows.add(of_rows)
    assert groups >= set(range(1, 17)) and head_dims == (set(HEAD_DIMS) if op == DECODE.name else OF_ANY)
    assert {0, 1, 3} <= batches and {0, 1, 8} <= rows


def test_pages_and_formats_are_drawn() -> None:
    assert {call.slots["cache"].shape[2] for call in calls(DECODE.name)} == set(PAGE_SIZES)
    formats = {call.plain["format"] for call in calls(DECODE.name)}
    assert {
        f"k_{method}{bits}_v_{method}{bits}" for method in ("eden", "turboquant_mse") for bits in (2, 3, 4)
    } <= formats
    told = [str(call.plain["format"]).removeprefix("k_").rpartition("_v_") for call in calls(ATTENTION.name)]
    assert {key for key, _, _ in told} == set(KEY_FORMATS) and {value for _, _, value in told} == set(VALUE_FORMATS)
    assert {"block_table" in call.slots for call in calls(ATTENTION.name)} == {True, False}
