"""Slices of K that no cluster binds: their workspace, the adapter around their kernels, and the choice among them."""

import ctypes
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from families.scaled_mm.test_cutedsl_plan import config
from gemmill.emit.adapter import ANY_ENTRY, emit_adapter
from gemmill.families.scaled_mm.built_in import ALL
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.dsl.plan import Plan
from gemmill.families.scaled_mm.model import FITTED, terms_of, time_ns
from gemmill.families.scaled_mm.own import with_own
from gemmill.families.scaled_mm.selections import default
from gemmill.families.scaled_mm.sweep import SWEEP
from gemmill.families.scaled_mm.tuning import TUNING
from gemmill.registry import REGISTRY
from gemmill.space.names import to_name
from gemmill.vocab import Arch, DType, KernelSchedule, TileScheduler

ROOT = Path(__file__).resolve().parents[3]
PARALLEL = config(
    tile_scheduler=TileScheduler.SPLIT_K_PARALLEL, tile_shape_mnk=(128, 256, 128), cluster_shape_mnk=(2, 1, 1)
)


@pytest.fixture(scope="module")
def workspace_bytes(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    """`gemmill_split_k.bytes` of kernels/core/split_k.h."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("split_k")
    (folder / "probe.cpp").write_text(
        '#include "core/split_k.h"\n'
        'extern "C" int64_t probe(int64_t m, int64_t n, int64_t splits, int64_t tile_m, int64_t tile_n) {\n'
        "  return gemmill_split_k{m, n, splits, tile_m, tile_n}.bytes();\n}\n",
        encoding="utf-8",
    )
    library = folder / "probe.so"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{ROOT / 'kernels'}", folder / "probe.cpp", "-o", library]
    subprocess.run(command, check=True)
    probe = ctypes.CDLL(str(library)).probe
    probe.argtypes, probe.restype = [ctypes.c_int64] * 5, ctypes.c_int64
    return probe


@pytest.mark.parametrize("splits", [1, 2, 3, 16])
@pytest.mark.parametrize(("m", "n"), [(1, 8), (963, 864), (256, 256), (257, 2056)])
@pytest.mark.parametrize(("tile", "cluster"), [((128, 256), (2, 1)), ((256, 128), (1, 2)), ((128, 128), (1, 1))])
def test_the_workspace_holds_flags_and_sums(
    workspace_bytes: Callable[..., int], m: int, n: int, splits: int, tile: tuple[int, int], cluster: tuple[int, int]
) -> None:
    """As gemm/parallel.py lays them out: a flag of 8 bytes for each pair of slices of a tile, in whole lines, then sums."""
    plan = Plan(
        config(
            tile_scheduler=TileScheduler.SPLIT_K_PARALLEL,
            tile_shape_mnk=(*tile, 128),
            cluster_shape_mnk=(*cluster, 1),
        )
    )
    assert plan.split_tile == (tile[0] * cluster[0], tile[1] * cluster[1])
    of_m, of_n = plan.split_tile
    tiles = math.ceil(m / of_m) * math.ceil(n / of_n) * plan.cluster_size
    flags = math.ceil(tiles * splits**2 / 32) * 256
    needed = flags + 4 * tiles * splits * plan.tile_x * plan.tile_y
    assert needed <= workspace_bytes(m, n, splits, of_m, of_n) <= needed + tiles * 8 * splits**2 * 8 + 256


def test_the_adapter_asks_for_a_workspace_and_draws_a_ticket() -> None:
    text = emit_adapter("symbol", to_name(PARALLEL), ANY_ENTRY)
    assert (
        "int64_t symbol_workspace(void const* arguments" in text and "{args.m, args.n, args.splits, 256, 256}" in text
    )
    assert "int64_t ticket = gemmill_ticket();" in text and "{&arguments, &how, &ticket, " in text


def test_other_adapters_ask_for_none() -> None:
    text = emit_adapter("symbol", to_name(config()), ANY_ENTRY)
    assert "_workspace(" not in text and "int64_t ticket = 0;" in text


def test_users_epilogues_have_no_such_kernels() -> None:
    status = REGISTRY.check(with_own(PARALLEL, ALL[0].traced))
    assert status.reason == "splitkparallel is for the standard epilogues: others are given no workspace"


def test_sums_are_not_stored_by_tma() -> None:
    whole, sliced = Plan(config(tile_shape_mnk=(128, 256, 128))), Plan(PARALLEL)
    assert whole.store_elements and not sliced.store_elements and not sliced.vector_words
    assert sliced.stages >= whole.stages


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        ("fp8", (963, 864, 20336)),
        ("fp8", (200, 1280, 32768)),
        ("bf16", (963, 864, 20336)),
        ("bf16", (512, 1024, 20480)),
    ],
)
def test_the_model_likes_them_where_tiles_are_few_and_k_is_long(op: str, sizes: tuple[int, int, int]) -> None:
    """They took 0.75 to 0.86 of the others' time there (docs/notes/tables.md)."""
    assert _best(op, sizes).design.tile_scheduler is TileScheduler.SPLIT_K_PARALLEL


@pytest.mark.parametrize("sizes", [(16, 4096, 4096), (4096, 8192, 8192), (64, 2048, 16384), (8192, 28672, 8192)])
def test_the_model_leaves_others_alone(sizes: tuple[int, int, int]) -> None:
    assert _best("fp8", sizes).design.tile_scheduler is not TileScheduler.SPLIT_K_PARALLEL


def _best(op: str, sizes: tuple[int, int, int]) -> KernelConfig:
    """The config that the model thinks fastest."""
    call = next(m for m in SWEEP.measured if m.name == op).call(dict(zip("mnk", sizes, strict=True)))
    operand = {"fp8": DType.E4M3, "bf16": DType.BF16}[op]
    times = {
        time_ns(terms_of(row, call, 132), FITTED): config
        for config in default(Arch.SM90A)
        if config.operands.a_dtype is operand and isinstance(config, KernelConfig) and type(config) is KernelConfig
        for row in TUNING.rows(config, 0)
        if row.call_class == call.call_class
    }
    return times[min(times)]


@pytest.mark.parametrize("slices", [2, 3, 4, 8])
def test_a_kernel_deals_k_as_one_of_twice_its_depth(slices: int) -> None:
    """And the slices that one CTA sums in turn end where those of a cluster's CTAs do."""
    pytest.importorskip("cutlass")
    from gemmill.gemm.walk import steps_before

    few = Plan(
        config(
            tile_scheduler=TileScheduler.SPLIT_K,
            tile_shape_mnk=(64, 16, 256),
            kernel_schedule=KernelSchedule.BASIC,
            swap_ab=True,
            stages=4,
        )
    )
    many = Plan(config(tile_scheduler=TileScheduler.RESTARTED, tile_shape_mnk=(128, 192, 128), slice_step=256))
    assert (few.slice_step, many.slice_step, many.partials, many.accumulator_registers) == (256, 256, 1, 192)
    for k in (16, 256, 257, 1000, 4096, 6800, 18480, 2**20 + 16):
        steps_of_few, steps_of_many = -(-k // 256), -(-k // 128)
        ends = [steps_before(few, steps_of_few, s, slices) * 256 for s in range(slices + 1)]
        assert ends[0] == 0 and min(ends[-1], k) == k
        assert [min(steps_before(many, steps_of_many, s, slices) * 128, k) for s in range(slices + 1)] == [
            min(end, k) for end in ends
        ]


@pytest.mark.parametrize(
    ("tile", "schedule", "partials", "registers", "behind"),
    [
        ((128, 128, 128), KernelSchedule.COOPERATIVE, 1, 192, False),
        ((128, 64, 128), KernelSchedule.COOPERATIVE, 2, 128, True),
        ((64, 64, 128), KernelSchedule.BASIC, 2, 128, True),
        ((256, 64, 128), KernelSchedule.COOPERATIVE, 2, 192, False),
    ],
)
def test_restarted_sums_of_groups_have_registers_of_a_slice_and_of_those_before(
    tile: tuple[int, int, int], schedule: KernelSchedule, partials: int, registers: int, behind: bool
) -> None:
    """Next to the partial sums, of which two sets overlap where all fit."""
    plan = Plan(
        config(
            group_size=128,
            tile_scheduler=TileScheduler.RESTARTED,
            tile_shape_mnk=tile,
            kernel_schedule=schedule,
            slice_step=256,
        )
    )
    assert plan.sums_slices and not plan.meets_end
    assert (plan.partials, plan.accumulator_registers, plan.overlapped) == (partials, registers, behind)
