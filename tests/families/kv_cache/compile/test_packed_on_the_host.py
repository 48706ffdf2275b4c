"""Kernels of packed vectors and of slots, whole, on the CPU against their references (host_kernels.py says how)."""

import ctypes
from typing import Any

import pytest
import torch

from families.kv_cache.compile.host_kernels import (
    assert_right,
    assert_same_however_dealt,
    assert_same_in_groups,
    bits_of_slices,
    launched,
    library,
)
from families.kv_cache.rotated import exact
from gemmill.build.toolchain import ToolchainPaths
from gemmill.families.kv_cache.cases.judging import parts, report
from gemmill.families.kv_cache.cases.packed_calls import (
    AttendCase,
    PackCase,
    ScoresCase,
    UnpackCase,
    cache_format_of,
    key_formats,
    takes_rotated,
)
from gemmill.families.kv_cache.config import Slots
from gemmill.families.kv_cache.packed import VALUE_FORMATS
from gemmill.space.names import parse_name
from gemmill.vocab import DType

PACKED = {
    kind: tuple(f"{kind}_{of}" for of in ("bf16_d128", "f16_d64", "f16_d96"))
    for kind in ("pack", "unpack", "scores", "attend")
}
SLOTS = (
    "attend_bf16_d128_4bitnc",
    "attend_f16_d128_3bitnc",
    "attend_f16_d128_k8v4",
    "attend_bf16_d128_k3v4nc",
    "attend_bf16_d128_ultraquant",
    "attend_bf16_d128_prod3mse2",
    "attend_bf16_d128_fp8",
)
SHARED_SLOTS = (
    "attend_f16_d64_k3v4nc",
    "attend_bf16_d64_ultraquant",
    "attend_bf16_d256_4bitnc",
    "attend_f16_d256_3bitnc",
    "attend_bf16_d512_4bitnc",
    "attend_f16_d512_k8v4",
    "attend_bf16_d512_ultraquant",
)


@pytest.fixture(scope="module")
def kernels(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    names = (*(name for of_kind in PACKED.values() for name in of_kind), *SLOTS, *SHARED_SLOTS)
    return library(names, toolchain, tmp_path_factory.mktemp("packed"))


def _of_name(name: str) -> dict[str, Any]:
    _, dtype, head_dim = name.split("_")
    return {"dtype": DType(dtype), "head_dim": int(head_dim[1:])}


@pytest.mark.parametrize("format", ["eden3", "turboquant_mse4", "unit_centroids4", "e2m1"])
def test_keys_that_come_rotated_are_packed_bit_for_bit_as_those_that_a_kernel_rotates(
    kernels: ctypes.CDLL, format: str
) -> None:
    case = PackCase(tokens=9, format=format, heads=2, dtype=DType.F16, head_dim=64)
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    x, rotated = exact(9, 2, torch.float16, case.spec.rotation)
    found = []
    for keys in (x, rotated):
        told = {"keys": keys, "packed": torch.zeros_like(given["packed"]), "rotated": keys is rotated}
        found.append(launched(kernels, "pack_f16_d64", given | told)[1]["packed"])
    assert torch.equal(*found)


@pytest.mark.parametrize("name", [name for kind in ("pack", "unpack") for name in PACKED[kind]])
def test_packs_and_unpacks_every_format(kernels: ctypes.CDLL, name: str) -> None:
    case_of, common = PackCase if name.startswith("pack") else UnpackCase, _of_name(name)
    for of_values, formats in ((False, key_formats(common["head_dim"])), (True, tuple(VALUE_FORMATS))):
        for i, format in enumerate(formats):
            odd = {"tokens": 23, "heads": 2, "gap": 5 + i % 2, "is_mapped": i % 3 == 0, "is_odd": True}
            assert_right(kernels, name, case_of(format=format, of_values=of_values, **odd, **common))
            if case_of is PackCase and takes_rotated(of_values, format):
                case = PackCase(format=format, of_values=of_values, is_rotated=True, **odd, **common)
                assert_right(kernels, name, case)
        scaled = case_of(format="e4m3", of_values=of_values, has_scales=True, tokens=23, heads=3, is_odd=True, **common)
        assert_right(kernels, name, scaled)


@pytest.mark.parametrize("name", PACKED["scores"])
def test_scores_keys_of_every_format(kernels: ctypes.CDLL, name: str) -> None:
    for i, format in enumerate(key_formats(_of_name(name)["head_dim"])):
        length, rows, heads, kv_heads = ((1, 1, 3, 1), (130, 2, 20, 2), (64, 3, 4, 4))[i % 3]
        case = ScoresCase(length=length, rows=rows, heads=heads, kv_heads=kv_heads, format=format, **_of_name(name))
        assert_right(kernels, name, case)
    assert_right(
        kernels, name, ScoresCase(length=130, heads=6, kv_heads=2, format="e4m3", has_scales=True, **_of_name(name))
    )


ATTENDED = (
    {"lengths": (37,), "heads": 4, "kv_heads": 1},
    {"lengths": (300, 0, 1, 129), "heads": 4, "kv_heads": 2, "is_plain": True},
    {"lengths": (150, 2), "rows": 4, "heads": 4, "kv_heads": 2, "has_sinks": True, "softcap": 1.5, "page": 48},
    {"lengths": (150, 2), "rows": 35, "heads": 2, "kv_heads": 1, "window": 40, "page": 16},
    {"lengths": (3, 140), "rows": 3, "heads": 20, "kv_heads": 1, "window": 40, "causal": False, "page": 7},
    {"lengths": (200,), "rows": 150, "heads": 2, "kv_heads": 2, "has_sinks": True, "page": 128},
)


@pytest.mark.parametrize("name", PACKED["attend"])
def test_attends_over_packed_vectors(kernels: ctypes.CDLL, name: str) -> None:
    """Every format of keys and of values; on few multiprocessors a sequence is one slice."""
    keys = key_formats(_of_name(name)["head_dim"])
    for i, value in enumerate((*VALUE_FORMATS, "eden4")):
        case = AttendCase(format=f"k_{keys[i % len(keys)]}_v_{value}", **ATTENDED[i % len(ATTENDED)], **_of_name(name))
        assert_right(kernels, name, case, sm_count=1 if i % 2 else 40)


@pytest.mark.parametrize("sizes", ATTENDED[1:5], ids=str)
def test_attends_over_e4m3_with_a_scale_for_each_head(kernels: ctypes.CDLL, sizes: dict[str, Any]) -> None:
    case = AttendCase(format="k_e4m3_v_e4m3", has_scales=True, **sizes, **_of_name(PACKED["attend"][0]))
    for sm_count in (1, 40):
        assert_right(kernels, PACKED["attend"][0], case, sm_count=sm_count)


def test_a_tiny_scale_loses_nothing(kernels: ctypes.CDLL) -> None:
    """Of many values of equal weights, whose scale is as small as no f16 is."""
    case = AttendCase(lengths=(3000,), heads=1, kv_heads=1, format="k_e4m3_v_e4m3", **_of_name(PACKED["attend"][0]))
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    given |= {"q": 0 * given["q"], "value_scales": torch.tensor([2.0**-40])}
    given["values"].masked_fill_(given["values"] != 0xFF, 0x38)  # ones
    _, after = launched(kernels, PACKED["attend"][0], given)
    assert bool((after["out"].float() * 2.0**40 - 1).abs().max() < 2.0**-7)


@pytest.mark.parametrize("name", [PACKED["attend"][0], SLOTS[-1]])
def test_nan_of_e4m3_shows_where_it_is_seen_and_nowhere_else(kernels: ctypes.CDLL, name: str) -> None:
    """A value with a NaN element at the first token, of two rows of which one's window ends behind it; and behind the length."""
    common = {"lengths": (9,), "rows": 2, "heads": 2, "kv_heads": 2, "page": 16, "window": 8}
    case = AttendCase(format="k_e4m3_v_e4m3", **common, **_of_name(PACKED["attend"][0]))
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    page = int(given["block_table"][0, 0])
    given["values"][page, (0, 9), 0, 77] = 0xFF
    before, after = launched(kernels, name, given)
    assert bool(after["out"][0, 0, 0].isnan().all()) and not bool(after["out"][0, 1].isnan().any())
    assert not bool(after["out"][0, 0, 1].isnan().any())
    assert not report(parts(case.schema.name, before, after))


IN_SLOTS = (
    {"lengths": (37,), "heads": 4, "kv_heads": 1},
    {"lengths": (130, 0, 1), "heads": 16, "kv_heads": 8, "page": 16},
    {"lengths": (150, 2), "rows": 5, "heads": 32, "kv_heads": 16, "has_sinks": True, "softcap": 1.5},
    {"lengths": (155, 2), "rows": 3, "heads": 12, "kv_heads": 4, "window": 40, "is_plain": True, "are_apart": True},
    {"lengths": (300, 0, 1, 129), "heads": 8, "kv_heads": 2, "page": 48, "causal": False, "gap": 4},
    {"lengths": (64,), "rows": 2, "heads": 8, "kv_heads": 8, "page": 32, "are_apart": True, "stays_rotated": True},
)


def _in_slots(kernels: ctypes.CDLL, name: str, which: int, **others: Any) -> None:
    x, told = parse_name(f"sm90a_kvcache_{name}").operands, IN_SLOTS[which] | others
    if "prod" in name:
        told.pop("stays_rotated", None)
    told["has_scales"] = x.slots is Slots.FP8 and which % 3 < 2
    case = AttendCase(format=cache_format_of(x.slots), dtype=x.dtype, head_dim=x.head_dim, **told)
    assert_right(kernels, name, case, sm_count=3 if which % 2 else 40)


@pytest.mark.parametrize("name", SLOTS)
def test_attends_over_slots(kernels: ctypes.CDLL, name: str) -> None:
    """Every reader of keys and of values; blocks of one to eight heads, runs of tokens and tokens apart."""
    for which in range(len(IN_SLOTS)):
        _in_slots(kernels, name, which)


@pytest.mark.parametrize(
    ("name", "which"),
    [(name, i) for n, name in enumerate(SHARED_SLOTS) for i in range(len(IN_SLOTS)) if i % 2 == n % 2],
)
def test_attends_over_slots_of_other_head_dims(kernels: ctypes.CDLL, name: str, which: int) -> None:
    """Vectors of one, two and four warps; heads of several blocks, which begin at no multiple of 16 bytes, among them."""
    _in_slots(kernels, name, which, **({"lengths": (37,), "kv_heads": 4, "heads": 12} if which == 2 else {}))


@pytest.mark.parametrize("name", [SLOTS[0], SLOTS[2]])
def test_slots_may_begin_at_any_address_that_their_kernels_take(kernels: ctypes.CDLL, name: str) -> None:
    """Copies begin at multiples of 16 bytes before them."""
    config = parse_name(f"sm90a_kvcache_{name}")
    case = AttendCase(
        lengths=(50,), heads=8, kv_heads=4, format=cache_format_of(config.operands.slots), dtype=config.operands.dtype
    )
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    pages, page, heads, key = given["keys"].shape
    size = given["keys"].stride(2)
    memory = torch.full((pages * page * heads * size + 16,), 0x77, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 16 :][4 : 4 + pages * page * heads * size].view(pages, page, heads, size)
    memory.copy_(given["keys"].as_strided((pages, page, heads, size), given["keys"].stride()))
    assert memory.data_ptr() % 16 == 4
    assert_right(kernels, name, case, keys=memory[..., :key], values=memory[..., key:])


def test_nan_in_slots_shows_where_it_is_seen_and_nowhere_else(kernels: ctypes.CDLL) -> None:
    """A scale of NaN at the first token, of two rows of which one's window ends behind it; and behind the length."""
    case = AttendCase(lengths=(9,), rows=2, heads=2, kv_heads=2, page=16, window=8, format=cache_format_of(Slots.NC4))
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    page = int(given["block_table"][0, 0])
    for token in (0, 9):
        given["values"][page, token, 0, 64:66] = 0xFF
    _, after = launched(kernels, SLOTS[0], given)
    assert bool(after["out"][0, 0, 0].isnan().all()) and not bool(after["out"][0, 1].isnan().any())
    assert not bool(after["out"][0, 0, 1].isnan().any())


def test_rotated_queries_and_wide_factors(kernels: ctypes.CDLL) -> None:
    common = {"lengths": (70,), "heads": 2, "kv_heads": 1, **_of_name(PACKED["attend"][0])}
    for format in ("k_eden3_v_eden3", "k_unit_centroids4_v_uniform4", "k_e4m3_v_eden4"):
        assert_right(kernels, PACKED["attend"][0], AttendCase(format=format, is_rotated=True, **common))
    case = AttendCase(format="k_eden4_v_e2m1", **common)
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    scales = given["values"][..., -4:]
    scales[(scales > 0) & (scales < 255)] += 40
    before, after = launched(kernels, PACKED["attend"][0], given)
    assert not report(parts(case.schema.name, before, after)) and float(after["out"].abs().max()) > 2.0**30


def test_wide_factors_in_slots(kernels: ctypes.CDLL) -> None:
    case = AttendCase(lengths=(70,), heads=2, kv_heads=1, format=cache_format_of(Slots.ULTRAQUANT))
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    scales = given["values"][..., -4:]
    scales[(scales > 0) & (scales < 255)] += 40
    before, after = launched(kernels, "attend_bf16_d128_ultraquant", given)
    assert not report(parts(case.schema.name, before, after)) and float(after["out"].abs().max()) > 2.0**30


def test_packed_tables_and_lengths_that_the_cache_has_not(kernels: ctypes.CDLL) -> None:
    case = AttendCase(lengths=(40, 40, 5), heads=2, kv_heads=1, page=16, **_of_name(PACKED["attend"][0]))
    lengths = torch.tensor([1000, -7, 5], dtype=torch.int32)
    table = torch.tensor([[0, -5, 10**9], [0, 0, 0], [2**31 - 1, 0, 0]], dtype=torch.int32)
    assert_right(kernels, PACKED["attend"][0], case, seq_lens=lengths, block_table=table)


DEALT: dict[str, dict[str, Any]] = {
    "attend_f16_d128_3bitnc": {"format": cache_format_of(Slots.NC3), "dtype": DType.F16, "heads": 6, "rows": 1},
    "attend_bf16_d128_ultraquant": {"format": cache_format_of(Slots.ULTRAQUANT), "heads": 2, "window": 900},
}
"""Attentions whose blocks share a tile's slices in runs."""


@pytest.mark.parametrize("name", DEALT)
def test_a_sequence_has_the_same_bits_however_its_slices_are_dealt(kernels: ctypes.CDLL, name: str) -> None:
    assert_same_however_dealt(kernels, name, AttendCase(lengths=(1100, 0, 600), kv_heads=1, **DEALT[name]))


def test_groups_of_warps_take_slices_one_after_the_other(kernels: ctypes.CDLL) -> None:
    case = AttendCase(lengths=(420,), heads=8, kv_heads=8, format=cache_format_of(Slots.NC4))
    assert_same_in_groups(kernels, "attend_bf16_d128_4bitnc", case)


def test_heads_far_apart_leave_no_room_for_runs_of_slices(kernels: ctypes.CDLL) -> None:
    """Then each slice has a block, whose groups wait for each other, and the bits are the same: nearly the most bytes from head to head that kernels of slots take."""
    name, far = "attend_bf16_d128_prod3mse2", 206
    case = AttendCase(lengths=(300,), heads=8, kv_heads=8, format=cache_format_of(Slots.PROD3), are_apart=True)
    near = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    apart = {n: torch.full((*near[n].shape[:3], far), 0x77, dtype=torch.uint8) for n in ("keys", "values")}
    wide = near | {n: x[..., : near[n].shape[3]].copy_(near[n]) for n, x in apart.items()}
    told = ((near, 1), (wide, 1), (wide, 40))
    found = [bits_of_slices(kernels, name, case, given, sm_count, 4) for given, sm_count in told]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
