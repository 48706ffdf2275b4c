"""The arguments of kernels of compressed caches, field by field, and the addresses that the binding takes."""

from typing import Any

import pytest
import torch

from families.kv_cache.compile.structs import arguments_of
from gemmill.families.kv_cache.call import shaped_call_of
from gemmill.families.kv_cache.cases.calls import CompressCase, DecodeCase, DecompressCase, HadamardCase
from gemmill.families.kv_cache.cases.latent_calls import LatentCase
from gemmill.families.kv_cache.cases.packed_calls import AttendCase, PackCase, ScoresCase, UnpackCase
from gemmill.families.kv_cache.config import Slots
from gemmill.family import OpSchema
from gemmill.locations import kernels_dir
from gemmill.runtime import checks, operands
from gemmill.runtime.select import select
from gemmill.vocab import DType
from gemmill.wheel.reproducer import read_arguments

pytestmark = pytest.mark.compile
HEADER = (kernels_dir() / "kv_cache" / "abi.h").read_text()
ATTENDS = {"lengths": (100, 3), "rows": 2, "window": 30, "softcap": 1.5, "has_sinks": True}
CASES = (
    HadamardCase(rows=5, columns=128, padding=3),
    CompressCase(tokens=9, format="k_eden4_v_eden4", padding=8, is_apart=True, rotated_values=True),
    DecompressCase(tokens=9, format="k_eden4_v_eden4", padding=8),
    DecodeCase(**ATTENDS, stays_rotated=True),
    PackCase(tokens=7, format="eden3", gap=5, is_mapped=True, is_rotated=True),
    UnpackCase(tokens=7, format="eden3", gap=5, of_values=True),
    ScoresCase(length=70, rows=3, batch=2),
    AttendCase(**ATTENDS, are_apart=True),
    AttendCase(lengths=(100, 3), rows=2, causal=False, gap=7, format="k_e4m3_v_uniform4"),
    PackCase(tokens=7, format="e4m3", of_values=True, has_scales=True),
    UnpackCase(tokens=7, format="e4m3", has_scales=True),
    ScoresCase(length=70, rows=3, batch=2, format="e4m3", has_scales=True),
    AttendCase(**ATTENDS, format="k_e4m3_v_e4m3", has_scales=True),
    AttendCase(**ATTENDS, format="k_e4m3_v_e4m3", has_scales=True, gap=3),
    DecodeCase(**ATTENDS, head_dim=192, value_dim=128),
    CompressCase(tokens=9, format="k_eden4_v_eden4", head_dim=192, value_dim=128),
    LatentCase(lengths=(100, 3), rows=2, heads=4, stays_rotated=True),
    LatentCase(lengths=(100, 3), rows=2, heads=16, dtype=DType.F16, is_rotated=True),
)


def asked(schema: Any, given: list[Any]):
    """All that the choice depends on."""
    return shaped_call_of(checks.check(schema, operands.of_arguments(schema, given)))


def check_fields(probe, schema: OpSchema, arguments: list[Any], **others: int) -> None:
    """All of a launch are those of the call, but for `others`."""
    with probe.build.recording() as launches:
        getattr(probe.ops, schema.name).default(*arguments)
    ((_, told),) = launches
    found = {field.name: field.value for field in read_arguments(HEADER, told)[1]}
    struct = arguments_of(dict(zip(schema.arguments, arguments, strict=True)))
    wanted = {name: getattr(struct, name) or 0 for name, _ in struct._fields_} | others
    assert found | {"half_waves": 0} == wanted | {"half_waves": 0}


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__)
def test_every_field_is_the_calls(probe, case: Any) -> None:
    check_fields(probe, case.schema, case.arguments("cpu"))


def test_restored_keys_and_values_have_strides_of_their_own(probe) -> None:
    case = DecompressCase(tokens=9, format="k_eden4_v_eden4", padding=8)
    keys, _, *rest = case.arguments("cpu")
    values = torch.zeros(*keys.shape[:2], keys.shape[2] + 24, dtype=keys.dtype)[..., : keys.shape[2]]
    assert keys.stride(1) != values.stride(1)
    check_fields(probe, case.schema, [keys, values, *rest])


def test_rotated_rows_have_a_stride_of_their_own(probe) -> None:
    case = HadamardCase(rows=5, columns=128, padding=3)
    _, x, scale = case.arguments("cpu")
    out = torch.zeros(5, 160, dtype=x.dtype)[:, :128]
    assert out.stride(0) != x.stride(0)
    check_fields(probe, case.schema, [out, x, scale])


def test_a_table_without_columns_shows_no_page(probe) -> None:
    case = AttendCase(lengths=(0, 0), rows=2)
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    given["block_table"] = torch.empty(2, 0, dtype=torch.int32)
    check_fields(probe, case.schema, [*given.values()], pages=0, table_stride=0)


@pytest.mark.parametrize(("keys", "values"), [(0, 0), (2, 0), (0, 1), (4, 2)])
def test_kernels_of_slots_are_launched_where_addresses_allow(probe, keys: int, values: int) -> None:
    case = AttendCase(lengths=(70,), heads=40, kv_heads=4, format="k_e4m3_v_uniform4", are_apart=True)
    given = case.arguments("cpu")
    for place, shift in ((2, keys), (3, values)):
        x = given[place]
        moved = torch.zeros(x.untyped_storage().nbytes() + shift, dtype=torch.uint8, device="cpu")
        given[place] = moved[shift:].as_strided(x.shape, x.stride(), shift).copy_(x)
    row = select(probe.build.table, asked(case.schema, given), 1).row
    is_aligned = keys % 4 == 0 and values % 2 == 0
    assert (probe.build.table.entries[row].config.operands.slots is not Slots.ANY) == is_aligned
    with probe.build.recording() as launches:
        getattr(probe.ops, case.schema.name).default(*given)
    assert launches[0][0] == probe.build.table.entries[row].symbol


def test_a_cache_at_an_odd_multiple_of_8_bytes_is_refused(probe) -> None:
    case = DecodeCase(lengths=(70,))
    given = case.arguments("cpu")
    moved = torch.zeros(given[2].numel() + 8, dtype=torch.uint8, device="cpu")
    given[2] = moved[8:].view(given[2].shape)
    assert given[2].data_ptr() % 16 == 8
    with pytest.raises(RuntimeError) as wanted:
        checks.check(case.schema, operands.of_arguments(case.schema, given))
    with pytest.raises(RuntimeError) as caught:
        getattr(probe.ops, case.schema.name).default(*given)
    assert str(wanted.value) in str(caught.value)
