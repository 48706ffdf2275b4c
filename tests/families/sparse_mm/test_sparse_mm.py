"""Sparse GEMMs on CPU tensors: the reference, sentences for bad input, bounds, rules, names and the choice."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.emit import emit
from gemmill.families.sparse_mm.bounds import exact_mm, tolerance
from gemmill.families.sparse_mm.cases.calls import CallSpec, arguments_of, make_given
from gemmill.families.sparse_mm.cases.checked import SparseCase, of_config
from gemmill.families.sparse_mm.classes import Need
from gemmill.families.sparse_mm.config import Operands, SparseConfig
from gemmill.families.sparse_mm.model import Slices, model_ns, slices_of
from gemmill.families.sparse_mm.reference import sparse_mm
from gemmill.families.sparse_mm.rules import RULES
from gemmill.families.sparse_mm.selections import default, smoke, sweep
from gemmill.families.sparse_mm.tuning import TUNING
from gemmill.family import EXACT, ShapedCall, first_rejection
from gemmill.gemm.config import Design
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Accumulation, Arch, DType, EpilogueKind, KernelSchedule, RasterOrder, TileScheduler
from making import changed

FLOATS = CallSpec(m=5, n=40, k=160)
INTEGERS = replace(FLOATS, dtype=DType.S8, need=Need.AZP_TOKEN)
TILE = SparseConfig(
    operands=Operands(dtype=DType.E4M3, out_dtype=DType.BF16),
    design=Design(
        tile_shape_mnk=(128, 128, 128),
        kernel_schedule=KernelSchedule.COOPERATIVE,
        accumulation=Accumulation.FAST,
        swap_ab=True,
    ),
    epilogue=EpilogueKind.SCALED_BIAS,
)


def given(p: CallSpec) -> dict[str, Any]:
    out = torch.full((p.m, p.n), torch.nan, dtype=torch.bfloat16)
    return make_given(p, torch.device("cpu")) | {"out": out}


def call(p: CallSpec, arguments: dict[str, Any]) -> Tensor:
    getattr(torch.ops.gemmill, p.op).default(*arguments_of(p.op, arguments, arguments["out"]))
    return arguments["out"]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.bfloat16, torch.float16])
def test_results_are_those_of_the_dense_product(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    dense = torch.randint(-3, 4, (24, 16, 4), generator=g)
    dense.scatter_(2, torch.rand(24, 16, 4, generator=g).argsort(dim=-1)[..., :2], 0)
    weights = dense.flatten(1).float()
    a = torch.randint(-3, 4, (7, 64), generator=g).float()
    values, meta = gemmill.cutlass_sparse_compress(weights.to(dtype))
    a_scales, b_scales, bias = torch.rand(7, 1, generator=g), torch.rand(24, generator=g), torch.randn(24, generator=g)
    out_dtype = torch.float16 if dtype is torch.float16 else torch.bfloat16
    out = gemmill.cutlass_scaled_sparse_mm(
        a.to(dtype), values, meta, a_scales, b_scales, out_dtype, bias=bias.to(out_dtype)
    )
    wanted = a_scales * b_scales * (a @ weights.t()) + bias.to(out_dtype).float()
    assert out.dtype is out_dtype
    assert torch.allclose(out.float(), wanted, rtol=1e-2, atol=1e-2)


def test_zero_points() -> None:
    x = given(INTEGERS)
    dense = gemmill.cutlass_sparse_decompress(x["bt_nzs"], x["bt_meta"], INTEGERS.k)
    shifted = x["a"].double() - x["azp"].double()
    wanted = x["a_scales"].double() * x["b_scales"].double() * (shifted @ dense.double().t())
    assert torch.allclose(call(INTEGERS, x).double(), wanted, rtol=1e-2, atol=1e-2)
    token = x["out"].clone()
    one = x | {"azp_adj": 7 * x["azp_adj"], "azp": None}
    same = x | {"azp": torch.full_like(x["azp"], 7)}
    assert torch.equal(call(INTEGERS, one).clone(), call(INTEGERS, same))
    assert not torch.equal(token, x["out"])


def test_the_compressor_is_an_op() -> None:
    x = torch.tensor([[0, 3, 0, -1] * 16], dtype=torch.int8)
    values, meta = torch.ops.gemmill.cutlass_sparse_compress(x)
    assert values.tolist() == [[3, -1] * 16 + [0] * 0] and meta.shape == (64, 16)
    assert meta[0, 0] == (1 | 3 << 2) * 17


SENTENCES = {
    "K": (
        FLOATS,
        {"a": torch.zeros(5, 158).to(torch.float8_e4m3fn)},
        "a has 158 columns: of 2:4 sparse weights K is a multiple of 4",
    ),
    "kept values": (
        FLOATS,
        {"bt_nzs": torch.zeros(40, 64).to(torch.float8_e4m3fn)},
        "bt_nzs has shape [40, 64], expected [N, K/2] for K = 160, with rows padded to 16 bytes at most: cutlass_sparse_compress "
        "makes it",
    ),
    "metadata": (
        FLOATS,
        {"bt_meta": torch.zeros(40, 32, dtype=torch.uint8)},
        "bt_meta is [40, 32], expected [up(N,64), up(K,128)//8] = [64, 32]",
    ),
    "metadata with gaps": (
        FLOATS,
        {"bt_meta": torch.zeros(64, 40, dtype=torch.uint8)[:, :32]},
        "bt_meta has strides [40, 1]: metadata lies without gaps, as cutlass_sparse_compress returns it",
    ),
    "scales": (
        FLOATS,
        {"b_scales": torch.ones(39)},
        "b_scales has shape [39] and strides [1]: expected one value, or one for each of 40 columns, without gaps",
    ),
    "dtypes": (
        FLOATS,
        {"bt_nzs": torch.zeros(40, 80, dtype=torch.int8)},
        "bt_nzs is int8 and a is float8_e4m3fn: they must have the same dtype",
    ),
    "zero points of floats": (
        INTEGERS,
        {"a": torch.zeros(5, 160).to(torch.float8_e4m3fn)},
        "a is float8_e4m3fn, expected int8",
    ),
    "a pattern": (
        FLOATS,
        {"bt_meta": torch.full((64, 32), 0x41, dtype=torch.uint8)},
        "bt_meta is no 2:4 metadata: row 0 keeps places 1 and 0 of columns 0 to 3: the first must be the lower",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_call_that_cannot_be_is_told_why(name: str) -> None:
    spec, changes, said = SENTENCES[name]
    arguments = given(spec) | changes
    with pytest.raises(RuntimeError) as error:
        call(spec, arguments)
    assert str(error.value) == f"{spec.op}: {said}"
    assert bool(arguments["out"].isnan().all()), "something was written"


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (
            torch.zeros(4, 6, dtype=torch.bfloat16),
            "a matrix of 6 columns has a group of 2: 2:4 sparsity is of four columns each",
        ),
        (
            torch.eye(4).repeat(2, 3).cumsum(dim=1).to(torch.int8),
            "row 0 has 4 values that are not zero in columns 0 to 3: 2:4 sparsity keeps 2 of 4; prune the matrix first "
            "(gemmill.quantize.pruned)",
        ),
        (
            torch.zeros(4, 8),
            "a is float32 of shape [4, 8], expected a matrix [N, K] of float8_e4m3fn, int8, bfloat16, float16",
        ),
    ],
)
def test_what_cannot_be_compressed(x: Tensor, said: str) -> None:
    with pytest.raises(RuntimeError) as error:
        gemmill.cutlass_sparse_compress(x)
    assert str(error.value) == f"cutlass_sparse_compress: {said}"


def test_a_place_that_is_crowded_is_named() -> None:
    x = torch.zeros(70, 256, dtype=torch.float16)
    x[67, 132], x[67, 133], x[67, 135] = 1, torch.nan, -2
    with pytest.raises(RuntimeError, match="row 67 has 3 values that are not zero in columns 132 to 135"):
        gemmill.cutlass_sparse_compress(x)
    x[67, 133] = -0.0
    values, meta = gemmill.cutlass_sparse_compress(x)
    assert values[67, 66:68].tolist() == [1, -2]
    assert torch.equal(gemmill.cutlass_sparse_decompress(values, meta, 256), x)


def test_rows_may_lie_apart() -> None:
    x, y = given(FLOATS), given(replace(FLOATS, pad=16))
    assert y["a"].stride(0) == 176 and y["bt_nzs"].stride(0) == 96
    assert torch.equal(call(FLOATS, x), call(FLOATS, y))


def test_a_bound_is_wide_enough_for_a_right_kernel_and_too_narrow_for_a_wrong_one() -> None:
    x = given(replace(FLOATS, k=1024))
    b = gemmill.cutlass_sparse_decompress(x["bt_nzs"], x["bt_meta"], 1024).t()
    operands = x["a"], b, x["a_scales"], x["b_scales"]
    exact, bound = exact_mm(*operands), tolerance(*operands, torch.bfloat16)
    rounded = sparse_mm(x["a"], x["bt_nzs"], x["bt_meta"], x["a_scales"], x["b_scales"], torch.bfloat16)
    assert bool(((rounded.double() - exact).abs() <= bound).all())
    lost = exact_mm(x["a"][:, :960], b[:960], x["a_scales"], x["b_scales"])
    assert bool(((lost - exact).abs() > bound).any()), "a step that is left out would not be found"


@pytest.mark.parametrize("config", [next(default(Arch.SM90A)), *smoke(Arch.SM90A)], ids=to_name)
def test_cases_pass_on_a_cpu(config: SparseConfig) -> None:
    cases = list(of_config(config))
    for case in cases[::3]:
        if case.spec.k <= 512:
            assert case.run("cpu").report == "", str(case)
    assert {case.spec.need for case in cases} == set(
        Need if config.operand_dtype is DType.S8 else (Need.SCALE, Need.BIAS)
    )


def test_a_wrong_result_is_found() -> None:
    class Wrong(SparseCase):
        def _made(self, device: str) -> tuple[Any, Any, list[Any]]:
            made, memory, arguments = super()._made(device)
            values = arguments[2].float()
            values[0, 0] += 4
            arguments[2] = values.to(arguments[2].dtype)
            return made, memory, arguments

    assert "elements are wrong" in Wrong(spec=replace(FLOATS, data="integers")).run("cpu").report


def test_names_and_rules() -> None:
    for config in (*default(Arch.SM90A), *sweep(Arch.SM90A)):
        assert parse_name(to_name(config)) == config
    assert all(first_rejection(RULES, config) for config in (*default(Arch.SM90A), *smoke(Arch.SM90A)))
    assert list(default(Arch.SM100A)) == list(smoke(Arch.SM100A)) == list(sweep(Arch.SM100A)) == []
    named = replace(TILE, raster_order=RasterOrder.ALONG_N, swizzle=4)
    assert to_name(named).endswith("_sauto_ralongn_w4") and parse_name(to_name(named)) == named
    assert named.compiled == TILE
    with pytest.raises(ValueError, match="field 'w2', expected nothing more"):
        parse_name(f"{to_name(replace(TILE, swizzle=4))}_w2")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arch": Arch.SM100A}, "sparse kernels are written for sm90a, not for sm100a"),
        ({"out_dtype": DType.F32}, "e4m3 gives bf16 or f16, not f32"),
        (
            {"epilogue": EpilogueKind.SCALED_AZP},
            "epilogue scaledazp corrects zero points of s8, not of e4m3",
        ),
        ({"accumulation": Accumulation.EXACT}, "accumulation of e4m3 is fast or promoted, not exact"),
        ({"kernel_schedule": KernelSchedule.MMA_SYNC}, "sparse kernels have no mmasync schedule"),
        (
            {"tile_scheduler": TileScheduler.SPLIT_K},
            "tiles of sparse kernels are persistent or streamk, not splitk",
        ),
        (
            {"tile_scheduler": TileScheduler.STREAM_K, "kernel_schedule": KernelSchedule.PINGPONG},
            "streamk runs with the cooperative schedule, whose groups share a tile's sums, not pingpong",
        ),
        (
            {"tile_shape_mnk": (128, 128, 64)},
            "tile 128x128x64: rows are a multiple of 128, columns of 16 up to 256, and K of 128, the columns of a block of metadata",
        ),
        ({"cluster_shape_mnk": (1, 1, 2)}, "cluster 1x1x2: at most 8 CTAs share tiles, along M and N"),
        ({"tile_shape_mnk": (256, 256, 128)}, "sums of a tile take 256 registers of a thread, there are 208"),
        ({"stages": 9}, "9 stages of 26624 bytes: 2 or more must fit in 213504"),
        ({"swizzle": 3}, "swizzle 3 is not 1, 2, 4 or 8"),
        (
            {"kernel_schedule": KernelSchedule.BASIC, "swizzle": 2},
            "basic walks tiles in one order: raster order and swizzle do not apply",
        ),
    ],
)
def test_what_the_kernel_cannot_be_made_of(changes: dict[str, Any], reason: str) -> None:
    assert first_rejection(RULES, changed(TILE, **changes)).reason == reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"swap_ab": False}, "swap_ab=False: the sparse operand is the tensor core's first"),
        ({"dtype": DType.E5M2}, "dtype=e5m2: sparse kernels multiply e4m3, s8, bf16, f16"),
        ({"stages": 0}, "stages=0 must be positive"),
    ],
)
def test_what_is_no_config(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        changed(TILE, **changes)


STREAM_K = changed(TILE, tile_scheduler=TileScheduler.STREAM_K)


def test_stream_k_asks_for_a_workspace() -> None:
    assert to_name(STREAM_K) == to_name(TILE).replace("_fast_", "_fast_streamk_")
    text, whole = emit(STREAM_K).text, emit(TILE).text
    for part in ("_workspace(void const* args", "ReductionMode::Deterministic", "gemmill::StreamKScheduler"):
        assert part in text and part not in whole


def test_the_contract_leaves_out_slices_that_follow_from_the_device() -> None:
    order = TUNING.order
    assert order(STREAM_K) is None
    assert order(TILE) is not None
    integers = replace(STREAM_K, operands=Operands(dtype=DType.S8, out_dtype=DType.BF16))
    assert order(changed(integers, accumulation=Accumulation.EXACT)) == EXACT


@pytest.mark.parametrize(
    ("tiles", "steps", "slices"),
    [
        (30, 183, Slices(waves=0, steps=42)),  # 5,490 steps of 132 CTAs
        (200, 64, Slices(waves=0, steps=97)),  # fewer than two waves: all are divided
        (300, 64, Slices(waves=1, steps=82)),  # 132 whole ones, then 168
        (2, 32, Slices(waves=0, steps=8)),  # no slice has fewer than 8 steps
        (264, 64, None),
        (30, 8, None),
        (30, 0, None),
    ],
)
def test_slices_fill_the_multiprocessors(tiles: int, steps: int, slices: Slices | None) -> None:
    row = next(iter(TUNING.rows(STREAM_K, 0)))
    assert slices_of(row.facts, tiles, steps, 132) == slices
    assert slices_of(row.facts._replace(join_ns=0), tiles, steps, 132) is None


def test_few_tiles_and_a_long_k_take_slices() -> None:
    configs = [config for config in default(Arch.SM90A) if config.out_dtype is DType.BF16]
    for dtype, m, n, k, divided in (
        (DType.BF16, 256, 4992, 18560, True),
        (DType.BF16, 96, 9216, 28416, True),
        (DType.BF16, 544, 1408, 3328, False),
        (DType.BF16, 4096, 8192, 8192, False),
    ):
        rows = [next(iter(TUNING.rows(config, 0))) for config in configs if config.operand_dtype is dtype]
        call = ShapedCall(family="sparse_mm", call_class=rows[0].call_class, sizes=(m, n, k), alignments=(16,) * 4)
        best = min(rows, key=lambda row: model_ns(row, call, 132))
        assert bool(best.facts.join_ns) is divided, (dtype, m, n, k)


@pytest.mark.parametrize(("m", "tile_m"), [(1, 16), (16, 16), (4096, 256)])
def test_the_model_gives_few_rows_small_tiles(m: int, tile_m: int) -> None:
    call = ShapedCall(family="sparse_mm", call_class=0, sizes=(m, 8192, 8192), alignments=(16,) * 4)
    rows = [
        row
        for i, config in enumerate(default(Arch.SM90A))
        for row in TUNING.rows(config, i)
        if (config.operand_dtype, config.out_dtype) == (DType.E4M3, DType.BF16)
    ]
    assert min(rows, key=lambda row: model_ns(row, call, 132)).facts.tile_m == tile_m
