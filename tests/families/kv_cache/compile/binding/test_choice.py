"""The extension's model and choices of attention over compressed caches against Python's."""

import random
from typing import Any

import pytest

from gemmill.families import kv_cache
from gemmill.families.kv_cache.call import shaped_call_of
from gemmill.families.kv_cache.cases.calls import DecodeCase
from gemmill.families.kv_cache.cases.packed_calls import AttendCase
from gemmill.families.kv_cache.config import ATTENTIONS, HALF_WAVES, KernelKind, settings_of
from gemmill.family import ShapedCall
from gemmill.locations import kernels_dir
from gemmill.numerics.recording import record
from gemmill.runtime import checks, operands
from gemmill.runtime.choosing import model_ns
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.select import select
from gemmill.wheel.reproducer import read_arguments

pytestmark = pytest.mark.compile
SMS = 132


def rows_of(probe) -> list[tuple[int, Any, Any]]:
    """Of attention, whose variants there are several of for a class."""
    return [(i, row, entry) for i, row, entry in probe.build.table.of(kv_cache.NAME) if entry.config.kind in ATTENTIONS]


def test_models_agree(probe) -> None:
    rng = random.Random(1)
    rows = rows_of(probe)
    assert rows
    for _ in range(500):
        i, row, _ = rng.choice(rows)
        sizes = (rng.choice((1, 2, 7, rng.randrange(1, 600))) for _ in range(2))
        kv_heads = rng.choice((0, 1, 2, 3, 8, 24))
        length = rng.choice((0, 1, 63, 64, rng.randrange(1, 200_000)))
        call = ShapedCall(
            family=kv_cache.NAME,
            call_class=row.call_class,
            sizes=(*sizes, kv_heads * rng.choice((1, 4, 16)), kv_heads, length),
            alignments=(),
        )
        assert row.facts.half_waves in HALF_WAVES
        sms = rng.choice((SMS, 114, 16))
        assert probe.nanoseconds(i, call, sms) == model_ns(row, call, sms), call


@pytest.mark.parametrize("case", [DecodeCase(lengths=(100, 3)), AttendCase(lengths=(100, 3), window=30, is_plain=True)])
def test_both_choose_the_same_and_a_kernel_is_given_the_setting(probe, case: Any) -> None:
    header, schema = (kernels_dir() / "kv_cache" / "abi.h").read_text(), BY_NAME[case.schema.name]
    asked = shaped_call_of(checks.check(schema, operands.of_arguments(schema, case.arguments("cpu"))))
    for sms in (1, SMS):
        assert probe.build.choose(asked, sms)[0] == select(probe.build.table, asked, sms).row
    settings = set()
    for _, row, entry in rows_of(probe):
        if row.call_class != asked.call_class:
            continue
        _, fields = read_arguments(header, record(probe.build, entry.name, case).arguments)
        told = {field.name: field.value for field in fields}
        assert (told["half_waves"], told["slices"]) == (entry.config.half_waves, entry.config.slices)
        settings.add((entry.config.half_waves, entry.config.slices))
    assert settings == set(settings_of(KernelKind.DECODE))
