"""The extension's model and choices of attention over compressed caches against Python's."""

import ctypes
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from gemmill.families import kv_cache
from gemmill.families.kv_cache.call import problem_of_call
from gemmill.families.kv_cache.cases.calls import DecodeCase
from gemmill.families.kv_cache.cases.packed_calls import AttendCase
from gemmill.families.kv_cache.config import ATTENTIONS, HALF_WAVES
from gemmill.families.kv_cache.tuning import TUNING
from gemmill.family import ProblemCall
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.select import model_ns, select

pytestmark = pytest.mark.compile
SMS, SMS_OF_NONE = 132, 1
"""Multiprocessors of a device, and what the extension takes for their number where there is no device."""


def rows_of(probe) -> list[tuple[int, Any, Any]]:
    """Of attention, whose variants there are several of for a class."""
    return [(i, row, entry) for i, row, entry in probe.build.table.of(kv_cache.NAME) if entry.config.kind in ATTENTIONS]


def test_models_agree(probe) -> None:
    rng = random.Random(1)
    rows = rows_of(probe)
    assert rows
    for _ in range(500):
        i, row, _ = rng.choice(rows)
        setting = rng.choice(HALF_WAVES)
        sizes = (rng.choice((1, 2, 7, rng.randrange(1, 600))) for _ in range(2))
        kv_heads = rng.choice((0, 1, 2, 3, 8, 24))
        length = rng.choice((0, 1, 63, 64, rng.randrange(1, 200_000)))
        call = ProblemCall(
            family=kv_cache.NAME,
            problem=row.problem,
            sizes=(*sizes, kv_heads * rng.choice((1, 4, 16)), kv_heads, length),
            alignments=(),
        )
        assert row.facts.half_waves in HALF_WAVES and setting
        assert probe.nanoseconds(i, call, SMS) == model_ns(row, call, SMS), call


@pytest.mark.parametrize("case", [DecodeCase(lengths=(100, 3)), AttendCase(lengths=(100, 3), window=30, is_plain=True)])
def test_a_kernel_is_given_what_the_choice_says(probe, case: Any) -> None:
    """The launch's setting is the last whole number of its arguments."""
    given = case.arguments("cpu")
    schema = BY_NAME[case.schema.name]
    asked = problem_of_call(checks.check(schema, operands.of_arguments(schema, given)))
    choice = select(probe.build.table, asked, SMS_OF_NONE)
    assert choice.entry is not None and probe.build.choose(asked, SMS_OF_NONE)[0] == choice.row
    count = probe.number("probe_launches", ctypes.c_int32)
    count.value = 0
    getattr(probe.ops, schema.name).default(*given)
    assert count.value == 1
    args = bytes(probe.number("probe_args", ctypes.c_ubyte * 512))
    scale, before = case.head_dim**-0.5, choice.entry.config.half_waves
    packed = before.to_bytes(8, "little") + bytes(torch.tensor([scale], dtype=torch.float32).view(torch.uint8).tolist())
    assert packed in args


def test_each_class_has_its_settings(probe) -> None:
    for _, row, entry in rows_of(probe):
        assert TUNING.rows is not None and row.facts.half_waves == entry.config.half_waves
        assert replace(entry.config, half_waves=HALF_WAVES[0]) == entry.config.compiled
